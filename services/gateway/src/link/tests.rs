//! The bounds, which no test over sockets reaches in reasonable time. The rest is in tests/.

use super::*;
use faultline_proto::v1::{Frame, WorkersRequest};

fn up() -> Link {
    let link = Link::new(limits::READER_STALL);
    link.shared.ups.send_replace(true);
    link
}

async fn open(link: &Link) -> Result<FrameStream, Failure> {
    link.stream(Caller::default(), call::Body::Workers(WorkersRequest {})).await
}

/// A call with one answer that nobody waits for.
fn call(link: &Link) -> Result<Ticket, Failure> {
    let waiter = Waiter::One(oneshot::channel().0);
    link.register(Caller::default(), call::Body::Workers(WorkersRequest {}), waiter)
}

fn reply(id: u64, body: reply::Body) -> Reply {
    Reply { id, body: Some(body), extensions: Vec::new() }
}

#[tokio::test]
async fn a_coordinator_that_does_not_read_is_not_sent_ever_more() {
    let link = up();
    let mut held = Vec::new();
    let refused = loop {
        match call(&link) {
            Ok(ticket) => held.push(ticket),
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
        match call(&link) {
            Ok(ticket) => held.push(ticket),
            Err(failure) => break failure,
        }
    };
    assert_eq!((held.len(), refused.reason.as_str()), (limits::LINK_CALLS_MAX, "OVERLOADED"));
    held.pop();
    link.shared.lock().outbox.clear();
    assert!(call(&link).is_ok());
}

#[tokio::test]
async fn streams_are_counted_and_a_free_place_is_used() {
    let link = up();
    let mut held = Vec::new();
    let refused = loop {
        link.shared.lock().outbox.clear();
        match open(&link).await {
            Ok(stream) => held.push(stream),
            Err(failure) => break failure,
        }
    };
    assert_eq!((held.len(), refused.reason.as_str()), (limits::STREAMS_MAX, "OVERLOADED"));
    assert!(refused.public_message.contains("streams"), "{refused}");
    assert!(call(&link).is_ok(), "only streams are full");
    held.pop();
    assert!(open(&link).await.is_ok());
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_let_go_with_a_last_word() {
    let link = up();
    let frame = || reply::Body::Frame(Frame::default());
    let mut slow = open(&link).await.unwrap();
    let slow_id = link.shared.lock().last_id;
    let _idle = open(&link).await.unwrap();
    let mut dripping = open(&link).await.unwrap();
    let dripping_id = link.shared.lock().last_id;
    for _ in 0..3 {
        link.shared.deliver(reply(slow_id, frame()));
        link.shared.deliver(reply(dripping_id, frame()));
    }
    let start = Instant::now();
    for half in 0..4 {
        link.shared.end_stuck(start + limits::READER_STALL / 2 * half);
        if half < 2 {
            assert!(dripping.next().await.unwrap().is_ok());
        }
    }
    {
        let state = link.shared.lock();
        assert_eq!(state.waiting.len(), 2, "the idle one and the one that still reads");
        assert!(state.outbox.iter().any(|call| *call == dropped(slow_id)));
    }
    let last = slow.next().await.unwrap().unwrap_err();
    assert!(last.public_message.contains("Last-Event-ID"), "{last}");
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn what_an_old_connection_left_behind_is_not_said_on_the_next() {
    let link = up();
    let mut stream = open(&link).await.unwrap();
    link.shared.fail_all(LOST);
    link.shared.ups.send_replace(true);
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
    let end = || reply::Body::End(Default::default());
    link.shared.deliver(reply(id, reply::Body::Frame(Frame::default())));
    link.shared.deliver(reply(999, end()));
    link.shared.deliver(Reply { id, ..Reply::default() });
    link.shared.deliver(reply(id + 1, end()));
    assert!(next.next().await.is_none());
}
