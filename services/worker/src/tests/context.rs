//! The context of an agent: reports, questions, checkpoints, failures and cancellation, as the
//! coordinator sees them.

use std::time::Duration;

use faultline_chassis::{Metrics, client::Channel, limits};
use faultline_proto::{
    id::TaskId,
    v1::{self, report::Body, to_worker},
};
use futures::StreamExt;
use prost::Message;
use tokio::time::Instant;

use super::fake_coordinator::{Connection, Harness, Task, soon, user_message};
use crate::{
    Agent, Content, Context, Error, Offer, Question, agents, attempt::outbox::OutgoingStream,
    reason, runtime::attempts::AttemptTable,
};

/// An agent made of a function.
struct FnAgent<F>(F);

impl<F, R> Agent for FnAgent<F>
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), Error>> + Send,
{
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        (self.0)(cx.clone()).await
    }
}

/// Offers the function as the agent `under-test`.
pub(super) fn offer<F, R>(run: F) -> Offer
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), Error>> + Send,
{
    Offer::new("under-test", FnAgent(run))
}

pub(super) async fn start<F, R>(run: F) -> (Harness, Connection)
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), Error>> + Send,
{
    Harness::start(vec![offer(run)]).await
}

pub(super) fn failed(body: Option<&Body>) -> &v1::Failure {
    match body {
        Some(Body::Failed(failure)) => failure,
        other => panic!("not failed: {other:?}"),
    }
}

#[tokio::test]
async fn echo_returns_every_part_of_the_message() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let sent = Content::from("a")
        .and(serde_json::json!({"b": 1}))
        .and(Content::file("c.png", "image/png", vec![1, 2, 3]))
        .and(Content::url("https://example.org/d.pdf", "application/pdf"))
        .and("e");
    let task = Task { id: TaskId::new(), attempt: 1, agent: "echo".into(), text: String::new() };
    let mut assign = task.assign();
    assign.message.as_mut().unwrap().parts = sent.0.clone();
    conn.send(to_worker::Body::Assign(assign)).await;
    let reports = conn.reports().await;
    let Some(Body::Artifact(chunk)) = &reports[0].body else { panic!("{reports:?}") };
    assert_eq!(chunk.artifact.as_ref().unwrap().parts, sent.0);
    let echo = conn.hello.agents.iter().find(|a| a.name == "echo").unwrap();
    let card = echo.card.as_ref().unwrap();
    assert!(card.default_input_modes.contains(&"*/*".to_owned()), "echo accepts every type");
    assert_eq!(card.default_output_modes, card.default_input_modes);
}

#[tokio::test]
async fn agent_reads_its_task_from_the_context() {
    let (_harness, mut conn) = start(|cx| async move {
        assert_eq!((cx.attempt(), cx.context_id(), &*cx.text()), (1, "context", "hi"));
        assert!(cx.traceparent().starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        assert!(cx.remaining().is_none());
        assert!(cx.restored().is_none() && !cx.is_cancelled());
        cx.append("log", "a").await?;
        cx.append_last("log", serde_json::json!({"n": 1})).await?;
        cx.reply("done").await
    })
    .await;
    let task = conn.assign("under-test", "hi").await;
    let bodies = conn.until_final(&task).await;
    let [Body::Artifact(a), Body::Artifact(b), Body::Completed(c)] = bodies.as_slice() else {
        panic!("{bodies:?}")
    };
    assert_eq!((a.append, a.last_chunk, b.append, b.last_chunk), (true, false, true, true));
    assert_eq!(a.artifact.as_ref().unwrap().artifact_id, "log");
    let message = c.message.as_ref().unwrap();
    assert_eq!(message.parts, Content::from("done").0);
    assert_eq!(message.task_id, task.id.to_string());
}

#[tokio::test]
async fn panic_in_the_error_policy_fails_one_task() {
    let unsure = offer(|_| async { Err("boom")? }).normalise(|_| panic!("panic in the policy"));
    let (_harness, mut conn) = Harness::start(vec![unsure]).await;
    let task = conn.assign("under-test", "").await;
    let bodies = conn.until_final(&task).await;
    assert_eq!(failed(bodies.last()).reason, "AGENT_PANICKED");
    let task = conn.assign("echo", "still here").await;
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies.last(), Some(Body::Completed(_))), "{bodies:?}");
}

#[tokio::test]
async fn unclassified_error_is_masked_for_the_caller() {
    let (_harness, mut conn) = start(|_| async { Err("password=hunter2")? }).await;
    let task = conn.assign("under-test", "").await;
    let bodies = conn.until_final(&task).await;
    let failure = failed(bodies.last());
    assert_eq!(failure.reason, "UNKNOWN");
    assert_eq!(failure.public_message, reason::UNKNOWN.title);
    assert_eq!(failure.plane(), v1::Plane::Execution);
    let origin = failure.origin.as_ref().unwrap();
    let origin = [&origin.agent, &origin.service, &origin.worker].map(String::as_str);
    assert_eq!(origin, ["under-test", "worker", "test-worker"]);
    assert_eq!(failure.task_id, task.id.to_string());
    assert_eq!(failure.context_id, "context");
    assert_eq!(failure.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(failure.causes.len(), 1);
    let bytes = String::from_utf8_lossy(&failure.encode_to_vec()).into_owned();
    assert!(!bytes.contains("hunter2"));
}

#[tokio::test]
async fn panic_fails_one_task_and_the_next_one_runs() {
    let (_harness, mut conn) = start(|cx| async move {
        cx.status("still well").await?;
        assert_ne!(cx.text(), "hunter2");
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "hunter2").await;
    let bodies = conn.until_final(&task).await;
    let failure = failed(bodies.last());
    assert_eq!(failure.reason, "AGENT_PANICKED");
    assert!(!format!("{failure:?}").contains("hunter2"));
    assert!(matches!(bodies[0], Body::Status(_)), "earlier reports are kept");

    let task = conn.assign("under-test", "fine").await;
    assert!(matches!(conn.until_final(&task).await.last(), Some(Body::Completed(_))));
}

#[tokio::test]
async fn cancelled_agent_stops_at_its_next_call() {
    let (_harness, mut conn) = start(|cx| async move {
        cx.status("waiting").await?;
        cx.cancelled().await;
        cx.status("never seen").await?;
        unreachable!("a cancelled agent cannot report")
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert_eq!(conn.reports().await.len(), 1);
    conn.cancel(&task).await;
    let reports = conn.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Stopped(_))), "{reports:?}");
    assert_eq!((reports.len(), reports[0].number), (1, 2));
}

#[tokio::test]
async fn result_after_a_cancellation_is_ignored() {
    let (_harness, mut conn) = start(|cx| async move {
        cx.status("waiting").await?;
        cx.cancelled().await;
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    conn.reports().await;
    conn.cancel(&task).await;
    assert!(matches!(conn.reports().await[0].body, Some(Body::Stopped(_))));
}

async fn next_report(outgoings: &mut OutgoingStream) -> v1::Report {
    loop {
        let next = outgoings.next().await.unwrap().encode_to_vec();
        let body = v1::FromWorker::decode(next.as_slice()).unwrap().body;
        if let Some(v1::from_worker::Body::Reports(mut reports)) = body {
            return reports.reports.pop().unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn agent_that_ignores_cancellation_is_dropped_after_five_seconds() {
    let nowhere = Channel::without_token("http://127.0.0.1:1").unwrap();
    let table = AttemptTable::new(
        "w".into(),
        1,
        vec![agents::script::offer(true)],
        crate::attempt::coordinator_channel::CoordinatorChannel::new(nowhere),
        &Metrics::default(),
    );
    let mut outgoings = table.outbox.open(table.hello());
    let id = faultline_proto::id::TaskId::new();
    let task = Task { id, attempt: 1, agent: "script".into(), text: "hang".into() };
    let say = |body| table.on_message(v1::ToWorker { body: Some(body) });
    say(to_worker::Body::Assign(task.assign()));
    assert!(matches!(next_report(&mut outgoings).await.body, Some(Body::Started(_))));
    let cancel = v1::Cancel { task_id: task.id.to_string(), attempt: 1, initiator: "user".into() };
    let since = Instant::now();
    say(to_worker::Body::Cancel(cancel));
    assert!(matches!(next_report(&mut outgoings).await.body, Some(Body::Stopped(_))));
    let took = since.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(5100), "{took:?}");
}

#[tokio::test]
async fn question_waits_for_its_answer() {
    let (_harness, mut conn) = start(|cx| async move {
        let answer = cx.ask(Question::choice("Which?", ["a", "b"])).await?;
        cx.artifact("choice", answer.text()).await?;
        let answer = cx.auth("https://login.example").await?;
        assert_eq!(answer.message().parts.len(), 1);
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let reports = conn.reports().await;
    let Some(Body::Ask(asked)) = &reports[0].body else { panic!("{reports:?}") };
    assert_eq!((asked.key.as_str(), asked.prompt.as_str()), ("ask-1", "Which?"));
    assert_eq!((asked.kind(), asked.agent.as_str()), (v1::interrupt::Kind::Choice, "under-test"));
    assert!(asked.schema.is_some() && asked.requested_at.is_some());

    conn.answer(&task, "ask-1", "b").await;
    let reports = conn.reports().await;
    let [Some(Body::Artifact(chosen)), Some(Body::Ask(asked))] =
        [&reports[0].body, &reports[1].body]
    else {
        panic!("{reports:?}")
    };
    assert_eq!(chosen.artifact.as_ref().unwrap().parts, Content::from("b").0);
    assert_eq!(asked.kind(), v1::interrupt::Kind::AuthUrl);
    assert_eq!((asked.key.as_str(), asked.url.as_str()), ("ask-2", "https://login.example"));
    conn.answer(&task, "ask-2", "done").await;
    assert!(matches!(conn.reports().await[0].body, Some(Body::Completed(_))));
}

#[tokio::test]
async fn stored_answer_is_returned_to_a_later_attempt() {
    let (_harness, mut conn) = start(|cx| async move {
        let answer = cx.ask(Question::approval("Go?").key("go")).await?;
        cx.artifact("said", answer.text()).await
    })
    .await;
    let task = Task {
        id: faultline_proto::id::TaskId::new(),
        attempt: 2,
        agent: "under-test".into(),
        text: String::new(),
    };
    let answered =
        v1::Answered { key: "go".into(), message: Some(user_message("yes")), ..Default::default() };
    let assign = v1::Assign { answers: vec![answered], ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    let bodies = conn.until_final(&task).await;
    let [Body::Artifact(said), Body::Completed(_)] = bodies.as_slice() else {
        panic!("{bodies:?}")
    };
    assert_eq!(said.artifact.as_ref().unwrap().parts, Content::from("yes").0);
}

#[tokio::test]
async fn checkpoint_restores_bytes_and_question_counter() {
    let (_harness, mut conn) = start(|cx| async move {
        if cx.restored().is_none() {
            cx.ask("first?").await?;
            cx.checkpoint("place").await?;
        }
        assert!(cx.restored().is_none_or(|bytes| bytes == b"place"));
        cx.ask("second?").await?;
        Ok(())
    })
    .await;
    let task = conn.assign("under-test", "").await;
    conn.reports().await;
    conn.answer(&task, "ask-1", "x").await;
    let reports = conn.reports().await;
    let Some(Body::Checkpoint(saved)) = &reports[0].body else { panic!("{reports:?}") };

    let task = task.successor();
    let assign = v1::Assign { checkpoint: Some(saved.clone()), ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    let reports = conn.reports().await;
    let Some(Body::Ask(asked)) = &reports[0].body else { panic!("{reports:?}") };
    assert_eq!((asked.key.as_str(), asked.prompt.as_str()), ("ask-2", "second?"));

    let task = task.successor();
    let assign = v1::Assign { checkpoint: Some(vec![255].into()), ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    let bodies = conn.until_final(&task).await;
    assert_eq!(failed(bodies.last()).reason, "DATA_LOSS");
}

#[tokio::test]
async fn settled_waits_until_all_reports_are_stored() {
    let (_harness, mut conn) = start(|cx| async move {
        cx.status("one").await?;
        cx.settled().await?;
        cx.status("two").await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    assert_eq!(conn.reports().await.len(), 1);
    conn.ack(&task, 1).await;
    assert_eq!(conn.reports().await.len(), 2);
}

#[tokio::test]
async fn oversized_content_is_rejected_before_it_is_sent() {
    let (_harness, mut conn) = start(|cx| async move {
        let large = vec![0_u8; limits::CHECKPOINT_BYTES_MAX];
        let refused = cx.checkpoint(large).await.unwrap_err();
        assert_eq!(refused.failure().unwrap().reason, "TASK_TOO_LARGE");
        let fits = vec![0_u8; limits::CHECKPOINT_BYTES_MAX - 16];
        cx.checkpoint(fits).await?;
        let large = "x".repeat(limits::MESSAGE_BYTES_MAX);
        cx.artifact("large", large).await
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies[0], Body::Checkpoint(_)));
    let failure = failed(bodies.last());
    assert_eq!(failure.reason, "TASK_TOO_LARGE");
    assert!(failure.public_message.starts_with("a chunk of an artifact has"));
}

#[tokio::test]
async fn failure_of_another_agent_gets_one_more_hop() {
    let (_harness, mut conn) = start(|_| async {
        let origin = v1::Origin { agent: "deep".into(), ..v1::Origin::default() };
        let theirs = faultline_proto::Failure::new(&reason::RATE_LIMITED).born_at(origin);
        Err(theirs)?
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let bodies = conn.until_final(&task).await;
    let failure = failed(bodies.last());
    assert_eq!((failure.reason.as_str(), failure.hop), ("RATE_LIMITED", 1));
    let agents: Vec<_> = failure.causes.iter().map(|c| c.agent.as_str()).collect();
    assert_eq!(agents, ["under-test", "deep"]);
}

#[tokio::test]
async fn assignment_of_an_unknown_agent_fails_the_task() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let task = conn.assign("nobody", "").await;
    let bodies = conn.until_final(&task).await;
    assert_eq!(failed(bodies.last()).reason, "AGENT_NOT_FOUND");
}

#[tokio::test]
async fn spawned_task_reports_at_once_until_the_agent_ends() {
    let (send, mut leaked) = tokio::sync::mpsc::channel(1);
    let (_harness, mut conn) = start(move |cx| {
        let send = send.clone();
        async move {
            let clone = cx.clone();
            let spawned = tokio::spawn(async move {
                clone.status("from a task").await?;
                clone.settled().await
            });
            spawned.await??;
            send.send(cx).await?;
            Ok(())
        }
    })
    .await;
    let task = conn.assign("under-test", "").await;
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies.as_slice(), [Body::Status(_), Body::Completed(_)]), "{bodies:?}");
    let leaked = soon(leaked.recv()).await.unwrap();
    soon(leaked.cancelled()).await;
    assert!(leaked.status("too late").await.unwrap_err().is_stop());
}
