//! The load on a cluster: clients that call any gateway, repeat sends under an idempotency key,
//! resume broken streams and record their observations. The mesh may refuse a call only as
//! unavailable, overloaded or timed out; any other error is reported as unexpected.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use faultline_tests::{
    Broken, Frames, Rpc,
    rpc::{answer, message},
    task::{self, INPUT_REQUIRED, is_final},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::observations::{self, Entry, Expected, Observation, View};

/// Unavailable, overloaded, timed out: errors that are allowed while faults are injected.
const TRANSIENT: [i64; 3] = [-31014, -31008, -31004];
const NOT_CANCELABLE: i64 = -32002;
/// The error for an answer to a task without an open question.
const UNSUPPORTED: i64 = -32004;
/// Timeout of one call, after which the next gateway is called.
const CALL: Duration = Duration::from_secs(8);
/// Time limit of one task, faults included.
const TASK: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends under an idempotency key until a gateway answers.
    Repeating,
    /// Follows the stream and resumes it at any gateway; a second subscriber may watch.
    Streaming,
    /// Delegates through several levels.
    Delegating,
    /// Answers a question, in nine of ten tasks.
    Answering,
    /// Sends tasks that must fail.
    Failing,
    /// Cancels its tasks.
    Canceling,
}

/// Result of one client.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) observations: Vec<Observation>,
    /// Errors and delays that no fault explains.
    pub(crate) unexpected: Vec<String>,
    /// Blocking calls that were answered early: allowed if a coordinator lost its store.
    pub(crate) early: Vec<String>,
    pub(crate) refused: usize,
}

impl Report {
    /// Records an early answer. It must carry STORE_UNAVAILABLE.
    fn note_early(&mut self, details: String, task: &Value) {
        if task["metadata"]["faultline.dev/earlyAnswer"] == "STORE_UNAVAILABLE" {
            self.early.push(details);
        } else {
            self.unexpected.push(details);
        }
    }
}

/// One client of the load. Its task owns it for the run and returns its report.
pub(crate) struct Caller {
    kind: Kind,
    name: usize,
    gateways: Vec<Rpc>,
    rng: StdRng,
    sent: usize,
    report: Report,
}

impl Caller {
    pub(crate) fn new(kind: Kind, name: usize, gateways: &[Rpc], seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ ((name as u64 + 1) << 32));
        let gateways = gateways.iter().map(|rpc| rpc.agent("script").within(CALL)).collect();
        Self { kind, name, gateways, rng, sent: 0, report: Report::default() }
    }

    /// Sends tasks until the stop flag is set, and waits for those in progress.
    pub(crate) async fn run(mut self, stop: Arc<AtomicBool>) -> Report {
        while !stop.load(Relaxed) {
            match self.kind {
                Kind::Repeating => self.repeat(&stop).await,
                Kind::Streaming => self.stream().await,
                Kind::Delegating => self.delegate(&stop).await,
                Kind::Answering => self.answer(&stop).await,
                Kind::Failing => self.fail(&stop).await,
                Kind::Canceling => self.cancel().await,
            }
            sleep(PAUSE).await;
        }
        self.report
    }

    fn gateway(&mut self) -> Rpc {
        self.gateways[self.rng.random_range(0..self.gateways.len())].clone()
    }

    /// A script of chunks and sleeps, and the text that it writes. Chunks are numbered.
    fn script(&mut self) -> (String, String) {
        self.sent += 1;
        let (mut script, mut text) = (String::new(), String::new());
        for n in 1..=self.rng.random_range(2..8) {
            let chunk = format!("{}.{}.{n} ", self.name, self.sent);
            script.push_str(&format!("chunk \"{chunk}\"; "));
            if self.rng.random_bool(0.7) {
                script.push_str(&format!("sleep {}ms; ", self.rng.random_range(1..400)));
            }
            text.push_str(&chunk);
        }
        (script, text)
    }

    fn note(&mut self, task: &Value, params: &Value, expected: Expected) -> usize {
        let finals = [task::state(task)].into_iter().filter(|s| is_final(s));
        self.report.observations.push(Observation {
            client: format!("{:?} {}", self.kind, self.name),
            task_id: task::id(task).to_owned(),
            message_id: params["message"]["messageId"].as_str().unwrap_or_default().to_owned(),
            expected,
            answered: None,
            finals: finals.map(str::to_owned).collect(),
            views: Vec::new(),
            canceling: false,
        });
        self.report.observations.len() - 1
    }

    /// The answer, if the call succeeded.
    fn reached<T>(&mut self, answered: io::Result<Result<T, Value>>) -> Option<T> {
        match answered {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => self.refused(&error),
            Err(_) => self.report.refused += 1,
        }
        None
    }

    fn refused(&mut self, error: &Value) {
        self.report.refused += 1;
        if !error["code"].as_i64().is_some_and(|code| TRANSIENT.contains(&code)) {
            let client = format!("{:?} {}", self.kind, self.name);
            self.report.unexpected.push(format!("{client} received {error}"));
        }
    }

    /// Sends under an idempotency key to random gateways until one accepts. After an abandoned send
    /// the task may exist or not.
    async fn keyed(&mut self, params: &Value, stop: &AtomicBool) -> Option<Value> {
        let key = format!("{}-{}", self.name, params["message"]["messageId"]);
        while !stop.load(Relaxed) {
            let rpc = self.gateway().header("idempotency-key", &key);
            let sent = rpc.try_call("SendMessage", params.clone()).await;
            match sent {
                Ok(Err(error)) if error["code"] == UNSUPPORTED => {
                    self.report.refused += 1;
                    let unjustified = self.unjustified_refusal(params, &error).await;
                    self.report.unexpected.extend(unjustified);
                }
                sent => {
                    if let Some(sent) = self.reached(sent) {
                        return Some(sent["task"].clone());
                    }
                }
            }
            sleep(PAUSE).await;
        }
        None
    }

    /// The reason why the refusal of an answer contradicts the stored events of its task, if it
    /// does.
    async fn unjustified_refusal(&mut self, params: &Value, error: &Value) -> Option<String> {
        let id = params["message"]["taskId"].as_str().unwrap_or_default();
        let end = Instant::now() + TASK;
        let flaw = loop {
            let rpc = self.gateway();
            match observations::events(&rpc, id).await {
                Some(events) => break refusal_flaw(&events, &params["message"]["messageId"])?,
                None if Instant::now() > end => break "its events cannot be read",
                None => sleep(PAUSE).await,
            }
        };
        let client = format!("{:?} {}", self.kind, self.name);
        Some(format!("{client} received {error} for task {id}, but {flaw}"))
    }

    async fn begin(
        &mut self,
        script: &str,
        expected: Expected,
        stop: &AtomicBool,
    ) -> Option<usize> {
        let mut params = message(script);
        params["configuration"] = json!({"returnImmediately": true});
        let task = self.keyed(&params, stop).await?;
        Some(self.note(&task, &params, expected))
    }

    async fn repeat(&mut self, stop: &AtomicBool) {
        let (script, text) = self.script();
        let params = message(&script);
        let Some(task) = self.keyed(&params, stop).await else { return };
        let at = self.note(&task, &params, Expected::Artifact("output", text));
        if !is_final(task::state(&task)) {
            self.report.note_early(format!("a blocking send did not wait: {task}"), &task);
            self.poll_until(at, is_final).await;
        }
    }

    async fn delegate(&mut self, stop: &AtomicBool) {
        let (mut script, text) = self.script();
        for _ in 0..self.rng.random_range(1..3) {
            let pause = self.rng.random_range(1..100);
            script = format!("sleep {pause}ms; delegate script {{ {script} }}");
        }
        let expected = Expected::Artifact("output", text);
        if let Some(at) = self.begin(&script, expected, stop).await {
            self.poll_until(at, is_final).await;
        }
    }

    async fn fail(&mut self, stop: &AtomicBool) {
        let depth = self.rng.random_range(0..3);
        let mut script = "sleep 20ms; fail FAILED_PRECONDITION text=\"no\"".to_owned();
        for _ in 0..depth {
            script = format!("delegate script {{ {script} }}");
        }
        let expected = Expected::Failure("FAILED_PRECONDITION", depth);
        if let Some(at) = self.begin(&script, expected, stop).await {
            self.poll_until(at, is_final).await;
        }
    }

    async fn answer(&mut self, stop: &AtomicBool) {
        let (before, first) = self.script();
        let asks = format!("{before}; ask \"And now?\"; chunk \"$answer\"");
        let is_delegated = self.rng.random_bool(0.3);
        let asks = if is_delegated { format!("delegate script {{ {asks} }}") } else { asks };
        let silent = self.rng.random_bool(0.1);
        let expected = if silent {
            Expected::Question
        } else {
            Expected::Artifact("output", format!("{first}yes"))
        };
        let Some(at) = self.begin(&asks, expected, stop).await else { return };
        let settled = |state: &str| is_final(state) || state == INPUT_REQUIRED;
        if self.poll_until(at, settled).await.is_none_or(|state| is_final(&state)) || silent {
            return;
        }
        let params = answer(&self.report.observations[at].task_id, "yes");
        // An open task is completed even after the stop flag is set.
        if let Some(task) = self.keyed(&params, &AtomicBool::new(false)).await {
            let message = params["message"]["messageId"].as_str().map(str::to_owned);
            self.report.observations[at].answered = message;
            if !is_final(task::state(&task)) {
                self.report.note_early(format!("a blocking answer did not wait: {task}"), &task);
            }
        }
        self.poll_until(at, is_final).await;
    }

    async fn cancel(&mut self) {
        let script = match self.rng.random_range(0..3) {
            0 => "sleep 300ms; chunk done".to_owned(),
            // Long enough for an uncancelled worker to be found running at the end.
            1 => "delegate script { sleep 90s; chunk done }".to_owned(),
            _ => "delegate script { delegate script { sleep 90s; chunk done } }".to_owned(),
        };
        let expected = Expected::Artifact("output", "done".to_owned());
        // Without the stop flag: an accepted task that no client knows is never cancelled.
        let never = AtomicBool::new(false);
        let Some(at) = self.begin(&script, expected, &never).await else { return };
        sleep(Duration::from_millis(self.rng.random_range(0..600))).await;
        self.report.observations[at].canceling = true;
        let (id, end) = (self.report.observations[at].task_id.clone(), Instant::now() + TASK);
        while Instant::now() < end {
            match self.gateway().try_call("CancelTask", json!({"id": id})).await {
                Ok(Ok(task)) => {
                    self.report.observations[at].finals.push(task::state(&task).to_owned());
                    break;
                }
                // The task has ended, perhaps because the answer to a first cancel was lost.
                Ok(Err(error)) if error["code"] == NOT_CANCELABLE => break,
                other => drop(self.reached(other)),
            }
            sleep(PAUSE).await;
        }
        self.poll_until(at, is_final).await;
    }

    /// Polls the task, which must exist, until it is in such a state.
    async fn poll_until(&mut self, at: usize, is_so: impl Fn(&str) -> bool) -> Option<String> {
        let (id, end) = (self.report.observations[at].task_id.clone(), Instant::now() + TASK);
        while Instant::now() < end {
            let found = self.gateway().try_call("GetTask", json!({"id": id})).await;
            if let Some(task) = self.reached(found) {
                let state = task::state(&task).to_owned();
                if is_final(&state) {
                    self.report.observations[at].finals.push(state.clone());
                }
                if is_so(&state) {
                    return Some(state);
                }
            }
            sleep(PAUSE).await;
        }
        self.report.unexpected.push(format!("task {id} made no progress for {TASK:?}"));
        None
    }

    async fn stream(&mut self) {
        let (script, text) = self.script();
        let params = message(&script);
        let sent = self.gateway().try_stream("SendStreamingMessage", params.clone()).await;
        let Some(mut frames) = self.reached(sent) else { return };
        let Ok(Some(first)) = frames.next().await else { return };
        let at = self.note(&first.body["task"], &params, Expected::Artifact("output", text));
        let id = self.report.observations[at].task_id.clone();
        let watcher = self.rng.random_bool(0.5).then(|| {
            let watcher = Self::new(self.kind, self.name, &self.gateways, self.rng.random());
            tokio::spawn(watcher.watch(id.clone()))
        });
        let mut view = View { frames: vec![first], resumed: 0 };
        self.follow(&id, frames, &mut view).await;
        self.seen(at, view);
        if let Some(watcher) = watcher {
            let (view, unexpected) = watcher.await.expect("a watcher does not panic");
            self.report.unexpected.extend(unexpected);
            self.seen(at, view);
        }
    }

    fn seen(&mut self, at: usize, view: View) {
        let observed = &mut self.report.observations[at];
        observed.finals.extend(view.frames.iter().filter_map(|frame| last_state(&frame.body)));
        observed.views.push(view);
    }

    /// Subscribes late and asks for all events from the first.
    async fn watch(mut self, id: String) -> (View, Vec<String>) {
        let mut view = View::default();
        if let Some(frames) = self.subscribe(&id, 0, Instant::now() + TASK).await {
            self.follow(&id, frames, &mut view).await;
        }
        (view, self.report.unexpected)
    }

    /// Records frames until the task ends, and resumes the stream after each break.
    async fn follow(&mut self, id: &str, mut frames: Frames, view: &mut View) {
        let end = Instant::now() + TASK;
        loop {
            match frames.next().await {
                Ok(Some(frame)) => {
                    view.frames.push(frame);
                    continue;
                }
                Ok(None) if view.frames.iter().any(|f| last_state(&f.body).is_some()) => return,
                // A stream may end early when its gateway leaves.
                Ok(None) | Err(Broken::Cut(_)) => self.report.refused += 1,
                Err(Broken::Error(error)) => self.refused(&error),
            }
            let last = view.frames.last().and_then(|frame| frame.id).unwrap_or(0);
            let Some(resumed) = self.subscribe(id, last, end).await else { return };
            frames = resumed;
            view.resumed += 1;
        }
    }

    async fn subscribe(&mut self, id: &str, after: u64, end: Instant) -> Option<Frames> {
        while Instant::now() < end {
            let rpc = self.gateway().header("last-event-id", after);
            let resumed = rpc.try_stream("SubscribeToTask", json!({"id": id})).await;
            if let Some(frames) = self.reached(resumed) {
                return Some(frames);
            }
            sleep(PAUSE).await;
        }
        self.report.unexpected.push(format!("task {id} could not be followed for {TASK:?}"));
        None
    }
}

/// The final state in a frame, if it has one.
fn last_state(frame: &Value) -> Option<String> {
    let state = frame["statusUpdate"]["status"]["state"].as_str();
    let state = state.or_else(|| frame["task"]["status"]["state"].as_str());
    state.filter(|state| is_final(state)).map(str::to_owned)
}

/// The reason why the refusal of this answer is wrong, if it is. Only the loss of a worker
/// withdraws an unanswered question; the next attempt may ask it again.
fn refusal_flaw(events: &[Entry], message: &Value) -> Option<&'static str> {
    let took = |e: &Entry| e.kind == "answered" && e.body["message"]["messageId"] == *message;
    if events.iter().any(took) {
        return Some("the same answer is stored, and its repeat must succeed");
    }
    let is_withdrawn = |asked: &Entry| {
        let key = &asked.body["interrupt"]["key"];
        let of = |e: &&Entry| e.seq > asked.seq && e.kind == "withdrawn" && e.body["key"] == *key;
        events.iter().find(of).is_some()
    };
    if events.iter().filter(|event| event.kind == "asked").any(is_withdrawn) {
        None
    } else {
        Some("its question was never withdrawn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(events: &[(&str, Value)]) -> Vec<Entry> {
        let entry = |(seq, (kind, body)): (u64, &(&str, Value))| Entry {
            seq,
            time: String::new(),
            kind: (*kind).to_owned(),
            body: body.clone(),
        };
        (1..).zip(events).map(entry).collect()
    }

    #[test]
    fn refused_answer_requires_a_withdrawn_question() {
        let asked = ("asked", json!({"interrupt": {"key": "q"}}));
        let withdrawn = ("withdrawn", json!({"key": "q"}));
        let answered = |id: &str| ("answered", json!({"message": {"messageId": id}}));
        let flaw = |events: &[(&str, Value)]| refusal_flaw(&stored(events), &json!("m"));
        assert_eq!(flaw(&[asked.clone(), withdrawn.clone()]), None);
        assert_eq!(flaw(&[asked.clone(), withdrawn.clone(), asked.clone()]), None);
        assert!(flaw(std::slice::from_ref(&asked)).is_some(), "the question is open");
        assert!(
            flaw(&[withdrawn.clone(), asked.clone()]).is_some(),
            "withdrawn before it was asked again"
        );
        let other = ("withdrawn", json!({"key": "other"}));
        assert!(flaw(&[asked.clone(), other]).is_some(), "another question was withdrawn");
        let taken = flaw(&[asked, withdrawn, answered("m")]);
        assert!(taken.is_some_and(|flaw| flaw.contains("the same answer")), "{taken:?}");
    }
}
