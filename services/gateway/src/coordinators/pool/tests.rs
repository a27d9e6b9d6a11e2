//! The choice among links and what a stream makes of their ends, without sockets. The rest is in
//! tests/.

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

/// Pool that are up, and lead nowhere.
fn links(count: usize) -> (Pool, Vec<Link>) {
    let addresses = Members::new(&MeshConfig::default(), "127.0.0.1:1").unwrap();
    let links = Pool::new(
        addresses.clone(),
        limits::READER_STALL,
        limits::RESUME_TIMEOUT,
        CallShares::default(),
    );
    let all: Vec<_> = (0..count).map(|_| Link::connected(&links.0.all_links)).collect();
    for link in &all {
        let address = addresses.now()[0].clone();
        links.members().push(Member { address, link: link.clone(), _running: None });
    }
    (links, all)
}

fn read() -> call::Body {
    call::Body::Workers(WorkersRequest {})
}

/// Which of them were given so many calls, each of which is over at once.
async fn chosen(links: &Pool, all: &[Link], calls: usize) -> Vec<usize> {
    let mut counts = vec![0; all.len()];
    for _ in 0..calls {
        assert!(links.call(Caller::default(), read()).now_or_never().is_none());
        for (count, link) in counts.iter_mut().zip(all) {
            *count += link.confirm().iter().filter(|call| call.caller.is_some()).count();
        }
    }
    counts
}

fn fail_often(link: &Link, reason: &'static reason::Reason) {
    let failure = Failure::new(reason).into_record();
    for _ in 0..limits::EJECT_AFTER {
        link.hear(7, reply::Body::Failure(Box::new(failure.clone())));
    }
}

#[tokio::test]
async fn calls_go_to_the_less_busy_and_to_nobody_who_leaves_or_is_down() {
    let (links, all) = links(3);
    let peer = link::Peer::here();
    let busy = |_| all[0].stream(Caller::default(), read(), &peer);
    let _busy: Vec<_> = (0..20).map(busy).collect();
    all[0].sent();
    let counts = chosen(&links, &all, 60).await;
    assert!(counts[0] == 0 && counts[1] > 0 && counts[2] > 0, "{counts:?}");
    all[1].hear(0, reply::Body::Moved(Moved::default()));
    let counts = chosen(&links, &all, 20).await;
    assert!(counts[1] == 0 && counts[2] == 20, "{counts:?}");
    all[2].break_off();
    assert_eq!(chosen(&links, &all, 10).await, [10, 0, 0]);
    all[0].set_listed(false);
    assert_eq!(chosen(&links, &all, 10).await, [0, 0, 0], "it waits for another");
    let expected = LinkCounts { up: 0, down: 1, ejected: 0, leaving: 2 };
    assert_eq!(links.link_counts(), expected);
}

#[tokio::test(start_paused = true)]
async fn one_that_leaves_is_used_when_nobody_else_comes() {
    let (links, all) = links(1);
    all[0].hear(0, reply::Body::Moved(Moved::default()));
    let asking =
        tokio::spawn(async move { links.call(Caller::default(), read()).await.map(|_| ()) });
    tokio::time::sleep(CONNECT_WAIT + Duration::from_millis(10)).await;
    let sent = all[0].sent();
    assert_eq!(sent.len(), 1);
    all[0].hear(sent[0].id, reply::Body::Workers(Default::default()));
    asking.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_fails_in_a_row_is_left_alone_but_never_more_than_half() {
    let (links, all) = links(4);
    fail_often(&all[0], &reason::RATE_LIMITED);
    assert_eq!(links.link_counts().ejected, 0, "that is an answer");
    fail_often(&all[0], &reason::STORE_UNAVAILABLE);
    assert_eq!(links.link_counts(), LinkCounts { up: 3, ejected: 1, ..LinkCounts::default() });
    let counts = chosen(&links, &all, 60).await;
    assert!(counts[0] == 0 && counts[1..].iter().all(|count| *count > 0), "{counts:?}");
    tokio::time::sleep(limits::EJECT_MIN).await;
    assert!(chosen(&links, &all, 60).await[0] > 0, "it has another chance");
    for link in &all {
        fail_often(link, &reason::UNAVAILABLE);
    }
    assert_eq!(links.link_counts().ejected, 4);
    let used = chosen(&links, &all, 60).await.iter().filter(|count| **count > 0).count();
    assert_eq!(used, 2, "half of them are tried all the same");
}

#[tokio::test]
async fn streams_are_counted_and_a_free_place_is_used() {
    let (links, all) = links(2);
    let mut held = Vec::new();
    let refused = loop {
        all.iter().for_each(|link| drop(link.sent()));
        match links.stream(Caller::default(), read()).await {
            Ok(stream) => held.push(stream),
            Err(failure) => break failure,
        }
    };
    assert_eq!((held.len(), refused.reason.as_str()), (limits::STREAMS_MAX, "OVERLOADED"));
    assert!(refused.public_message.contains("streams"), "{refused}");
    assert!(
        links.call(Caller::default(), read()).now_or_never().is_none(),
        "only streams are full"
    );
    held.pop();
    assert!(links.stream(Caller::default(), read()).await.is_ok());
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

/// The one call that any of them was given.
async fn given(all: &[Link]) -> (Link, Call) {
    loop {
        for link in all {
            if let Some(call) = link.sent().into_iter().find(|call| call.caller.is_some()) {
                return (link.clone(), call);
            }
        }
        // Not a yield: that would keep a clock from going on that is stopped.
        sleep(Duration::from_millis(1)).await;
    }
}

async fn begun(links: &Pool, all: &[Link]) -> (FrameStream, Link) {
    let body = call::Body::Stream(Default::default());
    let mut stream = links.stream(Caller::default(), body).await.unwrap();
    let (link, call) = given(all).await;
    for seq in [1, 2] {
        link.hear(call.id, event(seq, TaskState::Working));
        assert_eq!(stream.next().await.unwrap().unwrap().seq, seq);
    }
    (stream, link)
}

#[tokio::test(start_paused = true)]
async fn a_send_that_goes_on_elsewhere_sees_every_event_once_and_ends_at_a_question() {
    let (links, all) = links(2);
    let (mut stream, lost) = begun(&links, &all).await;
    lost.break_off();
    let (next, (link, call)) = tokio::join!(stream.next(), async {
        let (link, call) = given(&all).await;
        for seq in [2, 3, 4] {
            link.hear(call.id, event(seq, TaskState::Working));
        }
        link.hear(call.id, event(5, TaskState::InputRequired));
        link.hear(call.id, event(6, TaskState::Working));
        (link, call)
    });
    let Some(call::Body::Subscribe(subscribe)) = &call.body else { panic!("{call:?}") };
    assert_eq!(
        (subscribe.request.as_ref().unwrap().id.as_str(), subscribe.after),
        ("t-1", Some(2))
    );
    assert_eq!(next.unwrap().unwrap().seq, 3, "what was seen before is not shown again");
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 4);
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 5);
    assert!(stream.next().await.is_none(), "a streaming send ends there");
    let sent = link.sent();
    assert!(matches!(sent[0].body, Some(call::Body::Drop(_))), "{sent:?}");
    assert_eq!(links.resumes(), (1, 0));
}

fn refusal(reason: &'static reason::Reason) -> reply::Body {
    reply::Body::Failure(Box::new(Failure::new(reason).into_record()))
}

#[tokio::test(start_paused = true)]
async fn a_resume_that_is_refused_for_now_is_tried_again_and_another_refusal_is_told() {
    let (links, all) = links(2);
    let (mut stream, lost) = begun(&links, &all).await;
    lost.break_off();
    let (next, ()) = tokio::join!(stream.next(), async {
        // A coordinator that leaves, one without a store, one that no worker has reached yet.
        for passing in [&reason::UNAVAILABLE, &reason::STORE_UNAVAILABLE, &reason::AGENT_NOT_FOUND]
        {
            let (link, call) = given(&all).await;
            link.hear(call.id, refusal(passing));
        }
        let (link, call) = given(&all).await;
        link.hear(call.id, event(3, TaskState::Working));
        link.hear(call.id, refusal(&reason::TASK_NOT_FOUND));
    });
    assert_eq!(next.unwrap().unwrap().seq, 3);
    assert_eq!(stream.next().await.unwrap().unwrap_err().reason, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn a_read_that_one_coordinator_cannot_answer_is_asked_of_another_once() {
    let (links, all) = links(2);
    for (reason, answers) in [(&reason::STORE_UNAVAILABLE, 2), (&reason::TASK_NOT_FOUND, 1)] {
        let asked = tokio::spawn({
            let links = links.clone();
            async move { links.call(Caller::default(), read()).await.map(|_| ()) }
        });
        let mut by: Vec<Link> = Vec::new();
        for _ in 0..answers {
            let (link, call) = given(&all).await;
            link.hear(call.id, refusal(reason));
            assert!(!by.iter().any(|before| before.is_same(&link)), "not by the same");
            by.push(link);
        }
        assert_eq!(asked.await.unwrap().unwrap_err().row(), reason);
    }
}

#[tokio::test]
async fn a_stream_that_had_all_but_its_last_word_just_ends() {
    let (links, all) = links(2);
    let (mut stream, link) = begun(&links, &all).await;
    let id = link.sent().first().map_or(1, |call| call.id);
    link.hear(id, event(3, TaskState::Completed));
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 3);
    link.break_off();
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn without_anybody_in_time_a_stream_ends_as_it_would_have_at_once() {
    let (links, all) = links(2);
    let (mut stream, _) = begun(&links, &all).await;
    let lost = Instant::now();
    all.iter().for_each(Link::break_off);
    let failure = stream.next().await.unwrap().unwrap_err();
    assert!(failure.public_message.contains("resume with Last-Event-ID"), "{failure}");
    assert!(lost.elapsed() >= limits::RESUME_TIMEOUT, "{:?}", lost.elapsed());
    assert!(lost.elapsed() <= limits::RESUME_TIMEOUT + Duration::from_secs(2));
    assert!(stream.next().await.is_none());
    assert_eq!(links.resumes(), (0, 1));
}

#[tokio::test]
async fn a_gateway_that_drains_does_not_look_for_others() {
    let (links, all) = links(2);
    let (mut stream, lost) = begun(&links, &all).await;
    links.drain();
    lost.break_off();
    let failure = stream.next().await.unwrap().unwrap_err();
    assert!(failure.public_message.contains("resume with Last-Event-ID"), "{failure}");
}

#[tokio::test]
async fn a_reader_that_is_let_go_has_a_last_word() {
    let (links, all) = links(1);
    let (mut stream, link) = begun(&links, &all).await;
    link.hear(1, event(3, TaskState::Working));
    stream.stall();
    let last = stream.next().await.unwrap().unwrap_err();
    assert!(last.public_message.contains("Last-Event-ID"), "{last}");
    assert!(stream.next().await.is_none());
}
