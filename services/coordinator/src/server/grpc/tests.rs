//! Tests of callers over gRPC: deadlines, disconnects and agents.

use crate::calls::roles::TASK;
use faultline_proto::reason;

use super::*;
use crate::testing::{Bench, at_once, known, offer, request, soon};

fn asked_within(timeout: &str) -> Request<SendMessageRequest> {
    let mut request = known(request("a", "hi"));
    request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
    request
}

fn waiters(bench: &Bench) -> (usize, usize) {
    let state = bench.core.lock();
    (state.calls.len(), state.tasks.values().map(|active| active.waiters.len()).sum())
}

#[tokio::test]
async fn caller_at_its_deadline_gets_the_id_of_its_task() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let doors = A2aEndpoint::new(Arc::clone(&bench.core));
    let refused = soon(doors.send_message(asked_within("100m"))).await.unwrap_err();
    let failure = Failure::from(refused);
    assert_eq!(failure.row(), &reason::DEADLINE_EXCEEDED);
    let assign = bench.assigned().await;
    assert_eq!(failure.task_id, assign.task_id);
    assert_eq!(waiters(&bench), (0, 0));
}

#[tokio::test]
async fn disconnected_caller_is_dropped() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let doors = A2aEndpoint::new(Arc::clone(&bench.core));
    let call = doors.send_message(known(request("a", "hi")));
    tokio::select! {
        answer = call => panic!("nobody works on it: {answer:?}"),
        _ = bench.assigned() => {}
    }
    assert_eq!(waiters(&bench), (0, 0), "it was dropped");
}

#[tokio::test]
async fn an_agent_calls_as_its_task() {
    let mut bench = Bench::start(vec![offer("a"), offer("b")]).await;
    let doors = A2aEndpoint::new(Arc::clone(&bench.core));
    let parent = bench.root("a").await;
    let call = |token: &str| {
        let mut call = known(at_once(request("b", "do this")));
        for (name, value) in [(TASK, token), (KEY, "k"), (DETACHED, "true")] {
            call.metadata_mut().insert(name, value.parse().unwrap());
        }
        call
    };
    soon(doors.send_message(call(&parent.token))).await.unwrap();
    let assign = bench.assigned().await;
    let child =
        bench.core.lock().tasks.get(&assign.task_id.parse().unwrap()).unwrap().pending().clone();
    let parentage = child.parent.unwrap();
    assert_eq!((&child.principal[..], &parentage.task_id), ("ann", &parent.task_id));
    assert_eq!((&parentage.key[..], parentage.detached), ("k", true));
    soon(doors.send_streaming_message(call(&parent.token))).await.unwrap();
    assert_eq!(bench.count().await, 2, "found again");
    let mut get = known(GetTaskRequest { id: assign.task_id, ..Default::default() });
    get.metadata_mut().insert(TASK, parent.token.parse().unwrap());
    soon(doors.get_task(get)).await.unwrap();
    let forged = soon(doors.send_message(call("v1.x"))).await.unwrap_err();
    assert_eq!(Failure::from(forged).row(), &reason::PERMISSION_DENIED);
}
