//! `faultline cancel`: cancels a task.

use faultline_proto::failure::state_word;

use crate::{client::connect::Connect, exit::Exit};

const EXAMPLES: &str = "\
Examples:
  faultline cancel 0199a1b2-…";

/// Cancel a task and every task that it delegated: their agents receive a stop.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The task to cancel.
    task: String,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let connect = self.connect;
        connect.run(async |client| {
            let task = match client.cancel(&self.task).await {
                Ok(task) => task,
                Err(error) => {
                    return connect
                        .report_error(error, &format!("cancel of task {} failed", self.task));
                }
            };
            connect.print(&task, |_| {
                let state = task.status.as_ref().map(|s| s.state()).unwrap_or_default();
                format!("task {} {}", task.id, state_word(state))
            })?;
            Ok(Exit::OK)
        })
    }
}
