//! Streaming sends: the first frame is the task or a bare message, then come the events.

use crate::engine::active_task::CallError;
use std::sync::Arc;

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{self, SendMessageRequest, SendMessageResponse, send_message_response::Payload},
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    api::{
        replay::Replayed,
        send::{Contested, Options, Sending, Taken, task_id},
        subscription::{Start, Subscription},
    },
    calls::caller::Caller,
    clock::now,
    cluster::{remote_watch::unserved, remote_write::STEP_TRIES},
    engine::{
        active_task::{Done, Until, Waiter, task_response},
        core::Core,
        effect::Effect,
        store_outage,
        timeouts::DisconnectGuard,
    },
    error::Error,
    policy::capabilities,
};

impl Core {
    /// Starts or continues a task and follows it. The first frame is the task, or a bare message.
    pub(crate) async fn stream(
        self: &Arc<Self>,
        request: SendMessageRequest,
        caller: &Caller,
    ) -> Result<Subscription, Error> {
        let has_key = caller.has_key();
        let may_race = self.store.cluster().is_some() && (has_key || !task_id(&request).is_empty());
        let mut contested = Contested::of(caller);
        for _ in 1..if may_race { STEP_TRIES } else { 1 } {
            match self.stream_looked_up(request.clone(), caller).await {
                Ok(streams) => return Ok(streams),
                Err(error) => {
                    let error = CallError::from(error);
                    if !contested.passes(&error) {
                        return Err(refused(error.into(), has_key));
                    }
                }
            }
        }
        let streams = self.stream_looked_up(request, caller).await;
        streams.map_err(|error| refused(error.into(), has_key))
    }

    async fn stream_looked_up(
        self: &Arc<Self>,
        request: SendMessageRequest,
        caller: &Caller,
    ) -> Result<Subscription, Error> {
        let options = Options::of(&request);
        let continues = !task_id(&request).is_empty() && caller.calling.is_none();
        let tenant = if continues { request.tenant.clone() } else { String::new() };
        if continues {
            let checking = self.check_addressed(&tenant, caller, capabilities::check_streaming);
            store_outage::read_in_time(checking).await?;
        }
        let found =
            store_outage::read_in_time(self.look_up(request, caller)).await.map_err(|error| {
                if continues {
                    self.without_default(error, &tenant, caller, capabilities::check_streaming)
                } else {
                    error
                }
            });
        match found? {
            Replayed::Again(key) => self.stream_again(key, options, caller).await,
            Replayed::First(sending) => self.stream_first(*sending, options, caller).await,
        }
    }

    async fn stream_first(
        self: &Arc<Self>,
        sending: Sending,
        options: Options,
        caller: &Caller,
    ) -> Result<Subscription, Error> {
        let elsewhere = store_outage::write_in_time(self.answer_if_remote(sending, caller, true));
        let sending = match elsewhere.await? {
            Taken::Remote(id) => {
                let start = Start::Snapshot { history: options.history };
                let subscribed = store_outage::read_in_time(self.subscribe_id(id, start)).await;
                let subscribed = subscribed.map_err(|error| store_outage::stored(error, id));
                let mut subscription = subscribed.map_err(|error| unserved(error, id))?;
                subscription.closes_at_question();
                return Ok(subscription.guarded_by(DisconnectGuard::of(caller, self, id)));
            }
            Taken::NotYet(sending) => sending,
        };
        match self.stream_now(*sending, caller).await {
            Ok(subscription) => Ok(subscription),
            Err(error) => Err(self.ended_meanwhile(error).await),
        }
    }

    async fn stream_now(
        self: &Arc<Self>,
        sending: Sending,
        caller: &Caller,
    ) -> Result<Subscription, Error> {
        let options = Options::of(&sending.request);
        let (watcher, events) = mpsc::channel(limits::SUBSCRIBER_EVENTS_MAX);
        let (done, first) = oneshot::channel();
        let done: Done = Box::new(move |answer| drop(done.send(answer)));
        let started = self.change(|state| {
            let answers = sending.task.as_ref().map(|task| task.id);
            let decided = match self.decide(state, sending, caller, true) {
                Ok(decided) => decided,
                Err(error) => {
                    let rejected = state.reject_on_commit(answers, done, error);
                    return rejected.map(|()| None).map_err(|(_, error)| error);
                }
            };
            let (id, may_message) = (decided.step.task_id(), decided.step.may_message());
            let pushes = decided.push_keys();
            let (mut seq, mut snapshot) = (0, a2a::Task::default());
            state.take(decided, now(), |transition| {
                seq = transition.task().seq;
                snapshot = transition.snapshot(options.history);
                transition.active.watchers.push(watcher);
                if may_message {
                    transition.active.waiters.push(Waiter {
                        until: Until::FirstReport,
                        call: None,
                        history: None,
                        depends_on_seq: seq,
                        min_seq: 0,
                        patient: false,
                        cancel_after: None,
                        done,
                        _deadline: None,
                    });
                } else {
                    let response = Box::new(task_response(snapshot.clone()));
                    transition.effects.push(Effect::Answer(done, response));
                }
            });
            self.deliver_after_commit(state, pushes);
            Ok::<_, Error>(Some((id, seq, snapshot)))
        })?;
        let Some((id, seq, snapshot)) = started else {
            let rejected = first.await.unwrap_or_else(|_| Err(Error::unanswered().into()));
            return Err(rejected.err().map_or_else(Error::unanswered, Error::from));
        };
        let guard = DisconnectGuard::of(caller, self, id);
        let answer = first.await.unwrap_or_else(|_| Err(Error::unanswered().into()));
        let core = Arc::clone(self);
        match answer.map_err(Error::from)? {
            SendMessageResponse { payload: Some(Payload::Message(m)) } => {
                Ok(Subscription::message(core, id, m).guarded_by(guard))
            }
            _ => Ok(Subscription::started(core, id, seq, snapshot, events).guarded_by(guard)),
        }
    }
}

/// A call with an idempotency key can be repeated even if its outcome is unknown.
fn refused(failure: Failure, has_key: bool) -> Error {
    if has_key { store_outage::with_key(failure).into() } else { failure.into() }
}
