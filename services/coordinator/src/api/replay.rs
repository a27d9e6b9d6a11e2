//! Replay of sends by idempotency key: the same key returns the same task or the same message. A
//! replay starts nothing, answers nothing, and waits like the first send.

use crate::engine::active_task::CallError;
use crate::engine::effect::WriteResult;
use crate::store::key_retention;
use crate::task::confirmed::Confirmed;
use std::sync::Arc;

use bytes::Bytes;
use faultline_proto::{
    a2a::{self, SendMessageRequest, send_message_response::Payload},
    id::TaskId,
    reason,
    v1::Wait,
};
use prost::Message;
use tokio::sync::oneshot;

use crate::{
    api::{
        delegation::ANY_MESSAGE,
        send::{Options, Sending, push_of, task_id},
        subscription::{Start, Subscription},
    },
    calls::{
        caller::Caller,
        idempotency::{KeyClaim, digest_of},
    },
    clock::now,
    cluster::{
        remote_watch::unserved,
        remote_write::{STEP_TRIES, contended},
    },
    engine::{
        active_task::{Done, Until, message_response, task_response},
        core::Core,
        effect::Effect,
        store_outage::{self, read_in_time},
        timeouts::DisconnectGuard,
    },
    error::Error,
    policy::capabilities,
    store::{Digest, KeyName, KeyRow, Scope},
    task::{Millis, Task, is_waiting},
};

/// Whether a send is new or a replay.
pub(crate) enum Replayed {
    First(Box<Sending>),
    Again(KeyRow),
}

/// The stored result of a send.
enum Outcome {
    Task(TaskId),
    Message(a2a::Message),
}

impl Core {
    /// Looks up the task and the key that a send names. Reads nothing if it names neither.
    pub(crate) async fn look_up(
        &self,
        request: SendMessageRequest,
        caller: &Caller,
    ) -> Result<Replayed, Error> {
        caller.check_key()?;
        if !request.tenant.is_empty() {
            caller.check_agent(&request.tenant)?;
        }
        let reads = caller.has_key() || !task_id(&request).is_empty();
        // SQLite can be read although it accepts no writes.
        if reads && self.store.cluster().is_some() && self.lock().is_away {
            return Err(Error::Store { detail: "no answer".to_owned() });
        }
        self.load_unknown_agent(&request.tenant).await?;
        let task = match task_id(&request) {
            "" => None,
            id if push_of(&request).is_some() => {
                let check = capabilities::check_push;
                Some(Box::new(self.visible_with(id, &request.tenant, caller, check).await?))
            }
            id => Some(Box::new(self.visible(id, &request.tenant, caller).await?)),
        };
        let answers = task.is_some();
        if let Some(calling) = caller.calling.as_ref().filter(|c| !answers || !c.key.is_empty()) {
            let name = calling.key_name(&caller.principal, answers)?;
            return self.look_up_key(name, ANY_MESSAGE, request, task, caller).await;
        }
        if caller.idempotency_key.is_empty() {
            return self.first(request, task, None, caller).await;
        }
        let agent = match &task {
            Some(task) => task.agent.clone(),
            None => self.addressee(&self.lock(), &request.tenant, caller)?,
        };
        self.activate(caller, &agent);
        let (principal, key) = (caller.principal.clone(), caller.idempotency_key.clone());
        let (name, digest) = (KeyName { principal, agent, key }, digest_of(&request));
        self.look_up_key(name, digest, request, task, caller).await
    }

    async fn look_up_key(
        &self,
        name: KeyName,
        digest: Digest,
        request: SendMessageRequest,
        task: Option<Box<Task>>,
        caller: &Caller,
    ) -> Result<Replayed, Error> {
        let claim = self.claims.claim(name.clone(), digest).await?;
        match self.store.key(name, now() - key_retention()).await? {
            None => self.first(request, task, Some(claim), caller).await,
            Some(row) if row.digest == digest => Ok(Replayed::Again(row)),
            Some(row) => Err(Error::KeyReused(row.name.key)),
        }
    }

    async fn first(
        &self,
        request: SendMessageRequest,
        task: Option<Box<Task>>,
        claim: Option<KeyClaim>,
        caller: &Caller,
    ) -> Result<Replayed, Error> {
        let push = self.inline_push(&request, task.as_deref(), caller).await?;
        Ok(Replayed::First(Box::new(Sending { request, task, claim, push })))
    }

    pub(crate) async fn send_again(
        self: &Arc<Self>,
        key: KeyRow,
        options: Options,
        caller: &Caller,
        done: Done,
    ) {
        let (name, created) = (key.name.clone(), key.created);
        match self.outcome(key, options, caller).await {
            Ok(Outcome::Task(id)) => {
                let done = self.or_reply(name, created, done);
                self.wait_for(id, options, caller, done).await;
            }
            Ok(Outcome::Message(message)) => done(Ok(message_response(message))),
            Err(error) => done(Err(error.into())),
        }
    }

    /// A task that vanishes while it is awaited may have been answered with a bare message at
    /// another coordinator: its key holds that message.
    fn or_reply(self: &Arc<Self>, name: KeyName, created: Millis, done: Done) -> Done {
        if self.store.cluster().is_none() {
            return done;
        }
        let core = Arc::clone(self);
        Box::new(move |answer| match answer {
            Err(CallError::Failed(failure)) if failure.reason == reason::TASK_NOT_FOUND.name => {
                tokio::spawn(async move {
                    let key = core.store.key(name, created).await;
                    let reply = key.ok().flatten().and_then(|key| key.reply);
                    let reply = reply.and_then(|reply| a2a::Message::decode(reply).ok());
                    done(reply.map(message_response).ok_or(CallError::Failed(failure)));
                });
            }
            answer => done(answer),
        })
    }

    /// Streams the present task, then its later events. After the end there are none.
    pub(crate) async fn stream_again(
        self: &Arc<Self>,
        key: KeyRow,
        options: Options,
        caller: &Caller,
    ) -> Result<Subscription, Error> {
        let id = key.task_id;
        match self.outcome(key, options, caller).await? {
            Outcome::Task(id) => {
                let start = Start::Snapshot { history: options.history };
                let mut subscription = read_in_time(self.subscribe_id(id, start)).await?;
                subscription.closes_at_question();
                Ok(subscription.guarded_by(DisconnectGuard::of(caller, self, id)))
            }
            Outcome::Message(message) => Ok(Subscription::message(Arc::clone(self), id, message)),
        }
    }

    /// Whether the send became a task or a message, once that is decided.
    async fn outcome(
        self: &Arc<Self>,
        key: KeyRow,
        options: Options,
        caller: &Caller,
    ) -> Result<Outcome, Error> {
        if let Some(reply) = key.reply {
            return decoded(reply);
        }
        let id = key.task_id;
        let (done, answer) = oneshot::channel();
        let done: Done = Box::new(move |answer| drop(done.send(answer)));
        let (receipt, flushed) = oneshot::channel();
        let known = self.change(|state| {
            state.check_served()?;
            match state.tasks.get_mut(&id) {
                Some(active) if active.may_reply_without_task => {
                    let waiter = self.waiter(Until::FirstReport, options, caller, done);
                    active.waiters.push(waiter);
                    if let Some(call) = caller.call {
                        state.calls.insert(call, id);
                    }
                    Ok::<_, Error>(Known::Undecided)
                }
                Some(_) => Ok(Known::Task),
                // The task has ended, or its erasure is queued: the key is read after that write.
                None => {
                    state.after_commit(Effect::Receipt(receipt));
                    Ok(Known::Inactive)
                }
            }
        })?;
        match known {
            Known::Task => Ok(Outcome::Task(id)),
            Known::Undecided => {
                match answer.await.unwrap_or_else(|_| Err(Error::unanswered().into()))?.payload {
                    Some(Payload::Message(message)) => Ok(Outcome::Message(message)),
                    Some(Payload::Task(_)) | None => Ok(Outcome::Task(id)),
                }
            }
            Known::Inactive => {
                match flushed.await {
                    Ok(WriteResult::Done) => {}
                    Ok(WriteResult::Conflict) => return Err(CallError::Conflict.into()),
                    Ok(WriteResult::Unknown(failure)) => return Err(failure.into()),
                    Err(_) => return Err(Error::unanswered()),
                }
                let stored = self.store.key(key.name, key.created);
                let stored = read_in_time(async { Ok(stored.await?) }).await?;
                let reply = stored.and_then(|key| key.reply);
                reply.map_or(Ok(Outcome::Task(id)), decoded)
            }
        }
    }

    /// Waits for the end of a task that another coordinator began to wait for. If the awaited state
    /// is rolled back, the lookup repeats.
    pub(crate) async fn wait(self: Arc<Self>, wait: Wait, caller: Caller, done: Done) {
        let options = Options { immediately: false, history: wait.history_length };
        for _ in 0..STEP_TRIES {
            let visible = read_in_time(self.visible(&wait.task_id, "", &caller));
            let id = match visible.await {
                Ok(task) => task.id,
                Err(error) => return done(Err(error.into())),
            };
            let (told, answer) = oneshot::channel();
            let once: Done = Box::new(move |answer| drop(told.send(answer)));
            self.wait_for(id, options, &caller, once).await;
            match answer.await {
                Ok(Err(CallError::Conflict)) => {}
                // The waiter was dropped.
                Err(_) => return,
                Ok(answer) => return done(answer),
            }
        }
        done(Err(contended().into()));
    }

    /// Answers with an existing task: at once, or when it has ended or asks.
    pub(crate) async fn wait_for(
        self: &Arc<Self>,
        id: TaskId,
        options: Options,
        caller: &Caller,
        done: Done,
    ) {
        let is_shared = self.store.cluster().is_some();
        let unheard = if is_shared {
            // The awaited state may have been reached at a peer without a notification so far.
            Some(done)
        } else {
            self.wait_here(id, options, caller, done)
        };
        let Some(done) = unheard else { return };
        let found = read_in_time(self.read(id, Scope::default())).await;
        let found = found.and_then(|found| found.ok_or(Error::TaskNotFound(id.to_string())));
        let task = match found {
            Ok(task) => task,
            Err(error) => return done(Err(store_outage::stored(error, id).into())),
        };
        if !is_shared || options.immediately || task.is_final() || is_waiting(task.state) {
            return done(Ok(task_response(Confirmed::into_a2a(task, options.history))));
        }
        self.change(|state| {
            if let Err(error) = state.check_served() {
                return state.reply(done, unserved(error, id));
            }
            let waiter = self.waiter(Until::Settled, options, caller, done);
            caller.call.map(|call| state.calls.insert(call, id));
            state.wait_for_remote_task(&task, waiter);
        });
        self.notify_watched(id);
        // The copy in memory may be older than the stored state. The next comparison finds it too.
        if let Err(error) = self.refresh_task(id).await {
            tracing::debug!(task.id = %id, %error, "task cannot be read again");
        }
    }

    /// Waits on the copy in memory, if no peer shares the store. Returns the waiter of a task that
    /// is not there: the task has ended.
    fn wait_here(
        self: &Arc<Self>,
        id: TaskId,
        options: Options,
        caller: &Caller,
        done: Done,
    ) -> Option<Done> {
        self.change(|state| {
            if let Err(error) = state.check_served() {
                state.reply(done, error);
                return None;
            }
            let Some(active) = state.tasks.get_mut(&id) else { return Some(done) };
            if options.immediately || is_waiting(active.pending().state) {
                let task = active.response_on_commit(options.history);
                state.after_writes_of(id, Effect::Answer(done, Box::new(task)));
                return None;
            }
            active.waiters.push(self.waiter(Until::Settled, options, caller, done));
            if let Some(call) = caller.call {
                state.calls.insert(call, id);
            }
            None
        })
    }
}

/// The state in memory of the task that a replay refers to.
enum Known {
    /// The reply is a task.
    Task,
    /// The reply may still be a bare message; a waiter will be answered.
    Undecided,
    /// The task is not active here.
    Inactive,
}

fn decoded(reply: Bytes) -> Result<Outcome, Error> {
    let damaged = |e: prost::DecodeError| Error::Store { detail: e.to_string() };
    a2a::Message::decode(reply).map(Outcome::Message).map_err(damaged)
}

#[cfg(test)]
mod tests;
