//! Task-local access to the connection and the HTTP/2 stream of the current request. hyper does not
//! poll a response body while the peer has no flow-control window, so a body cannot end itself.
//! Each HTTP/2 stream is therefore a task that a handler can cancel, and a handler learns of a peer
//! that does not read.

use std::sync::Arc;

use hyper::rt::Executor;
use tokio::task::futures::TaskLocalFuture;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;

tokio::task_local! {
    static END: CancellationToken;
    static CONNECTION: Arc<Connection>;
}

/// Cancelling the token resets the current HTTP/2 stream. None for HTTP/1: the whole connection is
/// closed when its peer does not read.
pub fn stream_reset() -> Option<CancellationToken> {
    END.try_with(Clone::clone).ok()
}

/// Whether the current request is an HTTP/2 stream.
pub(super) fn is_stream() -> bool {
    END.try_with(|_| ()).is_ok()
}

/// Cancelled once the peer of the current request has taken no bytes for too long. The peer may
/// still return and read a last event.
pub fn peer_stall() -> Option<CancellationToken> {
    CONNECTION.try_with(|connection| connection.warning.token()).ok()
}

/// The connection of the current request.
pub(super) fn connection() -> Option<Arc<Connection>> {
    CONNECTION.try_with(Arc::clone).ok()
}

/// Runs a connection, or a task of one of its streams, with access to it.
pub(super) fn with_connection<C: Future>(
    connection: Arc<Connection>,
    serving: C,
) -> TaskLocalFuture<Arc<Connection>, C> {
    // Not an async function: it would hold the connection, which is large, twice.
    CONNECTION.scope(connection, serving)
}

#[cfg(test)]
pub(super) fn within(connection: &Arc<Connection>, work: impl FnOnce()) {
    CONNECTION.sync_scope(Arc::clone(connection), work);
}

/// The executor of the HTTP/2 streams of one connection.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) Arc<Connection>);

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for StreamExecutor {
    fn execute(&self, stream: S) {
        // Dropping the future resets the stream before any work is done for it.
        let Ok(open) = self.0.stream() else { return };
        let end = CancellationToken::new();
        let ended = end.clone();
        let stream = async move {
            ended.run_until_cancelled(stream).await;
            drop(open);
        };
        tokio::spawn(with_connection(Arc::clone(&self.0), END.scope(end, stream)));
    }
}
