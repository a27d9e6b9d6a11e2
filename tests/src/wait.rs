//! Bounded waits: a condition is polled until it holds or the test fails.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Bound for most waits, chosen for a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

/// Polls until the closure returns a value, and returns it. Fails the test after `within`.
pub async fn until<T, F>(what: &str, within: Duration, mut poll: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + within;
    loop {
        if let Some(value) = poll().await {
            return value;
        }
        assert!(Instant::now() < end, "waited {within:?} in vain until {what}");
        sleep(POLL_INTERVAL).await;
    }
}
