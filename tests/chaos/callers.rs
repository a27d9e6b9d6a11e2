//! The load on a cluster: clients that go to whichever gateway answers, repeat what may be
//! repeated, resume what broke off, and write down what they were told. What they may be told
//! beside an answer is that the mesh cannot be reached just now; anything else they report.

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

use crate::told::{self, Entry, Told, View, Wanted};

/// Unavailable, overloaded, out of time: what the mesh may say when it is not whole.
const PASSING: [i64; 3] = [-31014, -31008, -31004];
const NOT_CANCELABLE: i64 = -32002;
/// Of an answer: the task does not ask just now.
const UNSUPPORTED: i64 = -32004;
/// A gateway that is silent for so long is left for another.
const CALL: Duration = Duration::from_secs(8);
/// No task takes so long, whatever is done to the mesh, once all is done.
const TASK: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends under a key until it is answered.
    Repeating,
    /// Follows the stream, and resumes it elsewhere as often as it breaks; others look on.
    Streaming,
    /// Has others do it, who have others do it.
    Delegating,
    /// Is asked, and answers, mostly.
    Answering,
    /// What fails because it has to.
    Failing,
    /// Changes its mind.
    Canceling,
}

/// What one client comes back with.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) told: Vec<Told>,
    /// What nobody may be told.
    pub(crate) odd: Vec<String>,
    /// Blocking calls that were answered before the end: allowed if a coordinator lost its store.
    pub(crate) early: Vec<String>,
    pub(crate) refused: usize,
}

impl Report {
    /// An answer before the end has to say that the store was away.
    fn note_early(&mut self, what: String, task: &Value) {
        match task["metadata"]["faultline.dev/earlyAnswer"] == "STORE_UNAVAILABLE" {
            true => self.early.push(what),
            false => self.odd.push(what),
        }
    }
}

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

    /// Sends until told to stop, and brings what it has begun to its end.
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

    /// A script of chunks and sleeps, and the text it writes. Each chunk says its place.
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

    fn note(&mut self, task: &Value, params: &Value, wanted: Wanted) -> usize {
        let finals = [task::state(task)].into_iter().filter(|s| is_final(s));
        self.report.told.push(Told {
            client: format!("{:?} {}", self.kind, self.name),
            task_id: task::id(task).to_owned(),
            message_id: params["message"]["messageId"].as_str().unwrap_or_default().to_owned(),
            wanted,
            answered: None,
            finals: finals.map(str::to_owned).collect(),
            views: Vec::new(),
            canceling: false,
        });
        self.report.told.len() - 1
    }

    /// The answer, if there was one.
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
        if !error["code"].as_i64().is_some_and(|code| PASSING.contains(&code)) {
            self.report.odd.push(format!("{:?} {} was told {error}", self.kind, self.name));
        }
    }

    /// Sends under a key, to one gateway after the other, until it is taken. What was given up
    /// may be a task or not: nobody was told.
    async fn keyed(&mut self, params: &Value, stop: &AtomicBool) -> Option<Value> {
        let key = format!("{}-{}", self.name, params["message"]["messageId"]);
        while !stop.load(Relaxed) {
            let rpc = self.gateway().header("idempotency-key", &key);
            let sent = rpc.try_call("SendMessage", params.clone()).await;
            match sent {
                Ok(Err(error)) if error["code"] == UNSUPPORTED => {
                    self.report.refused += 1;
                    let unjust = self.is_unjust(params, &error).await;
                    self.report.odd.extend(unjust);
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

    /// What is wrong with the refusal of an answer, by what is stored of its task.
    async fn is_unjust(&mut self, params: &Value, error: &Value) -> Option<String> {
        let id = params["message"]["taskId"].as_str().unwrap_or_default();
        let end = Instant::now() + TASK;
        let flaw = loop {
            let rpc = self.gateway();
            match told::events(&rpc, id).await {
                Some(events) => break refusal_flaw(&events, &params["message"]["messageId"])?,
                None if Instant::now() > end => break "nobody can tell what is stored of it",
                None => sleep(PAUSE).await,
            }
        };
        let (kind, name) = (self.kind, self.name);
        Some(format!("{kind:?} {name} was told {error} of task {id}, but {flaw}"))
    }

    async fn begin(&mut self, script: &str, wanted: Wanted, stop: &AtomicBool) -> Option<usize> {
        let mut params = message(script);
        params["configuration"] = json!({"returnImmediately": true});
        let task = self.keyed(&params, stop).await?;
        Some(self.note(&task, &params, wanted))
    }

    async fn repeat(&mut self, stop: &AtomicBool) {
        let (script, text) = self.script();
        let params = message(&script);
        let Some(task) = self.keyed(&params, stop).await else { return };
        let at = self.note(&task, &params, Wanted::Artifact("output", text));
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
        let wanted = Wanted::Artifact("output", text);
        if let Some(at) = self.begin(&script, wanted, stop).await {
            self.poll_until(at, is_final).await;
        }
    }

    async fn fail(&mut self, stop: &AtomicBool) {
        let depth = self.rng.random_range(0..3);
        let mut script = "sleep 20ms; fail FAILED_PRECONDITION text=\"no\"".to_owned();
        for _ in 0..depth {
            script = format!("delegate script {{ {script} }}");
        }
        let wanted = Wanted::Failure("FAILED_PRECONDITION", depth);
        if let Some(at) = self.begin(&script, wanted, stop).await {
            self.poll_until(at, is_final).await;
        }
    }

    async fn answer(&mut self, stop: &AtomicBool) {
        let (before, first) = self.script();
        let asks = format!("{before}; ask \"And now?\"; chunk \"$answer\"");
        let asks = match self.rng.random_bool(0.3) {
            true => format!("delegate script {{ {asks} }}"),
            false => asks,
        };
        let silent = self.rng.random_bool(0.1);
        let wanted = match silent {
            true => Wanted::Question,
            false => Wanted::Artifact("output", format!("{first}yes")),
        };
        let Some(at) = self.begin(&asks, wanted, stop).await else { return };
        let settled = |state: &str| is_final(state) || state == INPUT_REQUIRED;
        if self.poll_until(at, settled).await.is_none_or(|state| is_final(&state)) || silent {
            return;
        }
        let params = answer(&self.report.told[at].task_id, "yes");
        // What was begun is brought to its end, whoever says stop.
        if let Some(task) = self.keyed(&params, &AtomicBool::new(false)).await {
            let message = params["message"]["messageId"].as_str().map(str::to_owned);
            self.report.told[at].answered = message;
            if !is_final(task::state(&task)) {
                self.report.note_early(format!("a blocking answer did not wait: {task}"), &task);
            }
        }
        self.poll_until(at, is_final).await;
    }

    async fn cancel(&mut self) {
        let script = match self.rng.random_range(0..3) {
            0 => "sleep 300ms; chunk done".to_owned(),
            // So long that whoever is not stopped is found at work when all is over.
            1 => "delegate script { sleep 90s; chunk done }".to_owned(),
            _ => "delegate script { delegate script { sleep 90s; chunk done } }".to_owned(),
        };
        let wanted = Wanted::Artifact("output", "done".to_owned());
        // Whoever says stop: what was taken and nobody knows of would be stopped by nobody.
        let never = AtomicBool::new(false);
        let Some(at) = self.begin(&script, wanted, &never).await else { return };
        sleep(Duration::from_millis(self.rng.random_range(0..600))).await;
        self.report.told[at].canceling = true;
        let (id, end) = (self.report.told[at].task_id.clone(), Instant::now() + TASK);
        while Instant::now() < end {
            match self.gateway().try_call("CancelTask", json!({"id": id})).await {
                Ok(Ok(task)) => {
                    self.report.told[at].finals.push(task::state(&task).to_owned());
                    break;
                }
                // It has ended, perhaps because the answer to this was lost.
                Ok(Err(error)) if error["code"] == NOT_CANCELABLE => break,
                other => drop(self.reached(other)),
            }
            sleep(PAUSE).await;
        }
        self.poll_until(at, is_final).await;
    }

    /// Asks for the task until it is in such a state. It is acknowledged, so it must be there.
    async fn poll_until(&mut self, at: usize, is_so: impl Fn(&str) -> bool) -> Option<String> {
        let (id, end) = (self.report.told[at].task_id.clone(), Instant::now() + TASK);
        while Instant::now() < end {
            let found = self.gateway().try_call("GetTask", json!({"id": id})).await;
            if let Some(task) = self.reached(found) {
                let state = task::state(&task).to_owned();
                if is_final(&state) {
                    self.report.told[at].finals.push(state.clone());
                }
                if is_so(&state) {
                    return Some(state);
                }
            }
            sleep(PAUSE).await;
        }
        self.report.odd.push(format!("task {id} did not move for {TASK:?}"));
        None
    }

    async fn stream(&mut self) {
        let (script, text) = self.script();
        let params = message(&script);
        let sent = self.gateway().try_stream("SendStreamingMessage", params.clone()).await;
        let Some(mut frames) = self.reached(sent) else { return };
        let Ok(Some(first)) = frames.next().await else { return };
        let at = self.note(&first.body["task"], &params, Wanted::Artifact("output", text));
        let id = self.report.told[at].task_id.clone();
        let onlooker = self.rng.random_bool(0.5).then(|| {
            let looks = Self::new(self.kind, self.name, &self.gateways, self.rng.random());
            tokio::spawn(looks.look_on(id.clone()))
        });
        let mut view = View { frames: vec![first], resumed: 0 };
        self.follow(&id, frames, &mut view).await;
        self.seen(at, view);
        if let Some(onlooker) = onlooker {
            let (view, odd) = onlooker.await.expect("it only looks");
            self.report.odd.extend(odd);
            self.seen(at, view);
        }
    }

    fn seen(&mut self, at: usize, view: View) {
        let told = &mut self.report.told[at];
        told.finals.extend(view.frames.iter().filter_map(|frame| last_state(&frame.body)));
        told.views.push(view);
    }

    /// From the first event on, although it came later.
    async fn look_on(mut self, id: String) -> (View, Vec<String>) {
        let mut view = View::default();
        if let Some(frames) = self.subscribe(&id, 0, Instant::now() + TASK).await {
            self.follow(&id, frames, &mut view).await;
        }
        (view, self.report.odd)
    }

    /// Writes down what comes until the task ends, over as many connections as it takes.
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
        self.report.odd.push(format!("task {id} could not be followed for {TASK:?}"));
        None
    }
}

/// The final state that a frame shows, if it does.
fn last_state(frame: &Value) -> Option<String> {
    let state = frame["statusUpdate"]["status"]["state"].as_str();
    let state = state.or_else(|| frame["task"]["status"]["state"].as_str());
    state.filter(|state| is_final(state)).map(str::to_owned)
}

/// What an answer that was refused, because the task did not ask, may say against that. An agent
/// may take its question back, and ask again, when its worker is lost; nothing else ends a question
/// that nobody answered.
fn refusal_flaw(events: &[Entry], message: &Value) -> Option<&'static str> {
    let took = |e: &Entry| e.kind == "answered" && e.body["message"]["messageId"] == *message;
    if events.iter().any(took) {
        return Some("it has this very answer, whose repeat must not be refused");
    }
    let is_withdrawn = |asked: &Entry| {
        let key = &asked.body["interrupt"]["key"];
        let of = |e: &&Entry| e.seq > asked.seq && e.kind == "withdrawn" && e.body["key"] == *key;
        events.iter().find(of).is_some()
    };
    match events.iter().filter(|event| event.kind == "asked").any(is_withdrawn) {
        true => None,
        false => Some("its question was never taken back"),
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
    fn an_answer_may_be_refused_only_when_its_question_was_taken_back() {
        let (asked, withdrawn) =
            (("asked", json!({"interrupt": {"key": "q"}})), ("withdrawn", json!({"key": "q"})));
        let answered = |id: &str| ("answered", json!({"message": {"messageId": id}}));
        let flaw = |events: &[(&str, Value)]| refusal_flaw(&stored(events), &json!("m"));
        assert_eq!(flaw(&[asked.clone(), withdrawn.clone()]), None);
        assert_eq!(flaw(&[asked.clone(), withdrawn.clone(), asked.clone()]), None);
        assert!(flaw(std::slice::from_ref(&asked)).is_some(), "it still asks");
        assert!(flaw(&[withdrawn.clone(), asked.clone()]).is_some(), "that was another time");
        let other = ("withdrawn", json!({"key": "other"}));
        assert!(flaw(&[asked.clone(), other]).is_some(), "that was another question");
        let taken = flaw(&[asked, withdrawn, answered("m")]);
        assert!(taken.is_some_and(|flaw| flaw.contains("this very answer")), "{taken:?}");
    }
}
