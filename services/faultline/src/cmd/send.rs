//! `faultline send`: starts a task and follows it to its end.

use faultline_client::{Answer, Client, Draft, Error, text};
use faultline_proto::{
    Failure,
    a2a::SendMessageResponse,
    advice::{Reader, Verdict, advise},
    id::TaskId,
};

use crate::{
    client::{
        connect::{Connect, text_or_stdin},
        follow::{Following, follow},
    },
    exit::{self, Exit},
};

const EXAMPLES: &str = "\
Examples:
  faultline send echo \"hello\"
  echo \"a long text\" | faultline send echo -
  faultline send --context CONTEXT echo \"and now this\"
  id=$(faultline send --no-wait echo \"later\") && faultline watch \"$id\"
  faultline send --key order-4711 echo \"once, even if this command runs twice\"

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
    /// The Idempotency-Key of the send: the same key and text start one task, however often they
    /// are sent within a day. Without it each send has a fresh key, which a failure with an
    /// unknown outcome names.
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        // With a key, a gateway that restarts in the wrong moment does not start it twice.
        let key = self.key.unwrap_or_else(|| TaskId::new().to_string());
        let mut draft = text(text_or_stdin(self.text)?).idempotency_key(&key);
        if let Some(context) = self.context {
            draft = draft.in_context(context);
        }
        let headline = format!("send to {} failed", self.agent);
        let connect = self.connect;
        connect.run(async |client| {
            let agent = client.agent(&self.agent);
            match self.no_wait {
                true => submit(&connect, agent, draft, &headline, &key).await,
                false => {
                    let following = Following { answer: None, headline: &headline };
                    let open =
                        async { agent.follow(draft).await.map_err(|error| with_key(error, &key)) };
                    follow(&connect, &agent, following, open).await
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
    key: &str,
) -> anyhow::Result<Exit> {
    let answer = match agent.send(draft.return_immediately()).await {
        Ok(answer) => answer,
        Err(error) => return connect.refuse(with_key(error, key), headline),
    };
    let text = match &answer {
        Answer::Task(task) => task.id.clone(),
        Answer::Message(_) => answer.text(),
    };
    connect.print(&SendMessageResponse::from(answer), |_| text)?;
    Ok(Exit::OK)
}

/// Names the key of a send whose outcome is unknown, because only that key repeats it safely.
fn with_key(error: Error, key: &str) -> Error {
    let Error::Call(failure) = error else { return error };
    let is_unknown =
        failure.repeat_with_key || advise(&failure, Reader::Caller).verdict == Verdict::Check;
    Error::Call(match is_unknown {
        true => named(failure, key),
        false => failure,
    })
}

fn named(failure: Failure, key: &str) -> Failure {
    let said = &failure.public_message;
    let text = format!("{said}; this send had the key {key}: --key {key} repeats it safely");
    failure.with_repeat_by_key().because(text)
}

#[cfg(test)]
mod tests {
    use faultline_proto::reason;

    use super::*;

    fn told(failure: Failure) -> Failure {
        with_key(Error::Call(failure), "k-1").into()
    }

    #[test]
    fn send_with_an_unknown_outcome_names_its_key() {
        let lost = Failure::new(&reason::UNAVAILABLE).with_repeat_by_key();
        let silent = Failure::new(&reason::STORE_UNAVAILABLE).with_retryable(false);
        for failure in [lost, silent, Failure::new(&reason::OUTCOME_UNKNOWN)] {
            let told = told(failure);
            assert!(told.public_message.ends_with("--key k-1 repeats it safely"), "{told}");
            let advice = advise(&told, Reader::Caller).text;
            assert!(advice.contains("send again with the same Idempotency-Key"), "{advice}");
        }
        for row in [&reason::UNAVAILABLE, &reason::OVERLOADED, &reason::AGENT_NOT_FOUND] {
            assert!(!told(Failure::new(row)).public_message.contains("k-1"), "{}", row.name);
        }
    }
}
