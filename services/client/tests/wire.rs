//! The client against a server that is nothing but scripted bytes: what is sent, what breaks, and
//! what is made of it.

use std::sync::{Arc, Mutex};

use faultline_client::{Client, text};
use faultline_proto::{
    a2a::{GetTaskRequest, TaskState},
    reason,
    v1::{InspectRequest, InspectResponse, Plane},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

type Seen = Arc<Mutex<Vec<String>>>;

/// Answers the n-th connection with the n-th script and closes it; keeps what was asked.
async fn server(scripts: Vec<String>) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback works");
    let url = format!("http://{}", listener.local_addr().expect("loopback works"));
    let seen = Seen::default();
    let log = Arc::clone(&seen);
    tokio::spawn(async move {
        for script in scripts {
            let (mut socket, _) = listener.accept().await.expect("loopback works");
            let mut request = vec![0; 16 * 1024];
            let mut len = 0;
            // The body is small and comes right behind the headers.
            while !request[..len].ends_with(b"}") {
                len += socket.read(&mut request[len..]).await.expect("loopback works");
            }
            log.lock()
                .expect("no test panics here")
                .push(String::from_utf8_lossy(&request[..len]).into_owned());
            socket.write_all(script.as_bytes()).await.expect("loopback works");
        }
    });
    (url, seen)
}

fn plain(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A chunked stream that breaks off unless `whole`.
fn stream(events: &[(u64, &str)], whole: bool) -> String {
    let mut out =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_owned();
    for (id, result) in events {
        let data = format!(
            "id: {id}\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{result}}}\n\n:\n\n"
        );
        out.push_str(&format!("{:x}\r\n{data}\r\n", data.len()));
    }
    if whole {
        out.push_str("0\r\n\r\n");
    }
    out
}

const TASK: &str = r#"{"task":{"id":"t-1","status":{"state":"TASK_STATE_SUBMITTED"}}}"#;
const WORKING: &str =
    r#"{"statusUpdate":{"taskId":"t-1","status":{"state":"TASK_STATE_WORKING"}}}"#;
const DONE: &str = r#"{"statusUpdate":{"taskId":"t-1","status":{"state":"TASK_STATE_COMPLETED"}}}"#;

#[tokio::test]
async fn a_follower_sees_each_event_once_through_a_break() {
    let away = plain("503 Service Unavailable", "<html>");
    let (url, seen) = server(vec![
        stream(&[(1, TASK), (2, WORKING)], false),
        away,
        stream(&[(2, WORKING), (5, DONE)], true),
    ])
    .await;
    let mut follow = Client::new(&url).unwrap().agent("echo").follow(text("hi")).await.unwrap();
    let mut seqs = Vec::new();
    while let Some(event) = follow.next().await {
        seqs.push(event.unwrap().seq);
    }
    assert_eq!(seqs, [1, 2, 5]);
    assert_eq!((follow.task_id(), follow.last_seq()), ("t-1", 5));
    let seen = seen.lock().unwrap();
    assert!(seen[0].starts_with("POST /agents/echo HTTP/1.1\r\n"), "{}", seen[0]);
    assert!(seen[0].contains("\"method\":\"SendStreamingMessage\""));
    assert!(seen[0].contains("a2a-version: 1.0\r\n") && seen[0].contains("traceparent: 00-"));
    assert!(!seen[0].contains("last-event-id"));
    for again in &seen[1..] {
        assert!(again.contains("\"method\":\"SubscribeToTask\"") && again.contains("t-1"));
        assert!(again.contains("last-event-id: 2\r\n"), "{again}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_before_its_first_event_is_not_sent_again() {
    let (url, seen) = server(vec![stream(&[], false), stream(&[(1, DONE)], true)]).await;
    let mut follow = Client::new(&url).unwrap().follow(text("hi")).await.unwrap();
    let failure = follow.next().await.unwrap().unwrap_err();
    assert_eq!(failure.row(), &reason::UNAVAILABLE);
    assert_eq!(failure.plane(), Plane::Transport);
    assert!(follow.next().await.is_none());
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_failure_in_or_instead_of_a_stream_is_a_failure() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone"}}"#;
    let inside = format!("data: {error}\n\n");
    let inside = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{inside}",
        inside.len()
    );
    let (url, _) = server(vec![plain("200 OK", error), inside]).await;
    let client = Client::new(&url).unwrap();
    let instead = client.subscribe("t-1", None).await.unwrap_err();
    assert_eq!(instead.row(), &reason::TASK_NOT_FOUND);
    let mut follow = client.follow_task("t-1", None);
    assert_eq!(follow.next().await.unwrap().unwrap_err().row(), &reason::TASK_NOT_FOUND);
    assert!(follow.next().await.is_none());
}

#[tokio::test]
async fn a_call_gives_the_message_or_what_is_known_of_the_failure() {
    let task = r#"{"jsonrpc":"2.0","id":1,"result":{"id":"t-1","status":{"state":3}}}"#;
    let rest = r#"{"error":{"code":404,"status":"NOT_FOUND","message":"no such task"}}"#;
    let (url, seen) = server(vec![
        plain("200 OK", task),
        plain("502 Bad Gateway", "<html>"),
        plain("200 OK", "<html>"),
        plain("404 Not Found", rest),
        plain("200 OK", r#"{"agent":"echo"}"#),
    ])
    .await;
    let client = Client::new(&format!("{url}/")).unwrap();
    let get = || client.get_task(GetTaskRequest { id: "t-1".into(), ..Default::default() });
    let task = get().await.unwrap();
    assert_eq!(task.status.unwrap().state(), TaskState::Completed);
    let proxy = get().await.unwrap_err();
    assert_eq!((proxy.row(), proxy.foreign), (&reason::UNAVAILABLE, true));
    assert_eq!(get().await.unwrap_err().row(), &reason::INTERNAL);
    let inspect = InspectRequest { task_id: "t-1".into() };
    let missing = client.mesh::<_, InspectResponse>("Inspect", &inspect).await.unwrap_err();
    assert_eq!(
        (missing.row(), missing.public_message.as_str()),
        (&reason::NOT_FOUND, "no such task")
    );
    let found: InspectResponse = client.agent("x").mesh("Inspect", &inspect).await.unwrap();
    assert_eq!(found.agent, "echo");
    let seen = seen.lock().unwrap();
    assert!(seen[0].starts_with("POST / HTTP/1.1\r\n"));
    assert!(seen[4].starts_with("POST /mesh/Inspect HTTP/1.1\r\n"));
    assert!(seen[4].ends_with("{\"taskId\":\"t-1\"}"));
}

#[tokio::test]
async fn nobody_there_is_unavailable_and_says_why_in_private() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = Client::new(&format!("http://{closed}")).unwrap();
    let failure = client.send(text("hi")).await.unwrap_err();
    assert_eq!((failure.row(), failure.plane()), (&reason::UNAVAILABLE, Plane::Transport));
    assert!(failure.private().unwrap().for_log().contains("refused"));
    for bad in ["", "127.0.0.1:8080", "https://example.org", "http://a b", "ftp://x"] {
        assert_eq!(Client::new(bad).unwrap_err().row(), &reason::INVALID_ARGUMENT, "{bad}");
    }
}
