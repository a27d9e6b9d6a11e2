//! Event streams across broken connections: with event numbers, without them, and by polling.

mod script;

use std::time::Duration;

use faultline_client::{Answer, Client, Ending, Error, Follow, Reconnect, text};
use faultline_proto::{Failure, json, reason, v1::Plane};
use script::{Server, answer, plain, result, stream};

const TASK: &str = r#"{"task":{"id":"t-1","status":{"state":"TASK_STATE_SUBMITTED"}}}"#;
const WORKING: &str =
    r#"{"statusUpdate":{"taskId":"t-1","status":{"state":"TASK_STATE_WORKING"}}}"#;
const DONE: &str = r#"{"statusUpdate":{"taskId":"t-1","status":{"state":"TASK_STATE_COMPLETED"}}}"#;

const FAST: Reconnect = Reconnect {
    max: 3,
    backoff: Duration::from_millis(40),
    backoff_max: Duration::from_secs(10),
    poll: Some(Duration::from_millis(20)),
    patience: Duration::from_millis(200),
};

fn client(server: &Server, reconnect: Reconnect) -> Client {
    Client::builder(&server.url).reconnect(reconnect).direct().expect("a good URL")
}

fn chunk(text: &str, append: bool) -> String {
    format!(
        r#"{{"artifactUpdate":{{"taskId":"t-1","append":{append},"artifact":{{
            "artifactId":"a","parts":[{{"text":"{text}"}}]}}}}}}"#
    )
}

/// The task with one artifact of these texts.
fn snapshot(state: &str, texts: &[&str]) -> String {
    let parts: Vec<_> = texts.iter().map(|text| format!(r#"{{"text":"{text}"}}"#)).collect();
    format!(
        r#"{{"id":"t-1","status":{{"state":"TASK_STATE_{state}"}},
            "artifacts":[{{"artifactId":"a","parts":[{}]}}]}}"#,
        parts.join(",")
    )
}

/// The text that a reader of the stream sees.
async fn read(follow: &mut Follow) -> Result<String, Error> {
    let mut text = String::new();
    while let Some(event) = follow.next().await {
        text.push_str(&event?.text());
    }
    Ok(text)
}

#[tokio::test]
async fn follower_delivers_each_event_once_across_a_reconnect() {
    let server = Server::start([
        stream(&[(1, TASK), (2, WORKING)], false),
        plain("503 Service Unavailable", "<html>"),
        stream(&[(2, WORKING), (5, DONE)], true),
    ])
    .await;
    let mut follow = client(&server, FAST).agent("echo").follow(text("hi")).await.unwrap();
    let mut seqs = Vec::new();
    while let Some(event) = follow.next().await {
        seqs.push(event.unwrap().seq);
    }
    assert_eq!(seqs, [1, 2, 5]);
    assert_eq!((follow.task_id(), follow.last_seq()), ("t-1", 5));
    let seen = server.seen();
    assert!(seen[0].starts_with("POST /agents/echo HTTP/1.1\r\n"), "{}", seen[0]);
    assert!(seen[0].contains("\"method\":\"SendStreamingMessage\""));
    assert!(!seen[0].contains("last-event-id"));
    for again in &seen[1..] {
        assert!(again.contains("\"method\":\"SubscribeToTask\"") && again.contains("t-1"));
        assert!(again.contains("last-event-id: 2\r\n"), "{again}");
    }
}

#[tokio::test]
async fn snapshot_without_numbers_delivers_only_missed_events() {
    let status = r#"{"state":"TASK_STATE_WORKING","message":{"messageId":"m",
        "parts":[{"text":"busy"}]}}"#;
    let said = format!(r#"{{"statusUpdate":{{"taskId":"t-1","status":{status}}}}}"#);
    let artifact = r#"{"artifactId":"a","parts":[{"text":"one "},{"text":"two three "}]}"#;
    let whole = format!(r#"{{"task":{{"id":"t-1","status":{status},"artifacts":[{artifact}]}}}}"#);
    let one = chunk("one ", false);
    let two = chunk("two ", true);
    let four = chunk("four", true);
    let server = Server::start([
        stream(&[(0, TASK), (0, &said), (0, &one), (0, &two)], false),
        stream(&[(0, &whole), (0, &said), (0, &four), (0, DONE)], true),
    ])
    .await;
    let mut follow = client(&server, FAST).follow(text("hi")).await.unwrap();
    let mut shown = String::new();
    let mut said = 0;
    while let Some(event) = follow.next().await {
        let event = event.unwrap();
        shown.push_str(&event.text());
        said += usize::from(json::to_string(&event.response).contains("busy"));
    }
    assert_eq!((shown.as_str(), said), ("one two three four", 1));
    assert!(!server.seen()[1].contains("last-event-id"));
}

#[tokio::test]
async fn follower_polls_after_three_reconnects_with_growing_pauses() {
    let mut scripts = vec![stream(&[(1, TASK), (2, &chunk("one ", false))], false)];
    scripts.extend([stream(&[], false), stream(&[], false), stream(&[], false)]);
    scripts.push(result(&snapshot("WORKING", &["one ", "two "])));
    scripts.push(plain("502 Bad Gateway", "<html>"));
    scripts.push(result(&snapshot("COMPLETED", &["one ", "two ", "three"])));
    let server = Server::start(scripts).await;
    let mut follow = client(&server, FAST).follow(text("hi")).await.unwrap();
    assert_eq!(read(&mut follow).await.unwrap(), "one two three");
    let methods: Vec<_> = server
        .seen()
        .iter()
        .map(|request| request.split("\"method\":\"").nth(1).unwrap_or_default().to_owned())
        .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect();
    let expected = ["SendStreamingMessage", "SubscribeToTask", "SubscribeToTask"];
    assert_eq!(methods[..3], expected);
    assert_eq!(methods[3..], ["SubscribeToTask", "GetTask", "GetTask", "GetTask"]);
    for (gap, least) in server.gaps().iter().zip([40, 80, 160]) {
        assert!(*gap >= Duration::from_millis(least), "{:?}", server.gaps());
    }
}

#[tokio::test]
async fn requested_delay_is_kept_or_returned() {
    let busy = |seconds: u32| {
        answer("503 Service Unavailable", &format!("retry-after: {seconds}\r\n"), "")
    };
    let begun = || stream(&[(1, TASK)], false);
    let server = Server::start([begun(), busy(1), stream(&[(2, DONE)], true)]).await;
    let mut follow = client(&server, FAST).follow(text("hi")).await.unwrap();
    read(&mut follow).await.unwrap();
    assert!(server.gaps()[1] >= Duration::from_secs(1), "{:?}", server.gaps());

    // The same while polling.
    let asks = Reconnect { max: 0, patience: Duration::from_secs(20), ..FAST };
    let done = result(&snapshot("COMPLETED", &[]));
    let server = Server::start([begun(), busy(1), done]).await;
    let mut follow = client(&server, asks).follow(text("hi")).await.unwrap();
    read(&mut follow).await.unwrap();
    assert!(server.gaps()[1] >= Duration::from_secs(1), "{:?}", server.gaps());

    for reconnect in [FAST, asks] {
        let server = Server::start([begun(), busy(61)]).await;
        let mut follow = client(&server, reconnect).follow(text("hi")).await.unwrap();
        let error = read(&mut follow).await.unwrap_err();
        assert_eq!(error.task_id(), Some("t-1"), "{error:?}");
        let told = error.failure().and_then(Failure::retry_after);
        assert_eq!(told, Some(Duration::from_secs(61)), "{error:?}");
        assert_eq!(server.seen().len(), 2, "no further request");
    }
}

#[test]
fn default_policy_is_three_reconnects_from_half_a_second() {
    let policy = Reconnect::default();
    assert_eq!((policy.max, policy.backoff), (3, Duration::from_millis(500)));
}

#[tokio::test]
async fn unreachable_server_error_has_task_and_attempts() {
    for poll in [None, FAST.poll] {
        let server = Server::start([stream(&[(1, TASK)], false)]).await;
        let reconnect = Reconnect { poll, backoff: Duration::from_millis(5), ..FAST };
        let mut follow = client(&server, reconnect).follow(text("hi")).await.unwrap();
        let error = read(&mut follow).await.unwrap_err();
        let Error::Reconnect { task_id, attempts, last } = &error else { panic!("{error:?}") };
        assert_eq!((task_id.as_str(), *attempts), ("t-1", 3));
        assert_eq!(last.row(), &reason::UNAVAILABLE);
        assert!(follow.next().await.is_none());
        assert_eq!(poll.is_none(), server.seen().len() == 4, "{:?}", server.lines());
    }
}

#[tokio::test]
async fn progress_resets_the_reconnect_counter() {
    let mut scripts = vec![stream(&[(1, TASK)], false)];
    scripts.extend((2..8).map(|seq| stream(&[(seq, WORKING)], false)));
    scripts.push(stream(&[(8, DONE)], true));
    let server = Server::start(scripts).await;
    let reconnect = Reconnect { poll: None, backoff: Duration::from_millis(1), ..FAST };
    let mut follow = client(&server, reconnect).follow(text("hi")).await.unwrap();
    read(&mut follow).await.unwrap();
    assert_eq!(follow.last_seq(), 8);
}

#[tokio::test]
async fn send_is_repeated_before_the_first_event_only_with_a_key() {
    let scripts = || [stream(&[], false), stream(&[(1, DONE)], true)];
    let server = Server::start(scripts()).await;
    let mut follow = client(&server, FAST).follow(text("hi")).await.unwrap();
    let failure = Failure::from(follow.next().await.unwrap().unwrap_err());
    assert_eq!((failure.row(), failure.plane()), (&reason::UNAVAILABLE, Plane::Transport));
    assert!(follow.next().await.is_none());
    assert_eq!(server.seen().len(), 1);

    let server = Server::start(scripts()).await;
    let mut follow = client(&server, FAST).follow(text("hi").idempotent()).await.unwrap();
    read(&mut follow).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|request| request.contains("SendStreamingMessage")));
}

#[tokio::test]
async fn failure_in_or_instead_of_a_stream_is_returned() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone"}}"#;
    let inside = format!("data: {error}\n\n");
    let inside = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{inside}",
        inside.len()
    );
    let server = Server::start([plain("200 OK", error), inside]).await;
    let client = Client::new(&server.url).unwrap();
    let instead = Failure::from(client.subscribe("t-1", None).await.unwrap_err());
    assert_eq!(instead.row(), &reason::TASK_NOT_FOUND);
    let mut follow = client.follow_task("t-1", None);
    let failure = Failure::from(follow.next().await.unwrap().unwrap_err());
    assert_eq!(failure.row(), &reason::TASK_NOT_FOUND);
    assert!(follow.next().await.is_none());
}

#[tokio::test]
async fn ended_task_is_delivered_as_a_snapshot() {
    let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"it has ended"}}"#;
    let done = snapshot("COMPLETED", &["all"]);
    let server = Server::start([plain("200 OK", refused), result(&done)]).await;
    let answer = client(&server, FAST).wait("t-1").await.unwrap();
    assert_eq!(answer.text(), "all");
}

#[tokio::test]
async fn run_returns_the_answer() {
    let message = r#"{"message":{"messageId":"m","parts":[{"text":"just this"}]}}"#;
    let server = Server::start([
        stream(&[(1, TASK), (2, &chunk("made", false)), (3, DONE)], true),
        stream(&[(0, message)], true),
    ])
    .await;
    let client = client(&server, FAST);
    assert_eq!(client.run("hi").await.unwrap().text(), "made");
    let said = client.run("hi").await.unwrap();
    assert!(matches!(said, Answer::Message(_)) && said.text() == "just this");
}

#[tokio::test]
async fn failed_run_returns_the_whole_task() {
    let failed = r#"{"statusUpdate":{"taskId":"t-1","status":{"state":"TASK_STATE_FAILED"}}}"#;
    let task = r#"{"id":"t-1","status":{"state":"TASK_STATE_FAILED",
        "message":{"parts":[{"text":"no luck"}]}},"history":[{"messageId":"m"}],
        "artifacts":[{"artifactId":"a"},{"artifactId":"b"}]}"#;
    let server = Server::start([stream(&[(1, TASK), (2, failed)], true), result(task)]).await;
    let error = client(&server, FAST).run("hi").await.unwrap_err();
    assert!(error.is_terminal());
    let task = error.task().unwrap();
    assert_eq!((task.artifacts.len(), task.history.len()), (2, 1));
    assert_eq!(error.failure().unwrap().public_message, "no luck");
}

#[tokio::test]
async fn question_ends_a_run_and_its_answer_continues_it() {
    let asks = r#"{"statusUpdate":{"taskId":"t-1","status":{
        "state":"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"q"}}}}"#;
    let old = r#"{"task":{"id":"t-1","status":{"state":"TASK_STATE_INPUT_REQUIRED",
        "message":{"messageId":"q"}}}}"#;
    let whole = r#"{"id":"t-1","status":{"state":"TASK_STATE_INPUT_REQUIRED"}}"#;
    let server = Server::start([
        stream(&[(1, TASK), (2, asks)], true),
        result(whole),
        // The task before the answer reached it.
        stream(&[(2, old), (3, WORKING), (4, &chunk("thanks", false)), (5, DONE)], true),
    ])
    .await;
    let client = client(&server, FAST);
    let asked = match client.run("hi").await.unwrap_err() {
        Error::Ended(ended) => ended,
        other => panic!("{other}"),
    };
    assert_eq!(asked.how, Ending::InputRequired);
    let reply = text("yes").to_task(&asked.task.id);
    assert_eq!(client.run(reply).await.unwrap().text(), "thanks");
}

#[tokio::test]
async fn wait_continues_through_required_credentials() {
    let asks = |n| {
        format!(
            r#"{{"statusUpdate":{{"taskId":"t-1","status":{{"state":"TASK_STATE_AUTH_REQUIRED",
                "message":{{"messageId":"m-{n}"}}}}}}}}"#
        )
    };
    let waiting = r#"{"id":"t-1","status":{"state":"TASK_STATE_AUTH_REQUIRED"}}"#;
    let server = Server::start([
        stream(&[(1, TASK), (2, &asks(1))], true),
        result(waiting),
        stream(&[(2, &format!(r#"{{"task":{waiting}}}"#)), (3, WORKING), (4, DONE)], true),
    ])
    .await;
    let client = client(&server, FAST);
    let error = client.run("hi").await.unwrap_err();
    assert!(!error.is_terminal());
    let Error::Ended(ended) = error else { panic!("{error}") };
    assert_eq!(ended.how, Ending::AuthRequired);
    client.wait(&ended.task.id).await.unwrap();
    assert!(server.seen()[2].contains("SubscribeToTask"));
}
