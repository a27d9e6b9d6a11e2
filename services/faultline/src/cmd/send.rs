//! `faultline send`: starts a task and follows it to its end.

use faultline_client::{Answer, Client, Draft, text};
use faultline_proto::a2a::SendMessageResponse;

use crate::{
    cmd::connect::{Connect, text_or_stdin},
    exit::{self, Exit},
    follow::{Following, follow},
};

const EXAMPLES: &str = "\
Examples:
  faultline send echo \"hello\"
  echo \"a long text\" | faultline send echo -
  faultline send --context CONTEXT echo \"and now this\"
  id=$(faultline send --no-wait echo \"later\") && faultline watch \"$id\"

If the agent asks, so does this command, on a terminal; elsewhere it leaves with 3, and the task
waits.";

/// Send a text to an agent and follow the task: artifacts on stdout, everything else on stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Args {
    /// The agent to send to.
    agent: String,
    /// What to send; `-` reads stdin.
    #[arg(allow_hyphen_values = true)]
    text: String,
    /// Send within this context, as a continuation of earlier tasks.
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Return as soon as the task exists, and print its id.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        // With a key, a gateway that restarts in the wrong moment does not start it twice.
        let mut draft = text(text_or_stdin(self.text)?).idempotent();
        if let Some(context) = self.context {
            draft = draft.in_context(context);
        }
        let headline = format!("send to {} failed", self.agent);
        let connect = self.connect;
        connect.run(async |client| {
            let agent = client.agent(&self.agent);
            match self.no_wait {
                true => submit(&connect, agent, draft, &headline).await,
                false => {
                    let following = Following { answer: None, headline: &headline };
                    follow(&connect, &agent, following, agent.follow(draft)).await
                }
            }
        })
    }
}

async fn submit(
    connect: &Connect,
    agent: Client,
    draft: Draft,
    headline: &str,
) -> anyhow::Result<Exit> {
    let answer = match agent.send(draft.return_immediately()).await {
        Ok(answer) => answer,
        Err(error) => return connect.refuse(error, headline),
    };
    let text = match &answer {
        Answer::Task(task) => task.id.clone(),
        Answer::Message(_) => answer.text(),
    };
    connect.print(&SendMessageResponse::from(answer), |_| text)?;
    Ok(Exit::OK)
}
