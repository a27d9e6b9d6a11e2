//! Agents that call agents: who may, what they find again, and what ends with whom.

use faultline_proto::{
    Failure,
    a2a::{self, CancelTaskRequest, GetTaskRequest, TaskState, stream_response},
    reason,
    v1::{self, Assign, Held, Interrupt, report, to_worker},
};
use prost_types::value::Kind;

use super::*;
use crate::{
    calls::caller::Caller,
    clock::now,
    store::Write,
    task::frame::text_message,
    testing::{
        Bench, answering, at_once, claimed, frame_of, offer, principal, refusal_of, request, soon,
        task_of,
    },
};

const AGENTS: [&str; 3] = ["a", "b", "c"];

async fn bench() -> Bench {
    Bench::start(AGENTS.map(offer).into()).await
}

async fn get(bench: &Bench, id: &str) -> a2a::Task {
    let get = GetTaskRequest { id: id.into(), ..GetTaskRequest::default() };
    bench.core.get(get, &principal("ann")).await.unwrap()
}

async fn state(bench: &Bench, id: &str) -> TaskState {
    bench.core.flushed().await;
    get(bench, id).await.status.unwrap().state()
}

fn failed() -> report::Body {
    report::Body::Failed(Failure::new(&reason::UNKNOWN).into_record())
}

#[tokio::test]
async fn child_has_the_principal_and_context_of_its_parent_and_names_it() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let assign = bench.child(&parent, "k", "b").await;
    assert_eq!((&assign.agent[..], &assign.context_id), ("b", &parent.context_id));
    let task = get(&bench, &assign.task_id).await;
    let named = task.metadata.unwrap().fields["faultline.dev/parent"].kind.clone();
    assert_eq!(named, Some(Kind::StringValue(parent.task_id.clone())));
    let listed = bench.core.list(a2a::ListTasksRequest::default(), &principal("ann")).await;
    assert_eq!(listed.unwrap().total_size, 2);
    assert!(get(&bench, &parent.task_id).await.metadata.is_none());
    let grandchild = bench.child(&assign, "k", "c").await;
    let stored = grandchild.task_id.parse().unwrap();
    let stored = bench.core.store.task(stored, Default::default()).await.unwrap().unwrap().task;
    let (task_id, key) = (assign.task_id, "k".to_owned());
    assert_eq!(*stored.parent.unwrap(), Parent { task_id, key, depth: 2, detached: false });
    let mut elsewhere = at_once(request("b", "do this"));
    elsewhere.message.as_mut().unwrap().context_id = "own".into();
    let own = task_of(bench.send(elsewhere, &bench.calling(&parent, "own"))).await;
    assert_eq!(own.context_id, "own");
}

#[tokio::test]
async fn only_the_current_attempt_of_a_live_task_may_call() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let before = bench.calling(&parent, "k");
    let refused = |bench: &Bench, assign: &Assign| {
        let refused = bench.core.authenticate_attempt(principal("ann"), claimed(assign, "k"));
        assert_eq!(Failure::from(refused.unwrap_err()).reason, "PERMISSION_DENIED");
    };
    let (said, signature) = parent.token.rsplit_once('.').unwrap();
    let forged = format!("{said}.{}", signature.chars().rev().collect::<String>());
    refused(&bench, &Assign { token: forged, ..parent.clone() });
    refused(&bench, &Assign { token: "nonsense".into(), ..parent.clone() });
    let released = report::Body::Released(v1::Released {});
    bench.report(&parent, 1, released);
    let second = bench.assigned().await;
    assert_eq!(second.attempt, 2);
    refused(&bench, &parent);
    let late = refusal_of(bench.send(at_once(request("b", "late")), &before)).await;
    assert_eq!(
        late.reason, "PERMISSION_DENIED",
        "attempt ended between authentication and delegation"
    );
    bench.calling(&second, "k");
    bench.complete(&second, 1);
    refused(&bench, &second);
    bench.core.flushed().await;
    refused(&bench, &second);
    assert_eq!(bench.count().await, 1);
}

#[tokio::test]
async fn child_without_an_idempotency_key_is_refused() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let caller = bench.calling(&parent, "");
    let refused = refusal_of(bench.send(request("b", "x"), &caller)).await;
    assert_eq!((&refused.reason[..], bench.count().await), ("INVALID_PARAMS", 1));
}

#[tokio::test]
async fn same_key_finds_the_same_child_after_a_restart_and_after_its_end() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let caller = bench.calling(&parent, "k");
    let first = bench.child_of(&caller, "b").await;
    let again = task_of(bench.send(at_once(request("b", "in other words")), &caller)).await;
    assert_eq!(again.id, first.task_id);
    let other = bench.child(&parent, "other", "b").await;
    assert_ne!(other.task_id, first.task_id);
    let everything = Write::ForgetKeys { before: now() + 1000, limit: 100 };
    bench.write(everything).await;

    let worker = bench.worker;
    let mut bench = bench.restart(Vec::new()).await;
    bench.worker = worker;
    let held = |a: &Assign| Held { task_id: a.task_id.clone(), attempt: a.attempt, waits: false };
    let running = vec![held(&parent), held(&first), held(&other)];
    bench.attach_again(&AGENTS, 100, running);
    let caller = bench.calling(&parent, "k");
    let mut stream = soon(bench.core.stream(request("b", "x"), &caller)).await.unwrap();
    let snapshot = frame_of(&mut stream).await.unwrap().response.unwrap().payload.unwrap();
    let stream_response::Payload::Task(task) = snapshot else { panic!("a snapshot") };
    assert_eq!(task.id, first.task_id);
    bench.complete(&first, 1);
    let end = frame_of(&mut stream).await.unwrap().response.unwrap().payload.unwrap();
    let stream_response::Payload::StatusUpdate(end) = end else { panic!("its end") };
    assert_eq!(end.status.unwrap().state(), TaskState::Completed);
    assert_eq!(frame_of(&mut stream).await, None);

    bench.report(&parent, 1, report::Body::Released(v1::Released {}));
    let second = bench.assigned().await;
    let caller = bench.calling(&second, "k");
    let ended = task_of(bench.send(request("b", "x"), &caller)).await;
    assert_eq!((&ended.id, ended.status.unwrap().state()), (&first.task_id, TaskState::Completed));
    let mut stream = soon(bench.core.stream(request("b", "x"), &caller)).await.unwrap();
    assert!(frame_of(&mut stream).await.is_some(), "its snapshot");
    assert_eq!(frame_of(&mut stream).await, None, "stream ends");
    assert_eq!(bench.count().await, 3);
}

#[tokio::test]
async fn same_key_finds_a_bare_message() {
    let mut brief = offer("b");
    brief.may_answer_with_message = true;
    let mut bench = Bench::start(vec![offer("a"), brief]).await;
    let parent = bench.root("a").await;
    let caller = bench.calling(&parent, "k");
    let first = bench.send(request("b", "x"), &caller);
    let assign = bench.assigned().await;
    bench.report(&assign, 1, report::Body::Message(text_message("so be it".into())));
    let first = soon(first).await.unwrap().unwrap();
    let again = soon(bench.send(request("b", "x"), &caller)).await.unwrap().unwrap();
    assert_eq!((first, bench.count().await), (again, 1));
    assert!(bench.core.lock().task_tree.is_empty());
}

#[tokio::test]
async fn agent_streams_a_task_of_an_agent_without_streaming() {
    let quiet = v1::AgentOffer { name: "b".into(), ..v1::AgentOffer::default() };
    let mut bench = Bench::start(vec![offer("a"), quiet]).await;
    let parent = bench.root("a").await;
    assert!(bench.core.stream(request("b", "x"), &principal("ann")).await.is_err());
    let caller = bench.calling(&parent, "k");
    soon(bench.core.stream(request("b", "x"), &caller)).await.unwrap();
    let id = bench.assigned().await.task_id;
    let subscribe = a2a::SubscribeToTaskRequest { id, ..Default::default() };
    assert!(bench.core.subscribe(&subscribe, None, &caller).await.is_ok());
    assert!(bench.core.subscribe(&subscribe, None, &principal("ann")).await.is_err());
}

#[tokio::test]
async fn parent_answers_the_question_of_its_child() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let caller = bench.calling(&parent, "k");
    let asks = bench.child_of(&caller, "b").await;
    let interrupt = Interrupt { key: "q".into(), agent: "c".into(), ..Interrupt::default() };
    bench.report(&asks, 1, report::Body::Ask(interrupt));
    let waiting = task_of(bench.send(request("b", "x"), &caller)).await;
    assert_eq!(waiting.status.unwrap().state(), TaskState::InputRequired);
    let answer = at_once(answering(request("b", "42"), &asks.task_id));
    assert_eq!(task_of(bench.send(answer, &caller)).await.id, asks.task_id);
    match bench.told().await {
        to_worker::Body::Answer(answer) => assert_eq!(answer.key, "q"),
        other => panic!("the answer, not {other:?}"),
    }
    bench.core.flushed().await;
    let inspect = v1::InspectRequest { task_id: asks.task_id };
    let operator = Caller { operates: true, ..principal("o") };
    let inspected = bench.core.inspect(inspect, &operator).await.unwrap();
    let asked = inspected.task.unwrap().history[1].metadata.clone().unwrap();
    let Some(Kind::StructValue(asked)) = &asked.fields["faultline.dev/interrupt"].kind else {
        panic!("a record")
    };
    assert_eq!(
        asked.fields["agent"].kind,
        Some(Kind::StringValue("c".into())),
        "agent that asked first"
    );
}

#[tokio::test]
async fn cancel_ends_all_attached_descendants_in_one_commit() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let running = bench.child(&parent, "1", "b").await;
    let below = bench.child(&running, "1", "c").await;
    let asks = bench.child(&parent, "2", "b").await;
    bench.report(&asks, 1, report::Body::Ask(Interrupt::default()));
    bench.set_slots(1);
    let queued = at_once(request("c", "x"));
    let queued = task_of(bench.send(queued, &bench.calling(&running, "2"))).await.id;
    let apart = bench.calling_detached(&parent, "3");
    let apart = task_of(bench.send(at_once(request("c", "x")), &apart)).await.id;

    bench.hold_writes().await;
    let (core, id) = (std::sync::Arc::clone(&bench.core), parent.task_id.clone());
    let cancelling = tokio::spawn(async move {
        let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
        core.cancel(cancel, &principal("ann")).await
    });
    let bound = || -> Vec<bool> {
        bench
            .core
            .lock()
            .queue
            .post_commits
            .iter()
            .map(|f| f.same_transaction_as_previous)
            .collect()
    };
    while bound().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(bound(), [false, true, true, true, true]);
    bench.write_on();
    soon(cancelling).await.unwrap().unwrap();
    for id in [&parent.task_id, &running.task_id, &below.task_id, &asks.task_id, &queued] {
        assert_eq!(state(&bench, id).await, TaskState::Canceled);
    }
    assert_eq!(state(&bench, &apart).await, TaskState::Submitted, "was told to go on");
    let metadata = get(&bench, &below.task_id).await.metadata.unwrap();
    let failure = Failure::from_metadata(&metadata).unwrap();
    assert_eq!(
        (&failure.reason[..], &failure.public_message[..]),
        ("CANCELLED", "the calling task ended",)
    );
    assert!(metadata.fields.contains_key("faultline.dev/parent"));
    let mut told = Vec::new();
    for _ in 0..4 {
        match bench.told().await {
            to_worker::Body::Cancel(cancel) => told.push((cancel.task_id, cancel.initiator)),
            other => panic!("a cancel, not {other:?}"),
        }
    }
    let parents = |a: &Assign| (a.task_id.clone(), "parent".to_owned());
    let user = (parent.task_id.clone(), "user".to_owned());
    assert_eq!(told, [user, parents(&running), parents(&asks), parents(&below)]);
    assert_eq!(bench.core.lock().registry.agents["b"].waiting, 0);
    let left = bench.core.lock().task_tree.below_root(apart.parse().unwrap());
    assert_eq!(left, 1, "only the one that goes on counts");
    bench.cancel(&apart).await;
    assert!(bench.core.lock().task_tree.is_empty());
}

#[tokio::test]
async fn children_end_with_any_end_of_their_parent() {
    let done = || report::Body::Completed(v1::Completed::default());
    let declined = || report::Body::Rejected(text_message("no".into()));
    for (end, ended) in [
        (done(), TaskState::Completed),
        (failed(), TaskState::Failed),
        (declined(), TaskState::Rejected),
    ] {
        let mut bench = bench().await;
        let parent = bench.root("a").await;
        let goes = bench.child(&parent, "1", "b").await;
        let apart = bench.calling_detached(&parent, "2");
        let stays = bench.child_of(&apart, "b").await;
        let below = bench.child(&stays, "1", "c").await;
        let over = bench.child(&parent, "3", "c").await;
        bench.complete(&over, 1);
        bench.report(&parent, 1, end);
        assert_eq!(state(&bench, &parent.task_id).await, ended);
        assert_eq!(state(&bench, &goes.task_id).await, TaskState::Canceled);
        assert_eq!(state(&bench, &over.task_id).await, TaskState::Completed);
        assert_eq!(state(&bench, &stays.task_id).await, TaskState::Working);
        assert_eq!(state(&bench, &below.task_id).await, TaskState::Working);
        let task = bench.cancel(&stays.task_id).await;
        assert_eq!(task.status.unwrap().state(), TaskState::Canceled);
        assert_eq!(state(&bench, &below.task_id).await, TaskState::Canceled);
        assert!(bench.core.lock().task_tree.is_empty());
    }
}

#[tokio::test]
async fn children_end_with_a_parent_that_became_a_bare_message() {
    let mut brief = offer("a");
    brief.may_answer_with_message = true;
    let mut bench = Bench::start(vec![brief, offer("b")]).await;
    let answer = bench.send(request("a", "hi"), &principal("ann"));
    let parent = bench.assigned().await;
    let below = bench.child(&parent, "k", "b").await;
    bench.report(&parent, 1, report::Body::Message(text_message("done".into())));
    soon(answer).await.unwrap().unwrap();
    assert_eq!(state(&bench, &below.task_id).await, TaskState::Canceled);
}

#[tokio::test]
async fn parent_that_lost_its_worker_keeps_its_children_until_it_fails() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let below = bench.child(&parent, "k", "b").await;
    for (attempts, parents, childs) in
        [(3, TaskState::Working, TaskState::Working), (1, TaskState::Failed, TaskState::Canceled)]
    {
        let core = &bench.core;
        core.change(|state| {
            state.registry.agents.get_mut("a").unwrap().policy.losses_max = attempts;
            state.lose_worker(bench.worker, now());
        });
        assert_eq!(state(&bench, &parent.task_id).await, parents);
        assert_eq!(state(&bench, &below.task_id).await, childs);
        bench.attach_again(&AGENTS, 100, Vec::new());
    }
}

#[tokio::test]
async fn task_trees_are_rebuilt_after_a_restart() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let middle = bench.child(&parent, "k", "b").await;
    let below = bench.child(&middle, "k", "c").await;
    let bench = bench.restart(Vec::new()).await;
    let root = parent.task_id.parse().unwrap();
    assert_eq!(bench.core.lock().task_tree.below_root(middle.task_id.parse().unwrap()), 2);
    assert_eq!(bench.core.lock().task_tree.below_root(root), 2);
    bench.cancel(&parent.task_id).await;
    for task in [middle, below] {
        assert_eq!(state(&bench, &task.task_id).await, TaskState::Canceled);
    }
}

#[tokio::test]
async fn stored_child_of_an_ended_parent_ends_at_recovery() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let middle = bench.child(&parent, "k", "b").await;
    let below = bench.child(&middle, "k", "c").await;
    let id: TaskId = parent.task_id.parse().unwrap();
    let version = bench.core.lock().tasks.get(&id).unwrap().pending().version;
    bench.write(Write::Erase { id, from: version, key: None }).await;
    let bench = bench.restart(Vec::new()).await;
    for task in [middle, below] {
        assert_eq!(state(&bench, &task.task_id).await, TaskState::Canceled);
    }
}

#[tokio::test]
async fn delegation_depth_is_bounded() {
    let mut bench = bench().await;
    let mut last = bench.root("a").await;
    for _ in 0..limits::DELEGATION_DEPTH_MAX {
        last = bench.child(&last, "k", "a").await;
    }
    let caller = bench.calling(&last, "k");
    let refused = refusal_of(bench.send(request("a", "x"), &caller)).await;
    assert_eq!(refused.reason, "DELEGATION_TOO_DEEP");
}

#[tokio::test]
async fn detached_children_still_count_after_the_end_of_their_parent() {
    let mut bench = bench().await;
    let root = bench.root("a").await;
    let middle = bench.child(&root, "m", "b").await;
    let apart = [bench.calling_detached(&middle, "1"), bench.calling_detached(&middle, "2")];
    let one = bench.child_of(&apart[0], "c").await;
    let other = bench.child_of(&apart[1], "c").await;
    bench.child(&one, "k", "c").await;
    let below =
        |bench: &Bench, id: &str| bench.core.lock().task_tree.below_root(id.parse().unwrap());
    assert_eq!(below(&bench, &other.task_id), 4);
    bench.complete(&middle, 1);
    assert_eq!(state(&bench, &middle.task_id).await, TaskState::Completed);
    assert_eq!(below(&bench, &root.task_id), 3, "descendants still count at the root");
    bench.complete(&root, 1);
    assert_eq!(state(&bench, &root.task_id).await, TaskState::Completed);
    assert_eq!(below(&bench, &other.task_id), 3, "there is still one count for all");
    bench.complete(&one, 1);
    assert_eq!(state(&bench, &one.task_id).await, TaskState::Completed);
    assert_eq!(below(&bench, &other.task_id), 1);
    let bench = bench.restart(vec![offer("c")]).await;
    assert_eq!(below(&bench, &other.task_id), 1, "also after a restart");
    bench.cancel(&other.task_id).await;
    assert!(bench.core.lock().task_tree.is_empty());
}

#[tokio::test]
async fn number_of_live_descendants_is_bounded() {
    let mut bench = bench().await;
    let parent = bench.root("a").await;
    let middle = bench.child(&parent, "m", "b").await;
    bench.set_slots(1);
    for n in 1..limits::DESCENDANTS_MAX {
        let caller = bench.calling([&parent, &middle][n % 2], &n.to_string());
        drop(bench.send(at_once(request("c", "x")), &caller));
        tokio::task::yield_now().await;
    }
    while bench.core.lock().task_tree.below_root(middle.task_id.parse().unwrap())
        < limits::DESCENDANTS_MAX
    {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for attempt in [&parent, &middle] {
        let refused = refusal_of(bench.send(request("c", "x"), &bench.calling(attempt, "x")));
        assert_eq!(refused.await.reason, "RESOURCE_EXHAUSTED");
    }
    bench.complete(&middle, 1);
    let left = bench.core.lock().task_tree.below_root(parent.task_id.parse().unwrap());
    assert_eq!(left, limits::DESCENDANTS_MAX / 2 - 1, "its descendants ended with it");
    let more = at_once(request("c", "x"));
    task_of(bench.send(more, &bench.calling(&parent, "x"))).await;
}
