//! What is shown of a task that delegated.

use faultline_proto::a2a::TaskState;

use super::*;
use crate::testing::{Bench, offer, principal};

async fn inspect(bench: &Bench, id: &str, caller: &Caller) -> InspectResponse {
    bench.core.flushed().await;
    let request = InspectRequest { task_id: id.to_owned() };
    bench.core.inspect(request, caller).await.unwrap()
}

#[tokio::test]
async fn a_task_is_shown_with_what_it_delegated_and_when_it_ended() {
    let mut bench = Bench::start(["a", "b", "c"].map(offer).into()).await;
    let ann = principal("ann");
    let root = bench.root("a").await;
    let first = bench.child(&root, "one", "b").await;
    let apart = bench.calling_detached(&root, "two");
    let second = bench.child_of(&apart, "c").await;
    let below = bench.child(&first, "one", "c").await;
    bench.complete(&below, 1);
    bench.complete(&first, 1);
    let shown = inspect(&bench, &root.task_id, &ann).await;
    let (working, completed) = (TaskState::Working, TaskState::Completed);
    let child = |id: &str, agent: &str, key: &str, detached, state: TaskState| v1::Child {
        task_id: id.to_owned(),
        agent: agent.to_owned(),
        key: key.to_owned(),
        detached,
        state: state as i32,
    };
    let expected = [
        child(&first.task_id, "b", "one", false, completed),
        child(&second.task_id, "c", "two", true, working),
    ];
    assert_eq!((shown.children.as_slice(), shown.ended), (&expected[..], None));
    let shown = inspect(&bench, &first.task_id, &ann).await;
    assert_eq!(shown.children, [child(&below.task_id, "c", "one", false, completed)]);
    assert_eq!(shown.ended, shown.task.unwrap().status.unwrap().timestamp);
    assert_eq!(shown.parent.unwrap().task_id, root.task_id);
    assert!(inspect(&bench, &second.task_id, &ann).await.children.is_empty());
}

#[tokio::test]
async fn children_of_agents_that_the_caller_may_not_see_are_left_out() {
    let mut bench = Bench::start(["a", "b", "c"].map(offer).into()).await;
    let root = bench.root("a").await;
    bench.child(&root, "one", "b").await;
    let seen = bench.child(&root, "two", "c").await;
    let agents = vec!["a".to_owned(), "c".to_owned()];
    let some = Caller { agents, ..principal("ann") };
    let shown = inspect(&bench, &root.task_id, &some).await;
    let ids: Vec<_> = shown.children.iter().map(|child| &child.task_id).collect();
    assert_eq!(ids, [&seen.task_id]);
    let operator = Caller { operates: true, ..principal("olga") };
    assert_eq!(inspect(&bench, &root.task_id, &operator).await.children.len(), 2);
}
