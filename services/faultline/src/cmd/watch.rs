//! `faultline watch`: follows an existing task.

use crate::{
    client::{
        connect::Connect,
        follow::{FollowOptions, follow},
    },
    exit::Exit,
};

const EXAMPLES: &str = "\
Examples:
  faultline watch 0199a1b2-…
  faultline watch --json 0199a1b2-… | jq .";

/// Follow a task from its current state to its end.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The task to follow.
    task: String,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let headline = format!("watch of task {} failed", self.task);
        let connect = self.connect;
        connect.run(async |client| {
            let events = client.follow_task(&self.task, None);
            let following = FollowOptions { answer: None, headline: &headline };
            follow(&connect, &client, following, async { Ok(events) }).await
        })
    }
}
