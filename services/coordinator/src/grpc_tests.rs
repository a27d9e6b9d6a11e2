//! Callers over gRPC who do not wait for ever.

use faultline_proto::reason;

use super::*;
use crate::testing::{Bench, offer, request, soon};

fn asked_within(timeout: &str) -> Request<SendMessageRequest> {
    let mut request = Request::new(request("a", "hi"));
    request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
    request
}

fn waiters(bench: &Bench) -> (usize, usize) {
    let state = bench.core.lock();
    (state.calls.len(), state.live.values().map(|live| live.waiters.len()).sum())
}

#[tokio::test]
async fn a_caller_whose_time_ends_is_told_which_task_goes_on() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let doors = Doors::new(Arc::clone(&bench.core));
    let refused = soon(doors.send_message(asked_within("100m"))).await.unwrap_err();
    let failure = Failure::from(refused);
    assert_eq!(failure.row(), &reason::DEADLINE_EXCEEDED);
    let assign = bench.assigned().await;
    assert_eq!(failure.task_id, assign.task_id);
    assert_eq!(waiters(&bench), (0, 0));
}

#[tokio::test]
async fn a_caller_that_goes_away_is_not_waited_for() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let doors = Doors::new(Arc::clone(&bench.core));
    let call = doors.send_message(Request::new(request("a", "hi")));
    tokio::select! {
        answer = call => panic!("nobody works on it: {answer:?}"),
        _ = bench.assigned() => {}
    }
    assert_eq!(waiters(&bench), (0, 0), "it was dropped");
}
