//! Load balancing, ejection and resuming without sockets. Tests over sockets are in
//! `tests/gateway`.

use faultline_chassis::MeshConfig;
use faultline_proto::{
    a2a::{
        StreamResponse, Task, TaskState, TaskStatus, TaskStatusUpdateEvent,
        stream_response::Payload,
    },
    reason,
    v1::{Call, Frame, WorkersRequest},
};
use futures::FutureExt;

use super::*;

/// A pool with links that are up and not connected.
fn pool_of(count: usize) -> (Pool, Vec<Link>) {
    let addresses = Members::new(&MeshConfig::default(), "127.0.0.1:1").unwrap();
    let pool = Pool::new(
        addresses.clone(),
        limits::READER_STALL,
        limits::RESUME_TIMEOUT,
        CallShares::default(),
    );
    let all: Vec<_> = (0..count).map(|_| Link::connected(&pool.0.all_links)).collect();
    for link in &all {
        let address = addresses.now()[0].clone();
        pool.members().push(Member { address, link: link.clone(), _running: None });
    }
    (pool, all)
}

fn read() -> call::Body {
    call::Body::Workers(WorkersRequest {})
}

/// The number of calls that each link gets. Each call is cancelled at once.
async fn calls_per_link(pool: &Pool, all: &[Link], calls: usize) -> Vec<usize> {
    let mut counts = vec![0; all.len()];
    for _ in 0..calls {
        assert!(pool.call(Caller::default(), read()).now_or_never().is_none());
        for (count, link) in counts.iter_mut().zip(all) {
            *count += link.confirm().iter().filter(|call| call.caller.is_some()).count();
        }
    }
    counts
}

fn fail_often(link: &Link, reason: &'static reason::Reason) {
    let failure = Failure::new(reason).into_record();
    for _ in 0..limits::EJECT_AFTER {
        link.receive(7, reply::Body::Failure(Box::new(failure.clone())));
    }
}

#[tokio::test]
async fn calls_go_to_the_less_busy_link_and_not_to_leaving_or_down_ones() {
    let (pool, all) = pool_of(3);
    let peer = link::Peer::here();
    let busy = |_| all[0].stream(Caller::default(), read(), &peer);
    let _busy: Vec<_> = (0..20).map(busy).collect();
    all[0].sent();
    let counts = calls_per_link(&pool, &all, 60).await;
    assert!(counts[0] == 0 && counts[1] > 0 && counts[2] > 0, "{counts:?}");
    all[1].receive(0, reply::Body::Moved(Moved::default()));
    let counts = calls_per_link(&pool, &all, 20).await;
    assert!(counts[1] == 0 && counts[2] == 20, "{counts:?}");
    all[2].disconnect();
    assert_eq!(calls_per_link(&pool, &all, 10).await, [10, 0, 0]);
    all[0].set_listed(false);
    assert_eq!(
        calls_per_link(&pool, &all, 10).await,
        [0, 0, 0],
        "the call waits for another coordinator"
    );
    let expected = LinkCounts { up: 0, down: 1, ejected: 0, leaving: 2 };
    assert_eq!(pool.link_counts(), expected);
}

#[tokio::test(start_paused = true)]
async fn leaving_coordinator_is_used_when_no_other_comes() {
    let (pool, all) = pool_of(1);
    all[0].receive(0, reply::Body::Moved(Moved::default()));
    let asking =
        tokio::spawn(async move { pool.call(Caller::default(), read()).await.map(|_| ()) });
    tokio::time::sleep(CONNECT_WAIT + Duration::from_millis(10)).await;
    let sent = all[0].sent();
    assert_eq!(sent.len(), 1);
    all[0].receive(sent[0].id, reply::Body::Workers(Default::default()));
    asking.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn consecutive_failures_eject_at_most_half_of_the_coordinators() {
    let (pool, all) = pool_of(4);
    fail_often(&all[0], &reason::RATE_LIMITED);
    assert_eq!(pool.link_counts().ejected, 0, "a rate limit is an answer, not an outage");
    fail_often(&all[0], &reason::STORE_UNAVAILABLE);
    assert_eq!(pool.link_counts(), LinkCounts { up: 3, ejected: 1, ..LinkCounts::default() });
    let counts = calls_per_link(&pool, &all, 60).await;
    assert!(counts[0] == 0 && counts[1..].iter().all(|count| *count > 0), "{counts:?}");
    tokio::time::sleep(limits::EJECT_MIN).await;
    assert!(calls_per_link(&pool, &all, 60).await[0] > 0, "the ejection has ended");
    for link in &all {
        fail_often(link, &reason::UNAVAILABLE);
    }
    assert_eq!(pool.link_counts().ejected, 4);
    let used = calls_per_link(&pool, &all, 60).await.iter().filter(|count| **count > 0).count();
    assert_eq!(used, 2, "at most half are ejected");
}

#[tokio::test]
async fn open_streams_are_bounded_and_a_freed_place_is_reused() {
    let (pool, all) = pool_of(2);
    let mut held = Vec::new();
    let refused = loop {
        all.iter().for_each(|link| drop(link.sent()));
        match pool.stream(Caller::default(), read()).await {
            Ok(stream) => held.push(stream),
            Err(failure) => break failure,
        }
    };
    assert_eq!((held.len(), refused.reason.as_str()), (limits::STREAMS_MAX, "OVERLOADED"));
    assert!(refused.public_message.contains("streams"), "{refused}");
    assert!(
        pool.call(Caller::default(), read()).now_or_never().is_none(),
        "the limit is for streams only"
    );
    held.pop();
    assert!(pool.stream(Caller::default(), read()).await.is_ok());
}

fn event(seq: u64, state: TaskState) -> reply::Body {
    let status = Some(TaskStatus { state: state as i32, ..TaskStatus::default() });
    let payload = match seq {
        1 => Payload::Task(Task { id: "t-1".into(), status, ..Task::default() }),
        _ => Payload::StatusUpdate(TaskStatusUpdateEvent { status, ..Default::default() }),
    };
    let response = Some(StreamResponse { payload: Some(payload) });
    reply::Body::Frame(Frame { seq, response, ..Frame::default() })
}

/// The next call on any of the links.
async fn received_call(all: &[Link]) -> (Link, Call) {
    loop {
        for link in all {
            if let Some(call) = link.sent().into_iter().find(|call| call.caller.is_some()) {
                return (link.clone(), call);
            }
        }
        // A sleep, because a yield would keep a paused clock from advancing.
        sleep(Duration::from_millis(1)).await;
    }
}

async fn started_stream(pool: &Pool, all: &[Link]) -> (FrameStream, Link) {
    let body = call::Body::Stream(Default::default());
    let mut stream = pool.stream(Caller::default(), body).await.unwrap();
    let (link, call) = received_call(all).await;
    for seq in [1, 2] {
        link.receive(call.id, event(seq, TaskState::Working));
        assert_eq!(stream.next().await.unwrap().unwrap().seq, seq);
    }
    (stream, link)
}

#[tokio::test(start_paused = true)]
async fn resumed_send_sees_every_event_once_and_ends_at_a_question() {
    let (pool, all) = pool_of(2);
    let (mut stream, lost) = started_stream(&pool, &all).await;
    lost.disconnect();
    let (next, (link, call)) = tokio::join!(stream.next(), async {
        let (link, call) = received_call(&all).await;
        for seq in [2, 3, 4] {
            link.receive(call.id, event(seq, TaskState::Working));
        }
        link.receive(call.id, event(5, TaskState::InputRequired));
        link.receive(call.id, event(6, TaskState::Working));
        (link, call)
    });
    let Some(call::Body::Subscribe(subscribe)) = &call.body else { panic!("{call:?}") };
    assert_eq!(
        (subscribe.request.as_ref().unwrap().id.as_str(), subscribe.after),
        ("t-1", Some(2))
    );
    assert_eq!(next.unwrap().unwrap().seq, 3, "a duplicate is skipped");
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 4);
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 5);
    assert!(stream.next().await.is_none(), "a streaming send ends at a question");
    let sent = link.sent();
    assert!(matches!(sent[0].body, Some(call::Body::Drop(_))), "{sent:?}");
    assert_eq!(pool.resumes(), (1, 0));
}

fn refusal(reason: &'static reason::Reason) -> reply::Body {
    reply::Body::Failure(Box::new(Failure::new(reason).into_record()))
}

#[tokio::test(start_paused = true)]
async fn resume_is_retried_after_transient_failures_only() {
    let (pool, all) = pool_of(2);
    let (mut stream, lost) = started_stream(&pool, &all).await;
    lost.disconnect();
    let (next, ()) = tokio::join!(stream.next(), async {
        // A coordinator that leaves, one without a store, and one without a worker yet.
        for passing in [&reason::UNAVAILABLE, &reason::STORE_UNAVAILABLE, &reason::AGENT_NOT_FOUND]
        {
            let (link, call) = received_call(&all).await;
            link.receive(call.id, refusal(passing));
        }
        let (link, call) = received_call(&all).await;
        link.receive(call.id, event(3, TaskState::Working));
        link.receive(call.id, refusal(&reason::TASK_NOT_FOUND));
    });
    assert_eq!(next.unwrap().unwrap().seq, 3);
    assert_eq!(stream.next().await.unwrap().unwrap_err().reason, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn transient_failure_of_a_read_is_retried_once_at_another_coordinator() {
    let (pool, all) = pool_of(2);
    for (reason, answers) in [(&reason::STORE_UNAVAILABLE, 2), (&reason::TASK_NOT_FOUND, 1)] {
        let asked = tokio::spawn({
            let pool = pool.clone();
            async move { pool.call(Caller::default(), read()).await.map(|_| ()) }
        });
        let mut by: Vec<Link> = Vec::new();
        for _ in 0..answers {
            let (link, call) = received_call(&all).await;
            link.receive(call.id, refusal(reason));
            assert!(
                !by.iter().any(|before| before.is_same(&link)),
                "the retry is at another coordinator"
            );
            by.push(link);
        }
        assert_eq!(asked.await.unwrap().unwrap_err().row(), reason);
    }
}

#[tokio::test]
async fn stream_with_its_final_event_ends_when_the_link_is_lost() {
    let (pool, all) = pool_of(2);
    let (mut stream, link) = started_stream(&pool, &all).await;
    let id = link.sent().first().map_or(1, |call| call.id);
    link.receive(id, event(3, TaskState::Completed));
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 3);
    link.disconnect();
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn stream_without_a_coordinator_in_time_fails_like_an_immediate_end() {
    let (pool, all) = pool_of(2);
    let (mut stream, _) = started_stream(&pool, &all).await;
    let lost = Instant::now();
    all.iter().for_each(Link::disconnect);
    let failure = stream.next().await.unwrap().unwrap_err();
    assert!(failure.public_message.contains("resume with Last-Event-ID"), "{failure}");
    assert!(lost.elapsed() >= limits::RESUME_TIMEOUT, "{:?}", lost.elapsed());
    assert!(lost.elapsed() <= limits::RESUME_TIMEOUT + Duration::from_secs(2));
    assert!(stream.next().await.is_none());
    assert_eq!(pool.resumes(), (0, 1));
}

#[tokio::test]
async fn draining_gateway_does_not_resume_streams() {
    let (pool, all) = pool_of(2);
    let (mut stream, lost) = started_stream(&pool, &all).await;
    pool.drain();
    lost.disconnect();
    let failure = stream.next().await.unwrap().unwrap_err();
    assert!(failure.public_message.contains("resume with Last-Event-ID"), "{failure}");
}

#[tokio::test]
async fn stalled_reader_gets_a_failure_as_its_last_event() {
    let (pool, all) = pool_of(1);
    let (mut stream, link) = started_stream(&pool, &all).await;
    link.receive(1, event(3, TaskState::Working));
    stream.stall();
    let last = stream.next().await.unwrap().unwrap_err();
    assert!(last.public_message.contains("Last-Event-ID"), "{last}");
    assert!(stream.next().await.is_none());
}
