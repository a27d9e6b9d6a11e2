//! The bounds, which no test over sockets reaches in reasonable time. The rest is in tests/.

use super::*;
use faultline_proto::v1::WorkersRequest;

fn up() -> Link {
    let link = Link::new();
    link.shared.set_up(true);
    link
}

async fn open(link: &Link) -> Result<FrameStream, Failure> {
    link.stream(Caller::default(), call::Body::Workers(WorkersRequest {})).await
}

#[tokio::test]
async fn a_coordinator_that_does_not_read_is_not_sent_ever_more() {
    let link = up();
    let mut held = Vec::new();
    let refused = loop {
        match open(&link).await {
            Ok(stream) => held.push(stream),
            Err(failure) => break failure,
        }
    };
    assert_eq!(held.len(), limits::OUTBOX_MAX);
    assert_eq!(refused.reason, "OVERLOADED");
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)));
    drop(held);
    let state = link.shared.lock();
    assert_eq!(state.waiting.len(), 0);
    assert_eq!(state.outbox.len(), 2 * limits::OUTBOX_MAX, "each call and its drop, no more");
}

#[tokio::test]
async fn calls_under_way_are_counted_and_a_free_place_is_used() {
    let link = up();
    let mut held = Vec::new();
    let refused = loop {
        link.shared.lock().outbox.clear();
        match open(&link).await {
            Ok(stream) => held.push(stream),
            Err(failure) => break failure,
        }
    };
    assert_eq!((held.len(), refused.reason.as_str()), (limits::LINK_CALLS_MAX, "OVERLOADED"));
    held.pop();
    link.shared.lock().outbox.clear();
    assert!(open(&link).await.is_ok());
}

#[tokio::test]
async fn what_an_old_connection_left_behind_is_not_said_on_the_next() {
    let link = up();
    let mut stream = open(&link).await.unwrap();
    link.shared.fail_all(lost);
    link.shared.set_up(true);
    assert_eq!(stream.next().await.unwrap().unwrap_err().reason, "UNAVAILABLE");
    assert!(stream.next().await.is_none());
    let untouched = open(&link).await.unwrap();
    drop(stream);
    let state = link.shared.lock();
    assert_eq!(state.outbox.len(), 1, "only the call of the new connection");
    drop(state);
    drop(untouched);
}

#[tokio::test]
async fn a_late_reply_hits_nobody() {
    let link = up();
    let stream = open(&link).await.unwrap();
    let id = link.shared.lock().last_id;
    drop(stream);
    let mut next = open(&link).await.unwrap();
    link.shared.deliver(Reply { id, body: Some(reply::Body::Frame(Frame::default())) });
    link.shared.deliver(Reply { id: 999, body: Some(reply::Body::End(Default::default())) });
    link.shared.deliver(Reply { id, body: None });
    let end = reply::Body::End(Default::default());
    link.shared.deliver(Reply { id: id + 1, body: Some(end) });
    assert!(next.next().await.is_none());
}
