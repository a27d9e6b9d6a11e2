//! `faultline answer`: answers the question of a task that waits, then follows the task.

use anyhow::Context;
use faultline_proto::{
    a2a::{Part, part::Content},
    answer, json,
    v1::AnswerAction,
};
use prost_types::Struct;

use crate::{
    client::{
        answer_message,
        connect::{Connect, text_or_stdin},
        follow::{FollowOptions, follow},
    },
    exit::Exit,
};

const EXAMPLES: &str = "\
Examples:
  faultline answer 0199a1b2-… \"yes\"
  faultline answer 0199a1b2-… - < reply.txt
  faultline answer 0199a1b2-… --question deploy --decline
  faultline answer 0199a1b2-… --data '{\"host\": \"localhost\", \"port\": 8080}'";

/// Answer the question of a task that waits, then follow the task.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The task that asked.
    task: String,
    /// The answer; `-` reads stdin.
    #[arg(
        allow_hyphen_values = true,
        required_unless_present_any = ["data", "decline", "dismiss"]
    )]
    text: Option<String>,
    /// The key of the question, if there are several; without it, the oldest is answered.
    /// `faultline get TASK` lists the keys.
    #[arg(long, value_name = "KEY", default_value = "")]
    question: String,
    /// The answer field by field, as a JSON object.
    #[arg(long, value_name = "JSON", conflicts_with = "text")]
    data: Option<String>,
    /// Decline; TEXT may give the reason.
    #[arg(long, conflicts_with_all = ["data", "dismiss"])]
    decline: bool,
    /// Dismiss the question: the agent continues without an answer.
    #[arg(long, conflicts_with = "data")]
    dismiss: bool,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let mut parts = Vec::new();
        if let Some(text) = self.text {
            let content = Some(Content::Text(text_or_stdin(text)?));
            parts.push(Part { content, ..Part::default() });
        }
        if let Some(data) = self.data {
            parts.push(answer::fields_part(read_fields(&data)?));
        }
        let action = match (self.decline, self.dismiss) {
            (true, _) => AnswerAction::Decline,
            (_, true) => AnswerAction::Dismiss,
            (false, false) => AnswerAction::Accept,
        };
        let draft = answer_message::draft(&self.task, &self.question, action, parts);
        let headline = format!("answer to task {} failed", self.task);
        let connect = self.connect;
        connect.run(async |client| {
            let answer = Some(draft.message_id().to_owned());
            let following = FollowOptions { answer, headline: &headline };
            follow(&connect, &client, following, client.follow(draft)).await
        })
    }
}

fn read_fields(data: &str) -> anyhow::Result<Struct> {
    json::from_str::<Struct>(data).context("--data takes a JSON object")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(["answer"].iter().chain(args)).map(|line| line.args)
    }

    #[test]
    fn answer_is_text_fields_or_a_decline() {
        let text = parse(&["t", "-5 degrees"]).unwrap();
        assert_eq!((text.text.as_deref(), text.decline), (Some("-5 degrees"), false));
        let no = parse(&["t", "--question", "deploy", "--decline"]).unwrap();
        assert_eq!((no.text, no.question.as_str(), no.decline), (None, "deploy", true));
        let because = parse(&["t", "--decline", "not today"]).unwrap();
        assert_eq!((because.text.as_deref(), because.decline), (Some("not today"), true));
        assert!(parse(&["t", "--dismiss"]).unwrap().dismiss);
        let data = parse(&["t", "--data", r#"{"port": 80}"#]).unwrap().data.unwrap();
        assert_eq!(read_fields(&data).unwrap().fields.len(), 1);
        for wrong in [&["t"][..], &["t", "x", "--data", "{}"], &["t", "--decline", "--dismiss"]] {
            parse(wrong).expect_err("no answer, or two contradicting answers");
        }
        assert!(read_fields("[1]").is_err());
    }
}
