//! Seed data of the console: ten thousand tasks of one day, some of them failed. Deterministic.

use std::{path::Path, time::Duration};

use faultline_coordinator::SeedTask;
use faultline_proto::{Failure, reason, v1::Origin};

/// The checks in the browser expect this number, too.
const TASKS: u32 = 10_000;
const DAY_S: u32 = 24 * 60 * 60;
const AGENTS: [&str; 6] = ["planner", "research", "search", "billing", "writer", "refunds"];
const PRINCIPALS: [&str; 3] = ["acme", "globex", "local"];

/// The store URL of a mesh with its data in `dir`.
pub(crate) fn store(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("faultline.db").display())
}

pub(crate) fn tasks() -> impl Iterator<Item = SeedTask> {
    let mut dice = Dice(1);
    (0..TASKS).map(move |number| {
        let of = |names: &[&str], roll: u32| names[roll as usize % names.len()].to_owned();
        // More recent than old tasks, in waves, and none in the last minute.
        let even = (f64::from(number) / f64::from(TASKS)).powf(1.6) * f64::from(DAY_S);
        let ago = 90 + (even + 400.0 * (even / 600.0).sin()) as u32 + dice.roll(30);
        let magnitude = dice.roll(13);
        let took = 30 + dice.roll(1 << magnitude);
        SeedTask {
            agent: of(&AGENTS, dice.roll(6)),
            principal: of(&PRINCIPALS, dice.roll(3)),
            ago: Duration::from_secs(ago.into()),
            took: Duration::from_millis(took.into()),
            failure: (dice.roll(20) == 0).then(|| failure(dice.roll(16))),
            ..SeedTask::default()
        }
    })
}

fn failure(roll: u32) -> Failure {
    let (row, text, agent) = match roll {
        0..7 => (&reason::RATE_LIMITED, "The card processor takes 20 calls a minute", "ledger"),
        7..11 => (&reason::READ_TIMEOUT, "The index did not answer for 30 s", "search"),
        11..13 => (&reason::RATE_LIMITED, "Too many queries", "search"),
        13 => (&reason::AGENT_PANICKED, "The agent panicked", "writer"),
        14 => (&reason::WORKER_LOST, "Lost on 3 workers", "research"),
        _ => (&reason::INVALID_ARGUMENT, "There is no order 4712", "billing"),
    };
    let worker = "worker-eu-1".to_owned();
    Failure::new(row).because(text).born_at(Origin {
        agent: agent.to_owned(),
        worker,
        service: String::new(),
    })
}

/// A linear congruential generator, so that the data is the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(sides)) as u32
    }
}
