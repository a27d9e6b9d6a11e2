//! A connection whose peer has to read what it asked for. One that takes nothing for a minute while
//! something waits is cut: bodies are not even polled then, so nothing above could notice.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::limits;

pub(super) struct Impatient<S> {
    inner: S,
    /// Since when the peer takes nothing; none while it does.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, alarm: None }
    }

    fn watch<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.alarm = None;
            return polled;
        }
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(limits::READER_STALL)));
        let text = "the peer does not read";
        alarm.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.watch(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.watch(shut, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_cut_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Impatient::new(ours);
        let slow = async {
            let mut taken = [0; 4];
            for _ in 0..3 {
                tokio::time::sleep(limits::READER_STALL - Duration::from_secs(1)).await;
                theirs.read_exact(&mut taken).await.unwrap();
            }
            theirs
        };
        let (written, theirs) = tokio::join!(ours.write_all(&[7; 16]), slow);
        written.unwrap();
        let start = Instant::now();
        let stuck = ours.write_all(b"more").await.unwrap_err();
        assert_eq!(stuck.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), limits::READER_STALL);
        drop(theirs);
    }
}
