//! `faultline send`: starts a task and follows it to its end.

use faultline_client::{Client, text};
use faultline_proto::{
    a2a::{SendMessageConfiguration, SendMessageRequest, send_message_response::Payload},
    json,
};

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
  id=$(faultline send --no-wait echo \"later\") && faultline watch \"$id\"";

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
        let mut request = text(text_or_stdin(self.text)?);
        if let (Some(message), Some(context)) = (&mut request.message, self.context) {
            message.context_id = context;
        }
        let headline = format!("send to {} failed", self.agent);
        let connect = self.connect;
        connect.run(async |client| {
            let agent = client.agent(&self.agent);
            match self.no_wait {
                true => submit(&connect, agent, request, &headline).await,
                false => {
                    let client = agent.clone();
                    let following = Following { client, answer: None, headline: &headline };
                    follow(&connect, following, agent.follow(request)).await
                }
            }
        })
    }
}

async fn submit(
    connect: &Connect,
    agent: Client,
    mut request: SendMessageRequest,
    headline: &str,
) -> anyhow::Result<Exit> {
    request.configuration = Some(SendMessageConfiguration {
        return_immediately: true,
        ..SendMessageConfiguration::default()
    });
    let sent = match agent.send(request).await {
        Ok(sent) => sent,
        Err(failure) => return connect.refuse(&failure, headline),
    };
    connect.print(&sent, |_| match &sent.payload {
        Some(Payload::Task(task)) => task.id.clone(),
        Some(Payload::Message(message)) => faultline_client::text_of(message),
        None => json::to_string(&sent),
    })?;
    Ok(Exit::OK)
}
