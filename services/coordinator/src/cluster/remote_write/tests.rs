//! Two coordinators on one store without notifications: a stale copy in memory is never returned to
//! a caller.

use crate::engine::active_task::Done;
use faultline_proto::{
    a2a::{TaskState, send_message_response::Payload},
    id::WorkerId,
    v1::{AgentOffer, Assign, Held, Interrupt, report, to_worker},
};
use tokio::time::Instant;

use super::*;
use crate::{
    Config,
    api::send::Options,
    cluster::reconcile::StoredTask,
    engine::{active_task::Until, core::Closed},
    store::postgres::testing::Database,
    testing::{
        Bench, SOON, answering, at_once, claimed, keyed, offer, principal, request, soon, task_of,
    },
};

struct Pair {
    here: Bench,
    there: Bench,
    /// Last field: dropped after its users.
    _database: Database,
}

impl Pair {
    async fn start() -> Self {
        Self::start_with(offer("a")).await
    }

    /// A worker with this offer is attached to the first coordinator.
    async fn start_with(offered: AgentOffer) -> Self {
        let database = Database::make().await;
        let start = async |offers| {
            let store = Box::new(database.open().await);
            Bench::start_on(store, Config::default(), offers).await
        };
        let (here, there) = (start(vec![offered]).await, start(vec![]).await);
        Self { here, there, _database: database }
    }

    /// The worker moves to the second coordinator with its attempt.
    async fn go_there(&mut self, assign: &Assign) {
        self.here.core.flushed().await;
        self.there.worker = self.here.worker;
        self.there.core.adopt(self.there.worker).await.unwrap();
        self.there.attach_again(&["a"], 100, vec![held(assign)]);
    }

    /// The first coordinator holds a stale copy of a task that the second owns and that has a
    /// question.
    async fn asking_there() -> (Self, Assign) {
        let mut pair = Self::start().await;
        let assign = pair.here.root("a").await;
        pair.go_there(&assign).await;
        pair.there.ask(&assign).await;
        assert!(pair.here.lives(&assign), "stale copy is in memory");
        (pair, assign)
    }
}

impl Bench {
    async fn ask(&self, assign: &Assign) {
        let question = Interrupt { key: "q".into(), prompt: "q?".into(), ..Interrupt::default() };
        self.report(assign, 1, report::Body::Ask(question));
        self.core.flushed().await;
    }

    /// The number of the last acknowledged report, and of the last ingested report.
    fn acked(&self, assign: &Assign) -> (u32, u32) {
        let state = self.core.lock();
        let active = &state.tasks.get(&id(assign)).unwrap();
        (active.acked, active.pending().reported)
    }

    fn lives(&self, assign: &Assign) -> bool {
        self.core.lock().tasks.contains(&id(assign))
    }

    async fn stored(&self, assign: &Assign) -> Task {
        self.core.store.task(id(assign), Scope::default()).await.unwrap().unwrap().task
    }
}

fn id(assign: &Assign) -> TaskId {
    assign.task_id.parse().unwrap()
}

fn held(assign: &Assign) -> Held {
    let (task_id, attempt) = (assign.task_id.clone(), assign.attempt);
    Held { task_id, attempt, ..Held::default() }
}

fn answer(assign: &Assign) -> SendMessageRequest {
    answering(request("a", "yes"), &assign.task_id)
}

#[tokio::test]
async fn former_owner_stores_the_answer_to_a_remote_question() {
    for caller in [principal("ann"), keyed("ann", "k")] {
        let (mut pair, assign) = Pair::asking_there().await;
        let task = task_of(pair.here.send(at_once(answer(&assign)), &caller)).await;
        assert_eq!(task.status.unwrap().state(), TaskState::Working);
        assert!(!pair.here.lives(&assign), "stale copy is released");
        assert_eq!(pair.there.stored(&assign).await.answers.len(), 1);
        pair.there.core.refresh_task(id(&assign)).await.unwrap();
        let told = pair.there.told().await;
        assert!(matches!(&told, to_worker::Body::Answer(a) if a.key == "q"), "{told:?}");
    }
}

#[tokio::test]
async fn former_owner_stores_an_answer_sent_as_a_stream() {
    let (pair, assign) = Pair::asking_there().await;
    let streams = pair.here.core.stream(answer(&assign), &principal("ann")).await;
    assert!(streams.is_ok());
    assert_eq!(pair.there.stored(&assign).await.answers.len(), 1);
}

#[tokio::test]
async fn repeated_answer_waits_at_an_owner_without_notification() {
    let (mut pair, assign) = Pair::asking_there().await;
    let ann = keyed("ann", "k");
    let _first = pair.here.send(answer(&assign), &ann);
    soon(async {
        while pair.here.stored(&assign).await.answers.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let again = pair.there.send(answer(&assign), &ann);
    let told = pair.there.told().await;
    assert!(matches!(told, to_worker::Body::Answer(_)), "{told:?}");
    pair.there.complete(&assign, 2);
    assert_eq!(task_of(again).await.status.unwrap().state(), TaskState::Completed);
    assert_eq!(pair.there.stored(&assign).await.answers.len(), 1);
}

#[tokio::test]
async fn task_acquired_after_a_stale_read_is_not_released() {
    let mut pair = Pair::start().await;
    let before = Instant::now();
    let assign = pair.here.root("a").await;
    let reconcile = |asked| {
        let found = StoredTask::Remote(asked);
        pair.here.core.change(|state| state.reconcile(id(&assign), found, now()));
        pair.here.lives(&assign)
    };
    assert!(reconcile(before), "task acquired later is kept");
    assert!(!reconcile(Instant::now() + SOON));
}

#[tokio::test]
async fn answer_stored_by_a_leaving_coordinator_is_awaited_elsewhere_by_task_id() {
    let (pair, assign) = Pair::asking_there().await;
    task_of(pair.here.send(at_once(answer(&assign)), &principal("ann"))).await;
    pair.here.core.change(|state| state.close(Closed::Leaving));
    let (done, told) = oneshot::channel();
    let done: Done = Box::new(move |sent| drop(done.send(sent.map_err(Failure::from))));
    let options = Options { immediately: false, history: None };
    pair.here.core.wait_for(id(&assign), options, &principal("ann"), done).await;
    let failure = soon(told).await.unwrap().unwrap_err();
    assert_eq!((&failure.reason[..], &failure.task_id), ("UNAVAILABLE", &assign.task_id));
}

#[tokio::test]
async fn repeated_report_is_not_acknowledged_when_its_write_is_refused() {
    let mut pair = Pair::start().await;
    let assign = pair.here.root("a").await;
    pair.here.ask(&assign).await;
    pair.here.hold_writes().await;
    let status = || report::Body::Status(a2a::Message::default());
    pair.here.report(&assign, 2, status());
    // A peer answers before that write, and the worker reports once more.
    let ann = principal("ann");
    task_of(pair.there.send(at_once(answer(&assign)), &ann)).await;
    pair.here.attach_again(&["a"], 100, vec![held(&assign)]);
    pair.here.report(&assign, 2, status());
    assert_eq!(pair.here.acked(&assign), (1, 2));
    pair.here.write_on();
    pair.here.core.flushed().await;
    assert_eq!(pair.here.acked(&assign), (1, 1), "the answer was first");
    pair.here.attach_again(&["a"], 100, vec![held(&assign)]);
    pair.here.report(&assign, 2, status());
    pair.here.core.flushed().await;
    assert_eq!(pair.here.acked(&assign), (2, 2));
}

#[tokio::test]
async fn rolled_back_assignment_holds_no_slot() {
    let mut pair = Pair::start().await;
    let assign = pair.here.root("a").await;
    pair.here.hold_writes().await;
    let (lost, next) = (pair.here.worker, WorkerId::new());
    pair.here.worker = next;
    pair.here.attach_again(&["a"], 100, vec![]);
    pair.here.core.change(|state| state.lose_worker(lost, now()));
    let used = |bench: &Bench| bench.core.lock().registry.workers[&next].used();
    assert_eq!(used(&pair.here), 1, "the next attempt is on its way to the store");
    pair.there.cancel(&assign.task_id).await;
    pair.here.write_on();
    pair.here.core.flushed().await;
    assert!(!pair.here.lives(&assign));
    assert_eq!(used(&pair.here), 0);
}

#[tokio::test]
async fn waiter_gets_no_state_older_than_its_wait() {
    let (mut pair, assign) = Pair::asking_there().await;
    let old = pair.there.stored(&assign).await;
    let ann = principal("ann");
    task_of(pair.here.send(at_once(answer(&assign)), &ann)).await;
    // The stored state from before the answer comes back while a caller begins to wait for the end.
    let worker = pair.here.worker;
    pair.here.core.adopt(worker).await.unwrap();
    let (done, mut ended) = oneshot::channel();
    let done: Done = Box::new(move |sent| drop(done.send(sent.map_err(Failure::from))));
    let stored = pair.here.stored(&assign).await;
    pair.here.core.change(|state| {
        state.tasks.remove(&old.id);
        let options = Options { immediately: false, history: None };
        let waiter = pair.here.core.waiter(Until::Settled, options, &ann, done);
        state.load(old, now());
        state.wait_for_remote_task(&stored, waiter);
    });
    pair.here.core.flushed().await;
    assert!(ended.try_recv().is_err(), "question of the stale copy is answered already");
    pair.here.attach_again(&["a"], 100, vec![held(&assign)]);
    pair.here.core.refresh_task(id(&assign)).await.unwrap();
    pair.here.complete(&assign, 2);
    let ended = soon(ended).await.unwrap().unwrap();
    assert!(matches!(ended.payload, Some(Payload::Task(task))
        if task.status.as_ref().is_some_and(|s| s.state() == TaskState::Completed)));
}

#[tokio::test]
async fn attempt_is_over_only_when_its_end_is_stored() {
    let mut pair = Pair::start().await;
    let assign = pair.here.root("a").await;
    let believed = async |bench: &Bench| {
        let claimed = claimed(&assign, "k");
        let believed = bench.core.authenticate_attempt_with_store(principal("ann"), claimed).await;
        Failure::from(believed.err().unwrap()).reason.clone()
    };
    pair.here.hold_writes().await;
    pair.here.core.change(|state| state.lose_worker(pair.here.worker, now()));
    assert_eq!(believed(&pair.here).await, "UNAVAILABLE", "attempt may run at another coordinator");
    assert_eq!(believed(&pair.there).await, "UNAVAILABLE");
    pair.here.write_on();
    pair.here.core.flushed().await;
    assert_eq!(believed(&pair.here).await, "PERMISSION_DENIED");
    assert_eq!(believed(&pair.there).await, "PERMISSION_DENIED");
}

#[tokio::test]
async fn task_completed_at_a_peer_leaves_no_deferred_cancel() {
    let mut pair = Pair::start_with(AgentOffer { delivers_stops: true, ..offer("a") }).await;
    let assign = pair.here.root("a").await;
    pair.here.report(&assign, 1, report::Body::Checkpoint(b"there".as_slice().into()));
    pair.go_there(&assign).await;
    pair.there.complete(&assign, 2);
    pair.there.core.flushed().await;
    let worker = pair.here.worker;
    pair.here.core.change(|state| state.registry.detach(worker));
    pair.here.core.refresh_task(id(&assign)).await.unwrap();
    pair.here.core.flushed().await;
    assert!(!pair.here.lives(&assign));
    assert_eq!(pair.here.count().await, 1, "there is nothing to stop");
}

#[tokio::test]
async fn task_cancelled_at_a_peer_leaves_a_deferred_cancel_for_the_next_worker() {
    let mut pair = Pair::start_with(AgentOffer { delivers_stops: true, ..offer("a") }).await;
    let assign = pair.here.root("a").await;
    pair.here.report(&assign, 1, report::Body::Checkpoint(b"there".as_slice().into()));
    pair.here.core.flushed().await;
    let worker = pair.here.worker;
    pair.here.core.change(|state| state.registry.detach(worker));
    pair.there.cancel(&assign.task_id).await;
    assert_eq!(pair.here.count().await, 1);
    pair.here.core.refresh_task(id(&assign)).await.unwrap();
    pair.here.core.flushed().await;
    assert_eq!(pair.here.count().await, 2, "the task, and its stop");
    pair.here.attach_again(&["a"], 100, vec![]);
    assert_eq!(pair.here.assigned().await.checkpoint.as_deref(), Some(b"there".as_slice()));
}
