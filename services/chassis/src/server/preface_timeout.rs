//! A timeout for the first bytes of a connection. hyper's timeouts begin only after the bytes that
//! determine the HTTP version: without this one, a client that sends a single `P` would hold its
//! connection for ever.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    time::timeout,
};

use crate::limits;

/// The connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose first bytes were read ahead and will be read again.
pub(super) struct WithPreface<S> {
    inner: S,
    head: [u8; PREFACE.len()],
    /// The bytes of `head` that were read ahead, and how many of them were read again.
    len: usize,
    taken: usize,
}

/// Reads, for a bounded time, until the HTTP version is known.
pub(super) async fn read_preface<S: AsyncRead + Unpin>(inner: S) -> io::Result<WithPreface<S>> {
    let mut stream = WithPreface { inner, head: [0; PREFACE.len()], len: 0, taken: 0 };
    timeout(limits::HEADER_READ_TIMEOUT, stream.read_ahead()).await??;
    Ok(stream)
}

impl<S> WithPreface<S> {
    /// Whether the client speaks HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.head[..self.len] == *PREFACE
    }
}

impl<S: AsyncRead + Unpin> WithPreface<S> {
    async fn read_ahead(&mut self) -> io::Result<()> {
        while self.len < PREFACE.len() && PREFACE.starts_with(&self.head[..self.len]) {
            match self.inner.read(&mut self.head[self.len..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.len += n,
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithPreface<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let ahead = &this.head[this.taken..this.len];
        if ahead.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let n = ahead.len().min(buf.remaining());
        buf.put_slice(&ahead[..n]);
        this.taken += n;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithPreface<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn bytes_read_ahead_are_read_again_in_pieces_of_any_size() {
        for sent in ["GET / HTTP/1.1\r\n", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand more"] {
            for size in 1..30 {
                let (mut client, server) = tokio::io::duplex(64);
                client.write_all(sent.as_bytes()).await.unwrap();
                // A client that disconnects before the end of the preface is no client.
                drop(client);
                let Ok(mut stream) = read_preface(server).await else {
                    assert_eq!(sent, "P");
                    continue;
                };
                let mut read = Vec::new();
                let mut piece = vec![0; size];
                while let n @ 1.. = stream.read(&mut piece).await.unwrap() {
                    read.extend_from_slice(&piece[..n]);
                }
                assert_eq!(read, sent.as_bytes(), "in pieces of {size}");
            }
        }
    }
}
