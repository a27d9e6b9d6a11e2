//! Queries of operators over tasks of all principals: lists, the events of a task, counts over
//! time. The store answers all of them, so only durable state is shown.

use crate::store::activity_cache::Counted;
use faultline_chassis::limits;
use faultline_proto::v1::AgentActivity;
use faultline_proto::{
    a2a::TaskState,
    id::TaskId,
    v1::{
        ActivityRequest, ActivityResponse, Event, EventsRequest, EventsResponse, FailuresRequest,
        FailuresResponse, NumberedEvent, TaskFilter, TasksRequest, TasksResponse, event,
    },
};
use prost::Message;
use prost_types::Timestamp;

use crate::{
    api::tasks::{format_token, millis_up, parse_token},
    calls::caller::Caller,
    clock::now,
    engine::core::Core,
    error::Error,
    operators::overview::hide_worker_of,
    store::{Buckets, Scope, StoredEvent, Wanted},
    task::{Millis, millis, timestamp},
};

/// When a page does not say how long it is.
const PAGE: usize = 100;
/// When nobody says since when, and how fine.
const HOUR_MS: Millis = 60 * 60 * 1000;
const MINUTE_MS: u32 = 60 * 1000;
const BUCKET_MS_MIN: u32 = 1000;
/// The largest number of an event: databases store it as a signed number.
const EVENT_MAX: u64 = i64::MAX as u64;

impl Core {
    pub(crate) async fn tasks(
        &self,
        request: TasksRequest,
        caller: &Caller,
    ) -> Result<TasksResponse, Error> {
        caller.check_operates()?;
        let limit = page_size(request.page_size)?;
        let wanted = wanted(request.filter.unwrap_or_default())?;
        let after = parse_token(&request.page_token)?;
        let page = self.store.tasks(wanted, after, limit).await?;
        let last = page.rows.last().filter(|_| page.more);
        let next_page_token =
            last.map_or_else(String::new, |row| format_token(row.status_at, row.id));
        let tasks = page.rows.into_iter().map(Into::into).collect();
        Ok(TasksResponse { tasks, next_page_token })
    }

    /// Of one's own task; of anybody's for an operator.
    pub(crate) async fn events(
        &self,
        request: EventsRequest,
        caller: &Caller,
    ) -> Result<EventsResponse, Error> {
        let not_found = || Error::TaskNotFound(request.task_id.clone());
        let id = request.task_id.parse::<TaskId>().map_err(|_| not_found())?;
        let limit = page_size(request.page_size)?;
        if request.after > EVENT_MAX {
            let what = format!("the number of an event, at most {EVENT_MAX}");
            return Err(Error::Invalid { field: "after", what });
        }
        let scope = if caller.operates { Scope::default() } else { caller.scope("") };
        let story = self.store.story(id, scope, request.after, limit).await?;
        let story = story.ok_or_else(not_found)?;
        let events = story.events.into_iter().map(|event| shown(event, caller));
        let events = events.collect::<Result<_, _>>()?;
        Ok(EventsResponse { events, more: story.more })
    }

    pub(crate) async fn activity(
        &self,
        request: ActivityRequest,
        caller: &Caller,
    ) -> Result<ActivityResponse, Error> {
        caller.check_operates()?;
        let over = buckets(request.from.as_ref(), request.bucket_ms, now())?;
        let agents = self.cached_activity(over).await?;
        let (from, bucket_ms) = (Some(timestamp(over.from)), over.width as u32);
        Ok(ActivityResponse { from, bucket_ms, agents })
    }

    pub(crate) async fn failures(
        &self,
        request: FailuresRequest,
        caller: &Caller,
    ) -> Result<FailuresResponse, Error> {
        caller.check_operates()?;
        let over = buckets(request.from.as_ref(), request.bucket_ms, now())?;
        let mut failures = self.store.failures(over).await?;
        failures.sort_by(|a, b| {
            let names = (&a.reason, &a.origin).cmp(&(&b.reason, &b.origin));
            b.tasks.cmp(&a.tasks).then(names)
        });
        failures.truncate(limits::FAILURE_KINDS_MAX);
        let (from, bucket_ms) = (Some(timestamp(over.from)), over.width as u32);
        Ok(FailuresResponse { from, bucket_ms, failures })
    }
}

/// More than there are.
const STATES_MAX: usize = 16;

pub(crate) fn wanted(filter: TaskFilter) -> Result<Wanted, Error> {
    if filter.states.len() > STATES_MAX {
        let what = format!("{} states, at most {STATES_MAX}", filter.states.len());
        return Err(Error::Invalid { field: "filter.states", what });
    }
    let some = |text: String| (!text.is_empty()).then_some(text);
    let states = filter.states.iter().map(|number| match TaskState::try_from(*number) {
        Ok(TaskState::Unspecified) | Err(_) => {
            let what = "states of tasks, such as TASK_STATE_WORKING".to_owned();
            Err(Error::Invalid { field: "filter.states", what })
        }
        Ok(state) => Ok(state),
    });
    Ok(Wanted {
        states: states.collect::<Result<_, _>>()?,
        agent: some(filter.agent),
        principal: some(filter.principal),
        roots: filter.roots,
        reason: some(filter.reason),
        origin: some(filter.origin),
        from: filter.from.as_ref().map(millis_up),
        to: filter.to.as_ref().map(millis_up),
    })
}

fn page_size(asked: i32) -> Result<usize, Error> {
    match usize::try_from(asked) {
        Ok(0) => Ok(PAGE),
        Ok(size) if size <= limits::VIEW_PAGE_MAX => Ok(size),
        _ => {
            let what = format!("1 to {}, or nothing for {PAGE}", limits::VIEW_PAGE_MAX);
            Err(Error::Invalid { field: "pageSize", what })
        }
    }
}

/// From the bucket in which `from` lies to that of now.
fn buckets(from: Option<&Timestamp>, width_ms: u32, now: Millis) -> Result<Buckets, Error> {
    let invalid = |field, what| Err(Error::Invalid { field, what });
    let width = match width_ms {
        0 => MINUTE_MS,
        given if given >= BUCKET_MS_MIN => given,
        _ => return invalid("bucketMs", format!("at least {BUCKET_MS_MIN}")),
    };
    let (width, from) = (Millis::from(width), from.map_or(now - HOUR_MS, millis));
    if from > now {
        return invalid("from", "a time that has been".to_owned());
    }
    let first = from.div_euclid(width);
    let count = now.div_euclid(width).saturating_sub(first).saturating_add(1);
    match usize::try_from(count) {
        Ok(count) if count <= limits::BUCKETS_MAX => {
            Ok(Buckets { from: first * width, width, count })
        }
        _ => {
            let most = limits::BUCKETS_MAX;
            invalid("bucketMs", format!("{count} would be needed since `from`, at most {most} are"))
        }
    }
}

/// As it is stored, but for what a worker saved: that is its own, and may be large. A tenant is not
/// shown on which worker it happened.
fn shown(stored: StoredEvent, caller: &Caller) -> Result<NumberedEvent, Error> {
    let damaged = |e: prost::DecodeError| Error::Store { detail: e.to_string() };
    let mut event = Event::decode(stored.body).map_err(damaged)?;
    if let Some(event::Body::Checkpointed(saved)) = &mut event.body {
        saved.state.clear();
    }
    if !caller.operates {
        hide_worker_of(&mut event);
    }
    Ok(NumberedEvent { seq: stored.seq, event: Some(event) })
}

impl Core {
    pub(crate) async fn cached_activity(&self, over: Buckets) -> Result<Vec<AgentActivity>, Error> {
        let known = self.pulse.known(over);
        let rest = known.as_ref().map_or(over, |known| over.after(&known.over));
        let fresh = Counted { over: rest, agents: self.store.activity(rest).await? };
        let whole = match known {
            Some(known) => known.then(&fresh),
            None => fresh,
        };
        self.pulse.remember(whole.clone(), now());
        Ok(whole.agents)
    }
}

#[cfg(test)]
mod tests;
