//! Graceful shutdown: a signal to finish the work in progress and to return.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The shutdown signal of one process or mesh. Every service has a clone; it is signalled once, for
/// all clones.
#[derive(Clone, Debug, Default)]
pub struct Drain(CancellationToken);

impl Drain {
    pub fn new() -> Self {
        Self::default()
    }

    /// Signals every holder to finish and leave.
    pub fn start(&self) {
        self.0.cancel();
    }

    /// Whether the shutdown has started.
    pub fn is_signalled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Returns once the shutdown starts; at once if it already has.
    pub async fn signalled(&self) {
        self.0.cancelled().await;
    }

    /// Runs `work`, but for at most `patience` after the signal. `None`: it ran out of time.
    pub async fn bound<T>(&self, patience: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = async { self.signalled().await; tokio::time::sleep(patience).await } => None,
        }
    }
}
