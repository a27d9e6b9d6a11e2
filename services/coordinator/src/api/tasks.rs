//! Operations on existing tasks: get, list, cancel, subscribe; and the card of an agent.
//! Independent of the transport.

use crate::engine::active_task::CallError;
use crate::task::confirmed::Confirmed;
use faultline_chassis::telemetry::Span;
use std::sync::Arc;

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{
        self, AgentCard, CancelTaskRequest, GetExtendedAgentCardRequest, GetTaskRequest,
        ListTasksRequest, ListTasksResponse, SendMessageResponse, SubscribeToTaskRequest,
        TaskState, send_message_response::Payload,
    },
    id::TaskId,
    request_options,
    v1::AgentOffer,
};
use prost_types::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::{
    api::subscription::{Start, Subscription},
    calls::caller::Caller,
    clock::now,
    cluster::remote_write::{STEP_TRIES, contended},
    engine::{
        active_task::{Done, Seen, Until, Waiter},
        core::{Core, State},
    },
    error::Error,
    policy::capabilities,
    store::{Cursor, Filter, Scope},
    task::{Millis, Refused, Task, a2a_view::cancelled, millis},
};

/// A check that the card of an agent offers a capability.
pub(crate) type Check = fn(&AgentOffer) -> Result<(), Error>;

impl Core {
    /// Reads a stored task that the caller may see under this tenant. Any other task is not found,
    /// with the same text as a task that never existed.
    pub(crate) async fn visible(
        &self,
        id: &str,
        tenant: &str,
        caller: &Caller,
    ) -> Result<Task, Error> {
        let not_found = || Error::TaskNotFound(id.to_owned());
        let task_id = id.parse::<TaskId>().map_err(|_| not_found())?;
        let task = self.read(task_id, caller.scope(tenant)).await?;
        // An attempt sees its own children, and no other tasks of its principal.
        let is_own = |task: &Task| {
            let calling = caller.calling.as_ref();
            calling.is_none_or(|calling| task.parent_id() == Some(calling.task))
        };
        let task = task.filter(is_own).ok_or_else(not_found)?;
        self.activate(caller, &task.agent);
        Ok(task)
    }

    /// Reads a visible task, for an operation that the card of the agent has to offer. Capability
    /// checks come before the task lookup (A2A §3.3.4): an agent without the capability gives one
    /// answer for every id, whether the task exists or not, and independent of its owner.
    pub(crate) async fn visible_with(
        &self,
        id: &str,
        tenant: &str,
        caller: &Caller,
        check: Check,
    ) -> Result<Task, Error> {
        self.check_addressed(tenant, caller, check).await?;
        let found = self.visible(id, tenant, caller).await;
        let task = found.map_err(|error| self.without_default(error, tenant, caller, check))?;
        self.offer(&task.agent, check)?;
        Ok(task)
    }

    /// Checks the capability of the agent at this address. A tenant is one agent. The root address
    /// stands for all agents that the caller may use, as their tasks are found there. An agent that
    /// is unknown or not for this caller is left to the task lookup, which finds nothing.
    pub(crate) async fn check_addressed(
        &self,
        tenant: &str,
        caller: &Caller,
        check: Check,
    ) -> Result<(), Error> {
        self.load_unknown_agent(tenant).await?;
        let state = self.lock();
        let agents = &state.registry.agents;
        let usable = |name: &str| caller.check_agent(name).is_ok();
        if !tenant.is_empty() {
            let agent = agents.get(tenant).filter(|_| usable(tenant));
            return agent.map_or(Ok(()), |agent| check(&agent.offer));
        }
        let mut refused = Ok(());
        for (_, agent) in agents.iter().filter(|(name, _)| usable(name)) {
            match check(&agent.offer) {
                Ok(()) => return Ok(()),
                Err(error) => refused = refused.and(Err(error)),
            }
        }
        refused
    }

    /// An unknown task at the root address is judged by the default agent, whose card the root
    /// shows.
    pub(crate) fn without_default(
        &self,
        error: Error,
        tenant: &str,
        caller: &Caller,
        check: Check,
    ) -> Error {
        let (Error::TaskNotFound(_), "") = (&error, tenant) else { return error };
        let state = self.lock();
        let Ok(agent) = self.addressee(&state, tenant, caller) else { return error };
        let offer = state.registry.agents.get(&agent).map(|agent| &agent.offer);
        offer.and_then(|offer| check(offer).err()).unwrap_or(error)
    }

    /// Records which of the caller's extensions the agent supports.
    pub(crate) fn activate(&self, caller: &Caller, agent: &str) {
        if caller.extensions.is_empty() {
            return;
        }
        if let Some(agent) = self.lock().registry.agents.get(agent) {
            caller.extensions.activate(&agent.offer);
        }
    }

    pub(crate) async fn get(
        &self,
        request: GetTaskRequest,
        caller: &Caller,
    ) -> Result<a2a::Task, Error> {
        let task = self.visible(&request.id, &request.tenant, caller).await?;
        Ok(Confirmed::into_a2a(task, request.history_length))
    }

    pub(crate) async fn list(
        &self,
        request: ListTasksRequest,
        caller: &Caller,
    ) -> Result<ListTasksResponse, Error> {
        let limit = request.page_size.unwrap_or(50);
        if !(1..=100).contains(&limit) {
            return Err(Error::Invalid { field: "pageSize", what: "1 to 100".to_owned() });
        }
        let after = parse_token(&request.page_token)?;
        let some = |text: String| if text.is_empty() { None } else { Some(text) };
        let state = match TaskState::try_from(request.status) {
            Ok(TaskState::Unspecified) => None,
            Ok(state) => Some(state),
            Err(_) => {
                let what = "a state of a task, such as TASK_STATE_WORKING".to_owned();
                return Err(Error::Invalid { field: "status", what });
            }
        };
        let artifacts = request.include_artifacts.unwrap_or(false);
        let filter = Filter {
            scope: caller.scope(&request.tenant),
            context_id: some(request.context_id),
            state,
            status_from: request.status_timestamp_after.as_ref().map(millis_up),
            after,
            limit: limit as usize,
            artifacts,
        };
        let page = self.store.list(filter).await?;
        let last = page.tasks.last().filter(|_| page.more);
        let next_page_token =
            last.map_or_else(String::new, |task| format_token(task.status_at, task.id));
        let history = request.history_length;
        let tasks =
            page.tasks.iter().map(|t| Confirmed::of(t).to_a2a(history, artifacts)).collect();
        let total_size = i32::try_from(page.total).unwrap_or(i32::MAX);
        Ok(ListTasksResponse { tasks, next_page_token, page_size: limit, total_size })
    }

    pub(crate) async fn cancel(
        self: &Arc<Self>,
        request: CancelTaskRequest,
        caller: &Caller,
    ) -> Result<a2a::Task, Error> {
        let why = request_options::cancel_reason(&request)?;
        let task = self.visible(&request.id, &request.tenant, caller).await?;
        let (initiator, by) = match caller.calling {
            Some(_) => ("parent", "cancelled by the agent that delegated it"),
            None => ("user", "cancelled by the caller"),
        };
        self.stop(task, cancelled(initiator, by, why.as_deref()), initiator).await
    }

    /// Cancels a task that was just read, and its children, at any coordinator. `initiator` is
    /// passed to the agents.
    pub(crate) async fn stop(
        self: &Arc<Self>,
        task: Task,
        failure: Failure,
        initiator: &str,
    ) -> Result<a2a::Task, Error> {
        let mut task = task;
        for _ in 0..STEP_TRIES {
            if task.is_final() {
                return Err(Error::NotCancelable { id: task.id, state: task.state });
            }
            let stopped = match self.stop_here(task.id, &failure, initiator).await? {
                Here::Done(stopped) => Some(*stopped),
                Here::LostRace => None,
                Here::Unknown => self.cancel_remote(&task, &failure).await?,
            };
            if let Some(stopped) = stopped {
                return Ok(stopped);
            }
            // A peer was first: read the task again.
            let not_found = || Error::TaskNotFound(task.id.to_string());
            task = self.read(task.id, Scope::default()).await?.ok_or_else(not_found)?;
        }
        Err(contended())
    }

    async fn stop_here(
        &self,
        id: TaskId,
        failure: &Failure,
        initiator: &str,
    ) -> Result<Here, Error> {
        let (done, answer) = oneshot::channel();
        let taken = self.change(|state| {
            state.check_open()?;
            let Some(active) = state.tasks.get_mut(&id) else { return Ok(false) };
            let failure = active.pending().complete_failure(failure.clone(), "coordinator");
            let done: Done = Box::new(move |answer| drop(done.send(answer)));
            let body = match active.pending().decide_cancel(failure) {
                Ok(body) => body,
                Err(refused) => {
                    let error = match refused {
                        Refused::Final => {
                            Error::NotCancelable { id, state: active.pending().state }
                        }
                        _ => Error::Busy(id),
                    };
                    let rejected = state.reject_on_commit(Some(id), done, error);
                    return rejected.map(|()| true).map_err(|(_, error)| error);
                }
            };
            let (until, call, history) = (Until::Settled, None, None);
            let (cancel_after, _deadline) = (None, None);
            let (depends_on_seq, min_seq, patient) = (active.pending().seq + 1, 0, false);
            active.waiters.push(Waiter {
                until,
                call,
                history,
                depends_on_seq,
                min_seq,
                patient,
                cancel_after,
                done,
                _deadline,
            });
            state.end(id, body, initiator, now());
            Ok(true)
        })?;
        if !taken {
            return Ok(Here::Unknown);
        }
        match answer.await {
            Ok(Ok(SendMessageResponse { payload: Some(Payload::Task(task)) })) => {
                // The waiter gets any end, also one that came before the cancel.
                let ours = task.status.as_ref().is_some_and(|s| s.state() == TaskState::Canceled);
                Ok(if ours { Here::Done(Box::new(task)) } else { Here::LostRace })
            }
            Ok(Err(CallError::Conflict)) => Ok(Here::LostRace),
            Ok(Err(CallError::Failed(failure))) => Err(failure.into()),
            _ => Err(Error::unanswered()),
        }
    }

    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        request: &SubscribeToTaskRequest,
        after: Option<u64>,
        caller: &Caller,
    ) -> Result<Subscription, Error> {
        let (id, tenant) = (&request.id, &request.tenant);
        let task = match caller.calling {
            None => self.visible_with(id, tenant, caller, capabilities::check_streaming).await?,
            // Capabilities on a card apply to clients: agents may stream every task.
            Some(_) => self.visible(id, tenant, caller).await?,
        };
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
        self.meters.resumed.add(after.is_some().into());
        let start = after.map_or(Start::Snapshot { history: None }, Start::After);
        self.subscribe_id(task.id, start).await
    }

    pub(crate) async fn subscribe_id(
        self: &Arc<Self>,
        id: TaskId,
        start: Start,
    ) -> Result<Subscription, Error> {
        // Watch before read: events in between come twice, and the duplicate is dropped.
        let events = self.watch(id)?;
        let not_found = || Error::TaskNotFound(id.to_string());
        let task = self.store.task(id, Scope::default()).await?.ok_or_else(not_found)?.task;
        // A live task that is not here is owned by a peer.
        let elsewhere = events.is_none() && !task.is_final() && self.store.cluster().is_some();
        if elsewhere {
            self.notify_watched(id);
        }
        Ok(Subscription::joined(Arc::clone(self), task, start, events, elsewhere))
    }

    /// The extended card of an agent, for callers with credentials.
    pub(crate) fn extended_card(
        &self,
        request: &GetExtendedAgentCardRequest,
        caller: &Caller,
    ) -> Result<AgentCard, Error> {
        let agent = self.addressee(&self.lock(), &request.tenant, caller)?;
        self.offer(&agent, capabilities::extended_card)
    }

    /// Reads the last offer of an agent.
    pub(crate) fn offer<T>(
        &self,
        agent: &str,
        look: impl FnOnce(&AgentOffer) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let state = self.lock();
        state.check_served()?;
        match state.registry.agents.get(agent) {
            Some(agent) => look(&agent.offer),
            None => Err(Error::AgentNotFound(agent.to_owned())),
        }
    }

    /// Confirmed events from now on; `None`: the task has ended or a peer owns it.
    pub(crate) fn watch(&self, id: TaskId) -> Result<Option<mpsc::Receiver<Seen>>, Error> {
        let mut state = self.lock();
        state.check_served()?;
        Ok(state.watch(id))
    }
}

impl Core {
    /// Confirmed events of a task that a peer owns, unless it has just moved here.
    pub(crate) fn watch_remote(
        &self,
        id: TaskId,
        after: u64,
    ) -> Result<mpsc::Receiver<Seen>, Error> {
        self.touch(|state| {
            state.check_served()?;
            Ok(state.watch(id).unwrap_or_else(|| state.follow(id, after)))
        })
    }
}

impl State {
    fn watch(&mut self, id: TaskId) -> Option<mpsc::Receiver<Seen>> {
        let active = self.tasks.get_mut(&id)?;
        let (watcher, events) = mpsc::channel(limits::SUBSCRIBER_EVENTS_MAX);
        active.watchers.retain(|w| !w.is_closed());
        active.watchers.push(watcher);
        Some(events)
    }
}

/// The outcome of an operation on a task that should be here.
enum Here {
    Done(Box<a2a::Task>),
    /// A peer was first.
    LostRace,
    /// The task has ended, or a peer owns it.
    Unknown,
}

/// The first millisecond at or after this time.
pub(crate) fn millis_up(time: &Timestamp) -> Millis {
    millis(time).saturating_add(Millis::from(time.nanos % 1_000_000 > 0))
}

/// A page token is the position of the last task shown, so inserts do not shift the pages.
pub(crate) fn format_token(status_at: Millis, id: TaskId) -> String {
    format!("{status_at:x}.{id}")
}

/// `None`: the first page.
pub(crate) fn parse_token(token: &str) -> Result<Option<Cursor>, Error> {
    let parse = || {
        let (status_at, id) = token.split_once('.')?;
        let status_at = i64::from_str_radix(status_at, 16).ok()?;
        Some(Cursor { status_at, id: id.parse().ok()? })
    };
    match (token, parse()) {
        ("", _) => Ok(None),
        (_, Some(cursor)) => Ok(Some(cursor)),
        (_, None) => {
            let what = "use the nextPageToken of the page before".to_owned();
            Err(Error::Invalid { field: "pageToken", what })
        }
    }
}

impl Core {
    /// Links the span of a call to the current run of a task, if there is one.
    pub(crate) fn link_run(&self, span: &mut Span, id: &str, why: &str) {
        if !span.is_recorded() {
            return;
        }
        let Ok(id) = id.parse::<TaskId>() else { return };
        let run = self.lock().tasks.get(&id).map(|active| active.pending().run_trace());
        if let Some(run) = run {
            span.link(&run, why);
        }
    }
}
