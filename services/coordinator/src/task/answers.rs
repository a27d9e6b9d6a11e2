//! Matching of a message to an open question of its task: which question, which action, which
//! content. Pure.

use faultline_proto::{
    Failure,
    a2a::Message,
    answer::{ANSWER_KEY, Reply},
    reason,
    schema::Violation,
    v1::{AnswerAction, AnswerGiven, event},
};

use crate::task::{Task, is_waiting};

/// Why a message is no answer. The question stays open.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NoAnswer {
    /// The task has ended.
    Final,
    /// The task is at work and asks nothing.
    Busy,
    /// Somebody was faster.
    Answered(String),
    /// The content does not match the schema of the question; the violations, field by field.
    Wrong(Vec<Violation>),
}

impl Task {
    pub(crate) fn decide_answer(&self, mut message: Message) -> Result<event::Body, NoAnswer> {
        if self.is_final() {
            return Err(NoAnswer::Final);
        }
        if self.pending.is_empty() || !is_waiting(self.state) {
            return Err(NoAnswer::Busy);
        }
        let reply = Reply::read(&message).map_err(|wrong| NoAnswer::Wrong(vec![wrong]))?;
        let id = &reply.interrupt_id;
        let meant = self.pending.iter().find(|q| id.is_empty() || q.key == *id);
        let Some(question) = meant else {
            return Err(match self.answers.iter().any(|answer| answer.key == *id) {
                true => NoAnswer::Answered(id.clone()),
                false => NoAnswer::Wrong(vec![self.unknown(id)]),
            });
        };
        let (key, action) = (question.key.clone(), reply.action as i32);
        reply.fit(question).map_err(NoAnswer::Wrong)?;
        message.task_id = self.id.to_string();
        message.context_id.clone_from(&self.context_id);
        let message = Some(message);
        Ok(event::Body::Answered(AnswerGiven { key, message, action, ..Default::default() }))
    }

    /// Nobody answered in time, which is an answer of its own.
    pub(crate) fn decide_expire(&self, key: String) -> event::Body {
        let action = AnswerAction::Expire as i32;
        event::Body::Answered(AnswerGiven { key, action, ..Default::default() })
    }

    fn unknown(&self, id: &str) -> Violation {
        let open: Vec<_> = self.pending.iter().map(|q| format!("'{}'", q.key)).collect();
        let what = format!("the task does not ask '{id}'; open are {}", open.join(", "));
        Violation { field: format!("message.metadata.{ANSWER_KEY}.interruptId"), what }
    }
}

/// An answer that does not fit, as the caller is told: one violation a field.
pub(crate) fn refusal(wrong: Vec<Violation>) -> Failure {
    let text: Vec<_> = wrong.iter().map(|v| format!("{}: {}", v.field, v.what)).collect();
    let failure = Failure::new(&reason::INVALID_PARAMS).because(text.join("; "));
    wrong.into_iter().fold(failure, |failure, v| failure.with_violation(v.field, v.what))
}
