//! Clients that do not behave: bytes on a socket, as slowly or as brokenly as a test wants.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The head of a POST of so many bytes of JSON.
pub fn post_head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         a2a-version: 1.0\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Sends a whole POST and leaves with a reset, whatever the server is doing.
pub async fn post_and_reset(address: SocketAddr, body: &str, after: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_zero_linger()?;
    stream.write_all(post_head("/", body.len()).as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    // Whatever comes in that time is not read to its end.
    let mut some = [0; 64];
    let _ = timeout(after, stream.read(&mut some)).await;
    Ok(())
}

/// Everything the server sends until it closes the connection; an error if it does not in time.
pub async fn read_to_close(
    stream: &mut (impl AsyncRead + Unpin),
    within: Duration,
) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    match timeout(within, stream.read_to_end(&mut all)).await? {
        Ok(_) => Ok(all),
        // A reset closes it too.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(all),
        Err(error) => Err(error),
    }
}
