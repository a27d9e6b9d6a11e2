//! The open questions of a task: which may be asked, which one is shown, and what depends on
//! them. Pure.

use faultline_chassis::limits;
use faultline_proto::v1::{Asked, Interrupt, QuestionWithdrawn, event};
use prost::Message;

use crate::task::{Millis, Refused, Task, is_waiting, millis, report::ReportOutcome};

impl Task {
    /// A worker asks. What an earlier attempt asked is not asked again, and what was answered
    /// meanwhile is on its way to the worker.
    pub(crate) fn judge_question(
        &self,
        mut interrupt: Interrupt,
    ) -> Result<ReportOutcome, Refused> {
        let key = &interrupt.key;
        let open = self.pending.iter().any(|question| question.key == *key);
        if open || self.answers.iter().any(|answer| answer.key == *key) {
            return Ok(ReportOutcome::Events(Vec::new()));
        }
        // A question that was passed up names the task that asked first.
        if interrupt.agent.is_empty() {
            interrupt.agent.clone_from(&self.agent);
        }
        if interrupt.path.len() > limits::QUESTION_PATH_MAX {
            return Err(Refused::Nonsense("the path of its question is too long"));
        }
        let own = self.id.to_string();
        if interrupt.task_id.is_empty() {
            interrupt.task_id.clone_from(&own);
        }
        interrupt.path.insert(0, own);
        if self.message_bytes() + interrupt.encoded_len() > limits::TASK_MESSAGE_BYTES_MAX {
            return Ok(ReportOutcome::TooLarge);
        }
        let mut open = self.pending.clone();
        open.push(interrupt.clone());
        let bytes: usize = open.iter().map(Message::encoded_len).sum();
        if open.len() > limits::OPEN_QUESTIONS_MAX {
            return Err(Refused::Nonsense("it has too many questions open"));
        }
        if open.len() > 1 && bytes > limits::OPEN_QUESTIONS_BYTES_MAX {
            return Err(Refused::Nonsense("its open questions are too large together"));
        }
        Ok(ReportOutcome::Events(vec![asked(interrupt, false, open)]))
    }

    /// A worker takes a question back. If it was answered just now, there is nothing to take back.
    pub(crate) fn judge_withdrawal(&self, key: String) -> ReportOutcome {
        let open = self.pending.iter().any(|question| question.key == key);
        let withdrawn = open.then(|| event::Body::Withdrawn(QuestionWithdrawn { key }));
        ReportOutcome::Events(withdrawn.into_iter().collect())
    }

    /// The event that shows an open question again when a step has hidden it.
    pub(crate) fn shown_again(&self) -> Option<event::Body> {
        let hidden = !self.is_final() && !is_waiting(self.state);
        let oldest = self.pending.first().filter(|_| hidden)?;
        Some(asked(oldest.clone(), true, self.pending.clone()))
    }

    /// Whether somebody has to work on it. Nobody need for a task that only waits: what it asks is
    /// stored. It does not only wait if answers have come that no attempt began with.
    pub(crate) fn needs_worker(&self) -> bool {
        !self.is_final() && (!is_waiting(self.state) || self.answers.len() > self.answers_known)
    }

    /// When the first of its questions expires.
    pub(crate) fn next_expiry(&self) -> Option<Millis> {
        self.pending.iter().filter_map(expiry).min()
    }

    /// The keys of the questions that have expired.
    pub(crate) fn expired(&self, now: Millis) -> Vec<String> {
        let over = |question: &&Interrupt| expiry(question).is_some_and(|at| at <= now);
        self.pending.iter().filter(over).map(|question| question.key.clone()).collect()
    }
}

fn expiry(question: &Interrupt) -> Option<Millis> {
    question.expires_at.as_ref().map(millis)
}

/// One that is open alone is the whole list.
fn asked(interrupt: Interrupt, again: bool, open: Vec<Interrupt>) -> event::Body {
    let open = if open.len() > 1 { open } else { Vec::new() };
    event::Body::Asked(Asked { interrupt: Some(interrupt), again, open })
}

#[cfg(test)]
mod tests;
