//! Questions of an attempt to humans: the open ones and the received answers. Several questions may
//! be open at once, and the agent keeps reporting beside them.

use faultline_chassis::{TraceContext, limits};
use faultline_proto::{
    a2a,
    v1::{self, AnswerAction, Interrupt, report::Body},
};
use tokio::time::Instant;

use super::{Attempt, ReportRefused};

/// An answer as the coordinator sent it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReceivedAnswer {
    pub(crate) message: a2a::Message,
    pub(crate) action: AnswerAction,
}

impl From<v1::Answered> for ReceivedAnswer {
    fn from(answered: v1::Answered) -> Self {
        let action = answered.action();
        Self { message: answered.message.unwrap_or_default(), action }
    }
}

/// Guard of an open question: dropping the last guard of a key without an answer withdraws the
/// question.
struct OpenQuestion<'a> {
    attempt: &'a Attempt,
    key: &'a str,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        let mut state = self.attempt.state.lock();
        let Some(waiting) = state.open_questions.get_mut(self.key) else { return };
        *waiting -= 1;
        if *waiting > 0 {
            return;
        }
        state.open_questions.remove(self.key);
        state.clock.resume(Instant::now());
        if !state.must_stop() && !state.answers.contains_key(self.key) {
            let withdrawn = v1::Withdrawn { key: self.key.to_owned() };
            self.attempt.report_now(&mut state, Some(Body::Withdrawn(withdrawn)));
            if state.open_questions.is_empty() {
                self.attempt.resume_span(None);
            }
        }
    }
}

impl Attempt {
    /// The default key of a question: its ordinal in the task.
    pub(crate) fn next_ask(&self) -> String {
        let mut state = self.state.lock();
        state.asks += 1;
        format!("ask-{}", state.asks)
    }

    /// Asks, unless the question is open or answered already, and waits for the answer.
    pub(crate) async fn ask(&self, question: Interrupt) -> Result<ReceivedAnswer, ReportRefused> {
        let key = question.key.clone();
        let mut body = Some(Body::Ask(question));
        let mut too_many = false;
        self.wait_to_run(|state| {
            if state.answers.contains_key(&key) {
                return true;
            }
            if let Some(waiting) = state.open_questions.get_mut(&key) {
                *waiting += 1;
                return true;
            }
            too_many = state.open_questions.len() >= limits::OPEN_QUESTIONS_MAX;
            let can_report = state.has_room() && !too_many;
            if can_report {
                state.open_questions.insert(key.clone(), 1);
                self.pause_span();
                state.clock.pause(Instant::now());
                self.report_now(state, body.take());
            }
            can_report || too_many
        })
        .await?;
        if too_many {
            return Err(ReportRefused::TooManyQuestions);
        }
        let _asking = OpenQuestion { attempt: self, key: &key };
        let answered = self.until(|state| {
            if state.must_stop() {
                Some(Err(ReportRefused::Stopped))
            } else {
                state.answers.get(&key).cloned().map(Ok)
            }
        });
        answered.await
    }

    pub(crate) fn has_open_question(&self) -> bool {
        !self.state.lock().open_questions.is_empty()
    }

    pub(crate) fn on_answer(&self, answer: v1::Answer) {
        let action = answer.action();
        // The traceparent is empty while further questions are open.
        if !answer.traceparent.is_empty() {
            let trace = TraceContext::read(&answer.traceparent, &answer.tracestate);
            self.resume_span(Some(trace));
        }
        let given = ReceivedAnswer { message: answer.message.unwrap_or_default(), action };
        let mut state = self.state.lock();
        state.answers.insert(answer.key, given);
        state.clock.set(answer.remaining_ms, Instant::now());
        drop(state);
        self.changed.notify_waiters();
    }
}
