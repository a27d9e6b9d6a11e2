//! A connection whose peer has to read what is sent to it. One that takes nothing for too long
//! while something waits is cut: bodies are not even polled then, so nothing above could notice.

use std::{
    error::Error as StdError,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::dial;

/// How its text begins. It is known by that: of an error of the connection HTTP/2 keeps the text
/// only.
const STALLED: &str = "the peer took no bytes for";

/// Why the connection was cut: nothing was taken for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{STALLED} {0:?}")]
pub struct Stalled(pub Duration);

impl Stalled {
    /// What it says, if it is among the causes of an error, whatever was put around it.
    pub fn within(error: &(dyn StdError + 'static)) -> Option<String> {
        dial::causes(error).map(|cause| cause.to_string()).find_map(|text| {
            let at = text.find(STALLED)?;
            Some(text[at..].to_owned())
        })
    }
}

#[derive(Debug)]
pub(crate) struct Impatient<S> {
    inner: S,
    /// How long the peer may take nothing; none: for ever.
    patience: Option<Duration>,
    /// Since when the peer takes nothing; none while it does.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(crate) fn new(inner: S, patience: Option<Duration>) -> Self {
        Self { inner, patience, alarm: None }
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.inner
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
        let Some(patience) = self.patience else { return polled };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep(patience)));
        let stalled = || io::Error::new(io::ErrorKind::TimedOut, Stalled(patience));
        alarm.as_mut().poll(cx).map(|()| Err(stalled()))
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
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::Instant,
    };

    use super::*;
    use crate::limits;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_cut_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Impatient::new(ours, Some(limits::READER_STALL));
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
        assert_eq!(Stalled::within(&stuck).as_deref(), Some("the peer took no bytes for 60s"));
        assert_eq!(start.elapsed(), limits::READER_STALL);
        drop(theirs);
    }
}
