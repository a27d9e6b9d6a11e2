//! Limits and interleavings that tests over sockets (`tests/gateway`) do not reach in reasonable
//! time.

use super::*;
use faultline_proto::v1::{End, Frame, Moved, WorkersRequest};

impl Link {
    /// A link that is up without a connection: its messages stay in the outbox.
    pub(crate) fn connected(all_links: &Arc<SharedLinkState>) -> Self {
        let link = Self::new(Arc::clone(all_links));
        link.inner.set_up(true);
        link
    }

    /// Delivers a reply as if from the coordinator.
    pub(crate) fn receive(&self, id: u64, body: reply::Body) {
        self.inner.deliver(reply(id, body));
    }

    /// Takes the messages out of the outbox.
    pub(crate) fn sent(&self) -> Vec<Call> {
        self.inner.lock().outbox.drain(..).collect()
    }

    /// Takes the messages out of the outbox and acknowledges every drop among them.
    pub(crate) fn confirm(&self) -> Vec<Call> {
        let sent = self.sent();
        for call in sent.iter().filter(|call| matches!(call.body, Some(call::Body::Drop(_)))) {
            self.receive(call.id, reply::Body::End(End {}));
        }
        sent
    }

    /// Loses the connection.
    pub(crate) fn disconnect(&self) {
        self.inner.fail_all(CONNECTION_LOST);
    }

    /// Connects again.
    pub(crate) fn reconnect(&self) {
        self.inner.set_up(true);
    }
}

fn up() -> Link {
    Link::connected(&Arc::new(SharedLinkState::new(limits::READER_STALL, CallShares::default())))
}

fn open(link: &Link) -> Frames {
    let body = call::Body::Workers(WorkersRequest {});
    let opened = link.stream(Caller::default(), body, &Peer::here());
    opened.unwrap_or_else(|_| panic!("the link is up"))
}

async fn next(frames: &mut Frames) -> Option<frames::Item> {
    std::future::poll_fn(|cx| frames.poll_next(cx)).await
}

/// Registers a call with one answer.
fn call(link: &Link) -> Result<CallGuard, Failure> {
    let waiter = Waiter::Unary(oneshot::channel().0);
    let called = link.register(Caller::default(), call::Body::Workers(WorkersRequest {}), waiter);
    called.map_err(|ended| match ended {
        CallError::Failed(failure) => failure,
        _ => panic!("the link is up"),
    })
}

fn reply(id: u64, body: reply::Body) -> Reply {
    Reply { id, body: Some(body), extensions: Vec::new() }
}

#[tokio::test]
async fn outbox_of_a_coordinator_that_does_not_read_is_bounded() {
    let link = up();
    let mut held = Vec::new();
    let refused = loop {
        match call(&link) {
            Ok(guard) => held.push(guard),
            Err(failure) => break failure,
        }
    };
    assert_eq!(held.len(), limits::OUTBOX_MAX);
    assert_eq!(refused.reason, "OVERLOADED");
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)));
    drop(held);
    let outbox = link.inner.lock().outbox.len();
    assert_eq!(outbox, 2 * limits::OUTBOX_MAX, "each call and its drop, and nothing else");
    assert_eq!(link.in_flight(), limits::OUTBOX_MAX, "no call is acknowledged");
    link.confirm();
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test]
async fn calls_in_flight_are_bounded_and_a_freed_place_is_reused() {
    let link = up();
    let mut held = Vec::new();
    let refused = loop {
        link.inner.lock().outbox.clear();
        match call(&link) {
            Ok(guard) => held.push(guard),
            Err(failure) => break failure,
        }
    };
    assert_eq!((held.len(), refused.reason.as_str()), (limits::LINK_CALLS_MAX, "OVERLOADED"));
    held.pop();
    assert!(call(&link).is_err(), "a cancelled call counts until it is acknowledged");
    link.confirm();
    assert!(call(&link).is_ok());
}

#[tokio::test]
async fn cancelled_calls_count_against_the_share_of_their_caller() {
    let most = 8;
    let names = ["acme", "beta"];
    let shares = CallShares::new(names.into_iter(), most);
    let link = Link::connected(&Arc::new(SharedLinkState::new(limits::READER_STALL, shares)));
    let call = |principal: &str| {
        let caller = Caller { principal: principal.to_owned(), ..Caller::default() };
        let waiter = Waiter::Unary(oneshot::channel().0);
        let body = call::Body::Workers(WorkersRequest {});
        link.register(caller, body, waiter).map(drop).map_err(|ended| match ended {
            CallError::Failed(failure) => failure,
            _ => panic!("the link is up"),
        })
    };
    for _ in 0..most {
        call("acme").unwrap();
    }
    let refused = call("acme").unwrap_err();
    assert_eq!(refused.reason, "RATE_LIMITED");
    assert!(refused.retry_after().is_some());
    call("beta").unwrap();
    link.confirm();
    call("acme").unwrap();
}

#[tokio::test]
async fn unacknowledged_cancel_expires() {
    let link = up();
    drop(call(&link).unwrap());
    link.inner.end_stalled_streams(Instant::now() + limits::ABANDONED_CALL_TIMEOUT / 2);
    assert_eq!((link.in_flight(), link.has_waiters()), (1, false));
    link.inner.end_stalled_streams(Instant::now() + limits::ABANDONED_CALL_TIMEOUT);
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test]
async fn stream_that_is_not_read_is_ended() {
    let link = up();
    let frame = || reply::Body::Frame(Frame::default());
    let _slow = open(&link);
    let slow_id = link.inner.lock().last_id;
    let _idle = open(&link);
    let mut dripping = open(&link);
    let dripping_id = link.inner.lock().last_id;
    for _ in 0..3 {
        link.inner.deliver(reply(slow_id, frame()));
        link.inner.deliver(reply(dripping_id, frame()));
    }
    let start = Instant::now();
    for half in 0..4 {
        link.inner.end_stalled_streams(start + limits::READER_STALL / 2 * half);
        if half < 2 {
            assert!(next(&mut dripping).await.unwrap().is_ok());
        }
    }
    {
        let state = link.inner.lock();
        assert_eq!(state.pending.len(), 2, "the stream without frames and the stream that is read");
        assert!(state.outbox.iter().any(|call| *call == dropped(slow_id)));
    }
}

#[tokio::test]
async fn messages_of_a_lost_connection_are_not_sent_on_the_next() {
    let link = up();
    let mut stream = open(&link);
    link.sent();
    link.disconnect();
    link.reconnect();
    assert!(matches!(next(&mut stream).await, Some(Err(CallError::Interrupted(CONNECTION_LOST)))));
    assert!(next(&mut stream).await.is_none());
    let untouched = open(&link);
    drop(stream);
    assert_eq!(link.sent().len(), 1, "only the call of the new connection");
    drop(untouched);
}

#[tokio::test]
async fn unsent_calls_are_returned_and_sent_ones_are_interrupted() {
    let link = up();
    let mut sent = open(&link);
    let sent_id = link.sent()[0].id;
    for _ in 0..limits::STREAM_CREDIT / 4 {
        link.receive(sent_id, reply::Body::Frame(Frame::default()));
        assert!(next(&mut sent).await.is_some_and(|item| item.is_ok()));
    }
    let mut unsent = open(&link);
    assert_eq!(link.inner.lock().outbox.len(), 2, "a credit message and the call");
    link.disconnect();
    assert!(matches!(next(&mut sent).await, Some(Err(CallError::Interrupted(CONNECTION_LOST)))));
    let Some(Err(CallError::NotSent(call))) = next(&mut unsent).await else {
        panic!("the call was not sent")
    };
    assert!(matches!(call.1, call::Body::Workers(_)));
}

#[tokio::test]
async fn late_reply_does_not_hit_another_call() {
    let link = up();
    let stream = open(&link);
    let id = link.inner.lock().last_id;
    drop(stream);
    let mut other = open(&link);
    let end = || reply::Body::End(Default::default());
    link.receive(id, reply::Body::Frame(Frame::default()));
    link.receive(999, end());
    link.inner.deliver(Reply { id, ..Reply::default() });
    link.receive(id + 1, end());
    assert!(next(&mut other).await.is_none());
}

#[tokio::test]
async fn leaving_coordinator_has_status_leaving_until_it_reconnects() {
    let link = up();
    let now = Instant::now();
    let mut stream = open(&link);
    link.receive(0, reply::Body::Moved(Moved::default()));
    assert_eq!(link.status(now), LinkStatus::Leaving);
    let id = link.inner.lock().last_id;
    link.receive(id, reply::Body::Frame(Frame::default()));
    assert!(next(&mut stream).await.is_some_and(|item| item.is_ok()), "a call in flight continues");
    link.disconnect();
    assert_eq!(link.status(now), LinkStatus::Down);
    link.reconnect();
    assert_eq!(link.status(now), LinkStatus::Up);
}
