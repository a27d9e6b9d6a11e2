//! The streams of HTTP/2: each is a task, and can be ended from inside. hyper does not poll a body
//! for whose bytes the peer has no room, so whoever makes the body could not end it otherwise.

use hyper::rt::Executor;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    static END: CancellationToken;
}

/// Resets the HTTP/2 stream that this was called in, once it is cancelled. None elsewhere: an
/// HTTP/1 connection is cut when its peer does not read.
pub fn stream_end() -> Option<CancellationToken> {
    END.try_with(Clone::clone).ok()
}

/// What hyper runs its streams on.
#[derive(Clone, Copy)]
pub(super) struct Streams;

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(END.scope(end, async move {
            ended.run_until_cancelled(stream).await;
        }));
    }
}
