//! The agent `script`, end to end.

use faultline_proto::v1::{self, report::Body, to_worker};

use super::hub::{Mesh, Wire, user_message};
use crate::Content;

async fn run(wire: &mut Wire, script: &str) -> Vec<Body> {
    let task = wire.assign("script", script).await;
    wire.until_final(&task).await
}

#[tokio::test]
async fn it_says_and_writes_what_it_is_told() {
    let (_mesh, mut wire) = Mesh::start(vec![]).await;
    let script = "say one; chunk a; chunk b; artifact f \"x;y\"; data {\"n\": [1]}";
    let bodies = run(&mut wire, script).await;
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
    assert!(matches!(run(&mut wire, "").await.as_slice(), [Body::Started(_), Body::Completed(_)]));
}

#[tokio::test]
async fn a_message_is_bare_only_when_it_comes_first() {
    let (_mesh, mut wire) = Mesh::start(vec![]).await;
    let bodies = run(&mut wire, "message hi").await;
    let [Body::Message(message)] = bodies.as_slice() else { panic!("{bodies:?}") };
    assert_eq!(message.parts, Content::from("hi").0);
    assert_eq!((message.task_id.as_str(), message.context_id.as_str()), ("", "context"));

    let bodies = run(&mut wire, "say x; message hi").await;
    let Some(Body::Completed(completed)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!(completed.message.as_ref().unwrap().parts, Content::from("hi").0);
}

#[tokio::test]
async fn it_fails_as_it_is_told() {
    let (_mesh, mut wire) = Mesh::start(vec![]).await;
    let script = "fail CANCELLED code=7 text=\"no; more\" retryable=true retry_after=2s times=1";
    let task = wire.assign("script", script).await;
    let bodies = wire.until_final(&task).await;
    let Some(Body::Failed(failure)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!((failure.reason.as_str(), failure.business_code.as_str()), ("CANCELLED", "7"));
    assert_eq!((failure.public_message.as_str(), failure.retryable), ("no; more", Some(true)));
    assert_eq!(failure.retry_after.unwrap().seconds, 2);

    // Only the first attempt does.
    let task = task.successor();
    wire.say(to_worker::Body::Assign(task.assign())).await;
    assert!(matches!(wire.until_final(&task).await.last(), Some(Body::Completed(_))));

    let bodies = run(&mut wire, "panic").await;
    assert!(matches!(bodies.last(), Some(Body::Failed(f)) if f.reason == "AGENT_PANICKED"));
    let bodies = run(&mut wire, "reject not today").await;
    let Some(Body::Rejected(message)) = bodies.last() else { panic!("{bodies:?}") };
    assert_eq!(message.parts, Content::from("not today").0);
}

#[tokio::test]
async fn nothing_runs_of_a_script_that_cannot_be_read() {
    let (_mesh, mut wire) = Mesh::start(vec![]).await;
    let bodies = run(&mut wire, "say one\nslep 2s").await;
    let [Body::Failed(failure)] = bodies.as_slice() else { panic!("{bodies:?}") };
    assert_eq!(failure.reason, "INVALID_ARGUMENT");
    assert!(failure.public_message.starts_with("line 2: cannot read 'slep 2s': expected one of"));
    assert_eq!(failure.violations[0].field, "message.parts[0].text");
    assert_eq!(failure.violations[0].description, failure.public_message);
}

#[tokio::test]
async fn a_successor_goes_on_from_the_last_answer() {
    let (_mesh, mut wire) = Mesh::start(vec![]).await;
    let script =
        "chunk a; ask Who?; chunk $answer; ask \"And $answer?\"; data {\"x\": \"$answer!\"}";
    let task = wire.assign("script", script).await;
    assert_eq!(wire.reports().await.len(), 3);
    wire.answer(&task, "ask-1", "me").await;
    let reports = wire.reports().await;
    let Some(Body::Checkpoint(saved)) = reports[0].body.clone() else { panic!("{reports:?}") };
    let Some(Body::Ask(asked)) = &reports[2].body else { panic!("{reports:?}") };
    assert_eq!((asked.key.as_str(), asked.prompt.as_str()), ("ask-2", "And me?"));

    // The first worker is lost after the second question was answered.
    let task = task.successor();
    let answers = [("ask-1", "me"), ("ask-2", "you")];
    let answers = answers
        .map(|(key, text)| v1::Answered { key: key.into(), message: Some(user_message(text)) });
    let assign = v1::Assign { checkpoint: Some(saved), answers: answers.into(), ..task.assign() };
    wire.say(to_worker::Body::Assign(assign)).await;
    let bodies = wire.until_final(&task).await;
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
    assert!(chunk.append, "the coordinator knows what was there");
    assert_eq!(chunk.artifact.as_ref().unwrap().parts, Content::from("me").0);
    let expected = Content::from(serde_json::json!({"x": "you!"})).0;
    assert_eq!(data.artifact.as_ref().unwrap().parts, expected);
}

#[tokio::test]
async fn a_sleep_is_cut_short_by_its_cancellation() {
    let (_mesh, mut wire) = Mesh::start(vec![]).await;
    let task = wire.assign("script", "sleep 10m; say never").await;
    assert_eq!(wire.reports().await.len(), 1);
    wire.cancel(&task).await;
    let reports = wire.reports().await;
    assert!(matches!(reports[0].body, Some(Body::Stopped(_))), "{reports:?}");
}
