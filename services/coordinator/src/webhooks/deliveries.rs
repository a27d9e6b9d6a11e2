//! The deliveries to webhooks that run at the moment, by configuration.

use std::collections::HashMap;

use tokio_util::sync::CancellationToken;

use crate::store::PushKey;

/// The running deliveries. A delivery that is removed is cancelled and writes nothing more, so the
/// old delivery of a replaced or deleted configuration cannot change its row.
#[derive(Default)]
pub(crate) struct Deliveries(HashMap<PushKey, RunningDelivery>);

struct RunningDelivery(CancellationToken);

impl Drop for RunningDelivery {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Deliveries {
    /// A place for a new delivery, instead of the one before.
    pub(crate) fn enter(&mut self, key: PushKey) -> CancellationToken {
        let stop = CancellationToken::new();
        self.0.insert(key, RunningDelivery(stop.clone()));
        stop
    }

    pub(crate) fn stop(&mut self, key: &PushKey) {
        self.0.remove(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn stop_all(&mut self) {
        self.0.clear();
    }

    /// Clears the place of a delivery that is over, unless it is another's by now.
    pub(crate) fn leave(&mut self, key: &PushKey) {
        if self.0.get(key).is_some_and(|running| running.0.is_cancelled()) {
            self.0.remove(key);
        }
    }
}
