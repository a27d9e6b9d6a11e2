//! Sends: a message starts a task or answers a waiting one, and the caller waits for the end or the
//! first report. Independent of the transport. Streams are in `send_stream`, replays in `replay`.

use crate::engine::active_task::CallError;
use crate::engine::admission::{answer_of, check_gates, check_size};
use crate::store::push_row;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{SendMessageRequest, TaskPushNotificationConfig},
    id::TaskId,
    reason,
};
use tokio::sync::oneshot;

use crate::{
    api::{delegation::NEVER_EXPIRES, replay::Replayed},
    calls::{caller::Caller, idempotency::KeyClaim},
    clock::now,
    cluster::remote_write::{Answered, STEP_TRIES, contended},
    engine::{
        active_task::{Done, Until, Waiter},
        core::{Core, State},
        dispatch::{Decided, NewTask, Step},
        effect::Effect,
        store_outage,
    },
    error::Error,
    store::{Extras, Scope},
    task::Task,
};

/// A send after its lookups. Made for one call and consumed by the decision.
pub(crate) struct Sending {
    pub(crate) request: SendMessageRequest,
    /// The task that the message answers; `None`: the message starts a task.
    pub(crate) task: Option<Box<Task>>,
    /// The idempotency key, if the send has a new one.
    pub(crate) claim: Option<KeyClaim>,
    /// The webhook that the send registers.
    pub(crate) push: Option<TaskPushNotificationConfig>,
}

impl Core {
    /// Answers through `done`, now or later. Does not block.
    pub(crate) fn send(self: &Arc<Self>, request: SendMessageRequest, caller: Caller, done: Done) {
        if caller.cancel_after.is_some() {
            self.touch(|state| state.early_disconnects.extend(caller.call));
        }
        let names_key = caller.has_key();
        let is_unknown_agent = self.lock().is_unknown_agent(&request.tenant);
        let looks_up = !task_id(&request).is_empty() || names_key || push_of(&request).is_some();
        if looks_up || is_unknown_agent {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.send_contended(request, caller, done).await });
            return;
        }
        let sending = Sending { request, task: None, claim: None, push: None };
        if let Err((done, error)) = self.send_now(sending, &caller, done) {
            done(Err(error.into()));
        }
    }

    /// Sends with retries on a conflict: a coordinator that loses the race looks the key and the
    /// task up again and finds the result of the other.
    async fn send_contended(
        self: &Arc<Self>,
        request: SendMessageRequest,
        caller: Caller,
        done: Done,
    ) {
        let tries = if self.store.cluster().is_some() { STEP_TRIES } else { 1 };
        let done: Done = if caller.has_key() {
            Box::new(move |answer| done(answer.map_err(|error| error.map(store_outage::with_key))))
        } else {
            done
        };
        let mut contested = Contested::of(&caller);
        for _ in 1..tries {
            let (told, answer) = oneshot::channel();
            let once: Done = Box::new(move |answer| drop(told.send(answer)));
            self.send_looked_up(request.clone(), caller.clone(), once).await;
            match answer.await {
                Ok(Err(error)) if contested.passes(&error) => {}
                Ok(answer) => return done(answer),
                Err(_) => return done(Err(Error::unanswered().into())),
            }
            if caller.cancel_after.is_some() {
                self.touch(|state| state.early_disconnects.extend(caller.call));
            }
        }
        self.send_looked_up(request, caller, done).await;
    }

    async fn send_looked_up(
        self: &Arc<Self>,
        request: SendMessageRequest,
        caller: Caller,
        done: Done,
    ) {
        let options = Options::of(&request);
        match store_outage::read_in_time(self.look_up(request, &caller)).await {
            Ok(Replayed::Again(key)) => {
                // A replay whose client has left does nothing.
                if !self.lock().has_left(&caller) {
                    self.send_again(key, options, &caller, done).await;
                }
            }
            Ok(Replayed::First(sending)) => self.send_first(*sending, options, &caller, done).await,
            Err(error) => {
                self.lock().has_left(&caller);
                done(Err(error.into()));
            }
        }
    }

    async fn send_first(
        self: &Arc<Self>,
        sending: Sending,
        options: Options,
        caller: &Caller,
        done: Done,
    ) {
        let elsewhere = store_outage::write_in_time(self.answer_if_remote(sending, caller, false));
        let sending = match elsewhere.await {
            Ok(Taken::Remote(id)) => {
                self.lock().has_left(caller);
                return self.wait_for(id, options, caller, done).await;
            }
            Ok(Taken::NotYet(sending)) => sending,
            Err(error) => {
                self.lock().has_left(caller);
                return done(Err(error.into()));
            }
        };
        if let Err((done, error)) = self.send_now(*sending, caller, done) {
            let error = self.ended_meanwhile(error).await;
            done(Err(error.into()));
        }
    }

    /// Stores an answer to a task that a peer owns.
    pub(crate) async fn answer_if_remote(
        self: &Arc<Self>,
        sending: Sending,
        caller: &Caller,
        streams: bool,
    ) -> Result<Taken, Error> {
        if self.store.cluster().is_none() {
            return Ok(Taken::NotYet(Box::new(sending)));
        }
        let Sending { request, task, claim, push } = sending;
        let Some(task) = task else {
            return Ok(Taken::NotYet(Box::new(Sending { request, task, claim, push })));
        };
        let used = if caller.calling.is_some() { NEVER_EXPIRES } else { now() };
        let with = |task: &Task| {
            let key = claim.as_ref().map(|claim| claim.row(task.id, used));
            let push = push.clone().map(|config| push_row(task.id, config, task.seq));
            let extras = Extras { key, pushes: push.into_iter().collect() };
            (extras != Extras::default()).then(|| Box::new(extras))
        };
        let answered = self.answer_remote(*task, &request, caller, streams, with).await?;
        Ok(match answered {
            Answered::Remote(id) => Taken::Remote(id),
            Answered::Here(task) => {
                let task = Some(task);
                Taken::NotYet(Box::new(Sending { request, task, claim, push }))
            }
        })
    }

    /// Applies the send and registers the waiter of the caller.
    fn send_now(
        self: &Arc<Self>,
        sending: Sending,
        caller: &Caller,
        done: Done,
    ) -> Result<(), (Done, Error)> {
        let options = Options::of(&sending.request);
        self.change(|state| {
            let left = state.has_left(caller);
            let answers = sending.task.as_ref().map(|task| task.id);
            let decided = match self.decide(state, sending, caller, false) {
                Ok(decided) => decided,
                Err(error) => return state.reject_on_commit(answers, done, error),
            };
            let id = decided.step.task_id();
            let waits = !left && (!options.immediately || decided.step.may_message());
            let pushes = decided.push_keys();
            state.take(decided, now(), |transition| {
                if waits {
                    let waiter = self.waiter(options.until(), options, caller, done);
                    let depends_on_seq = transition.task().seq;
                    transition.active.waiters.push(Waiter { depends_on_seq, ..waiter });
                } else {
                    let response = Box::new(transition.response(options.history));
                    transition.effects.push(Effect::Answer(done, response));
                }
            });
            if let Some(call) = caller.call.filter(|_| waits) {
                state.calls.insert(call, id);
            }
            if let Some(grace) = caller.cancel_after.filter(|_| left) {
                state.start_disconnect_grace(id, grace);
            }
            self.deliver_after_commit(state, pushes);
            Ok(())
        })
    }

    pub(crate) fn waiter(
        self: &Arc<Self>,
        until: Until,
        options: Options,
        caller: &Caller,
        done: Done,
    ) -> Waiter {
        let (history, cancel_after) = (options.history, caller.cancel_after);
        let _deadline = self.end_at_deadline(caller);
        let (call, patient) = (caller.call, caller.calling.is_some());
        Waiter {
            until,
            call,
            history,
            depends_on_seq: 0,
            min_seq: 0,
            patient,
            cancel_after,
            done,
            _deadline,
        }
    }

    /// Answers a waiting call at its deadline, unless it was answered before.
    fn end_at_deadline(self: &Arc<Self>, caller: &Caller) -> Option<AbortOnDropHandle<()>> {
        let (deadline, call) = caller.deadline.zip(caller.call)?;
        let core = Arc::clone(self);
        let ringing = tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            let ended = core.lock().take_expired_call(call);
            if let Some((id, done)) = ended {
                done(Err(Error::PatienceEnded(id).into()));
            }
        });
        Some(AbortOnDropHandle::new(ringing))
    }

    /// The failure of an answer to a task that left memory after it was read: usually it has ended.
    pub(crate) async fn ended_meanwhile(&self, error: Error) -> Error {
        let Error::TaskNotFound(id) = &error else { return error };
        let Ok(task_id) = id.parse::<TaskId>() else { return error };
        match self.read(task_id, Scope::default()).await {
            Ok(Some(task)) if task.is_final() => Error::Ended { id: task_id, state: task.state },
            // A peer owns the task, where it can be answered.
            Ok(Some(_)) => contended(),
            Ok(None) => error,
            Err(failed) => failed,
        }
    }

    /// Decides a send. Every rejection is made here, before any change.
    pub(crate) fn decide(
        &self,
        state: &State,
        sending: Sending,
        caller: &Caller,
        streams: bool,
    ) -> Result<Decided, Error> {
        state.check_open()?;
        caller.calling.as_ref().map_or(Ok(()), |calling| state.check_current(calling))?;
        let Sending { request, task, claim, push } = sending;
        let step = match task {
            None => Step::Start(Box::new(self.new_task(state, request, caller, streams)?)),
            Some(task) => continued(state, &task, request, caller, streams)?,
        };
        let used = if caller.calling.is_some() { NEVER_EXPIRES } else { now() };
        let key = claim.as_ref().map(|claim| claim.row(step.task_id(), used));
        let push = push.map(|config| {
            // A new task has no events yet: its notifications begin with its first event.
            let seq = state.tasks.get(&step.task_id()).map_or(0, |active| active.pending().seq);
            push_row(step.task_id(), config, seq)
        });
        let extras = Extras { key, pushes: push.into_iter().collect() };
        let with = (extras != Extras::default()).then(|| Box::new(extras));
        Ok(Decided { step, with, claim })
    }

    fn new_task(
        &self,
        state: &State,
        mut request: SendMessageRequest,
        caller: &Caller,
        streams: bool,
    ) -> Result<NewTask, Error> {
        let agent = self.addressee(state, &request.tenant, caller)?;
        let found = state.admit(&agent)?;
        check_gates(&found.offer, &request, caller, streams)?;
        let stands_in = state.registry.stand_in(&agent, |_| false).is_some();
        if !state.registry.has_worker(&agent) && !stands_in && self.config.wait_for_worker_ms == 0 {
            return Err(Error::AgentUnavailable(agent));
        }
        let limit = self.limit(state, found, caller)?;
        let notifies = push_of(&request).is_some();
        let message = request.message.take().unwrap_or_default();
        check_size(&message)?;
        let context_id = match message.context_id.as_str() {
            "" => match &caller.calling {
                Some(calling) => calling.context_id.clone(),
                None => uuid::Uuid::now_v7().to_string(),
            },
            given if given.len() > limits::KEY_BYTES_MAX => {
                let what = format!("at most {} bytes", limits::KEY_BYTES_MAX);
                return Err(Error::Invalid { field: "message.contextId", what });
            }
            given => given.to_owned(),
        };
        let parent = caller.calling.as_ref().map(|calling| state.parentage(calling));
        Ok(NewTask {
            id: TaskId::new(),
            principal: caller.principal.clone(),
            context_id,
            message,
            trace: caller.trace.clone(),
            parent: parent.transpose()?,
            limit,
            // A caller that registers a webhook always gets a task.
            may_message: found.offer.may_answer_with_message && !notifies,
            checkpoint: None,
            agent,
        })
    }

    /// The agent for a message to this tenant, if the caller may use it.
    pub(crate) fn addressee(
        &self,
        state: &State,
        tenant: &str,
        caller: &Caller,
    ) -> Result<String, Error> {
        let agent = match tenant {
            "" => self.default_agent(state).ok_or(Error::NoDefaultAgent)?,
            tenant => tenant.to_owned(),
        };
        caller.check_agent(&agent)?;
        if let Some(known) = state.registry.agents.get(&agent) {
            caller.check_drill(&known.offer)?;
        }
        Ok(agent)
    }

    /// The agent for a message without a tenant: the configured default, or the only agent.
    pub(crate) fn default_agent(&self, state: &State) -> Option<String> {
        let mut names = state.registry.agents.keys();
        match (&self.config.default_agent, names.next(), names.next()) {
            (Some(name), _, _) => Some(name.clone()),
            (None, Some(only), None) => Some(only.clone()),
            _ => None,
        }
    }
}

/// Retry state of a send whose rejection may result from the same send at another coordinator.
pub(crate) struct Contested {
    /// The stored answer may be this very send, which its key shows.
    looks_for_key: bool,
}

impl Contested {
    pub(crate) fn of(caller: &Caller) -> Self {
        Self { looks_for_key: caller.has_key() }
    }

    pub(crate) fn passes(&mut self, error: &CallError) -> bool {
        match error {
            CallError::Conflict => true,
            CallError::Failed(failure) => {
                failure.reason == reason::UNSUPPORTED_OPERATION.name
                    && std::mem::take(&mut self.looks_for_key)
            }
        }
    }
}

/// The outcome of a send that may concern a remote task.
pub(crate) enum Taken {
    /// The send is stored; the id of its task.
    Remote(TaskId),
    /// The send is to be applied here.
    NotYet(Box<Sending>),
}

/// A message for a task that is owned here, checked against the rest of the request.
fn continued(
    state: &State,
    task: &Task,
    request: SendMessageRequest,
    caller: &Caller,
    streams: bool,
) -> Result<Step, Error> {
    // The copy in memory is at least as new as the state that was read.
    let active = state.tasks.get(&task.id).map(|active| active.pending());
    let body = answer_of(state, active.unwrap_or(task), request, caller, streams)?;
    match active {
        Some(task) => Ok(Step::Answer(task.id, Box::new(body))),
        None => Err(Error::TaskNotFound(task.id.to_string())),
    }
}

/// The id of the task that a message is for; empty: a new task.
pub(crate) fn task_id(request: &SendMessageRequest) -> &str {
    request.message.as_ref().map_or("", |message| &message.task_id)
}

/// The webhook that a send registers.
pub(crate) fn push_of(request: &SendMessageRequest) -> Option<&TaskPushNotificationConfig> {
    request.configuration.as_ref()?.task_push_notification_config.as_ref()
}

/// The options of a send beside its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) immediately: bool,
    pub(crate) history: Option<i32>,
}

impl Options {
    /// The condition that a caller waits for, if it waits at all.
    fn until(self) -> Until {
        if self.immediately { Until::FirstReport } else { Until::Settled }
    }

    pub(crate) fn of(request: &SendMessageRequest) -> Self {
        let configuration = request.configuration.as_ref();
        Self {
            immediately: configuration.is_some_and(|c| c.return_immediately),
            history: configuration.and_then(|c| c.history_length),
        }
    }
}
