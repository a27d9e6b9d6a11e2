//! The operations on tasks that exist: get, list, cancel, subscribe. Nothing here knows through
//! which door a call came.

use std::sync::Arc;

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{
        self, CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse,
        SendMessageResponse, TaskState, send_message_response::Payload,
    },
    id::TaskId,
    reason,
    v1::Plane,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    core::{Core, now},
    error::Error,
    live::{Done, Seen, Until, Waiter},
    store::{Cursor, Filter},
    subscription::Subscription,
    task::{Refused, Task, millis},
};

impl Core {
    /// A stored task that the caller may see under this tenant.
    pub(crate) async fn visible(&self, id: &str, tenant: &str) -> Result<Task, Error> {
        let not_found = || Error::TaskNotFound(id.to_owned());
        let task_id = id.parse::<TaskId>().map_err(|_| not_found())?;
        let stored = self.store.task(task_id).await?.ok_or_else(not_found)?;
        match tenant.is_empty() || stored.task.agent == tenant {
            true => Ok(stored.task),
            false => Err(not_found()),
        }
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
            status_from: request.status_timestamp_after.as_ref().map(millis),
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
            let failure = live.task.complete_failure(cancelled(), "coordinator");
            let body = match live.task.decide_cancel(failure) {
                Ok(body) => body,
                Err(Refused::Final) => {
                    return Err(Error::NotCancelable { id, state: live.task.state });
                }
                Err(_) => return Err(Error::Busy(id)),
            };
            let done: Done = Box::new(move |answer| drop(done.send(answer)));
            let (until, call, history, alarm) = (Until::Settled, None, None, None);
            live.waiters.push(Waiter { until, call, history, done, _alarm: alarm });
            state.end(id, body, "user", now(), Vec::new());
            Ok(true)
        })?;
        if !refused {
            // It ended between our look at the store and our look at memory.
            let task = self.visible(&request.id, &request.tenant).await?;
            return Err(Error::NotCancelable { id, state: task.state });
        }
        match answer.await {
            Ok(Ok(SendMessageResponse { payload: Some(Payload::Task(task)) })) => Ok(task),
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

    pub(crate) async fn subscribe_id(
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
        state.check_served()?;
        Ok(state.live.get_mut(&id).map(|live| {
            let (watcher, events) = mpsc::channel(limits::SUBSCRIBER_EVENTS_MAX);
            live.watchers.retain(|w| !w.is_closed());
            live.watchers.push(watcher);
            events
        }))
    }
}

fn cancelled() -> Failure {
    Failure::new(&reason::CANCELLED)
        .because("cancelled by the caller")
        .with_error_type("cancelled")
        .with_plane(Plane::Execution)
}

/// A page token is the place of the last task shown, so inserts do not move it.
fn format_token(last: &Task) -> String {
    format!("{:x}.{}", last.status_at, last.id)
}

fn parse_token(token: &str) -> Option<Cursor> {
    let (status_at, id) = token.split_once('.')?;
    let status_at = i64::from_str_radix(status_at, 16).ok()?;
    Some(Cursor { status_at, id: id.parse().ok()? })
}
