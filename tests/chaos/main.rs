//! What holds when everything dies at any moment.
//!
//! `kills` kills processes with `kill -9` at random moments under load, ten rounds by default and
//! a hundred by
//!
//! ```sh
//! FAULTLINE_ROUNDS=100 cargo test -p faultline-tests --test chaos kills -- --nocapture
//! ```
//!
//! It prints the seed of its plan; `FAULTLINE_SEED` repeats a plan, though not what the machine
//! made of it. `storm` lets clients die in mid-request, hundreds at a time. `faults` has a worker
//! die every second while an agent fails and another hangs, for as many tasks as
//! `FAULTLINE_TASKS` says.
//!
//! `cluster` is for several coordinators: it draws a `plan` from a seed, `deeds` does it while
//! `callers` call, and `check` reads what was `told`. `rolling` restarts everything in turn, of
//! which nobody may notice anything.

mod callers;
mod check;
mod clients;
mod cluster;
mod deeds;
mod faults;
mod history;
mod kills;
mod plan;
mod rolling;
mod storm;
mod told;

use tokio::sync::{Mutex, MutexGuard};

faultline_tests::role!();

/// Each test here takes all the machine there is, so they take turns.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// A number that somebody may set to see more or to see it again.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}
