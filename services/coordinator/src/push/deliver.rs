//! Delivery of push notifications: one loop per configuration reads the task's events from its
//! stored position, sends each status, and advances when the webhook has accepted it (at-least-
//! once delivery).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use faultline_chassis::TraceContext;
use faultline_proto::{a2a::stream_response::Payload, id::TaskId, json, v1::Frame};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    api::subscription::Start,
    engine::{
        core::{Closed, Core, State},
        effect::Effect,
    },
    error::Error,
    store::{PushKey, PushWrite, Scope},
    task::is_final,
};
use crate::{
    push::pending::Pending,
    webhooks::{
        courier::{Answer, pause, span},
        target::Target,
    },
};

/// Before a store that could not be read is asked again.
const STORE_PAUSE: Duration = Duration::from_secs(1);

impl Core {
    /// Begins deliveries once everything queued so far, their configurations too, is durable.
    pub(crate) fn deliver_after_commit(self: &Arc<Self>, state: &mut State, keys: Vec<PushKey>) {
        for key in keys {
            let start = self.delivery(state, key);
            state.after_commit(Effect::Run(start));
        }
    }

    /// Resumes the deliveries that the store lists as unfinished.
    pub(crate) fn deliver_unfinished(self: &Arc<Self>, state: &mut State, keys: Vec<PushKey>) {
        if state.closed == Some(Closed::Leaving) {
            return;
        }
        for key in keys {
            self.delivery(state, key)();
        }
    }

    fn delivery(self: &Arc<Self>, state: &mut State, key: PushKey) -> Box<dyn FnOnce() + Send> {
        let (core, stop) = (Arc::clone(self), state.deliveries.enter(key.clone()));
        Box::new(move || drop(tokio::spawn(core.deliver(key, stop))))
    }

    async fn deliver(self: Arc<Self>, key: PushKey, stop: CancellationToken) {
        let delivering = async {
            while let Err(error) = self.deliver_rest(&key, &stop).await {
                tracing::debug!(
                    task.id = %key.task, push = key.id, %error, "the store cannot be read: retrying"
                );
                sleep(STORE_PAUSE).await;
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = delivering => {}
        }
        stop.cancel();
        self.lock().deliveries.leave(&key);
    }

    /// Everything that is left to send, from the place that is stored.
    async fn deliver_rest(
        self: &Arc<Self>,
        key: &PushKey,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let opening = self.courier.openings.acquire().await;
        let Some(row) = self.store.push(key.clone()).await?.filter(|row| !row.done) else {
            return Ok(());
        };
        let Ok(target) = Target::of(&row.config) else {
            // Taken by an older version with other rules.
            return self.note_sent(key, stop, row.sent, true).await;
        };
        let mut events = self.subscribe_id(key.task, Start::After(row.sent)).await?;
        drop(opening);
        let (mut seq, mut known) = (row.sent, None);
        while let Some(frame) = events.next().await? {
            let Some((body, is_last)) = notification(&frame) else { continue };
            let trace = self.trace_of(key.task, known.take()).await?;
            let Some(taken) = self.insist(key, &target, body, &trace).await? else {
                return Ok(());
            };
            self.courier.note(if taken.is_ok() { "taken" } else { "given_up" });
            if let Err(why) = &taken {
                let (task, push, host) = (key.task, &key.id, &target.host);
                let trace = trace.trace_id();
                tracing::warn!(
                    task.id = %task, trace.id = trace, push, host, why,
                    "the delivery to the webhook was abandoned"
                );
            } else {
                seq = frame.seq;
            }
            known = Some(trace);
            let done = is_last || taken.is_err();
            self.note_sent(key, stop, seq, done).await?;
            if done {
                return Ok(());
            }
        }
        // The task had ended before there was anything to send.
        self.note_sent(key, stop, seq, true).await
    }

    /// Nobody has told another coordinator to delete it, or to do it instead.
    async fn sees_to(&self, key: &PushKey) -> Result<bool, Error> {
        match self.store.cluster() {
            Some(cluster) => Ok(cluster.sees_to(key.clone()).await?),
            None => Ok(true),
        }
    }

    /// Tries until it is taken, or says why that will not be. `None`: another coordinator sees to
    /// it by now, or nobody is to.
    async fn insist(
        &self,
        key: &PushKey,
        target: &Target,
        body: Bytes,
        trace: &TraceContext,
    ) -> Result<Option<Result<(), String>>, Error> {
        let rules = &self.courier.rules;
        let (since, patience) = (Instant::now(), Duration::from_millis(rules.give_up_ms));
        let first = Duration::from_millis(rules.pause_ms);
        let mut before = None;
        for tried in 1.. {
            if !self.sees_to(key).await? {
                return Ok(None);
            }
            let span = span(target, trace, key.task, before.as_ref());
            before = Some(span.context().clone());
            match self.courier.post(target, body.clone(), span).await {
                Answer::Taken => break,
                Answer::Never { why } => return Ok(Some(Err(why))),
                Answer::NotNow { why, after } => {
                    let own = pause(first, tried, rand::random());
                    let pause = own.max(after.unwrap_or_default());
                    tracing::debug!(
                        host = target.host,
                        tried,
                        why,
                        ?pause,
                        "the webhook did not accept the notification: retrying"
                    );
                    if since.elapsed() + pause > patience {
                        return Ok(Some(Err(why)));
                    }
                    self.courier.note("retried");
                    sleep(pause).await;
                }
            }
        }
        Ok(Some(Ok(())))
    }

    /// Durable when it returns: nothing is sent before, or a crash would send the same statuses
    /// again in a row, older ones after newer ones.
    async fn note_sent(
        &self,
        key: &PushKey,
        stop: &CancellationToken,
        seq: u64,
        done: bool,
    ) -> Result<(), Error> {
        self.room().await;
        let sent = PushWrite::Sent { key: key.clone(), seq, done };
        let queue = |state: &mut State| (!stop.is_cancelled()).then(|| Pending::queue(state, sent));
        match self.change(queue) {
            Some(pending) => pending.durable().await,
            // It was stopped, and is about to be dropped: nothing more may be sent.
            None => std::future::pending().await,
        }
    }

    /// The span of the run that the task is in, or was in when it was `known`.
    async fn trace_of(
        &self,
        task: TaskId,
        known: Option<TraceContext>,
    ) -> Result<TraceContext, Error> {
        let active = self.lock().tasks.get(&task).map(|active| active.pending().run_trace());
        if let Some(trace) = active.or(known) {
            return Ok(trace);
        }
        let stored = self.store.task(task, Scope::default()).await?;
        Ok(stored.map_or_else(TraceContext::root, |stored| stored.task.run_trace()))
    }
}

/// The notification of a frame, if it is a status, and whether it is the last one.
fn notification(frame: &Frame) -> Option<(Bytes, bool)> {
    let response = frame.response.as_ref()?;
    let Some(Payload::StatusUpdate(update)) = &response.payload else { return None };
    let is_last = update.status.as_ref().is_some_and(|status| is_final(status.state()));
    Some((json::to_vec(response).into(), is_last))
}
