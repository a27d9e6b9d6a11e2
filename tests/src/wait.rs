//! Waiting for something to be so: looked at again and again, and never for ever.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const LOOK: Duration = Duration::from_millis(20);

/// What most things may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

/// Looks until there is something to see, and gives it. Fails the test after `within`.
pub async fn until<T, F>(what: &str, within: Duration, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + within;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < end, "waited {within:?} in vain until {what}");
        sleep(LOOK).await;
    }
}
