//! What those who answer can know of who reads their answer, and do about it: that the connection
//! does not read, on whichever HTTP, and the end of one stream of HTTP/2. Each of those is a task,
//! and can be ended from inside: hyper does not poll a body for whose bytes the peer has no room,
//! so whoever makes the body could not end it otherwise.

use std::sync::Arc;

use hyper::rt::Executor;
use tokio::task::futures::TaskLocalFuture;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;

tokio::task_local! {
    static END: CancellationToken;
    static CONNECTION: Arc<Connection>;
}

/// Resets the HTTP/2 stream that this was called in, once it is cancelled. None elsewhere: an
/// HTTP/1 connection is cut when its peer does not read.
pub fn stream_reset() -> Option<CancellationToken> {
    END.try_with(Clone::clone).ok()
}

/// Whether this is called in a stream of HTTP/2.
pub(super) fn is_stream() -> bool {
    END.try_with(|_| ()).is_ok()
}

/// Cancelled once the peer that is answered here has taken nothing of its connection for too long.
/// For some time more it may return and read what is said then.
pub fn peer_stall() -> Option<CancellationToken> {
    CONNECTION.try_with(|connection| connection.warning.token()).ok()
}

/// The connection that is answered here.
pub(super) fn connection() -> Option<Arc<Connection>> {
    CONNECTION.try_with(Arc::clone).ok()
}

/// Runs a connection, whose own streams may be tasks, so that whoever answers finds it.
pub(super) fn known<C: Future>(
    connection: Arc<Connection>,
    serving: C,
) -> TaskLocalFuture<Arc<Connection>, C> {
    // No async function: that would hold the connection, which is large, twice.
    CONNECTION.scope(connection, serving)
}

#[cfg(test)]
pub(super) fn within(connection: &Arc<Connection>, work: impl FnOnce()) {
    CONNECTION.sync_scope(Arc::clone(connection), work);
}

/// What hyper runs the streams of one connection on.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Arc<Connection>);

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        // Dropped, it is reset before anything is done for it.
        let Ok(open) = self.0.stream() else { return };
        let end = CancellationToken::new();
        let ended = end.clone();
        let stream = async move {
            ended.run_until_cancelled(stream).await;
            drop(open);
        };
        tokio::spawn(known(Arc::clone(&self.0), END.scope(end, stream)));
    }
}
