//! Write timeout of a connection: a peer that takes no bytes while some wait is disconnected. hyper
//! does not poll a response body without room (flow control), so no layer above could notice. A
//! warning before the timeout lets a handler prepare a last event for a peer that returns.

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

/// The beginning of the error's text. HTTP/2 keeps only the text of a connection error, so the
/// error is recognised by it.
const STALLED: &str = "the peer took no bytes for";

/// The connection was closed: the peer took nothing for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{STALLED} {0:?}")]
pub struct Stalled(pub Duration);

impl Stalled {
    /// The text of this error, if it is anywhere in an error chain.
    pub fn find_in(error: &(dyn StdError + 'static)) -> Option<String> {
        causes(error).map(|cause| cause.to_string()).find_map(|text| {
            let at = text.find(STALLED)?;
            Some(text[at..].to_owned())
        })
    }
}

/// Warns the handlers on a connection that its peer does not read. A stall cancels the tokens that
/// were taken before it.
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

    /// Whether bytes wait for the peer at this moment.
    pub(crate) fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    fn fire(&self) {
        mem::take(&mut *self.0.next_stall.lock()).cancel();
    }

    fn set_blocked(&self, is_blocked: bool) {
        self.0.is_blocked.store(is_blocked, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct WriteTimeout<S> {
    inner: S,
    /// Longest time without progress after the warning; none: no limit.
    timeout: Option<Duration>,
    /// The time without progress before the warning, and its receiver.
    warning: Option<(Duration, Warning)>,
    /// Runs while the peer takes nothing.
    alarm: Option<Alarm>,
}

#[derive(Debug)]
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    is_last: bool,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(inner: S, timeout: Option<Duration>) -> Self {
        Self { inner, timeout, warning: None, alarm: None }
    }

    /// Warns after this time without progress. The write timeout begins with the warning.
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
        let Some(timeout) = self.timeout else { return polled };
        if self.alarm.is_none() {
            self.set_blocked(true);
        }
        let first = self.warning.as_ref().map(|(after, _)| *after);
        let alarm = self.alarm.get_or_insert_with(|| Alarm {
            sleep: Box::pin(sleep(first.unwrap_or(timeout))),
            is_last: first.is_none(),
        });
        while alarm.sleep.as_mut().poll(cx).is_ready() {
            if alarm.is_last {
                let stalled = Stalled(timeout + first.unwrap_or_default());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, stalled)));
            }
            if let Some((_, warning)) = &self.warning {
                warning.fire();
            }
            alarm.is_last = true;
            alarm.sleep.as_mut().reset(Instant::now() + timeout);
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
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
    async fn stalled_peer_is_disconnected_and_a_slow_one_is_not() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = WriteTimeout::new(ours, Some(limits::READER_STALL));
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
    async fn handlers_are_warned_before_the_write_timeout_and_the_peer_may_return() {
        let stall = limits::READER_STALL;
        let return_timeout = limits::READER_RETURN_TIMEOUT;
        let (ours, mut theirs) = duplex(4);
        let warning = Warning::default();
        let mut ours =
            WriteTimeout::new(ours, Some(return_timeout)).warning(stall, warning.clone());
        let first = warning.token();
        let start = Instant::now();
        let returns = async {
            first.cancelled().await;
            assert_eq!(start.elapsed(), stall);
            tokio::time::sleep(return_timeout - Duration::from_secs(1)).await;
            theirs.read_exact(&mut [0; 4]).await.unwrap();
            theirs
        };
        let (written, theirs) = tokio::join!(ours.write_all(&[7; 8]), returns);
        written.unwrap();
        let second = warning.token();
        let start = Instant::now();
        assert!(!second.is_cancelled(), "the token was taken after that stall");
        let stuck = ours.write_all(b"more").await.unwrap_err();
        assert_eq!(start.elapsed(), stall + return_timeout);
        assert_eq!(Stalled::find_in(&stuck).as_deref(), Some("the peer took no bytes for 75s"));
        assert!(second.is_cancelled());
        drop(theirs);
    }
}
