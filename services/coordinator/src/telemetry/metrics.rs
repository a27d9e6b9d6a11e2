//! The metrics of the coordinator. Task outcomes are counted from confirmed events, so numbers
//! and tasks agree. Agents are labels up to a limit; values that callers choose never are.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use faultline_chassis::{
    Metrics, limits,
    metrics::{
        CALL_BOUNDS, Counter, Counters, Def, Gauge, Gauges, Histogram, Histograms, OTHER,
        SIZE_BOUNDS, Unit, WORK_BOUNDS,
        calls::{Calls, Method},
        failures::Failures,
    },
};
use faultline_proto::{
    Failure,
    a2a::TaskState,
    failure::state_word,
    v1::{self, AnswerAction, AnswerGiven, Event, Severity, call, event},
};
use parking_lot::Mutex;

use tokio::time::Instant;

use crate::{
    policy::retry,
    task::{Millis, Task, millis},
};

const ACTIVE: Def<1> = Def::new(
    "faultline.tasks.active",
    Unit::Of("task"),
    "Tasks that have not ended, whatever they wait for.",
    ["agent"],
);
const TASKS: Def<2> = Def::time(
    "faultline.task.duration",
    "Tasks that ended, from their submission on, people's time included.",
    ["agent", "state"],
    WORK_BOUNDS,
);
const WAIT: Def<1> = Def::time(
    "faultline.queue.wait.duration",
    "Time from the wish for a slot to having one.",
    ["agent"],
    WORK_BOUNDS,
);
const DEADLINE: Def<1> = Def::time(
    "faultline.deadline.remaining",
    "Time that tasks with a deadline had left when they came in.",
    ["agent"],
    WORK_BOUNDS,
);
const LOST: Def<1> = Def::new(
    "faultline.attempts.lost",
    Unit::Of("attempt"),
    "Attempts that were lost with their worker.",
    ["agent"],
);
const RETRIES: Def<2> = Def::new(
    "faultline.retry.attempts",
    Unit::Of("attempt"),
    "Failed attempts, by whether they were tried again or why not.",
    ["agent", "outcome"],
);
const TRANSITIONS: Def<2> = Def::new(
    "faultline.circuit.transitions",
    Unit::Of("transition"),
    "Circuits that opened or closed.",
    ["agent", "to"],
);
const ANSWERS: Def<2> = Def::time(
    "faultline.hitl.wait.duration",
    "Time from a question to its answer, or to its expiry.",
    ["agent", "outcome"],
    WORK_BOUNDS,
);
const STOPS: Def<0> = Def::time(
    "faultline.cancel.propagation.duration",
    "Time from ending a task from outside to its agent's having stopped.",
    [],
    CALL_BOUNDS,
);
const LATE: Def<0> = Def::new(
    "faultline.reports.late",
    Unit::Of("report"),
    "Reports of attempts that were over, which were dropped.",
    [],
);
const COMMITS: Def<0> =
    Def::time("faultline.store.commit.duration", "Time that a commit took.", [], CALL_BOUNDS);
const BATCHES: Def<0> = Def {
    bounds: SIZE_BOUNDS,
    ..Def::new("faultline.store.batch.size", Unit::Of("step"), "Steps in one commit.", [])
};
const STORE_FAILURES: Def<0> = Def::new(
    "faultline.store.failures",
    Unit::Of("batch"),
    "Batches that the store did not take, after each of which it was read again.",
    [],
);
const CONFLICTS: Def<0> = Def::new(
    "faultline.store.conflicts",
    Unit::Of("step"),
    "Steps that lost a race and were undone.",
    [],
);
const TAKEN: Def<1> = Def::new(
    "faultline.cluster.taken",
    Unit::Of("task"),
    "Tasks of other coordinators that became this one's: it had a worker for them, their worker \
     came here, or the other is gone.",
    ["how"],
);
const MOVED: Def<0> = Def::new(
    "faultline.cluster.moved",
    Unit::Of("task"),
    "Tasks of this coordinator that went to another one.",
    [],
);
const LAPSED: Def<0> = Def::new(
    "faultline.lease.lapsed",
    Unit::Of("lease"),
    "Leases that were not renewed in time, after each of which the store was read again.",
    [],
);
const EXPIRED: Def<0> = Def::new(
    "faultline.tasks.expired",
    Unit::Of("task"),
    "Ended tasks that were kept for long enough and are forgotten.",
    [],
);
const LAG: Def<0> = Def::time(
    "faultline.stream.lag",
    "Time from an event to its being taken by who watches, while it keeps up.",
    [],
    CALL_BOUNDS,
);
const OPEN: Def<0> =
    Def::new("faultline.streams.open", Unit::Of("stream"), "Streams that gateways follow.", []);
const LAGGED: Def<0> = Def::new(
    "faultline.stream.lagged",
    Unit::Of("watcher"),
    "Watchers that fell behind, and read on from the store.",
    [],
);
const RESUMED: Def<0> = Def::new(
    "faultline.stream.reconnects",
    Unit::Of("stream"),
    "Streams that were resumed behind an event.",
    [],
);
const DUPLICATES: Def<0> = Def::new(
    "faultline.stream.duplicates_dropped",
    Unit::Of("event"),
    "Events that came to a watcher twice and were shown once.",
    [],
);
const DELIVERIES: Def<1> = Def::new(
    "faultline.push.deliveries",
    Unit::Of("notification"),
    "Notifications to webhooks: taken, to be tried again, or given up.",
    ["outcome"],
);

/// Operations of callers, by their gRPC names.
macro_rules! a2a {
    ($method:literal) => {
        concat!("lf.a2a.v1.A2AService/", $method)
    };
}

/// All operator methods count as one.
pub(crate) const MESH: &str = "faultline.v1.Mesh";

/// The same of a question that has one answer.
pub(crate) fn method(question: &call::Body) -> &'static str {
    use call::Body;
    match question {
        Body::Get(_) => a2a!("GetTask"),
        Body::List(_) => a2a!("ListTasks"),
        Body::Cancel(_) => a2a!("CancelTask"),
        Body::CreatePush(_) => a2a!("CreateTaskPushNotificationConfig"),
        Body::GetPush(_) => a2a!("GetTaskPushNotificationConfig"),
        Body::ListPush(_) => a2a!("ListTaskPushNotificationConfigs"),
        Body::DeletePush(_) => a2a!("DeleteTaskPushNotificationConfig"),
        Body::ExtendedCard(_) => a2a!("GetExtendedAgentCard"),
        _ => MESH,
    }
}

/// All of it, for one coordinator.
pub(crate) struct Meters {
    pub(crate) calls: Calls,
    pub(crate) send: Method,
    pub(crate) stream: Method,
    pub(crate) subscribe: Method,
    failures: Failures,
    /// Agents that are labels.
    names: Mutex<BTreeSet<String>>,
    active: Gauges<1>,
    tasks: Histograms<2>,
    wait: Histograms<1>,
    deadline: Histograms<1>,
    lost: Counters<1>,
    retries: Counters<2>,
    transitions: Counters<2>,
    answers: Histograms<2>,
    pub(crate) stops: Histogram,
    pub(crate) late: Counter,
    pub(crate) commits: Histogram,
    pub(crate) batches: Histogram,
    pub(crate) store_failures: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) expired: Counter,
    lag: Histogram,
    pub(crate) open: Gauge,
    lagged: Counter,
    pub(crate) resumed: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) deliveries: Counters<1>,
    taken: Counters<1>,
    pub(crate) moved: Counter,
    pub(crate) lapsed: Counter,
}

impl Meters {
    pub(crate) fn new(metrics: &Metrics) -> Arc<Self> {
        let calls = Calls::of(metrics);
        let taken = metrics.counter(&TAKEN);
        // There from the beginning, so that the first of each is seen as one.
        for how in [Acquired::Claimed, Acquired::Adopted, Acquired::TakenOver] {
            taken.with([how.label()]);
        }
        Arc::new(Self {
            send: calls.method(a2a!("SendMessage")),
            stream: calls.method(a2a!("SendStreamingMessage")),
            subscribe: calls.method(a2a!("SubscribeToTask")),
            calls,
            failures: Failures::of(metrics),
            names: Mutex::default(),
            active: metrics.gauge(&ACTIVE),
            tasks: metrics.histogram(&TASKS),
            wait: metrics.histogram(&WAIT),
            deadline: metrics.histogram(&DEADLINE),
            lost: metrics.counter(&LOST),
            retries: metrics.counter(&RETRIES),
            transitions: metrics.counter(&TRANSITIONS),
            answers: metrics.histogram(&ANSWERS),
            stops: metrics.histogram(&STOPS).with([]),
            late: metrics.counter(&LATE).with([]),
            commits: metrics.histogram(&COMMITS).with([]),
            batches: metrics.histogram(&BATCHES).with([]),
            store_failures: metrics.counter(&STORE_FAILURES).with([]),
            conflicts: metrics.counter(&CONFLICTS).with([]),
            expired: metrics.counter(&EXPIRED).with([]),
            lag: metrics.histogram(&LAG).with([]),
            open: metrics.gauge(&OPEN).with([]),
            lagged: metrics.counter(&LAGGED).with([]),
            resumed: metrics.counter(&RESUMED).with([]),
            duplicates: metrics.counter(&DUPLICATES).with([]),
            deliveries: metrics.counter(&DELIVERIES),
            taken,
            moved: metrics.counter(&MOVED).with([]),
            lapsed: metrics.counter(&LAPSED).with([]),
        })
    }

    /// Tasks became this coordinator's.
    pub(crate) fn taken(&self, how: Acquired, count: usize) {
        self.taken.at([how.label()], |counter| counter.add(count as u64));
    }

    /// The label of an agent: its name, as long as there are not too many.
    pub(crate) fn label(&self, agent: &str) -> String {
        let mut names = self.names.lock();
        if names.contains(agent) {
            return agent.to_owned();
        }
        if names.len() >= limits::METRIC_AGENTS_MAX {
            return OTHER.to_owned();
        }
        names.insert(agent.to_owned());
        agent.to_owned()
    }

    /// The same of an agent that a failure names: it may be anybody's word.
    fn origin(&self, failure: &v1::Failure) -> String {
        let agent = failure.origin.as_ref().map_or("", |origin| origin.agent.as_str());
        let names = self.names.lock();
        match agent.is_empty() || names.contains(agent) {
            true => agent.to_owned(),
            false => OTHER.to_owned(),
        }
    }

    /// A watcher takes an event of that time.
    pub(crate) fn lag(&self, at: Option<Millis>, now: Millis) {
        self.lag.record(between(at.unwrap_or(now), now));
    }

    /// A call was refused with this.
    pub(crate) fn refused(&self, failure: &Failure) {
        self.failed(failure.record(), Severity::Fatal);
    }

    /// A failure from below was counted where it began.
    fn failed(&self, failure: &v1::Failure, severity: Severity) {
        if failure.hop == 0 {
            self.failures.count(failure, &self.origin(failure), severity);
        }
        if failure.causes_dropped > 0 {
            self.failures.truncated();
        }
    }
}

/// The part of one agent, kept with it and with its tasks.
pub(crate) struct AgentMeters {
    of: Arc<Meters>,
    label: String,
    pub(crate) active: Gauge,
    wait: Histogram,
    completed: Histogram,
}

impl AgentMeters {
    pub(crate) fn new(of: &Arc<Meters>, agent: &str) -> Arc<Self> {
        let label = of.label(agent);
        let name = label.as_str();
        // There from the beginning, so that the first of each is seen as one.
        for to in ["open", "closed"] {
            of.transitions.with([name, to]);
        }
        for outcome in ["retried", "spent"] {
            of.retries.with([name, outcome]);
        }
        of.tasks.with([name, state_word(TaskState::Failed)]);
        of.lost.with([name]);
        let (active, wait) = (of.active.with([name]), of.wait.with([name]));
        let completed = of.tasks.with([name, state_word(TaskState::Completed)]);
        Arc::new(Self { of: Arc::clone(of), active, wait, completed, label })
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// A task has a slot, for which it waited since then.
    pub(crate) fn assigned(&self, queued: Option<Instant>) {
        self.wait.record(queued.map_or(Duration::ZERO, |since| since.elapsed()));
    }

    /// Counts durable events of a task.
    pub(crate) fn happened(&self, task: &Task, events: &[Event]) {
        for event in events {
            match &event.body {
                Some(event::Body::Submitted(submitted)) if submitted.timeout_ms > 0 => {
                    let left = Duration::from_millis(submitted.timeout_ms);
                    self.of.deadline.at([&self.label], |histogram| histogram.record(left));
                }
                Some(event::Body::Lost(lost)) => match &lost.failure {
                    Some(failure) => self.of.failed(failure, Severity::Recoverable),
                    None if lost.released => {}
                    None => self.of.lost.at([&self.label], |counter| counter.add(1)),
                },
                Some(event::Body::Tolerated(tolerated)) => {
                    let failure = tolerated.failure.as_ref();
                    failure.into_iter().for_each(|f| self.of.failed(f, Severity::Recoverable));
                }
                Some(event::Body::Ended(end)) => {
                    let at = event.time.as_ref().map_or(task.created, millis);
                    self.ended(end.state(), task.created, at);
                    // A cancel is no failure.
                    let failure = end.failure.as_ref();
                    let failure = failure.filter(|_| end.state() != TaskState::Canceled);
                    failure.into_iter().for_each(|f| self.of.failed(f, Severity::Fatal));
                }
                _ => {}
            }
        }
    }

    pub(crate) fn ended(&self, state: TaskState, created: Millis, at: Millis) {
        let took = between(created, at);
        match state {
            TaskState::Completed => self.completed.record(took),
            other => self.of.tasks.at([&self.label, state_word(other)], |h| h.record(took)),
        }
    }

    /// A failed attempt is tried again by the same agent, or by another, or is not.
    pub(crate) fn retry(&self, decided: &Result<Duration, retry::No>, passed_on: bool) {
        let outcome = match decided {
            Ok(_) => "retried",
            Err(_) if passed_on => "passed_on",
            Err(retry::No::NotOurs) => "not_ours",
            Err(retry::No::NotRetryable) => "not_retryable",
            Err(retry::No::TooLong) => "too_long",
            Err(retry::No::Spent) => "spent",
            Err(retry::No::BudgetSpent) => "budget_spent",
            Err(retry::No::Asking) => "asking",
            Err(retry::No::TooLate) => "too_late",
        };
        self.of.retries.at([&self.label, outcome], |counter| counter.add(1));
    }

    pub(crate) fn circuit(&self, opened: bool) {
        let to = if opened { "open" } else { "closed" };
        self.of.transitions.at([&self.label, to], |counter| counter.add(1));
    }

    /// A question is answered, before the task knows of it.
    pub(crate) fn answered(&self, task: &Task, answer: &AnswerGiven, now: Millis) {
        let question = task.pending.iter().find(|question| question.key == answer.key);
        let Some(asked) = question.and_then(|q| q.requested_at.as_ref()) else { return };
        let outcome = match answer.action() {
            AnswerAction::Unspecified | AnswerAction::Accept => "accept",
            AnswerAction::Decline => "decline",
            AnswerAction::Dismiss => "dismiss",
            AnswerAction::Expire => "expire",
        };
        let waited = between(millis(asked), now);
        self.of.answers.at([&self.label, outcome], |histogram| histogram.record(waited));
    }

    pub(crate) fn lagged(&self) {
        self.of.lagged.add(1);
    }
}

/// A clock that was set back has taken no time.
fn between(from: Millis, to: Millis) -> Duration {
    Duration::from_millis(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
}

/// How a task came to be ours.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Acquired {
    Claimed,
    Adopted,
    TakenOver,
}

impl Acquired {
    /// As it is counted.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Acquired::Claimed => "claimed",
            Acquired::Adopted => "adopted",
            Acquired::TakenOver => "taken_over",
        }
    }
}
