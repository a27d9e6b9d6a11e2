//! `faultline get`: the current state of one task.

use crate::{client::connect::Connect, exit::Exit, output::task};

const EXAMPLES: &str = "\
Examples:
  faultline get 0199a1b2-…
  faultline get --json 0199a1b2-… | jq .status.state";

/// Show a task: its state, its artifacts and its failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The task to show.
    task: String,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let connect = self.connect;
        connect.run(async |client| {
            match client.task(&self.task).await {
                Ok(task) => connect.print(&task, |style| task::card(&task, style))?,
                Err(error) => {
                    return connect
                        .report_error(error, &format!("get of task {} failed", self.task));
                }
            }
            Ok(Exit::OK)
        })
    }
}
