//! The operations, as both doors offer them: the link of a gateway and the A2A service. Nothing
//! here knows which door a call came through.

use std::{sync::Arc, time::Duration};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{
        self, CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse,
        SendMessageRequest, SendMessageResponse, TaskState,
    },
    id::TaskId,
    v1::{
        self, AgentsRequest, AgentsResponse, InspectRequest, InspectResponse, WorkersResponse,
    },
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    core::{Core, Effect, now},
    dispatch::NewTask,
    error::Error,
    live::{CallKey, Done, Seen, Until, Waiter, task_response},
    registry::Worker,
    store::{Cursor, Filter},
    subscription::Subscription,
    task::{Refused, timestamp},
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
        let patience = caller.patience.zip(caller.call);
        let sent = self.change(|state| {
            let (new, options) = match self.new_task(state, request, &caller) {
                Ok(new) => new,
                Err(error) => return Err((done, error)),
            };
            let may_message = state
                .registry
                .agents
                .get(&new.agent)
                .is_some_and(|a| a.offer.may_answer_with_message);
            let mut done = Some(done);
            let mut waits = false;
            let submitted = state.submit(new, now(), |live, effects| {
                let Some(done) = done.take() else { return };
                match options.immediately && !may_message {
                    true => {
                        let task = live.task.to_a2a(options.history, true);
                        effects.push(Effect::Answer(done, Box::new(task_response(task))));
                    }
                    false => {
                        waits = true;
                        let now = options.immediately;
                        live.waiters.push(Waiter {
                            until: if now { Until::FirstReport } else { Until::Settled },
                            call: caller.call,
                            history: options.history,
                            done,
                        });
                    }
                }
            });
            match (submitted, done) {
                (Ok(id), _) => {
                    if let Some(call) = caller.call.filter(|_| waits) {
                        state.calls.insert(call, id);
                    }
                    Ok(id)
                }
                (Err(error), Some(done)) => Err((done, error)),
                (Err(_), None) => unreachable!("a refused submit never asks who waits"),
            }
        });
        match sent {
            Ok(id) => {
                if let Some((patience, call)) = patience {
                    self.end_patience(id, call, patience);
                }
            }
            Err((done, error)) => done(Err(error.into())),
        }
    }

    /// Answers a waiting call after its patience, unless it was answered before.
    fn end_patience(self: &Arc<Self>, id: TaskId, call: CallKey, patience: Duration) {
        let core = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            if let Some(done) = core.lock().forget_call(call) {
                done(Err(Error::PatienceEnded(id).into()));
            }
        });
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
            let Some(live) = state.live.get_mut(&id) else { return None };
            if options.immediately {
                let task = task_response(live.task.to_a2a(options.history, true));
                state.after_commit(Effect::Answer(done, Box::new(task)));
                return None;
            }
            let (until, history) = (Until::Settled, options.history);
            live.waiters.push(Waiter { until, call: caller.call, history, done });
            if let Some(call) = caller.call {
                state.calls.insert(call, id);
            }
            None
        });
        match (refused, caller.patience.zip(caller.call)) {
            (Some((done, error)), _) => done(Err(error.into())),
            (None, Some((patience, call))) => self.end_patience(id, call, patience),
            (None, None) => {}
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
        Ok((task.id, message, options))
    }

    /// A stored task that the caller may see under this tenant.
    async fn visible(&self, id: &str, tenant: &str) -> Result<crate::task::Task, Error> {
        let not_found = || Error::TaskNotFound(id.to_owned());
        let task_id = id.parse::<TaskId>().map_err(|_| not_found())?;
        let stored = self.store.task(task_id).await?.ok_or_else(not_found)?;
        match tenant.is_empty() || stored.task.agent == tenant {
            true => Ok(stored.task),
            false => Err(not_found()),
        }
    }

    fn new_task(
        &self,
        state: &crate::core::State,
        request: SendMessageRequest,
        caller: &Caller,
    ) -> Result<(NewTask, Options), Error> {
        let options = Options::of(&request);
        let message = request.message.unwrap_or_default();
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
        let traceparent = caller.traceparent.clone();
        Ok((NewTask { agent, context_id, message, traceparent }, options))
    }

    /// What a message to nobody in particular goes to: what is set, or the only one there is.
    fn default_agent(&self, state: &crate::core::State) -> Option<String> {
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
            let agent = state.registry.agents.get(&new.agent);
            let may_message = agent.is_some_and(|a| a.offer.may_answer_with_message);
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
                    }),
                    false => effects.push(Effect::Answer(done, Box::new(task_response(task)))),
                }
            })?;
            Ok::<_, Error>((id, snapshot))
        });
        let (id, snapshot) = submitted?;
        let answer = first.await.unwrap_or_else(|_| Err(Error::Leaving.into()));
        let core = Arc::clone(self);
        match answer.map_err(Error::from)? {
            SendMessageResponse { payload: Some(a2a::send_message_response::Payload::Message(m)) } => {
                Ok(Subscription::message(core, m))
            }
            _ => Ok(Subscription::started(core, id, snapshot.unwrap_or_default(), events)),
        }
    }

    async fn stream_answer(
        self: &Arc<Self>,
        request: SendMessageRequest,
    ) -> Result<Subscription, Error> {
        let (id, message, _) = self.addressed(request).await?;
        // Watch from before the answer, so that nothing it causes is missed.
        let mut subscription = self.subscribe_id(id, None).await?;
        subscription.closes_at_question();
        self.change(|state| state.answer(id, message, now(), Vec::new()))?;
        Ok(subscription)
    }

    pub(crate) async fn get(&self, request: GetTaskRequest) -> Result<a2a::Task, Error> {
        let task = self.visible(&request.id, &request.tenant).await?;
        Ok(task.into_a2a(request.history_length))
    }

    pub(crate) async fn list(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        let limit = request.page_size.unwrap_or(50);
        if !(1..=100).contains(&limit) {
            return Err(Error::Invalid { field: "pageSize", what: "1 to 100".to_owned() });
        }
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(parse_token(token).ok_or_else(|| Error::Invalid {
                field: "pageToken",
                what: "use the nextPageToken of the page before".to_owned(),
            })?),
        };
        let some = |text: String| if text.is_empty() { None } else { Some(text) };
        let state = match request.status() {
            TaskState::Unspecified => None,
            state => Some(state),
        };
        let artifacts = request.include_artifacts.unwrap_or(false);
        let filter = Filter {
            agent: some(request.tenant),
            context_id: some(request.context_id),
            state,
            status_from: request.status_timestamp_after.as_ref().map(crate::task::millis),
            after,
            limit: limit as usize,
            artifacts,
        };
        let page = self.store.list(filter).await?;
        let last = page.tasks.last().filter(|_| page.more);
        let next_page_token = last.map_or_else(String::new, format_token);
        let history = request.history_length;
        let tasks = page.tasks.iter().map(|t| t.to_a2a(history, artifacts)).collect();
        let total_size = i32::try_from(page.total).unwrap_or(i32::MAX);
        Ok(ListTasksResponse { tasks, next_page_token, page_size: limit, total_size })
    }

    pub(crate) async fn cancel(&self, request: CancelTaskRequest) -> Result<a2a::Task, Error> {
        let task = self.visible(&request.id, &request.tenant).await?;
        let id = task.id;
        if task.is_final() {
            return Err(Error::NotCancelable { id, state: task.state });
        }
        let (done, answer) = oneshot::channel();
        let refused = self.change(|state| {
            state.check_open()?;
            let Some(live) = state.live.get_mut(&id) else { return Ok(false) };
            let body = match live.task.decide_cancel() {
                Ok(body) => body,
                Err(Refused::Final) => {
                    return Err(Error::NotCancelable { id, state: live.task.state });
                }
                Err(_) => return Err(Error::Busy(id)),
            };
            let done: Done = Box::new(move |answer| drop(done.send(answer)));
            live.waiters.push(Waiter { until: Until::Settled, call: None, history: None, done });
            state.end(id, body, "user", now(), Vec::new());
            Ok(true)
        })?;
        if !refused {
            // It ended between our look at the store and our look at memory.
            let task = self.visible(&request.id, &request.tenant).await?;
            return Err(Error::NotCancelable { id, state: task.state });
        }
        match answer.await {
            Ok(Ok(SendMessageResponse {
                payload: Some(a2a::send_message_response::Payload::Task(task)),
            })) => Ok(task),
            Ok(Err(failure)) => Err(failure.into()),
            _ => Err(Error::Leaving),
        }
    }

    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        id: &str,
        tenant: &str,
        after: Option<u64>,
    ) -> Result<Subscription, Error> {
        let task = self.visible(id, tenant).await?;
        if let Some(after) = after.filter(|n| *n > task.seq) {
            let what = format!(
                "event {after} does not exist, the last one is {}; leave the header out to start \
                 from the task as it stands",
                task.seq
            );
            return Err(Error::Invalid { field: "Last-Event-ID", what });
        }
        if after.is_none() && task.is_final() {
            return Err(Error::Ended { id: task.id, state: task.state });
        }
        self.subscribe_id(task.id, after).await
    }

    async fn subscribe_id(
        self: &Arc<Self>,
        id: TaskId,
        after: Option<u64>,
    ) -> Result<Subscription, Error> {
        // Watch first, read then: what happens in between comes twice and is dropped once.
        let events = self.watch(id)?;
        let not_found = || Error::TaskNotFound(id.to_string());
        let task = self.store.task(id).await?.ok_or_else(not_found)?.task;
        Ok(Subscription::joined(Arc::clone(self), task, after, events))
    }

    /// Confirmed events from now on; `None`: the task has ended.
    pub(crate) fn watch(&self, id: TaskId) -> Result<Option<mpsc::Receiver<Seen>>, Error> {
        let mut state = self.lock();
        state.check_open()?;
        Ok(state.live.get_mut(&id).map(|live| {
            let (watcher, events) = mpsc::channel(limits::SUBSCRIBER_EVENTS_MAX);
            live.watchers.retain(|w| !w.is_closed());
            live.watchers.push(watcher);
            events
        }))
    }

    pub(crate) fn agents(&self, request: &AgentsRequest) -> AgentsResponse {
        let state = self.lock();
        let default = self.default_agent(&state);
        let wanted = |name: &str| request.name.is_empty() || request.name == name;
        let agents = state.registry.agents.iter().filter(|(name, _)| wanted(name));
        let agents = agents.map(|(name, agent)| {
            let workers = state.registry.workers.values();
            let computing = workers
                .flat_map(Worker::running)
                .filter(|(id, running)| {
                    running.computing
                        && state.live.get(id).is_some_and(|l| l.task.agent == *name)
                })
                .count();
            v1::Agent {
                name: name.clone(),
                card: agent.offer.card.clone(),
                workers: agent.workers.len() as u32,
                queued: agent.queue.len() as u32,
                computing: computing as u32,
                waiting: agent.waiting,
                is_default: default.as_deref() == Some(name),
            }
        });
        AgentsResponse { agents: agents.collect() }
    }

    pub(crate) fn workers(&self) -> WorkersResponse {
        let state = self.lock();
        let mut workers: Vec<_> = state
            .registry
            .workers
            .iter()
            .map(|(id, worker)| v1::Worker {
                id: id.to_string(),
                name: worker.name.clone(),
                agents: worker.agents.clone(),
                slots: worker.slots,
                used: worker.used(),
                draining: worker.draining,
                attached: worker.is_attached(),
                since: Some(timestamp(worker.since)),
            })
            .collect();
        workers.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        WorkersResponse { workers }
    }

    pub(crate) async fn inspect(&self, request: InspectRequest) -> Result<InspectResponse, Error> {
        let not_found = || Error::TaskNotFound(request.task_id.clone());
        let id = request.task_id.parse::<TaskId>().map_err(|_| not_found())?;
        let stored = self.store.task(id).await?.ok_or_else(not_found)?;
        let task = stored.task;
        Ok(InspectResponse {
            agent: task.agent.clone(),
            trace_id: task.traceparent.split('-').nth(1).unwrap_or_default().to_owned(),
            created: Some(timestamp(task.created)),
            attempts: task.attempts.clone(),
            failure: task.failure.clone().map(Failure::into_record),
            interrupt: task.pending.clone(),
            late_reports: stored.late,
            task: Some(task.into_a2a(None)),
        })
    }
}

/// What a send asks for beside the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    immediately: bool,
    history: Option<i32>,
}

impl Options {
    fn of(request: &SendMessageRequest) -> Self {
        let configuration = request.configuration.as_ref();
        Self {
            immediately: configuration.is_some_and(|c| c.return_immediately),
            history: configuration.and_then(|c| c.history_length),
        }
    }
}

/// A page token is the place of the last task shown, so inserts do not move it.
fn format_token(last: &crate::task::Task) -> String {
    format!("{:x}.{}", last.status_at, last.id)
}

fn parse_token(token: &str) -> Option<Cursor> {
    let (status_at, id) = token.split_once('.')?;
    let status_at = i64::from_str_radix(status_at, 16).ok()?;
    Some(Cursor { status_at, id: id.parse().ok()? })
}
