//! The questions of an attempt: those that are open, and the answers that came. Several may be open
//! at once; what else the agent does goes on beside them.

use faultline_chassis::{TraceContext, limits};
use faultline_proto::{
    a2a,
    v1::{self, AnswerAction, Interrupt, report::Body},
};
use tokio::time::Instant;

use super::{Attempt, Refused};

/// An answer as it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Given {
    pub(crate) message: a2a::Message,
    pub(crate) action: AnswerAction,
}

impl From<v1::Answered> for Given {
    fn from(answered: v1::Answered) -> Self {
        let action = answered.action();
        Self { message: answered.message.unwrap_or_default(), action }
    }
}

/// A question that is open. Dropped by an agent that does not wait for the answer, it is taken
/// back.
struct Asking<'a> {
    attempt: &'a Attempt,
    key: &'a str,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.attempt.state.lock();
        let Some(waiting) = state.asking.get_mut(self.key) else { return };
        *waiting -= 1;
        if *waiting > 0 {
            return;
        }
        state.asking.remove(self.key);
        state.clock.go_on(Instant::now());
        if !state.told_to_stop() && !state.answers.contains_key(self.key) {
            let withdrawn = v1::Withdrawn { key: self.key.to_owned() };
            self.attempt.say(&mut state, Some(Body::Withdrawn(withdrawn)));
            if state.asking.is_empty() {
                self.attempt.resume_span(None);
            }
        }
    }
}

impl Attempt {
    /// The key of a question that was given none: its ordinal in the task.
    pub(crate) fn next_ask(&self) -> String {
        let mut state = self.state.lock();
        state.asks += 1;
        format!("ask-{}", state.asks)
    }

    /// Asks, unless this is asked or answered already, and waits for the answer.
    pub(crate) async fn ask(&self, question: Interrupt) -> Result<Given, Refused> {
        let key = question.key.clone();
        let mut body = Some(Body::Ask(question));
        let mut crowded = false;
        self.until_it_may(|state| {
            if state.answers.contains_key(&key) {
                return true;
            }
            if let Some(waiting) = state.asking.get_mut(&key) {
                *waiting += 1;
                return true;
            }
            crowded = state.asking.len() >= limits::OPEN_QUESTIONS_MAX;
            let may = state.has_room() && !crowded;
            if may {
                state.asking.insert(key.clone(), 1);
                self.pause_span();
                state.clock.hold(Instant::now());
                self.say(state, body.take());
            }
            may || crowded
        })
        .await?;
        if crowded {
            return Err(Refused::TooManyQuestions);
        }
        let _asking = Asking { attempt: self, key: &key };
        let answered = self.until(|state| {
            if state.told_to_stop() {
                Some(Err(Refused::Stopped))
            } else {
                state.answers.get(&key).cloned().map(Ok)
            }
        });
        answered.await
    }

    pub(crate) fn is_asking(&self) -> bool {
        !self.state.lock().asking.is_empty()
    }

    pub(crate) fn take_answer(&self, answer: v1::Answer) {
        let action = answer.action();
        // While more is asked nothing goes on yet.
        if !answer.traceparent.is_empty() {
            let trace = TraceContext::read(&answer.traceparent, &answer.tracestate);
            self.resume_span(Some(trace));
        }
        let given = Given { message: answer.message.unwrap_or_default(), action };
        let mut state = self.state.lock();
        state.answers.insert(answer.key, given);
        state.clock.set(answer.remaining_ms, Instant::now());
        drop(state);
        self.changed.notify_waiters();
    }
}
