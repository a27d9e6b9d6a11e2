//! `faultline answer`: gives a waiting task what it asked for and follows it on.

use faultline_client::text;

use crate::{
    cmd::connect::{Connect, text_or_stdin},
    exit::Exit,
    follow::{Following, follow},
};

const EXAMPLES: &str = "\
Examples:
  faultline answer 0199a1b2-… \"yes\"
  faultline answer 0199a1b2-… - < reply.txt";

/// Answer the question of a task that waits, and follow it on.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The task that asked.
    task: String,
    /// The answer; `-` reads stdin.
    #[arg(allow_hyphen_values = true)]
    text: String,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let draft = text(text_or_stdin(self.text)?).to_task(&self.task).idempotent();
        let headline = format!("answer to task {} failed", self.task);
        let connect = self.connect;
        connect.run(async |client| {
            let answer = Some(draft.message_id().to_owned());
            let following = Following { answer, headline: &headline };
            follow(&connect, &client, following, client.follow(draft)).await
        })
    }
}
