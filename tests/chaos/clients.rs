//! The load of the `kills` test: clients that repeat and resume across crashes and record their
//! observations. Allowed failures are a broken connection and UNAVAILABLE; any other fails the
//! test.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_tests::{
    Broken, Frame, Frames, Rpc,
    rpc::{answer, message},
    task::{self, CANCELED, INPUT_REQUIRED, is_final},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The only error that is allowed while processes are down.
const UNAVAILABLE: i64 = -31014;
/// Time limit of one task, crashes included.
const TASK_TIME: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends and waits for the answer.
    Blocking,
    /// Follows the stream and resumes it after each break.
    Streaming,
    /// Sends with an immediate return and polls the task.
    Polling,
    /// Answers a question in the middle.
    Answering,
    /// Cancels at a random moment, perhaps after the end.
    Canceling,
}

/// A task that the mesh has acknowledged, as its client observed it. Written by the client, read by
/// `history` at the end.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) task_id: String,
    /// The text of the artifact, if the task completes.
    pub(crate) expected: String,
    /// Every final state that the client was shown.
    pub(crate) finals: Vec<String>,
    /// Frames of the stream, over all connections.
    pub(crate) frames: Vec<Frame>,
    pub(crate) resumed: usize,
}

/// One client of the load. Its task owns it for the run and returns its records.
pub(crate) struct Client {
    kind: Kind,
    name: usize,
    rpc: Rpc,
    rng: StdRng,
    sent: usize,
    records: Vec<Record>,
}

impl Client {
    pub(crate) fn new(kind: Kind, name: usize, rpc: Rpc, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ ((name as u64) << 32));
        Self { kind, name, rpc: rpc.agent("script"), rng, sent: 0, records: Vec::new() }
    }

    /// Sends tasks until the stop flag is set, and waits for those in progress.
    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) -> Vec<Record> {
        while !stop.load(Relaxed) {
            let acknowledged = match self.kind {
                Kind::Blocking => self.block().await,
                Kind::Streaming => self.stream().await,
                Kind::Polling => self.poll().await,
                Kind::Answering => self.answer().await,
                Kind::Canceling => self.cancel().await,
            };
            if !acknowledged {
                sleep(PAUSE).await;
            }
        }
        self.records
    }

    /// A script of chunks and sleeps, and the text that it writes, which is unique.
    fn script(&mut self) -> (String, String) {
        self.sent += 1;
        let (mut script, mut text) = (String::new(), String::new());
        for n in 0..self.rng.random_range(3..9) {
            let chunk = format!("{}.{}.{n} ", self.name, self.sent);
            script.push_str(&format!("chunk \"{chunk}\"; "));
            if self.rng.random_bool(0.7) {
                script.push_str(&format!("sleep {}ms; ", self.rng.random_range(1..60)));
            }
            text.push_str(&chunk);
        }
        (script, text)
    }

    fn note(&mut self, task: &Value, expected: String) -> usize {
        let finals = [task::state(task)].into_iter().filter(|s| is_final(s));
        self.records.push(Record {
            kind: self.kind,
            task_id: task::id(task).to_owned(),
            expected,
            finals: finals.map(str::to_owned).collect(),
            frames: Vec::new(),
            resumed: 0,
        });
        self.records.len() - 1
    }

    async fn block(&mut self) -> bool {
        let (script, text) = self.script();
        let sent = self.rpc.try_call("SendMessage", message(&script)).await;
        match reached(sent) {
            Some(sent) => {
                assert!(is_final(task::state(&sent["task"])), "a blocking send waits: {sent}");
                self.note(&sent["task"], text);
                true
            }
            None => false,
        }
    }

    async fn begin(&mut self, script: &str, text: String) -> Option<usize> {
        let mut params = message(script);
        params["configuration"] = json!({"returnImmediately": true});
        let sent = reached(self.rpc.try_call("SendMessage", params).await)?;
        Some(self.note(&sent["task"], text))
    }

    async fn poll(&mut self) -> bool {
        let (script, text) = self.script();
        let Some(at) = self.begin(&script, text).await else { return false };
        self.poll_until(at, is_final).await;
        true
    }

    /// Polls the task, which must exist, until it is in such a state.
    async fn poll_until(&mut self, at: usize, is_so: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + TASK_TIME;
        loop {
            let id = self.records[at].task_id.clone();
            let found = self.rpc.try_call("GetTask", json!({"id": id})).await;
            if let Some(task) = reached(found) {
                let state = task::state(&task).to_owned();
                if is_final(&state) {
                    self.records[at].finals.push(state.clone());
                }
                if is_so(&state) {
                    return state;
                }
            }
            assert!(Instant::now() < end, "task {id} is stuck");
            sleep(PAUSE).await;
        }
    }

    async fn answer(&mut self) -> bool {
        let (before, first) = self.script();
        let (after, last) = self.script();
        let script = format!("{before}; ask \"And now?\"; chunk \"$answer\"; {after}");
        let Some(at) = self.begin(&script, format!("{first}yes {last}")).await else {
            return false;
        };
        let id = self.records[at].task_id.clone();
        let mut lost = false;
        let settled = |state: &str| is_final(state) || state == INPUT_REQUIRED;
        while !is_final(&self.poll_until(at, settled).await) {
            match self.rpc.try_call("SendMessage", answer(&id, "yes ")).await {
                // An earlier answer with an unknown outcome may be stored.
                Ok(Err(error)) if lost && error["code"] == -32004 => {}
                answered => lost |= reached(answered).is_none(),
            }
        }
        true
    }

    async fn cancel(&mut self) -> bool {
        let (script, text) = self.script();
        let Some(at) = self.begin(&script, text).await else { return false };
        let moment = Duration::from_millis(self.rng.random_range(0..200));
        sleep(moment).await;
        let id = self.records[at].task_id.clone();
        match self.rpc.try_call("CancelTask", json!({"id": id})).await {
            Ok(Err(error)) if error["code"] == -32002 => {}
            canceled => {
                if let Some(task) = reached(canceled) {
                    assert_eq!(task::state(&task), CANCELED, "{task}");
                    self.records[at].finals.push(CANCELED.to_owned());
                }
            }
        }
        self.poll_until(at, is_final).await;
        true
    }

    async fn stream(&mut self) -> bool {
        let (script, text) = self.script();
        let sent = self.rpc.try_stream("SendStreamingMessage", message(&script)).await;
        let Some(mut frames) = reached(sent) else { return false };
        let Ok(Some(first)) = frames.next().await.map_err(check_break) else { return false };
        let at = self.note(&first.body["task"], text);
        self.records[at].frames.push(first);
        let end = Instant::now() + TASK_TIME;
        while !self.read(at, &mut frames).await {
            frames = self.resume(at, end).await;
            self.records[at].resumed += 1;
        }
        true
    }

    /// Records frames until the connection or the task ends; returns whether the task did.
    async fn read(&mut self, at: usize, frames: &mut Frames) -> bool {
        loop {
            let frame = match frames.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => panic!("a stream ended before its task: {:?}", self.records[at]),
                Err(broken) => {
                    check_break(broken);
                    return false;
                }
            };
            let state = frame.body["statusUpdate"]["status"]["state"].as_str().map(str::to_owned);
            self.records[at].frames.push(frame);
            if let Some(state) = state.filter(|s| is_final(s)) {
                self.records[at].finals.push(state);
                // A frame after the end would fail the check.
                while let Ok(Some(frame)) = frames.next().await {
                    self.records[at].frames.push(frame);
                }
                return true;
            }
        }
    }

    async fn resume(&self, at: usize, end: Instant) -> Frames {
        let record = &self.records[at];
        let last = record.frames.last().and_then(|f| f.id).expect("every event has a number");
        loop {
            let rpc = self.rpc.header("last-event-id", last);
            let resumed = rpc.try_stream("SubscribeToTask", json!({"id": record.task_id})).await;
            if let Some(frames) = reached(resumed) {
                return frames;
            }
            assert!(Instant::now() < end, "task {} cannot be resumed", record.task_id);
            sleep(PAUSE).await;
        }
    }
}

/// The answer, if the call succeeded.
fn reached<T>(answered: io::Result<Result<T, Value>>) -> Option<T> {
    match answered {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            check_break(Broken::Error(error));
            None
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => panic!("no answer at all"),
        Err(_) => None,
    }
}

fn check_break(broken: Broken) {
    match broken {
        Broken::Error(error) => assert_eq!(error["code"], UNAVAILABLE, "{error}"),
        Broken::Cut(how) => assert_ne!(how, "silence", "a stream stalled without an error"),
    }
}
