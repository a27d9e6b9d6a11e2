//! The agent `script`, end to end.

use faultline_proto::{
    a2a,
    v1::{self, from_worker, report::Body, to_worker},
};

use faultline_chassis::Drain;

use super::fake_coordinator::{Connection, FakeCoordinator, Harness, Task, user_message};
use crate::{Config, Content};

async fn run(conn: &mut Connection, script: &str) -> Vec<Body> {
    let task = conn.assign("script", script).await;
    conn.until_final(&task).await
}

#[tokio::test]
async fn script_reports_statuses_and_artifacts() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let script = "say one; chunk a; chunk b; artifact f \"x;y\"; data {\"n\": [1]}";
    let bodies = run(&mut conn, script).await;
    let [
        Body::Started(_),
        Body::Status(status),
        Body::Artifact(a),
        Body::Artifact(b),
        Body::Artifact(file),
        Body::Artifact(data),
        Body::Completed(_),
    ] = bodies.as_slice()
    else {
        panic!("{bodies:?}")
    };
    assert_eq!(status.parts, Content::from("one").0);
    let id = |chunk: &v1::ArtifactChunk| chunk.artifact.as_ref().unwrap().artifact_id.clone();
    let parts = |chunk: &v1::ArtifactChunk| chunk.artifact.as_ref().unwrap().parts.clone();
    assert!(a.append && b.append && !file.append && !data.append);
    assert_eq!([id(a), id(b), id(file), id(data)], ["output", "output", "f", "data"]);
    assert_eq!(parts(file), Content::from("x;y").0);
    assert_eq!(parts(data), Content::from(serde_json::json!({"n": [1]})).0);
    assert!(matches!(run(&mut conn, "").await.as_slice(), [Body::Started(_), Body::Completed(_)]));
}

#[tokio::test]
async fn message_is_bare_only_as_the_first_instruction() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let bodies = run(&mut conn, "message hi").await;
    let [Body::Message(message)] = bodies.as_slice() else { panic!("{bodies:?}") };
    assert_eq!(message.parts, Content::from("hi").0);
    assert_eq!((message.task_id.as_str(), message.context_id.as_str()), ("", "context"));

    let bodies = run(&mut conn, "say x; message hi").await;
    let Some(Body::Completed(completed)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!(completed.message.as_ref().unwrap().parts, Content::from("hi").0);
}

#[tokio::test]
async fn script_fails_with_the_given_options() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let script = "fail CANCELLED code=7 text=\"no; more\" retryable=true retry_after=2s times=1";
    let task = conn.assign("script", script).await;
    let bodies = conn.until_final(&task).await;
    let Some(Body::Failed(failure)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!((failure.reason.as_str(), failure.business_code.as_str()), ("CANCELLED", "7"));
    assert_eq!((failure.public_message.as_str(), failure.retryable), ("no; more", Some(true)));
    assert_eq!(failure.retry_after.unwrap().seconds, 2);

    // Only the first attempt fails.
    let task = task.successor();
    conn.send(to_worker::Body::Assign(task.assign())).await;
    assert!(matches!(conn.until_final(&task).await.last(), Some(Body::Completed(_))));

    let bodies = run(&mut conn, "panic").await;
    assert!(matches!(bodies.last(), Some(Body::Failed(f)) if f.reason == "AGENT_PANICKED"));
    let bodies = run(&mut conn, "reject not today").await;
    let Some(Body::Rejected(message)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!(message.parts, Content::from("not today").0);
}

#[tokio::test]
async fn harmful_instructions_need_drills() {
    let mut coordinator = FakeCoordinator::start().await;
    let config = Config {
        coordinator: coordinator.address.clone(),
        agents: vec!["script".into()],
        ..Config::default()
    };
    let running = tokio::spawn(config.bind().await.unwrap().run(Drain::new()));
    let mut conn = coordinator.welcomed().await;
    for verb in ["abort", "panic", "hang"] {
        let bodies = run(&mut conn, &format!("say one; {verb}")).await;
        let Some(Body::Failed(failure)) = bodies.last() else { panic!("{bodies:?}") };
        assert_eq!(failure.reason, "FAILED_PRECONDITION", "{failure:?}");
        let text = &failure.public_message;
        assert!(text.contains(verb) && text.contains("`drills = true` in [worker]"), "{text}");
        let caught = run(&mut conn, &format!("try {{ {verb} }} else {{ chunk $failure }}")).await;
        assert!(matches!(caught.last(), Some(Body::Completed(_))), "{caught:?}");
    }
    running.abort();
}

#[tokio::test]
async fn invalid_script_runs_nothing() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let bodies = run(&mut conn, "say one\nslep 2s").await;
    let [Body::Failed(failure)] = bodies.as_slice() else { panic!("{bodies:?}") };
    assert_eq!(failure.reason, "INVALID_ARGUMENT");
    assert!(failure.public_message.starts_with("line 2: cannot read 'slep 2s': expected one of"));
    assert_eq!(failure.violations[0].field, "message.parts[0].text");
    assert_eq!(failure.violations[0].description, failure.public_message);
}

#[tokio::test]
async fn next_attempt_continues_after_the_last_answer() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let script =
        "chunk a; ask Who?; chunk $answer; ask \"And $answer?\"; data {\"x\": \"$answer!\"}";
    let task = conn.assign("script", script).await;
    assert_eq!(conn.reports().await.len(), 3);
    conn.answer(&task, "ask-1", "me").await;
    let reports = conn.reports().await;
    let Some(Body::Checkpoint(saved)) = reports[0].body.clone() else { panic!("{reports:?}") };
    let Some(Body::Ask(asked)) = &reports[2].body else { panic!("{reports:?}") };
    assert_eq!((asked.key.as_str(), asked.prompt.as_str()), ("ask-2", "And me?"));

    // The first worker is lost after the second answer.
    let task = task.successor();
    let answers = [("ask-1", "me"), ("ask-2", "you")];
    let answers = answers.map(|(key, text)| v1::Answered {
        key: key.into(),
        message: Some(user_message(text)),
        ..Default::default()
    });
    let assign = v1::Assign { checkpoint: Some(saved), answers: answers.into(), ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    let bodies = conn.until_final(&task).await;
    let [
        Body::Started(_),
        Body::Artifact(chunk),
        Body::Checkpoint(_),
        Body::Artifact(data),
        Body::Completed(_),
    ] = bodies.as_slice()
    else {
        panic!("{bodies:?}")
    };
    assert!(chunk.append, "the coordinator has the earlier chunk");
    assert_eq!(chunk.artifact.as_ref().unwrap().parts, Content::from("me").0);
    let expected = Content::from(serde_json::json!({"x": "you!"})).0;
    assert_eq!(data.artifact.as_ref().unwrap().parts, expected);
}

#[tokio::test]
async fn try_catches_failures_and_no_rejection() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let script = "try { say a; try { fail INTERNAL } else { fail NOT_FOUND }; say never } \
                  else { say $failure }; say end";
    let said = |bodies: &[Body]| {
        let texts = bodies.iter().filter_map(|body| match body {
            Body::Status(message) => Some(crate::sdk::content::text_of(message).into_owned()),
            _ => None,
        });
        texts.collect::<Vec<_>>()
    };
    let bodies = run(&mut conn, script).await;
    assert_eq!(said(&bodies), ["a", "NOT_FOUND", "end"]);
    assert!(matches!(bodies.last(), Some(Body::Completed(_))), "{bodies:?}");
    let bodies = run(&mut conn, "try { say a } else { say b }; fail INTERNAL").await;
    assert_eq!(said(&bodies), ["a"]);
    assert!(matches!(bodies.last(), Some(Body::Failed(_))), "the try has ended: {bodies:?}");
    let bodies = run(&mut conn, "try { reject no } else { say b }").await;
    assert!(matches!(bodies.last(), Some(Body::Rejected(_))), "{bodies:?}");
}

#[tokio::test]
async fn next_attempt_continues_inside_a_try() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let script = "try { checkpoint; sleep 10m; fail INTERNAL } else { say $failure }";
    let task = conn.assign("script", script).await;
    let reports = conn.reports().await;
    let Some(Body::Checkpoint(saved)) = reports[1].body.clone() else { panic!("{reports:?}") };
    conn.cancel(&task).await;
    conn.reports().await;

    let script = script.replace("10m", "1ms");
    let task = Task { text: script, ..task.successor() };
    let assign = v1::Assign { checkpoint: Some(saved), ..task.assign() };
    conn.send(to_worker::Body::Assign(assign)).await;
    let bodies = conn.until_final(&task).await;
    assert!(matches!(bodies.last(), Some(Body::Completed(_))), "{bodies:?}");
}

#[tokio::test]
async fn artifacts_of_a_delegated_task_are_copied_and_saved() {
    let (mut harness, mut conn) = Harness::start(vec![]).await;
    let task = conn.assign("script", "delegate other { chunk $answer; data {\"a\": 1} }").await;
    let mut bodies = Vec::new();
    let mut released = Vec::new();
    let sent = harness.coordinator.sent().await;
    assert_eq!(sent.request.tenant, "other");
    assert_eq!(sent.message().parts, Content::from("chunk $answer; data {\"a\": 1}").0);
    let artifact = |id: &str| a2a::Artifact {
        artifact_id: id.into(),
        parts: Content::from(id).0,
        ..a2a::Artifact::default()
    };
    sent.answer(Ok(a2a::Task {
        artifacts: vec![artifact("output"), artifact("data")],
        status: Some(a2a::TaskStatus {
            state: a2a::TaskState::Completed as i32,
            ..Default::default()
        }),
        ..a2a::Task::default()
    }));
    while !matches!(bodies.last(), Some(Body::Completed(_))) {
        match conn.next().await.unwrap() {
            from_worker::Body::Reports(r) => {
                bodies.extend(r.reports.into_iter().map(|r| r.body.unwrap()));
            }
            from_worker::Body::Slot(slot) => {
                released.push(slot.released);
                conn.grant_slot(&task).await;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(released, [true, false]);
    let [
        Body::Started(_),
        Body::Artifact(output),
        Body::Artifact(data),
        Body::Checkpoint(_),
        Body::Completed(_),
    ] = bodies.as_slice()
    else {
        panic!("{bodies:?}")
    };
    for (chunk, id) in [(output, "output"), (data, "data")] {
        let written = chunk.artifact.as_ref().unwrap();
        assert_eq!((written.artifact_id.as_str(), &written.parts), (id, &Content::from(id).0));
        assert!(!chunk.append && chunk.last_chunk);
    }
}

#[tokio::test]
async fn cancellation_interrupts_a_sleep() {
    let (_harness, mut conn) = Harness::start(vec![]).await;
    let task = conn.assign("script", "sleep 10m; say never").await;
    assert_eq!(conn.reports().await.len(), 1);
    conn.cancel(&task).await;
    let reports = conn.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Stopped(_))), "{reports:?}");
}
