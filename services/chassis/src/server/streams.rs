//! What those who answer can know of who reads their answer, and do about it: that the connection
//! does not read, on whichever HTTP, and the end of one stream of HTTP/2. Each of those is a task,
//! and can be ended from inside: hyper does not poll a body for whose bytes the peer has no room,
//! so whoever makes the body could not end it otherwise.

use hyper::rt::Executor;
use tokio::task::futures::TaskLocalFuture;
use tokio_util::sync::CancellationToken;

use crate::stall::Warning;

tokio::task_local! {
    static END: CancellationToken;
    static WARNING: Warning;
}

/// Resets the HTTP/2 stream that this was called in, once it is cancelled. None elsewhere: an
/// HTTP/1 connection is cut when its peer does not read.
pub fn stream_end() -> Option<CancellationToken> {
    END.try_with(Clone::clone).ok()
}

/// Cancelled once the peer that is answered here has taken nothing of its connection for too long.
/// For some time more it may return and read what is said then.
pub fn peer_stall() -> Option<CancellationToken> {
    WARNING.try_with(Warning::token).ok()
}

/// Runs a connection, whose own streams may be tasks, so that they hear of its stalls.
pub(super) fn warned<C: Future>(warning: Warning, connection: C) -> TaskLocalFuture<Warning, C> {
    // No async function: that would hold the connection, which is large, twice.
    WARNING.scope(warning, connection)
}

/// What hyper runs the streams of one connection on.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Warning);

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let end = CancellationToken::new();
        let ended = end.clone();
        let stream = async move {
            ended.run_until_cancelled(stream).await;
        };
        tokio::spawn(warned(self.0.clone(), END.scope(end, stream)));
    }
}
