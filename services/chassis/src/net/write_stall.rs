//! A connection whose peer has to read what is sent to it. One that takes nothing for too long
//! while something waits is cut: bodies are not even polled then, so nothing above could notice.
//! Whoever answers may be warned some time before, to have a last word ready should the peer
//! return.

use std::{
    error::Error as StdError,
    io::{self, IoSlice},
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::error_chain::causes;

/// How its text begins. It is known by that: of an error of the connection HTTP/2 keeps the text
/// only.
const STALLED: &str = "the peer took no bytes for";

/// Why the connection was cut: nothing was taken for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{STALLED} {0:?}")]
pub struct Stalled(pub Duration);

impl Stalled {
    /// What it says, if it is among the causes of an error, whatever was put around it.
    pub fn find_in(error: &(dyn StdError + 'static)) -> Option<String> {
        causes(error).map(|cause| cause.to_string()).find_map(|text| {
            let at = text.find(STALLED)?;
            Some(text[at..].to_owned())
        })
    }
}

/// Tells those who answer on a connection that its peer does not read. Each stall is told to those
/// who were there before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warning(Arc<Signals>);

#[derive(Debug, Default)]
struct Signals {
    next_stall: Mutex<CancellationToken>,
    is_blocked: AtomicBool,
}

impl Warning {
    /// Cancelled at the next stall.
    pub(crate) fn token(&self) -> CancellationToken {
        self.0.next_stall.lock().clone()
    }

    /// Whether bytes wait at this moment for the peer to take them.
    pub(crate) fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    fn give(&self) {
        mem::take(&mut *self.0.next_stall.lock()).cancel();
    }

    fn set_blocked(&self, is_blocked: bool) {
        self.0.is_blocked.store(is_blocked, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Impatient<S> {
    inner: S,
    /// How long the peer may take nothing; none: for ever.
    patience: Option<Duration>,
    /// What is told when, before the patience even begins.
    warning: Option<(Duration, Warning)>,
    /// Set while the peer takes nothing.
    alarm: Option<Alarm>,
}

#[derive(Debug)]
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    is_last: bool,
}

impl<S> Impatient<S> {
    pub(crate) fn new(inner: S, patience: Option<Duration>) -> Self {
        Self { inner, patience, warning: None, alarm: None }
    }

    /// Warns after so much time, and is patient from then on.
    pub(crate) fn warning(self, after: Duration, warning: Warning) -> Self {
        Self { warning: Some((after, warning)), ..self }
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.inner
    }

    fn set_blocked(&self, is_blocked: bool) {
        if let Some((_, warning)) = &self.warning {
            warning.set_blocked(is_blocked);
        }
    }

    fn watch<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if self.alarm.take().is_some() {
                self.set_blocked(false);
            }
            return polled;
        }
        let Some(patience) = self.patience else { return polled };
        if self.alarm.is_none() {
            self.set_blocked(true);
        }
        let first = self.warning.as_ref().map(|(after, _)| *after);
        let alarm = self.alarm.get_or_insert_with(|| Alarm {
            sleep: Box::pin(sleep(first.unwrap_or(patience))),
            is_last: first.is_none(),
        });
        while alarm.sleep.as_mut().poll(cx).is_ready() {
            if alarm.is_last {
                let stalled = Stalled(patience + first.unwrap_or_default());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, stalled)));
            }
            if let Some((_, warning)) = &self.warning {
                warning.give();
            }
            alarm.is_last = true;
            alarm.sleep.as_mut().reset(Instant::now() + patience);
        }
        Poll::Pending
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
        assert_eq!(Stalled::find_in(&stuck).as_deref(), Some("the peer took no bytes for 60s"));
        assert_eq!(start.elapsed(), limits::READER_STALL);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn before_the_cut_those_who_answer_are_warned_and_the_peer_may_return() {
        let (stall, farewell) = (limits::READER_STALL, limits::READER_RETURN_TIMEOUT);
        let (ours, mut theirs) = duplex(4);
        let warning = Warning::default();
        let mut ours = Impatient::new(ours, Some(farewell)).warning(stall, warning.clone());
        let (first, start) = (warning.token(), Instant::now());
        let returns = async {
            first.cancelled().await;
            assert_eq!(start.elapsed(), stall);
            tokio::time::sleep(farewell - Duration::from_secs(1)).await;
            theirs.read_exact(&mut [0; 4]).await.unwrap();
            theirs
        };
        let (written, theirs) = tokio::join!(ours.write_all(&[7; 8]), returns);
        written.unwrap();
        let (second, start) = (warning.token(), Instant::now());
        assert!(!second.is_cancelled(), "that stall was another's");
        let stuck = ours.write_all(b"more").await.unwrap_err();
        assert_eq!(start.elapsed(), stall + farewell);
        assert_eq!(Stalled::find_in(&stuck).as_deref(), Some("the peer took no bytes for 75s"));
        assert!(second.is_cancelled());
        drop(theirs);
    }
}
