//! Raw TCP clients for malformed, slow and interrupted HTTP requests.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The head of a POST whose body has `length` bytes of JSON.
pub fn post_head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         a2a-version: 1.0\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Sends a whole POST, and resets the connection after `after` at the latest.
pub async fn post_and_reset(address: SocketAddr, body: &str, after: Duration) -> io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_zero_linger()?;
    stream.write_all(post_head("/", body.len()).as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    // The answer is not read to its end.
    let mut some = [0; 64];
    let _ = timeout(after, stream.read(&mut some)).await;
    Ok(())
}

/// Reads until the server closes the connection; an error if it stays open for too long.
pub async fn read_to_close(
    stream: &mut (impl AsyncRead + Unpin),
    within: Duration,
) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    match timeout(within, stream.read_to_end(&mut all)).await? {
        Ok(_) => Ok(all),
        // A reset closes the connection as well.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(all),
        Err(error) => Err(error),
    }
}
