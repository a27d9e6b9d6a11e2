//! Chaos tests: processes, connections and stores fail at random moments under load, and every
//! acknowledged task still has to end once, as stored and as its client saw it.
//!
//! `kills` kills processes with `kill -9` under load: ten rounds by default, and a hundred by
//!
//! ```sh
//! FAULTLINE_ROUNDS=100 cargo test -p faultline-tests --test chaos kills -- --nocapture
//! ```
//!
//! It prints the seed of its plan. `FAULTLINE_SEED` repeats the plan, but not the timing of the
//! machine. `storm` has hundreds of clients reset their connections in mid-request. `faults` kills
//! a worker every second while one agent fails and another hangs, for `FAULTLINE_TASKS` tasks.
//!
//! `cluster` is for several coordinators: `plan` draws faults from a seed, `fault_injector` causes
//! them while `callers` produce load and record their `observations`, and `check` compares those
//! with the store. `rolling` restarts every process in turn, and no client may see a failure.

mod callers;
mod check;
mod clients;
mod cluster;
mod fault_injector;
mod faults;
mod history;
mod kills;
mod observations;
mod plan;
mod rolling;
mod storm;

use tokio::sync::{Mutex, MutexGuard};

faultline_tests::role!();

/// Serializes the tests of this suite: each one uses the whole machine.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// A number from the environment that overrides a default of a test.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}
