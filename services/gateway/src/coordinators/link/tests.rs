//! The bounds, which no test over sockets reaches in reasonable time. The rest is in tests/.

use super::*;
use faultline_proto::v1::{End, Frame, Moved, WorkersRequest};

impl Link {
    /// Connected to nobody: what is sent stays here.
    pub(crate) fn connected(all_links: &Arc<SharedLinkState>) -> Self {
        let link = Self::new(Arc::clone(all_links));
        link.inner.set_up(true);
        link
    }

    /// What the coordinator would say.
    pub(crate) fn hear(&self, id: u64, body: reply::Body) {
        self.inner.deliver(reply(id, body));
    }

    /// What was sent, and is gone with that.
    pub(crate) fn sent(&self) -> Vec<Call> {
        self.inner.lock().outbox.drain(..).collect()
    }

    /// The calls that were sent, with every drop in them confirmed.
    pub(crate) fn confirm(&self) -> Vec<Call> {
        let sent = self.sent();
        for call in sent.iter().filter(|call| matches!(call.body, Some(call::Body::Drop(_)))) {
            self.hear(call.id, reply::Body::End(End {}));
        }
        sent
    }

    /// Loses its connection, or has it again.
    pub(crate) fn break_off(&self) {
        self.inner.fail_all(CONNECTION_LOST);
    }

    pub(crate) fn come_back(&self) {
        self.inner.set_up(true);
    }
}

fn up() -> Link {
    Link::connected(&Arc::new(SharedLinkState::new(limits::READER_STALL, CallShares::default())))
}

fn open(link: &Link) -> Frames {
    let body = call::Body::Workers(WorkersRequest {});
    let opened = link.stream(Caller::default(), body, &Peer::here());
    opened.unwrap_or_else(|_| panic!("it is up"))
}

async fn next(frames: &mut Frames) -> Option<frames::Item> {
    std::future::poll_fn(|cx| frames.poll_next(cx)).await
}

/// A call with one answer that nobody waits for.
fn call(link: &Link) -> Result<CallGuard, Failure> {
    let waiter = Waiter::Unary(oneshot::channel().0);
    let called = link.register(Caller::default(), call::Body::Workers(WorkersRequest {}), waiter);
    called.map_err(|ended| match ended {
        CallError::Failed(failure) => failure,
        _ => panic!("it is up"),
    })
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
            Ok(guard) => held.push(guard),
            Err(failure) => break failure,
        }
    };
    assert_eq!(held.len(), limits::OUTBOX_MAX);
    assert_eq!(refused.reason, "OVERLOADED");
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)));
    drop(held);
    let outbox = link.inner.lock().outbox.len();
    assert_eq!(outbox, 2 * limits::OUTBOX_MAX, "each call and its drop, no more");
    assert_eq!(link.in_flight(), limits::OUTBOX_MAX, "none of them is answered");
    link.confirm();
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test]
async fn calls_under_way_are_counted_and_a_free_place_is_used() {
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
    assert!(call(&link).is_err(), "a call that was left counts until it is answered");
    link.confirm();
    assert!(call(&link).is_ok());
}

#[tokio::test]
async fn caller_that_leaves_its_calls_has_no_more_of_them_than_its_share() {
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
            _ => panic!("it is up"),
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
async fn call_that_is_never_confirmed_is_forgotten_in_the_end() {
    let link = up();
    drop(call(&link).unwrap());
    link.inner.end_stalled_streams(Instant::now() + limits::ABANDONED_CALL_TIMEOUT / 2);
    assert_eq!((link.in_flight(), link.has_waiters()), (1, false));
    link.inner.end_stalled_streams(Instant::now() + limits::ABANDONED_CALL_TIMEOUT);
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_let_go() {
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
        assert_eq!(state.pending.len(), 2, "the idle one and the one that still reads");
        assert!(state.outbox.iter().any(|call| *call == dropped(slow_id)));
    }
}

#[tokio::test]
async fn what_an_old_connection_left_behind_is_not_said_on_the_next() {
    let link = up();
    let mut stream = open(&link);
    link.sent();
    link.break_off();
    link.come_back();
    assert!(matches!(next(&mut stream).await, Some(Err(CallError::Interrupted(CONNECTION_LOST)))));
    assert!(next(&mut stream).await.is_none());
    let untouched = open(&link);
    drop(stream);
    assert_eq!(link.sent().len(), 1, "only the call of the new connection");
    drop(untouched);
}

#[tokio::test]
async fn what_was_not_sent_is_given_back_and_the_rest_is_cut() {
    let link = up();
    let mut sent = open(&link);
    let sent_id = link.sent()[0].id;
    for _ in 0..limits::STREAM_CREDIT / 4 {
        link.hear(sent_id, reply::Body::Frame(Frame::default()));
        assert!(next(&mut sent).await.is_some_and(|item| item.is_ok()));
    }
    let mut unsent = open(&link);
    assert_eq!(link.inner.lock().outbox.len(), 2, "credit, which is no call, and the call");
    link.break_off();
    assert!(matches!(next(&mut sent).await, Some(Err(CallError::Interrupted(CONNECTION_LOST)))));
    let Some(Err(CallError::NotSent(call))) = next(&mut unsent).await else {
        panic!("it never left")
    };
    assert!(matches!(call.1, call::Body::Workers(_)));
}

#[tokio::test]
async fn a_late_reply_hits_nobody() {
    let link = up();
    let stream = open(&link);
    let id = link.inner.lock().last_id;
    drop(stream);
    let mut other = open(&link);
    let end = || reply::Body::End(Default::default());
    link.hear(id, reply::Body::Frame(Frame::default()));
    link.hear(999, end());
    link.inner.deliver(Reply { id, ..Reply::default() });
    link.hear(id + 1, end());
    assert!(next(&mut other).await.is_none());
}

#[tokio::test]
async fn a_coordinator_that_leaves_is_known_to_until_it_is_back() {
    let link = up();
    let now = Instant::now();
    let mut stream = open(&link);
    link.hear(0, reply::Body::Moved(Moved::default()));
    assert_eq!(link.status(now), LinkStatus::Leaving);
    let id = link.inner.lock().last_id;
    link.hear(id, reply::Body::Frame(Frame::default()));
    assert!(next(&mut stream).await.is_some_and(|item| item.is_ok()), "what is under way goes on");
    link.break_off();
    assert_eq!(link.status(now), LinkStatus::Down);
    link.come_back();
    assert_eq!(link.status(now), LinkStatus::Up);
}
