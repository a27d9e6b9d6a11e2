//! A minimal HTTP/1.1 client: one request at a time on a persistent connection, and responses with
//! a length or in chunks. Any other response is an error.

use std::{io, net::SocketAddr, ops::Range};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const READ_BYTES: usize = 8 * 1024;

/// A persistent connection and the buffers of its current response.
pub(crate) struct Connection {
    stream: TcpStream,
    /// The bytes of the response.
    raw: Vec<u8>,
    /// The body of a chunked response.
    joined: Vec<u8>,
    /// The position of the next chunk.
    at: usize,
}

/// The relevant fields of a response head.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// `None`: chunked.
    length: Option<usize>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, raw: Vec::with_capacity(2 * READ_BYTES), joined: Vec::new(), at: 0 })
    }

    /// Sends one request and reads the whole response; its status and body.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        let (head, start) = self.send(request).await?;
        let body = match head.length {
            Some(length) => {
                while self.raw.len() < start + length {
                    self.read().await?;
                }
                &self.raw[start..start + length]
            }
            None => {
                self.at = start;
                while self.next_chunk().await? {}
                &self.joined
            }
        };
        Ok((head.status, body))
    }

    /// Sends one request and reads its response, a stream, up to the first chunk.
    pub(crate) async fn begin(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let (head, start) = self.send(request).await?;
        self.at = start;
        if head.status != 200 || head.length.is_some() {
            bail!("no stream: {}", String::from_utf8_lossy(&self.raw));
        }
        self.next_chunk().await?;
        Ok(())
    }

    /// Reads the stream to its end; the data after the first chunk.
    pub(crate) async fn finish(&mut self) -> anyhow::Result<&[u8]> {
        self.joined.clear();
        while self.next_chunk().await? {}
        Ok(&self.joined)
    }

    async fn send(&mut self, request: &[u8]) -> anyhow::Result<(Head, usize)> {
        self.raw.clear();
        self.joined.clear();
        self.stream.write_all(request).await?;
        loop {
            self.read().await?;
            if let Some(end) = find(&self.raw, b"\r\n\r\n") {
                return Ok((parse_head(&self.raw[..end])?, end + 4));
            }
        }
    }

    /// Reads one more chunk of the body; false at its end.
    async fn next_chunk(&mut self) -> anyhow::Result<bool> {
        loop {
            match chunk(&self.raw, self.at)? {
                None => self.read().await?,
                Some(chunk) if chunk.is_empty() => return Ok(false),
                Some(chunk) => {
                    self.at = chunk.end + 2;
                    self.joined.extend_from_slice(&self.raw[chunk]);
                    return Ok(true);
                }
            }
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        self.raw.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.raw).await? {
            0 => bail!("the connection was closed"),
            _ => Ok(()),
        }
    }
}

fn parse_head(head: &[u8]) -> anyhow::Result<Head> {
    let head = std::str::from_utf8(head).context("a head that is not text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.context("not HTTP")?;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.trim().parse().context("content-length")?;
            return Ok(Head { status, length: Some(length) });
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(Head { status, length: None });
        }
    }
    bail!("an answer without a length")
}

/// The range of the chunk with the size line at `at`; `None`: not yet complete. An empty range is
/// the end of the body.
fn chunk(raw: &[u8], at: usize) -> anyhow::Result<Option<Range<usize>>> {
    let Some(line) = find(&raw[at.min(raw.len())..], b"\r\n") else { return Ok(None) };
    let size = std::str::from_utf8(&raw[at..at + line]).context("chunk size")?;
    let size = usize::from_str_radix(size, 16).context("chunk size")?;
    let start = at + line + 2;
    Ok((raw.len() >= start + size + 2).then_some(start..start + size))
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_gives_the_length_of_the_body() {
        let read = |text: &str| parse_head(text.as_bytes()).unwrap();
        let plain = read("HTTP/1.1 200 OK\r\nContent-Length: 12");
        assert_eq!(plain, Head { status: 200, length: Some(12) });
        let chunked = read("HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked");
        assert_eq!(chunked, Head { status: 503, length: None });
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nx: y").is_err());
    }

    #[test]
    fn chunks_are_found_once_they_are_complete() {
        let raw = b"..a\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(chunk(raw, 2).unwrap(), Some(5..15));
        assert_eq!(chunk(&raw[..16], 2).unwrap(), None);
        assert_eq!(chunk(raw, 17).unwrap(), Some(20..20));
        assert_eq!(chunk(&raw[..20], 17).unwrap(), None);
        assert_eq!(chunk(raw, 99).unwrap(), None);
        assert!(chunk(b"zz\r\n", 0).is_err());
    }
}
