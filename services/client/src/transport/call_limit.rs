//! Limit on the concurrent calls of one client (bulkhead): a server that hangs blocks its own
//! client and no other.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::{retry::Fault, timeouts::Layer};

/// Shared by all clones of a client.
#[derive(Clone, Debug)]
pub(crate) struct CallLimit {
    calls: Arc<Semaphore>,
    timeout: Option<Duration>,
}

impl CallLimit {
    pub(crate) fn new(calls: usize, timeout: Option<Duration>) -> Self {
        let calls = Semaphore::new(calls.min(Semaphore::MAX_PERMITS));
        Self { calls: Arc::new(calls), timeout }
    }

    /// Waits for a permit; dropping the permit returns it.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let place = Arc::clone(&self.calls).acquire_owned();
        let place = Layer::Pool.bound(self.timeout, place).await?;
        Ok(place.expect("the semaphore is never closed"))
    }
}
