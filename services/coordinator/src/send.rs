//! Sending: a message starts a task or answers one that waits, and the caller waits for the end,
//! for the beginning, or follows. Neither door is known here; both use it.

use std::{sync::Arc, time::Duration};

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{self, SendMessageRequest, SendMessageResponse, send_message_response::Payload},
    id::TaskId,
};
use prost::Message;
use tokio::sync::{mpsc, oneshot};

use crate::{
    core::{Core, Effect, State, now},
    dispatch::NewTask,
    error::Error,
    live::{Alarm, CallKey, Done, Until, Waiter, task_response},
    subscription::Subscription,
};

/// What the edge knows of a call, whatever it asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// Of the hop that serves the call: what a new task is filed under.
    pub(crate) traceparent: String,
    /// How long the caller waits.
    pub(crate) patience: Option<Duration>,
    /// For a caller that may give up.
    pub(crate) call: Option<CallKey>,
}

impl Core {
    /// Answers through `done`, now or later. Blocks nobody.
    pub(crate) fn send(self: &Arc<Self>, request: SendMessageRequest, caller: Caller, done: Done) {
        let continues = request.message.as_ref().is_some_and(|m| !m.task_id.is_empty());
        if continues {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.send_answer_to(request, caller, done).await });
            return;
        }
        let sent = self.change(|state| {
            let (new, options) = match self.new_task(state, request, &caller) {
                Ok(new) => new,
                Err(error) => return Err((done, error)),
            };
            let waits = !options.immediately || new.may_message;
            let id = state.submit(new, now(), |live, effects| match waits {
                true => live.waiters.push(Waiter {
                    until: options.until(),
                    call: caller.call,
                    history: options.history,
                    done,
                    _alarm: self.alarm(&caller),
                }),
                false => {
                    let task = live.task.to_a2a(options.history, true);
                    effects.push(Effect::Answer(done, Box::new(task_response(task))));
                }
            });
            if let Some(call) = caller.call.filter(|_| waits) {
                state.calls.insert(call, id);
            }
            Ok(())
        });
        if let Err((done, error)) = sent {
            done(Err(error.into()));
        }
    }

    /// Answers a waiting call after its patience, unless it was answered before.
    fn alarm(self: &Arc<Self>, caller: &Caller) -> Option<Alarm> {
        let (patience, call) = caller.patience.zip(caller.call)?;
        let core = Arc::clone(self);
        let ringing = tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            let ended = core.lock().end_patience(call);
            if let Some((id, done)) = ended {
                done(Err(Error::PatienceEnded(id).into()));
            }
        });
        Some(Alarm(ringing.abort_handle()))
    }

    async fn send_answer_to(
        self: Arc<Self>,
        request: SendMessageRequest,
        caller: Caller,
        done: Done,
    ) {
        let (id, message, options) = match self.addressed(request).await {
            Ok(found) => found,
            Err(error) => return done(Err(error.into())),
        };
        let refused = self.change(|state| {
            if let Err(error) = state.answer(id, message, now(), Vec::new()) {
                return Some((done, error));
            }
            let live = state.live.get_mut(&id)?;
            if options.immediately {
                let task = task_response(live.task.to_a2a(options.history, true));
                state.after_commit(Effect::Answer(done, Box::new(task)));
                return None;
            }
            let (until, history) = (Until::Settled, options.history);
            let (call, alarm) = (caller.call, self.alarm(&caller));
            live.waiters.push(Waiter { until, call, history, done, _alarm: alarm });
            if let Some(call) = caller.call {
                state.calls.insert(call, id);
            }
            None
        });
        if let Some((done, error)) = refused {
            let error = self.ended_meanwhile(error).await;
            done(Err(error.into()));
        }
    }

    /// A task that was there when we read it and not when we answered it has ended in between.
    async fn ended_meanwhile(&self, error: Error) -> Error {
        let Error::TaskNotFound(id) = error else { return error };
        match self.visible(&id, "").await {
            Ok(task) if task.is_final() => Error::Ended { id: task.id, state: task.state },
            Ok(task) => Error::Busy(task.id),
            Err(error) => error,
        }
    }

    /// The task a message is for, checked against what else the message says.
    async fn addressed(
        &self,
        request: SendMessageRequest,
    ) -> Result<(TaskId, a2a::Message, Options), Error> {
        let options = Options::of(&request);
        let message = request.message.unwrap_or_default();
        let task = self.visible(&message.task_id, &request.tenant).await?;
        if !message.context_id.is_empty() && message.context_id != task.context_id {
            let what = format!("the task belongs to context '{}'", task.context_id);
            return Err(Error::Invalid { field: "message.contextId", what });
        }
        if task.is_final() {
            return Err(Error::Ended { id: task.id, state: task.state });
        }
        if task.message_bytes() + check_size(&message)? > limits::TASK_MESSAGE_BYTES_MAX {
            let text = "the messages of this task are too many: start a new one in its context";
            return Err(Error::TooLarge(text));
        }
        Ok((task.id, message, options))
    }

    fn new_task(
        &self,
        state: &State,
        request: SendMessageRequest,
        caller: &Caller,
    ) -> Result<(NewTask, Options), Error> {
        state.check_open()?;
        let options = Options::of(&request);
        let message = request.message.unwrap_or_default();
        check_size(&message)?;
        let agent = match request.tenant.as_str() {
            "" => self.default_agent(state).ok_or(Error::NoDefaultAgent)?,
            tenant => tenant.to_owned(),
        };
        let context_id = match message.context_id.as_str() {
            "" => uuid::Uuid::now_v7().to_string(),
            given if given.len() > limits::KEY_BYTES_MAX => {
                let what = format!("at most {} bytes", limits::KEY_BYTES_MAX);
                return Err(Error::Invalid { field: "message.contextId", what });
            }
            given => given.to_owned(),
        };
        let may_message = state.admit(&agent)?;
        let traceparent = caller.traceparent.clone();
        Ok((NewTask { agent, context_id, message, traceparent, may_message }, options))
    }

    /// What a message to nobody in particular goes to: what is set, or the only one there is.
    pub(crate) fn default_agent(&self, state: &State) -> Option<String> {
        let mut names = state.registry.agents.keys();
        match (&self.config.default_agent, names.next(), names.next()) {
            (Some(name), _, _) => Some(name.clone()),
            (None, Some(only), None) => Some(only.clone()),
            _ => None,
        }
    }

    /// Starts or continues a task and follows it. The first frame is the task, or a bare message.
    pub(crate) async fn stream(
        self: &Arc<Self>,
        request: SendMessageRequest,
        caller: Caller,
    ) -> Result<Subscription, Error> {
        let continues = request.message.as_ref().is_some_and(|m| !m.task_id.is_empty());
        if continues {
            return self.stream_answer(request).await;
        }
        let (watcher, events) = mpsc::channel(limits::SUBSCRIBER_EVENTS_MAX);
        let (done, first) = oneshot::channel();
        let submitted = self.change(|state| {
            let (new, _) = self.new_task(state, request, &caller)?;
            let may_message = new.may_message;
            let mut snapshot = None;
            let id = state.submit(new, now(), |live, effects| {
                let task = live.task.to_a2a(None, true);
                snapshot = Some(task.clone());
                live.watchers.push(watcher);
                let done: Done = Box::new(move |answer| drop(done.send(answer)));
                match may_message {
                    true => live.waiters.push(Waiter {
                        until: Until::FirstReport,
                        call: None,
                        history: None,
                        done,
                        _alarm: None,
                    }),
                    false => effects.push(Effect::Answer(done, Box::new(task_response(task)))),
                }
            });
            Ok::<_, Error>((id, snapshot))
        });
        let (id, snapshot) = submitted?;
        let answer = first.await.unwrap_or_else(|_| Err(Error::Leaving.into()));
        let core = Arc::clone(self);
        match answer.map_err(Error::from)? {
            SendMessageResponse { payload: Some(Payload::Message(m)) } => {
                Ok(Subscription::message(core, id, m))
            }
            _ => Ok(Subscription::started(core, id, snapshot.unwrap_or_default(), events)),
        }
    }

    async fn stream_answer(
        self: &Arc<Self>,
        request: SendMessageRequest,
    ) -> Result<Subscription, Error> {
        let (id, message, _) = self.addressed(request).await?;
        // The first frame is the task with the answer in it, so wait until that is durable.
        let (done, durable) = oneshot::channel();
        let done: Done = Box::new(move |answer| drop(done.send(answer)));
        let nothing = Box::new(SendMessageResponse::default());
        let effects = vec![Effect::Answer(done, nothing)];
        if let Err(error) = self.change(|state| state.answer(id, message, now(), effects)) {
            return Err(self.ended_meanwhile(error).await);
        }
        durable.await.unwrap_or_else(|_| Err(Error::Leaving.into()))?;
        let mut subscription = self.subscribe_id(id, None).await?;
        subscription.closes_at_question();
        Ok(subscription)
    }
}

/// What a send asks for beside the message.
#[derive(Clone, Copy, Debug)]
struct Options {
    immediately: bool,
    history: Option<i32>,
}

impl Options {
    /// What a caller waits for, if it waits at all.
    fn until(self) -> Until {
        if self.immediately { Until::FirstReport } else { Until::Settled }
    }

    fn of(request: &SendMessageRequest) -> Self {
        let configuration = request.configuration.as_ref();
        Self {
            immediately: configuration.is_some_and(|c| c.return_immediately),
            history: configuration.and_then(|c| c.history_length),
        }
    }
}

/// The gateway checks this too, but is not the only door.
fn check_size(message: &a2a::Message) -> Result<usize, Error> {
    match message.encoded_len() {
        bytes if bytes > limits::MESSAGE_BYTES_MAX => {
            Err(Error::TooLarge("the message is over 4 MiB: send a URL instead of the content"))
        }
        bytes => Ok(bytes),
    }
}
