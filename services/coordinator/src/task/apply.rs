//! Event sourcing: the effect of each event on its task. Live events and replayed ones go
//! through the same `apply`, so memory and store cannot disagree. Pure.

use faultline_proto::{
    Failure,
    a2a::{Message, TaskState},
    v1::{self, Assigned, AttemptLost, Ended, Event, attempt::Outcome, event},
};

use crate::task::{
    LOCAL, Millis, Task, artifacts::Artifacts, frame::waiting_state, is_final, is_waiting, millis,
    time_budget::Budget, timestamp, tolerated::Tolerated,
};

impl Task {
    /// Gives the body its time and makes it so.
    pub(crate) fn apply_now(&mut self, body: event::Body, now: Millis) -> Event {
        let event = Event { time: Some(timestamp(now)), body: Some(body) };
        self.apply(&event);
        event
    }

    /// One event further. Also how a stored task is read back.
    pub(crate) fn apply(&mut self, event: &Event) {
        let at = event.time.as_ref().map_or(self.status_at, millis);
        self.seq += 1;
        match &event.body {
            Some(event::Body::Submitted(submitted)) => {
                self.principal = match submitted.principal.as_str() {
                    "" => LOCAL.to_owned(),
                    principal => principal.to_owned(),
                };
                self.parent = submitted.parent.clone().map(Box::new);
                self.run.traceparent.clone_from(&submitted.traceparent);
                self.run.tracestate.clone_from(&submitted.tracestate);
                self.history.extend(submitted.message.clone());
                self.budget = Budget::of(submitted.timeout_ms);
                self.enter(TaskState::Submitted, None, at);
            }
            Some(event::Body::Assigned(assigned)) => self.apply_assigned(assigned, at),
            Some(event::Body::Status(status)) => {
                // How older versions took a question back.
                if status.message.is_none() && !self.pending.is_empty() {
                    self.pending.clear();
                    self.begin_run("", "", at);
                }
                self.enter(TaskState::Working, status.message.clone(), at);
            }
            Some(event::Body::Artifact(write)) => self.artifacts.write(write),
            Some(event::Body::Checkpointed(saved)) => {
                self.checkpoint = Some(saved.state.clone());
                self.artifacts.checkpoint();
                self.tolerated.checkpoint();
            }
            Some(event::Body::Asked(asked)) => {
                self.pending = match asked.open.is_empty() {
                    true => asked.interrupt.iter().cloned().collect(),
                    false => asked.open.clone(),
                };
                let question = |i| self.ids().question(i);
                let said = asked.interrupt.as_ref().filter(|_| !asked.again).map(question);
                let shown = self.pending.first().map(question);
                // One that was taken back may be asked again, and was said before.
                let new =
                    said.filter(|m| self.history.iter().all(|h| h.message_id != m.message_id));
                self.history.extend(new);
                self.enter(waiting_state(asked), shown, at);
            }
            Some(event::Body::Answered(answer)) => {
                self.pending.retain(|question| question.key != answer.key);
                self.history.extend(answer.message.clone());
                self.answers.push(answer.clone());
                if self.pending.is_empty() {
                    self.begin_run(&answer.traceparent, &answer.tracestate, at);
                }
                self.enter(TaskState::Working, None, at);
            }
            Some(event::Body::Lost(lost)) => self.apply_lost(lost, at),
            Some(event::Body::Ended(end)) => self.apply_ended(end, at),
            Some(event::Body::Tolerated(tolerated)) => {
                tolerated.failure.iter().for_each(|failure| self.tolerated.add(failure));
                // Clients see it as a WORKING status; what is asked beside it is shown again.
                if is_waiting(self.state) {
                    self.enter(TaskState::Working, None, at);
                }
            }
            Some(event::Body::Withdrawn(withdrawn)) => {
                self.pending.retain(|question| question.key != withdrawn.key);
                if self.pending.is_empty() {
                    self.begin_run("", "", at);
                }
                self.enter(TaskState::Working, None, at);
            }
            // Written by a newer version: it keeps its number, so that later ones fit.
            None => {}
        }
    }

    fn apply_lost(&mut self, lost: &AttemptLost, at: Millis) {
        let outcome = match &lost.failure {
            Some(_) => Outcome::Failed,
            None if lost.released => Outcome::Released,
            None => Outcome::WorkerLost,
        };
        self.close_attempt(at, outcome);
        match &lost.failure {
            Some(failure) => {
                if let Some(last) = self.attempts.last_mut() {
                    last.failure = Some(failure.clone());
                    last.retry_at = lost.retry_at;
                }
                self.retry_at = lost.retry_at.as_ref().map(millis);
                self.passed_on = self.retry_at.is_none();
                self.retries += u32::from(!self.passed_on);
            }
            None => self.losses += u32::from(!lost.released && !is_waiting(self.state)),
        }
        self.artifacts.rewind();
        self.tolerated.rewind();
    }

    fn apply_assigned(&mut self, assigned: &Assigned, at: Millis) {
        if !self.attempts.is_empty() && self.stand_in() != assigned.agent {
            self.start_over(at);
        }
        self.retry_at = None;
        self.passed_on = false;
        self.attempt = assigned.attempt;
        self.reported = 0;
        self.answers_known = self.answers.len();
        self.worker.clone_from(&assigned.worker);
        self.attempts.push(v1::Attempt {
            number: assigned.attempt,
            worker: assigned.worker_name.clone(),
            worker_id: assigned.worker.clone(),
            started: Some(timestamp(at)),
            ended: None,
            outcome: Outcome::Running as i32,
            failure: None,
            agent: assigned.agent.clone(),
            retry_at: None,
        });
        self.enter(TaskState::Working, None, at);
    }

    /// Another agent takes over. It cannot read what the last one saved, and would take answers to
    /// the other's questions for answers to its own.
    fn start_over(&mut self, at: Millis) {
        self.checkpoint = None;
        self.artifacts = Artifacts::default();
        self.tolerated = Tolerated::default();
        self.answers.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.begin_run("", "", at);
        }
        (self.losses, self.retries) = (0, 0);
    }

    fn stand_in(&self) -> &str {
        self.attempts.last().map_or("", |attempt| &attempt.agent)
    }

    fn apply_ended(&mut self, end: &Ended, at: Millis) {
        self.close_attempt(at, Outcome::Ended);
        self.pending.clear();
        self.retry_at = None;
        self.failure = end.failure.clone().map(Failure::from_record);
        self.not_retried = end.not_retried();
        let state = end.state();
        let message = match (&end.message, &self.failure) {
            (Some(message), _) => Some(message.clone()),
            (None, Some(failure)) => Some(self.ids().failure_message(failure, state)),
            (None, None) => None,
        };
        self.enter(state, message, at);
    }

    fn enter(&mut self, state: TaskState, message: Option<Message>, at: Millis) {
        match is_waiting(state) || is_final(state) {
            true => self.budget.pause(at),
            false => self.budget.run(at),
        }
        self.state = state;
        self.status_message = message;
        self.status_at = at;
    }

    fn close_attempt(&mut self, at: Millis, outcome: Outcome) {
        self.worker.clear();
        if let Some(last) = self.attempts.last_mut().filter(|a| a.ended.is_none()) {
            last.ended = Some(timestamp(at));
            last.outcome = outcome as i32;
        }
    }
}
