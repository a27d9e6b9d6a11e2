//! The wall clock of the coordinator, in the milliseconds that tasks are stored with.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::task::Millis;

pub(crate) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_millis() as Millis
}
