//! The input of the checker: observations of clients while faults were injected, and the same tasks
//! as the store has them after all faults are undone. Data types and the calls that read the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use faultline_tests::{Frame, Rpc, task};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

/// A task that the mesh has acknowledged, as one client observed it. The client updates it until
/// the end of its run; the checker compares it with the store.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) client: String,
    pub(crate) task_id: String,
    /// Message of the send that began the task. A send with an idempotency key may be repeated.
    pub(crate) message_id: String,
    pub(crate) expected: Expected,
    /// The message id of the acknowledged answer to its question.
    pub(crate) answered: Option<String>,
    /// Every final state that the client was shown.
    pub(crate) finals: Vec<String>,
    pub(crate) views: Vec<View>,
    /// The client requested a cancel, successful or not.
    pub(crate) canceling: bool,
}

/// Expected outcome of a task that is not cancelled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expected {
    /// Completed, with this text in this artifact.
    Artifact(&'static str, String),
    /// Failed for this reason, at this hop of the delegation.
    Failure(&'static str, u64),
    /// A question stays open, because the client never answers.
    Question,
}

/// Frames that one subscriber received over all its connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) frames: Vec<Frame>,
    /// Number of connections after the first.
    pub(crate) resumed: usize,
}

/// A task as operators read it from the mesh.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The answer of `GetTask`; none if its caller gets TASK_NOT_FOUND.
    pub(crate) task: Option<Value>,
    pub(crate) inspected: Value,
    pub(crate) events: Vec<Entry>,
}

/// One stored event with its sequence number.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    pub(crate) time: String,
    pub(crate) kind: String,
    pub(crate) body: Value,
}

/// Everything in the store, by id.
pub(crate) type Store = BTreeMap<String, Stored>;

/// Result of reading one task.
enum Reading {
    Found(Box<Stored>),
    NotFound,
    /// No usable answer within the time limit.
    Unreadable,
}

/// Number of tasks that are read concurrently.
const CONCURRENCY: usize = 8;
const PAGE: u64 = 500;
const TASK_NOT_FOUND: i64 = -32001;
/// Time limit for reading one task after all faults are undone.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// Length to which a printed event is truncated.
const BODY_CHARS_MAX: usize = 400;

impl Stored {
    pub(crate) fn state(&self) -> &str {
        task::state(&self.inspected["task"])
    }

    /// Id of the task that delegated this one.
    pub(crate) fn parent(&self) -> Option<&str> {
        self.inspected["parent"]["taskId"].as_str()
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.inspected["parent"]["detached"].as_bool().unwrap_or(false)
    }

    pub(crate) fn message_id(&self) -> Option<&str> {
        self.events.first()?.body["message"]["messageId"].as_str()
    }
}

/// All events, one per line, for the analysis of a violation.
impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {:?}", self.state(), self.parent())?;
        for Entry { seq, time, kind, body } in &self.events {
            let mut body = body.to_string();
            if let Some((at, _)) = body.char_indices().nth(BODY_CHARS_MAX) {
                body.truncate(at);
            }
            writeln!(f, "  {seq:4} {time} {kind} {body}")?;
        }
        Ok(())
    }
}

impl Entry {
    pub(crate) fn of(numbered: &Value) -> Self {
        let event = numbered["event"].as_object().expect("an event is an object");
        let body = event.iter().find(|(name, _)| *name != "time");
        let (kind, body) = body.map_or_else(Default::default, |(k, v)| (k.clone(), v.clone()));
        let time = event.get("time").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { seq: number(&numbered["seq"]), time, kind, body }
    }
}

/// ProtoJSON writes numbers of 64 bits as text, and leaves out those that are zero.
pub(crate) fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_u64().or(text).unwrap_or(0)
}

/// Reads all tasks: those that operators can list, those that clients observed, and all parents,
/// because tasks may change their place in the list between two pages. Also returns the ids of
/// tasks that exist and cannot be read.
pub(crate) async fn read(rpc: &Rpc, observations: &[Observation]) -> (Store, Vec<String>) {
    let mut wanted: BTreeSet<String> = listed(rpc).await.into_iter().collect();
    wanted.extend(observations.iter().map(|observed| observed.task_id.clone()));
    let mut store = Store::new();
    let mut asked = BTreeSet::new();
    let mut unreadable = Vec::new();
    while !wanted.is_empty() {
        asked.extend(wanted.iter().cloned());
        let read = stream::iter(wanted).map(async |id| (id.clone(), one(rpc, &id).await));
        let read: Vec<_> = read.buffer_unordered(CONCURRENCY).collect().await;
        for (id, reading) in read {
            match reading {
                Reading::Found(stored) => drop(store.insert(id, *stored)),
                Reading::NotFound => {}
                Reading::Unreadable => unreadable.push(id),
            }
        }
        let parents = store.values().filter_map(Stored::parent).map(str::to_owned);
        wanted = parents.filter(|parent| !asked.contains(parent)).collect();
    }
    (store, unreadable)
}

async fn listed(rpc: &Rpc) -> Vec<String> {
    let mut ids = Vec::new();
    let mut page = String::new();
    loop {
        let answer = rpc.mesh("Tasks", json!({"pageSize": PAGE, "pageToken": page})).await;
        let tasks = answer["tasks"].as_array().into_iter().flatten();
        ids.extend(tasks.filter_map(|task| task["taskId"].as_str()).map(str::to_owned));
        page = answer["nextPageToken"].as_str().unwrap_or_default().to_owned();
        if page.is_empty() {
            return ids;
        }
    }
}

/// Reads one task, with retries while the mesh is unavailable.
async fn one(rpc: &Rpc, id: &str) -> Reading {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(reading) = ask(rpc, id).await {
            return reading;
        }
        if Instant::now() > end {
            return Reading::Unreadable;
        }
        sleep(PAUSE).await;
    }
}

async fn ask(rpc: &Rpc, id: &str) -> Option<Reading> {
    let inspected = rpc.path("/mesh/Inspect").post(json!({"taskId": id}).to_string()).await;
    match inspected.status.as_u16() {
        200 => {}
        404 => return Some(Reading::NotFound),
        _ => return None,
    }
    let events = events(rpc, id).await?;
    let task = match rpc.call("GetTask", json!({"id": id})).await {
        Ok(task) => Some(task),
        Err(error) if error["code"] == TASK_NOT_FOUND => None,
        Err(_) => return None,
    };
    Some(Reading::Found(Box::new(Stored { task, inspected: inspected.json(), events })))
}

/// All stored events of a task; none if the mesh is unavailable.
pub(crate) async fn events(rpc: &Rpc, id: &str) -> Option<Vec<Entry>> {
    let rpc = rpc.path("/mesh/Events");
    let mut events = Vec::new();
    let mut after = 0;
    loop {
        let request = json!({"taskId": id, "after": after, "pageSize": PAGE});
        let page = rpc.try_post(request.to_string()).await.ok()?;
        let page = Some(page).filter(|page| page.status == 200)?.json();
        events.extend(page["events"].as_array().into_iter().flatten().map(Entry::of));
        after = events.last().map_or(after, |event: &Entry| event.seq);
        if page["more"] != true {
            return Some(events);
        }
    }
}
