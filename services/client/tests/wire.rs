//! Single calls on the wire: requests, responses and retries.

mod script;

use std::time::{Duration, SystemTime};

use faultline_client::{Answer, Binding, Client, Error, Retry, text};
use faultline_proto::{
    Failure,
    a2a::{
        DeleteTaskPushNotificationConfigRequest, ListTasksRequest, TaskPushNotificationConfig,
        TaskState,
    },
    reason,
    v1::{InspectRequest, InspectResponse, Plane},
};
use script::{Server, answer, plain, result};
use tokio::net::TcpListener;

const TASK: &str = r#"{"id":"t-1","status":{"state":3}}"#;

fn quick() -> Retry {
    Retry { backoff: Duration::from_millis(10), ..Retry::default() }
}

fn failure<T: std::fmt::Debug>(result: Result<T, Error>) -> Failure {
    Failure::from(result.expect_err("it is refused"))
}

#[tokio::test]
async fn call_returns_the_message_or_the_failure() {
    let rest = r#"{"error":{"code":404,"status":"NOT_FOUND","message":"no such task"}}"#;
    let server = Server::start([
        result(TASK),
        plain("502 Bad Gateway", "<html>"),
        plain("200 OK", "<html>"),
        plain("404 Not Found", rest),
        plain("200 OK", r#"{"agent":"echo"}"#),
    ])
    .await;
    let client = Client::builder(&format!("{}/", server.url));
    let client = client.retry(Retry::never()).direct().unwrap();
    let task = client.task("t-1").await.unwrap();
    assert_eq!(task.status.unwrap().state(), TaskState::Completed);
    let proxy = failure(client.task("t-1").await);
    assert_eq!((proxy.row(), proxy.foreign), (&reason::UNAVAILABLE, true));
    assert_eq!(failure(client.task("t-1").await).row(), &reason::INVALID_AGENT_RESPONSE);
    let inspect = InspectRequest { task_id: "t-1".into() };
    let missing = failure(client.mesh::<_, InspectResponse>("Inspect", &inspect).await);
    assert_eq!(
        (missing.row(), missing.public_message.as_str()),
        (&reason::NOT_FOUND, "no such task")
    );
    let found: InspectResponse = client.agent("x").mesh("Inspect", &inspect).await.unwrap();
    assert_eq!(found.agent, "echo");
    let seen = server.seen();
    assert!(seen[0].starts_with("POST / HTTP/1.1\r\n"));
    assert!(seen[4].starts_with("POST /mesh/Inspect HTTP/1.1\r\n"));
    assert!(seen[4].ends_with("{\"taskId\":\"t-1\"}"));
}

#[tokio::test]
async fn refused_connection_is_unavailable_with_a_private_cause() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = Client::builder(&format!("{closed}")).retry(quick()).direct().unwrap();
    let failed = failure(client.send(text("hi")).await);
    assert_eq!((failed.row(), failed.plane()), (&reason::UNAVAILABLE, Plane::Transport));
    assert_eq!(failed.public_message, "the server cannot be reached: the connection was refused");
    assert!(failed.private().unwrap().for_log().contains("refused"));
    for bad in ["", "http://a b", "ftp://x", "http://"] {
        assert_eq!(failure(Client::new(bad)).row(), &reason::INVALID_ARGUMENT, "{bad}");
    }
    let odd = Client::builder("http://x").bearer("two\nlines").direct();
    assert!(!failure(odd).public_message.contains("two"));
}

#[tokio::test]
async fn client_settings_are_sent_with_every_call() {
    let server = Server::start([result(&format!(r#"{{"task":{TASK}}}"#)), result(TASK)]).await;
    let client = Client::builder(&server.url)
        .bearer("s3cret")
        .header("x-team", "blue")
        .extension("urn:one")
        .extension("urn:two")
        .direct()
        .unwrap()
        .agent("echo");
    assert!(!format!("{client:?}").contains("s3cret"));
    let sent = client.send(text("hi").idempotency_key("k-1")).await.unwrap();
    assert!(matches!(sent, Answer::Task(_)));
    client.cancel("t-1").await.unwrap();
    for request in server.seen() {
        for line in [
            "POST /agents/echo HTTP/1.1",
            "authorization: Bearer s3cret",
            "x-team: blue",
            "a2a-extensions: urn:one, urn:two",
            "a2a-version: 1.0",
            "content-type: application/json",
            "traceparent: 00-",
        ] {
            assert!(request.contains(line), "{line} in {request}");
        }
    }
    assert!(server.seen()[0].contains("idempotency-key: k-1\r\n"));
    assert!(!server.seen()[1].contains("idempotency-key"));
}

#[tokio::test]
async fn http_json_has_a_verb_and_a_route_per_operation() {
    let task = plain("200 OK", TASK);
    let server = Server::start([
        plain("200 OK", r#"{"message":{"messageId":"m","parts":[{"text":"hello"}]}}"#),
        task.clone(),
        task,
        plain("200 OK", r#"{"tasks":[],"nextPageToken":"","pageSize":5,"totalSize":0}"#),
        plain("200 OK", r#"{"id":"p","taskId":"t/1","url":"http://hook"}"#),
        "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned(),
        plain("200 OK", r#"{"name":"known"}"#),
    ])
    .await;
    let client = Client::builder(&server.url).binding(Binding::HttpJson).direct().unwrap();
    assert_eq!(client.send("hi").await.unwrap().text(), "hello");
    client.task("t/1").await.unwrap();
    client.cancel("t/1").await.unwrap();
    let request = ListTasksRequest {
        tenant: "acme".to_owned(),
        page_size: Some(5),
        status: TaskState::InputRequired as i32,
        ..ListTasksRequest::default()
    };
    client.list_tasks(request).await.unwrap();
    let config = TaskPushNotificationConfig {
        task_id: "t/1".to_owned(),
        url: "http://hook".to_owned(),
        ..TaskPushNotificationConfig::default()
    };
    assert_eq!(client.create_push_config(config).await.unwrap().id, "p");
    let request = DeleteTaskPushNotificationConfigRequest {
        task_id: "t/1".to_owned(),
        id: "p".to_owned(),
        ..DeleteTaskPushNotificationConfigRequest::default()
    };
    client.delete_push_config(request).await.unwrap();
    assert_eq!(client.extended_card().await.unwrap().name, "known");
    assert_eq!(
        server.lines(),
        [
            "POST /message:send",
            "GET /tasks/t%2F1",
            "POST /tasks/t%2F1:cancel",
            "GET /acme/tasks?status=TASK_STATE_INPUT_REQUIRED&pageSize=5",
            "POST /tasks/t%2F1/pushNotificationConfigs",
            "DELETE /tasks/t%2F1/pushNotificationConfigs/p",
            "GET /extendedAgentCard",
        ]
    );
    assert!(server.seen()[0].contains("content-type: application/a2a+json\r\n"));
}

#[tokio::test]
async fn null_result_is_accepted_for_an_empty_response() {
    let server = Server::start([result("null"), result("null")]).await;
    let client = Client::new(&server.url).unwrap();
    client.delete_push_config(Default::default()).await.unwrap();
    assert_eq!(failure(client.task("t").await).row(), &reason::INVALID_AGENT_RESPONSE);
}

#[tokio::test]
async fn retry_after_delay_is_waited_for() {
    let info = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-31008,"message":"slow down","data":[
        {"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"RATE_LIMITED",
         "domain":"faultline.dev"},
        {"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"0.3s"}]}}"#;
    let server = Server::start([
        answer("503 Service Unavailable", "retry-after: 1\r\n", "<html>"),
        plain("200 OK", info),
        result(&format!(r#"{{"task":{TASK}}}"#)),
    ])
    .await;
    let client = Client::builder(&server.url).retry(quick()).direct().unwrap();
    client.send("hi").await.unwrap();
    let gaps = server.gaps();
    assert_eq!(gaps.len(), 2);
    assert!(gaps[0] >= Duration::from_secs(1), "{gaps:?}");
    assert!((Duration::from_millis(300)..Duration::from_secs(1)).contains(&gaps[1]), "{gaps:?}");
}

#[tokio::test]
async fn retry_after_date_is_waited_for() {
    let at = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3));
    let busy = answer("429 Too Many Requests", &format!("retry-after: {at}\r\n"), "");
    let server = Server::start([busy, result(&format!(r#"{{"task":{TASK}}}"#))]).await;
    let client = Client::builder(&server.url).retry(quick()).direct().unwrap();
    client.send("hi").await.unwrap();
    // A date has whole seconds.
    let gaps = server.gaps();
    assert!(gaps.len() == 1 && gaps[0] > Duration::from_secs(1), "{gaps:?}");
}

#[tokio::test]
async fn delay_beyond_the_time_limit_is_returned() {
    let busy = answer("429 Too Many Requests", "retry-after: 3600\r\n", "");
    let server = Server::start([busy]).await;
    let refused = failure(Client::new(&server.url).unwrap().task("t").await);
    assert_eq!(refused.row(), &reason::RESOURCE_EXHAUSTED);
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn send_with_unknown_outcome_is_repeated_only_with_a_key() {
    let sent = result(&format!(r#"{{"task":{TASK}}}"#));
    for (draft, calls) in [(text("hi"), 1), (text("hi").idempotent(), 2)] {
        // The server closes the first connection after it has read the request.
        let server = Server::start([String::new(), sent.clone()]).await;
        let client = Client::builder(&server.url).retry(quick()).direct().unwrap();
        assert_eq!(client.send(draft).await.is_ok(), calls == 2);
        let seen = server.seen();
        assert_eq!(seen.len(), calls);
        let body = |request: &String| -> serde_json::Value {
            let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
            serde_json::from_str(body).expect("what is sent is JSON")
        };
        let first = body(&seen[0]);
        let last = body(&seen[calls - 1]);
        assert_eq!(first["params"], last["params"], "the same message");
        assert_eq!(first["id"] == last["id"], calls == 1, "each call has its own id");
    }
    let server = Server::start([String::new(), result(TASK)]).await;
    let client = Client::builder(&server.url).retry(quick()).direct().unwrap();
    client.task("t-1").await.unwrap();
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn permanent_failures_are_not_retried_and_transient_ones_are_limited() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"gone"}}"#;
    let server = Server::start([plain("200 OK", error)]).await;
    let client = Client::builder(&server.url).retry(quick()).direct().unwrap();
    assert_eq!(failure(client.task("t").await).row(), &reason::TASK_NOT_FOUND);
    assert_eq!(server.seen().len(), 1);
    assert_eq!(failure(client.task("t").await).row(), &reason::UNAVAILABLE);
    assert_eq!(server.seen().len(), 1 + 4);
}

#[test]
fn futures_of_the_client_are_send() {
    fn assert_send<T: Send>(_: T) {}
    let client = Client::new("http://x").unwrap();
    assert_send(client.run("hi"));
    assert_send(client.wait("t"));
    assert_send(client.list_tasks(ListTasksRequest::default()));
    assert_send(client.follow("hi"));
    assert_send(Client::connect("http://x"));
    assert_send(client.follow_task("t", None).next());
}
