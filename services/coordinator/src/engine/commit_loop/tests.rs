//! A store that fails in the middle: nobody is told what is not so, and after it works again
//! everything that was acknowledged goes on.

use faultline_proto::Failure;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use faultline_chassis::{
    Drain, MeshConfig, Secret,
    credential::{Binding, Credentials, Port},
    limits,
    server::{Hosts, Listener},
};
use faultline_proto::{
    a2a::{self, SendMessageRequest, TaskState, part::Content, send_message_response::Payload},
    id::{TaskId, WorkerId},
    v1::{
        self, AgentOffer, Child, Completed, Held, Hello, Report, Submitted, ToWorker, Welcome,
        report, to_worker,
    },
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::*;
use crate::{
    Config, Service,
    calls::caller::Caller,
    engine::active_task::Done,
    error::StartError,
    store::{
        Aged, BindingQuota, Buckets, Cluster, Cursor, Filter, KeyName, KeyRow, Page, PushKey,
        PushRow, ReadError, Reading, Remembered, Row, Rows, Scope, SigningSecret, Store, Stored,
        StoredEvent, Story, Wanted, Write, encode, sqlite::Sqlite,
    },
    task::{Millis, Task},
    testing::{Answer, claimed, keyed, principal},
};

const SOON: Duration = Duration::from_secs(10);

/// SQLite with a disk that can be full.
struct Flaky {
    inner: Sqlite,
    is_full: Arc<AtomicBool>,
    /// The next insert finds that somebody was quicker.
    is_beaten: Arc<AtomicBool>,
    /// The next batch is the last.
    ends: Option<End>,
}

/// How a store comes to an end.
#[derive(Clone, Copy)]
enum End {
    /// In the middle of a call.
    Panics,
    /// Nobody is behind it any more.
    Vanishes,
}

impl Store for Flaky {
    fn cluster(&self) -> Option<&dyn Cluster> {
        None
    }

    fn secret(&self) -> &SigningSecret {
        self.inner.secret()
    }

    fn commit(&self, batch: Vec<Write>) -> oneshot::Receiver<Written> {
        match self.ends {
            Some(End::Panics) => panic!("a store with a bug"),
            Some(End::Vanishes) => return oneshot::channel().1,
            None => {}
        }
        let inserts = batch.iter().any(|write| matches!(write, Write::Insert { .. }));
        if inserts && self.is_beaten.swap(false, SeqCst) {
            let (done, written) = oneshot::channel();
            let beaten = |write: &Write| matches!(write, Write::Insert { .. });
            let results = batch
                .iter()
                .map(|write| if beaten(write) { Err(WriteError::Conflict) } else { Ok(()) });
            let _ = done.send(results.collect());
            return written;
        }
        if !self.is_full.load(SeqCst) {
            return self.inner.commit(batch);
        }
        let (done, written) = oneshot::channel();
        let full = || Err(WriteError::Unavailable("disk full".to_owned()));
        let _ = done.send(batch.iter().map(|_| full()).collect());
        written
    }

    fn task(&self, id: TaskId, scope: Scope) -> Reading<'_, Option<Stored>> {
        self.inner.task(id, scope)
    }

    fn events(&self, id: TaskId, after: u64, limit: usize) -> Reading<'_, Vec<StoredEvent>> {
        self.inner.events(id, after, limit)
    }

    fn list(&self, filter: Filter) -> Reading<'_, Page> {
        self.inner.list(filter)
    }

    fn children(&self, id: TaskId, scope: Scope, limit: usize) -> Reading<'_, Vec<Child>> {
        self.inner.children(id, scope, limit)
    }

    fn tasks(&self, wanted: Wanted, after: Option<Cursor>, limit: usize) -> Reading<'_, Rows> {
        self.inner.tasks(wanted, after, limit)
    }

    fn rows(&self, ids: Vec<TaskId>) -> Reading<'_, Vec<Row>> {
        self.inner.rows(ids)
    }

    fn story(
        &self,
        id: TaskId,
        scope: Scope,
        after: u64,
        limit: usize,
    ) -> Reading<'_, Option<Story>> {
        self.inner.story(id, scope, after, limit)
    }

    fn activity(&self, over: Buckets) -> Reading<'_, Vec<v1::AgentActivity>> {
        self.inner.activity(over)
    }

    fn failures(&self, over: Buckets) -> Reading<'_, Vec<v1::FailureCount>> {
        self.inner.failures(over)
    }

    fn recover(&self) -> Reading<'_, Vec<crate::task::Task>> {
        if self.is_full.load(SeqCst) {
            Box::pin(async { Err(ReadError::Unavailable("still full".to_owned())) })
        } else {
            self.inner.recover()
        }
    }

    fn agents(&self, only: Option<String>) -> Reading<'_, Vec<Remembered>> {
        self.inner.agents(only)
    }

    fn key(&self, name: KeyName, since: Millis) -> Reading<'_, Option<KeyRow>> {
        self.inner.key(name, since)
    }

    fn aged(&self, after: TaskId, before: TaskId, limit: usize) -> Reading<'_, Vec<Aged>> {
        self.inner.aged(after, before, limit)
    }

    fn oldest_key(&self) -> Reading<'_, Option<Millis>> {
        self.inner.oldest_key()
    }

    fn push(&self, key: PushKey) -> Reading<'_, Option<PushRow>> {
        self.inner.push(key)
    }

    fn pushes(&self, task: TaskId, after: String, limit: usize) -> Reading<'_, Vec<PushRow>> {
        self.inner.pushes(task, after, limit)
    }

    fn unfinished_pushes(&self) -> Reading<'_, Vec<PushKey>> {
        self.inner.unfinished_pushes()
    }

    fn introduce(
        &self,
        worker: WorkerId,
        to: Binding,
        at: Millis,
        quota: BindingQuota,
    ) -> Reading<'_, Option<Binding>> {
        self.inner.introduce(worker, to, at, quota)
    }

    fn keep_introduced(&self, ids: Vec<WorkerId>, at: Millis, before: Millis) -> Reading<'_, ()> {
        self.inner.keep_introduced(ids, at, before)
    }
}

struct Bench {
    core: Arc<Core>,
    is_full: Arc<AtomicBool>,
    is_beaten: Arc<AtomicBool>,
    worker: WorkerId,
    _dir: tempfile::TempDir,
}

fn bench() -> Bench {
    let bench = unwritten(None);
    let writer = Arc::clone(&bench.core);
    tokio::spawn(async move { writer.write().await });
    bench
}

/// Nothing is written yet.
fn unwritten(ends: Option<End>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let is_full = Arc::new(AtomicBool::new(false));
    let is_beaten = Arc::new(AtomicBool::new(false));
    let inner = Sqlite::open(&dir.path().join("t.db")).unwrap();
    let (full, beaten) = (Arc::clone(&is_full), Arc::clone(&is_beaten));
    let store = Flaky { inner, is_full: full, is_beaten: beaten, ends };
    let core = Arc::new(Core::new(Box::new(store), Config::default()));
    Bench { core, is_full, is_beaten, worker: WorkerId::new(), _dir: dir }
}

/// Credentials for a service without callers.
fn any_credentials() -> Credentials {
    let mesh = MeshConfig { in_process_token: Some(Secret::random()), ..MeshConfig::default() };
    let port = Port { listen: ([127, 0, 0, 1], 0).into(), shared_store: false };
    Credentials::load(&mesh, port).unwrap()
}

/// The error of a coordinator on a store that ends this way, and the answer that its caller awaits.
async fn ended(ends: End) -> (StartError, Answer) {
    let bench = unwritten(Some(ends));
    let (outbox, _messages) = mpsc::channel(64);
    let agents = vec![AgentOffer { name: "a".into(), ..AgentOffer::default() }];
    let hello = Hello { agents, slots: 4, ..Hello::default() };
    let core = &bench.core;
    core.touch(|state| state.attach(bench.worker, hello, outbox, core.welcome(), now()));
    let answer = bench.send();
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), None).await.unwrap();
    let (hosts, credentials) = (Hosts::any(), any_credentials());
    let service = Service { listener, hosts, credentials, core: Arc::clone(core) };
    let ended = timeout(SOON, service.run(Drain::new())).await.expect("coordinator ends");
    (ended.unwrap_err(), answer)
}

impl Bench {
    /// Attaches once the coordinator takes workers; the welcome comes first.
    async fn attach(&self, held: Vec<Held>) -> (mpsc::Receiver<ToWorker>, Welcome) {
        let agents = vec![AgentOffer { name: "a".into(), ..AgentOffer::default() }];
        let attached = timeout(SOON, async {
            loop {
                let (outbox, messages) = mpsc::channel(64);
                let (agents, held) = (agents.clone(), held.clone());
                let hello = Hello { agents, held, slots: 4, ..Hello::default() };
                let taken = self.core.change(|state| {
                    state.check_open()?;
                    Ok::<_, Error>(state.attach(
                        self.worker,
                        hello,
                        outbox,
                        self.core.welcome(),
                        now(),
                    ))
                });
                match taken {
                    Ok(_) => return messages,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let mut messages = attached.await.expect("workers are taken");
        // The offer is durable first, so that the full disk refuses the write under test.
        self.core.flushed().await;
        match next(&mut messages).await {
            Some(to_worker::Body::Welcome(welcome)) => (messages, welcome),
            other => panic!("a welcome, not {other:?}"),
        }
    }

    fn send(&self) -> Answer {
        self.send_as(principal("ann"))
    }

    fn send_as(&self, caller: Caller) -> Answer {
        let content = Some(Content::Text("hi".into()));
        let parts = vec![a2a::Part { content, ..a2a::Part::default() }];
        let message = Some(a2a::Message { parts, ..a2a::Message::default() });
        let request =
            SendMessageRequest { tenant: "a".into(), message, ..SendMessageRequest::default() };
        let (done, answer) = oneshot::channel();
        let done: Done = Box::new(move |sent| drop(done.send(sent.map_err(Failure::from))));
        self.core.send(request, caller, done);
        answer
    }

    fn complete(&self, assign: &v1::Assign) {
        let report = Report {
            task_id: assign.task_id.clone(),
            attempt: assign.attempt,
            number: 1,
            body: Some(report::Body::Completed(Completed::default())),
        };
        self.core.change(|state| state.reports(self.worker, vec![report], now()));
    }
}

async fn next(messages: &mut mpsc::Receiver<ToWorker>) -> Option<to_worker::Body> {
    timeout(SOON, messages.recv()).await.expect("a message in time")?.body
}

async fn assignment(messages: &mut mpsc::Receiver<ToWorker>) -> v1::Assign {
    match next(messages).await {
        Some(to_worker::Body::Assign(assign)) => assign,
        other => panic!("an assignment, not {other:?}"),
    }
}

#[tokio::test]
async fn send_that_could_not_be_stored_is_refused_and_never_assigned() {
    let bench = bench();
    let (mut messages, _) = bench.attach(Vec::new()).await;
    bench.is_full.store(true, SeqCst);
    let failure = bench.send().await.unwrap().unwrap_err();
    let told = (failure.reason.as_str(), failure.retryable);
    assert_eq!(told, ("STORE_UNAVAILABLE", Some(false)), "a store that fails may have written");
    assert_eq!(next(&mut messages).await, None, "the stream ends, and nothing was assigned");
    let failure = bench.send().await.unwrap().unwrap_err();
    let told = (failure.reason.as_str(), failure.retryable);
    assert_eq!(told, ("STORE_UNAVAILABLE", None), "no call is accepted during the recovery");
    bench.is_full.store(false, SeqCst);
    let (mut messages, _) = bench.attach(Vec::new()).await;
    let answer = bench.send();
    let assign = assignment(&mut messages).await;
    bench.complete(&assign);
    let sent = timeout(SOON, answer).await.unwrap().unwrap().unwrap();
    let Some(Payload::Task(task)) = sent.payload else { panic!("a task") };
    assert_eq!(task.status.unwrap().state(), TaskState::Completed);
}

#[tokio::test]
async fn result_that_could_not_be_stored_is_accepted_when_resent() {
    let bench = bench();
    let (mut messages, _) = bench.attach(Vec::new()).await;
    let answer = bench.send();
    let assign = assignment(&mut messages).await;
    bench.is_full.store(true, SeqCst);
    bench.complete(&assign);
    let sent = timeout(SOON, answer).await.unwrap().unwrap().unwrap();
    let Some(Payload::Task(task)) = sent.payload else { panic!("a task") };
    let told = (task.id.as_str(), task.status.unwrap().state());
    assert_eq!(told, (&*assign.task_id, TaskState::Working), "the caller is not told of an end");
    assert_eq!(next(&mut messages).await, None, "worker gets no acknowledgement");
    bench.is_full.store(false, SeqCst);
    let held = Held { task_id: assign.task_id.clone(), attempt: assign.attempt, waits: false };
    let (mut messages, welcome) = bench.attach(vec![held]).await;
    let resumed: Vec<_> = welcome.resume.iter().map(|ack| (&ack.task_id, ack.number)).collect();
    assert_eq!(resumed, [(&assign.task_id, 0)], "go on, and resend everything");
    bench.complete(&assign);
    match next(&mut messages).await {
        Some(to_worker::Body::Acks(acks)) => assert_eq!(acks.acks[0].number, 1),
        other => panic!("an acknowledgement, not {other:?}"),
    }
    let id = assign.task_id.parse().unwrap();
    let stored = bench.core.store.task(id, Scope::default()).await.unwrap().unwrap();
    assert_eq!((stored.task.state, stored.task.attempt), (TaskState::Completed, 1));
}

#[tokio::test]
async fn idempotency_key_of_an_unstored_send_is_free_again() {
    let bench = bench();
    let _attached = bench.attach(Vec::new()).await;
    let keyed = || keyed("ann", "k");
    bench.is_full.store(true, SeqCst);
    for lost in [bench.send_as(keyed()), bench.send_as(keyed())] {
        let failure = timeout(SOON, lost).await.unwrap().unwrap().unwrap_err();
        // The one that failed with the store, or the one that came while it was read again.
        assert_eq!(failure.reason, "STORE_UNAVAILABLE", "{failure}");
    }
    bench.is_full.store(false, SeqCst);
    let (mut messages, _) = bench.attach(Vec::new()).await;
    let answers = [bench.send_as(keyed()), bench.send_as(keyed())];
    let assign = assignment(&mut messages).await;
    bench.complete(&assign);
    for answer in answers {
        let sent = timeout(SOON, answer).await.unwrap().unwrap().unwrap();
        let Some(Payload::Task(task)) = sent.payload else { panic!("a task") };
        assert_eq!(task.id, assign.task_id);
    }
}

#[tokio::test]
async fn conflicting_write_fails_alone_in_its_batch() {
    let bench = bench();
    let (mut messages, _) = bench.attach(Vec::new()).await;
    let first = bench.send();
    let running = assignment(&mut messages).await;
    bench.is_beaten.store(true, SeqCst);
    let failure = timeout(SOON, bench.send()).await.unwrap().unwrap().unwrap_err();
    assert_eq!((failure.reason.as_str(), failure.may_retry()), ("ABORTED", true));
    bench.complete(&running);
    let sent = timeout(SOON, first).await.unwrap().unwrap().unwrap();
    let Some(Payload::Task(task)) = sent.payload else { panic!("a task") };
    assert_eq!(task.status.unwrap().state(), TaskState::Completed, "others are not disturbed");
    match next(&mut messages).await {
        Some(to_worker::Body::Acks(_)) => {}
        other => panic!("refused task was assigned: {other:?}"),
    }
    let used = bench.core.lock().registry.workers[&bench.worker].used();
    assert_eq!(used, 0, "refused task holds no slot");
}

#[tokio::test]
async fn child_that_lost_a_race_leaves_its_key_free() {
    let bench = bench();
    let (mut messages, _) = bench.attach(Vec::new()).await;
    let _running = bench.send();
    let parent = assignment(&mut messages).await;
    let caller = bench.core.authenticate_attempt(principal("ann"), claimed(&parent, "k")).unwrap();
    bench.is_beaten.store(true, SeqCst);
    let failure = timeout(SOON, bench.send_as(caller.clone())).await.unwrap().unwrap().unwrap_err();
    assert_eq!(failure.reason, "ABORTED");
    bench.core.flushed().await;
    assert!(bench.core.lock().task_tree.is_empty());
    let _again = bench.send_as(caller);
    let child = assignment(&mut messages).await;
    assert_ne!(child.task_id, parent.task_id, "its key is free");
}

#[tokio::test]
async fn coordinator_ends_when_its_writer_panics() {
    let (broken, _) = ended(End::Panics).await;
    assert_eq!(
        broken.to_string(),
        "the coordinator's writer has panicked: it must be started again"
    );
}

#[tokio::test]
async fn coordinator_without_a_store_writer_fails_its_callers_and_ends() {
    let (broken, answer) = ended(End::Vanishes).await;
    assert!(matches!(broken, StartError::Broken { name: "writer", how: "ended" }), "{broken}");
    let told = timeout(SOON, answer).await.unwrap().unwrap().unwrap_err();
    assert_eq!((&*told.reason, told.retryable), ("STORE_UNAVAILABLE", Some(false)), "{told}");
}

#[tokio::test]
async fn writes_of_one_transaction_are_not_split() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&dir.path().join("t.db")).unwrap();
    let core = Core::new(Box::new(store), Config::default());
    core.change(|state| {
        for n in 0..limits::STORE_BATCH_MAX + 3 {
            state.commit_write(Write::CountLate { id: TaskId::new() }, Vec::new());
            if (limits::STORE_BATCH_MAX..limits::STORE_BATCH_MAX + 2).contains(&n) {
                state.queue.bind_last();
            }
        }
    });
    let batch = core.take_batch();
    let sizes = (batch.writes.len(), batch.post_commits.len());
    assert_eq!(sizes, (limits::STORE_BATCH_MAX + 2, limits::STORE_BATCH_MAX + 2));
    assert_eq!(core.take_batch().writes.len(), 1);
}

#[tokio::test]
async fn large_writes_are_split_into_batches() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&dir.path().join("t.db")).unwrap();
    let core = Core::new(Box::new(store), Config::default());
    let write = |bytes: usize| {
        let (task, event) = Task::submit(TaskId::new(), "a", "c".into(), Submitted::default(), 1);
        let body = vec![0; bytes].into();
        let events = vec![StoredEvent { body, ..encode(1, &event) }];
        Write::Insert { row: Row::from(&task), events, with: None }
    };
    let large = limits::STORE_BATCH_BYTES_MAX;
    core.change(|state| {
        for bytes in [large / 2, large / 2, 1, large * 2, 1] {
            state.commit_write(write(bytes), Vec::new());
        }
    });
    let batches: Vec<_> = (0..4).map(|_| core.take_batch().writes.len()).collect();
    assert_eq!(batches, [2, 1, 1, 1]);
}

#[tokio::test]
async fn reply_callback_does_not_reacquire_the_state_lock() {
    let bench = bench();
    let state = bench.core.lock();
    assert!(state.closed.is_none() && !bench.core.has_left());
}
