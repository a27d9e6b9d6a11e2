//! `faultline send`: starts a task and follows it to its end.

use faultline_client::{Answer, Client, Draft, Error, text};
use faultline_proto::{
    Failure,
    a2a::{SendMessageRequest, SendMessageResponse},
    advice::{Reader, Verdict, advise},
    id::TaskId,
};
use ring::digest::{SHA256, digest};

use crate::{
    client::{
        connect::{Connect, text_or_stdin},
        follow::{FollowOptions, follow},
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

If the agent asks a question, this command prompts for the answer on a terminal. Without a terminal
it exits with 3, and the task waits.";

/// Send a text to an agent and follow the task: artifacts on stdout, everything else on stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Args {
    /// The agent to send to.
    agent: String,
    /// The text to send; `-` reads stdin.
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
        // With an idempotency key, a send that is repeated after a restart of the gateway starts
        // one task only.
        let key = self.key.unwrap_or_else(|| TaskId::new().to_string());
        let mut draft = text(text_or_stdin(self.text)?).idempotency_key(&key);
        if let Some(context) = self.context {
            draft = draft.in_context(context);
        }
        let draft = identified(draft, message_id(&self.agent, &key));
        let headline = format!("send to {} failed", self.agent);
        let connect = self.connect;
        connect.run(async |client| {
            let agent = client.agent(&self.agent);
            if self.no_wait {
                submit(&connect, agent, draft, &headline, &key).await
            } else {
                let following = FollowOptions { answer: None, headline: &headline };
                let open =
                    async { agent.follow(draft).await.map_err(|error| with_key(error, &key)) };
                follow(&connect, &agent, following, open).await
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
        Err(error) => return connect.report_error(with_key(error, key), headline),
    };
    let text = match &answer {
        Answer::Task(task) => task.id.clone(),
        Answer::Message(_) => answer.text(),
    };
    connect.print(&SendMessageResponse::from(answer), |_| text)?;
    Ok(Exit::OK)
}

/// The id of the message of a send with this key: a UUID of version 8 (RFC 9562) from a SHA-256. A
/// second run of the command sends the same message, because the mesh rejects a key that it knows
/// with another message.
fn message_id(agent: &str, key: &str) -> String {
    let hash = digest(&SHA256, format!("{agent}\n{key}").as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

fn identified(draft: Draft, message_id: String) -> Draft {
    let mut request = SendMessageRequest::from(draft);
    if let Some(message) = &mut request.message {
        message.message_id = message_id;
    }
    Draft::from(request)
}

/// Names the idempotency key of a send with an unknown outcome, because only a repeat under the
/// same key is safe. A failure with a task id means that the task is stored: the caller reads it
/// and does not send again.
fn with_key(error: Error, key: &str) -> Error {
    let Error::Call(failure) = error else { return error };
    let is_unknown = failure.task_id.is_empty()
        && (failure.repeat_with_key || advise(&failure, Reader::Caller).verdict == Verdict::Check);
    Error::Call(if is_unknown { named(failure, key) } else { failure })
}

fn named(failure: Failure, key: &str) -> Failure {
    let said = &failure.public_message;
    let text = format!("{said}; this send had the key {key}: --key {key} repeats it safely");
    failure.with_repeat_by_key().because(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use faultline_proto::reason;

    use super::*;

    fn with_known_key(failure: Failure) -> Failure {
        with_key(Error::Call(failure), "k-1").into()
    }

    #[test]
    fn send_with_an_unknown_outcome_names_its_key() {
        let lost = Failure::new(&reason::UNAVAILABLE).with_repeat_by_key();
        let silent = Failure::new(&reason::STORE_UNAVAILABLE).with_retryable(false);
        for failure in [lost, silent, Failure::new(&reason::OUTCOME_UNKNOWN)] {
            let failure = with_known_key(failure);
            assert!(failure.public_message.ends_with("--key k-1 repeats it safely"), "{failure}");
            let advice = advise(&failure, Reader::Caller).text;
            assert!(advice.contains("send again with the same Idempotency-Key"), "{advice}");
        }
        for row in [&reason::UNAVAILABLE, &reason::OVERLOADED, &reason::AGENT_NOT_FOUND] {
            assert!(
                !with_known_key(Failure::new(row)).public_message.contains("k-1"),
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn failure_of_a_stored_task_is_not_turned_into_a_repeat() {
        let stored = Failure::new(&reason::STORE_UNAVAILABLE)
            .with_retryable(false)
            .with_retry_after(Duration::from_secs(2))
            .with_task("0199a1b2", "c");
        let failure = with_known_key(stored);
        assert!(!failure.repeat_with_key && !failure.public_message.contains("k-1"), "{failure}");
        let advice = advise(&failure, Reader::Caller);
        assert_eq!(advice.verdict, Verdict::Check);
        assert!(advice.text.starts_with("the task is stored: read it later"), "{}", advice.text);
    }

    #[test]
    fn message_id_follows_from_the_agent_and_the_key() {
        let id = message_id("echo", "order-4711");
        assert_eq!(id, message_id("echo", "order-4711"));
        assert!(id.len() == 36 && &id[14..15] == "8", "{id}");
        for (agent, key) in [("other", "order-4711"), ("echo", "order-4712")] {
            assert_ne!(id, message_id(agent, key));
        }
        let draft = identified(text("x").idempotency_key("order-4711"), id.clone());
        assert_eq!(draft.message_id(), id);
    }
}
