//! Leaving in order. A service hears that it should stop, finishes what it holds, and returns.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Handed to every service; cheap to clone. Signalled once, for all clones.
#[derive(Clone, Debug, Default)]
pub struct Drain(CancellationToken);

impl Drain {
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells every holder to finish and leave.
    pub fn start(&self) {
        self.0.cancel();
    }

    /// Whether it is time to leave.
    pub fn is_signalled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Returns once it is time to leave; at once if it already is.
    pub async fn signalled(&self) {
        self.0.cancelled().await;
    }

    /// Runs `work`, but for at most `patience` after the signal. `None`: it was cut short.
    pub async fn bound<T>(&self, patience: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = async { self.signalled().await; tokio::time::sleep(patience).await } => None,
        }
    }
}
