//! What there is to check: what clients were told while things broke, and what the mesh says of
//! the same tasks once everything is whole. Data only, and how the mesh is asked for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use faultline_tests::{Frame, Rpc, task};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

/// A task that the mesh has acknowledged, as one client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) client: String,
    pub(crate) task_id: String,
    /// Of the send that began it. Whoever sends under a key may send it several times.
    pub(crate) message_id: String,
    pub(crate) wanted: Wanted,
    /// The message of the answer to its question, once that was acknowledged.
    pub(crate) answered: Option<String>,
    /// Final states it was seen in, each time it was.
    pub(crate) finals: Vec<String>,
    pub(crate) views: Vec<View>,
    /// It was asked to be cancelled, whatever came of that.
    pub(crate) canceling: bool,
}

/// What has to come of it, if nobody cancels it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// This text in this artifact.
    Artifact(&'static str, String),
    /// This reason, as many tasks down.
    Failure(&'static str, u64),
    /// It asks, and nobody answers.
    Question,
}

/// What one subscriber saw over all its connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) frames: Vec<Frame>,
    /// Its connections after the first.
    pub(crate) resumed: usize,
}

/// A task as the mesh tells it when asked by an operator.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// By `GetTask`; nothing: the caller is told that there is none.
    pub(crate) task: Option<Value>,
    pub(crate) inspected: Value,
    pub(crate) events: Vec<Entry>,
}

/// One event, with its number.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    pub(crate) time: String,
    pub(crate) kind: String,
    pub(crate) body: Value,
}

/// Everything in the store, by id.
pub(crate) type Store = BTreeMap<String, Stored>;

/// What the mesh says of a task when it is asked.
enum Said {
    Whole(Box<Stored>),
    /// That there is none.
    Unknown,
    /// Nothing of use, as often as it was asked.
    Nothing,
}

/// How many tasks are asked for at once.
const AT_ONCE: usize = 8;
const PAGE: u64 = 500;
const TASK_NOT_FOUND: i64 = -32001;
/// How long the mesh may be unable to tell of a task, once it is whole.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// How much of an event is shown.
const BODY_CHARS_MAX: usize = 400;

impl Stored {
    pub(crate) fn state(&self) -> &str {
        task::state(&self.inspected["task"])
    }

    /// Who delegated it.
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

/// What happened to it, line by line, for whoever has to find out why.
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

/// Everything there is, and whatever else clients were told of. A list is read page by page while
/// tasks may change their place in it, so parents that it does not name are asked for as well.
/// Beside them the ids of those that are there and cannot be read.
pub(crate) async fn read(rpc: &Rpc, told: &[Told]) -> (Store, Vec<String>) {
    let mut wanted: BTreeSet<String> = listed(rpc).await.into_iter().collect();
    wanted.extend(told.iter().map(|told| told.task_id.clone()));
    let (mut store, mut asked, mut unreadable) = (Store::new(), BTreeSet::new(), Vec::new());
    while !wanted.is_empty() {
        asked.extend(wanted.iter().cloned());
        let read = stream::iter(wanted).map(async |id| (id.clone(), one(rpc, &id).await));
        let read: Vec<_> = read.buffer_unordered(AT_ONCE).collect().await;
        for (id, said) in read {
            match said {
                Said::Whole(stored) => drop(store.insert(id, *stored)),
                Said::Unknown => {}
                Said::Nothing => unreadable.push(id),
            }
        }
        let parents = store.values().filter_map(Stored::parent).map(str::to_owned);
        wanted = parents.filter(|parent| !asked.contains(parent)).collect();
    }
    (store, unreadable)
}

async fn listed(rpc: &Rpc) -> Vec<String> {
    let (mut ids, mut page) = (Vec::new(), String::new());
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

/// That the mesh cannot say just now is no answer yet.
async fn one(rpc: &Rpc, id: &str) -> Said {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(said) = ask(rpc, id).await {
            return said;
        }
        if Instant::now() > end {
            return Said::Nothing;
        }
        sleep(PAUSE).await;
    }
}

async fn ask(rpc: &Rpc, id: &str) -> Option<Said> {
    let inspected = rpc.path("/mesh/Inspect").post(json!({"taskId": id}).to_string()).await;
    match inspected.status.as_u16() {
        200 => {}
        404 => return Some(Said::Unknown),
        _ => return None,
    }
    let events = events(rpc, id).await?;
    let task = match rpc.call("GetTask", json!({"id": id})).await {
        Ok(task) => Some(task),
        Err(error) if error["code"] == TASK_NOT_FOUND => None,
        Err(_) => return None,
    };
    Some(Said::Whole(Box::new(Stored { task, inspected: inspected.json(), events })))
}

/// All that is stored of a task; nothing: the mesh cannot say just now.
pub(crate) async fn events(rpc: &Rpc, id: &str) -> Option<Vec<Entry>> {
    let (rpc, mut events, mut after) = (rpc.path("/mesh/Events"), Vec::new(), 0);
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
