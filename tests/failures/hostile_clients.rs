//! Malformed, oversized and slow requests: each gets its exact error, or its connection is closed
//! in bounded time (slow loris), and other clients are served meanwhile and afterwards.

use std::time::Duration;

use faultline_tests::{
    Plan, Rpc,
    raw::{post_head, read_to_close},
    rpc::{Reply, envelope, message},
    task::{self, COMPLETED},
};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

const MIB: usize = 1024 * 1024;
/// Longer than the timeouts for the first byte and for the headers.
const HEADERS_CLOSE: Duration = Duration::from_secs(25);
/// Longer than the timeout for a body.
const BODY_CLOSE: Duration = Duration::from_secs(40);

/// The expected answer: HTTP status, JSON-RPC code, reason, and a part of the message.
struct Refusal(u16, i32, &'static str, &'static str);

async fn assert_refused(rpc: &Rpc, what: &str, body: impl Into<bytes::Bytes>, refusal: Refusal) {
    let Refusal(status, code, reason, part) = refusal;
    let reply = rpc.post(body).await;
    let Reply { status: got, headers, .. } = &reply;
    assert_eq!(*got, status, "{what}: {:?}", reply.body);
    assert_eq!(headers["content-type"], "application/json", "{what}");
    let answer = reply.json();
    assert_eq!(answer["jsonrpc"], "2.0", "{what}: {answer}");
    assert!(answer.get("id").is_some() && answer.get("result").is_none(), "{what}: {answer}");
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{what}: {error}");
    assert_eq!(error["data"][0]["reason"], reason, "{what}: {error}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(part), "{what}: {message}");
    assert_serves(rpc, what).await;
}

async fn assert_serves(rpc: &Rpc, after: &str) {
    let task = rpc.path("/agents/echo").send("still there?").await;
    assert_eq!(task::state(&task), COMPLETED, "after {after}");
    assert_eq!(task::artifacts(&task)["echo"], "still there?", "after {after}");
}

fn send_with(part: Value) -> String {
    let mut params = message("");
    params["message"]["parts"] = json!([part]);
    envelope("SendMessage", params)
}

/// Nested arrays of this depth, as JSON.
fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

fn send_data(depth: usize) -> String {
    let marker = json!({"data": "HERE"});
    send_with(marker).replace("\"HERE\"", &nested(depth))
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_json_rpc_gets_the_matching_error() {
    let cluster = Plan::default().start().await;
    let rpc = &cluster.rpc();
    let parse = |says| Refusal(200, -32700, "JSON_PARSE", says);
    let request = |says| Refusal(200, -32600, "INVALID_REQUEST", says);
    let not_json: [(&str, Vec<u8>, &str); 8] = [
        ("nothing", b"".to_vec(), "EOF"),
        ("half an object", b"{\"jsonrpc\":\"2.0\",".to_vec(), "EOF"),
        ("a bare text", b"hello".to_vec(), "expected"),
        ("a comma too many", b"{\"jsonrpc\":\"2.0\",}".to_vec(), "trailing comma"),
        ("two objects", b"{} {}".to_vec(), "trailing"),
        ("bad UTF-8", b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\xfe\"}".to_vec(), "invalid UTF-8"),
        ("5,000 levels", nested(5000).into_bytes(), "nested deeper"),
        ("5,000 levels, open", "[".repeat(5000).into_bytes(), "nested deeper"),
    ];
    for (what, body, says) in not_json {
        assert_refused(rpc, what, body, parse(says)).await;
    }
    let deep = send_data(5000);
    assert_refused(rpc, "5,000 levels of data", deep, parse("nested deeper")).await;
    for (what, body, says) in [
        ("a number", "7".to_owned(), "object"),
        ("a batch", "[{}]".to_owned(), "batches"),
        ("no version", json!({"id": 1, "method": "GetTask"}).to_string(), "jsonrpc"),
        ("version 1", json!({"jsonrpc": "1.0", "id": 1, "method": "GetTask"}).to_string(), "2.0"),
        ("an object as id", json!({"jsonrpc": "2.0", "id": {}, "method": "x"}).to_string(), "id"),
        ("no method", json!({"jsonrpc": "2.0", "id": 1}).to_string(), "method is missing"),
        ("method 7", json!({"jsonrpc": "2.0", "id": 1, "method": 7}).to_string(), "a string"),
    ] {
        assert_refused(rpc, what, body, request(says)).await;
    }
    let unknown = Refusal(200, -32601, "METHOD_NOT_FOUND", "no such method: 'SendMesage'");
    assert_refused(rpc, "an unknown method", envelope("SendMesage", json!({})), unknown).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_parameters_are_named() {
    let cluster = Plan::default().start().await;
    let rpc = &cluster.rpc();
    let params = |says| Refusal(200, -32602, "INVALID_PARAMS", says);
    let with = |path: &str, value: Value| {
        let mut all = message("x");
        *all.pointer_mut(path).expect("the field is there") = value;
        envelope("SendMessage", all)
    };
    for (what, body, says) in [
        ("a text as message", envelope("SendMessage", json!({"message": "hello"})), "message"),
        ("no message", envelope("SendMessage", json!({})), "message is required"),
        ("a number as text", send_with(json!({"text": 5})), "message.parts[0].text"),
        ("a text as parts", with("/message/parts", json!("x")), "message.parts"),
        ("no parts", with("/message/parts", json!([])), "message.parts"),
        ("an empty part", send_with(json!({})), "message.parts[0]"),
        ("a wrong role", with("/message/role", json!("ROLE_KING")), "message.role"),
        ("no message id", with("/message/messageId", json!("")), "message.messageId"),
        ("a list as params", envelope("GetTask", json!(["x"])), "params"),
        ("an empty id", envelope("GetTask", json!({"id": ""})), "id must not be empty"),
        ("a page of 1000", envelope("ListTasks", json!({"pageSize": 1000})), "pageSize"),
        ("25 levels of data", send_data(25), "message.parts[0].data"),
    ] {
        assert_refused(rpc, what, body, params(says)).await;
    }
    let fits = rpc.post(send_data(24)).await.json();
    assert_eq!(task::state(&fits["result"]["task"]), COMPLETED, "24 levels are allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_task_is_not_found_by_any_method() {
    let cluster = Plan::default().start().await;
    let rpc = &cluster.rpc();
    let unknown = "0197a000-0000-7000-8000-000000000000";
    let task = rpc.send("hello").await;
    for id in [unknown, "7", "../../etc/passwd", &task::id(&task).to_uppercase()] {
        for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
            let not_found = Refusal(200, -32001, "TASK_NOT_FOUND", "");
            let body = envelope(method, json!({"id": id}));
            assert_refused(rpc, &format!("{method} {id}"), body, not_found).await;
        }
        for method in ["SendMessage", "SendStreamingMessage"] {
            let not_found = Refusal(200, -32001, "TASK_NOT_FOUND", "");
            let body = envelope(method, faultline_tests::rpc::answer(id, "x"));
            assert_refused(rpc, &format!("{method} {id}"), body, not_found).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_request_is_refused_with_413() {
    let cluster = Plan::default().start().await;
    let rpc = &cluster.rpc();
    let too_large = |says| Refusal(413, -32602, "CONTENT_TOO_LARGE", says);
    let text = |bytes: usize| send_with(json!({"text": "x".repeat(bytes)}));
    let says = "4194304 are allowed";
    assert_refused(rpc, "a message of 5 MiB", text(5 * MIB), too_large(says)).await;
    let says = "the body is over";
    assert_refused(rpc, "a body of 20 MiB", text(20 * MIB), too_large(says)).await;
    // Escapes may double the size, so a message at its limit fits into a larger body.
    let large = rpc.agent("echo").post(text(4 * MIB - 1024)).await.json();
    let task = &large["result"]["task"];
    assert_eq!(task::state(task), COMPLETED);
    assert_eq!(task::artifacts(task)["echo"].len(), 4 * MIB - 1024);
    assert_serves(rpc, "a message at its limit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_client_is_disconnected_and_others_are_served() {
    let cluster = Plan::default().start().await;
    let rpc = cluster.rpc();
    let body = envelope("SendMessage", message("x"));
    let head = post_head("/", body.len());
    let silent = async || dawdle(&rpc, b"", b"", HEADERS_CLOSE).await;
    let preface = async || dawdle(&rpc, b"PRI * HTTP/2.0\r\n", b"", HEADERS_CLOSE).await;
    let headers = async || {
        let drip = "POST / HTTP/1.1\r\nhost: localhost\r\nx-slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        dawdle(&rpc, b"", drip.as_bytes(), HEADERS_CLOSE).await
    };
    let no_body = async || dawdle(&rpc, head.as_bytes(), b"", BODY_CLOSE).await;
    let drip_body = async || dawdle(&rpc, head.as_bytes(), body.as_bytes(), BODY_CLOSE).await;
    let served = async {
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            let quick = timeout(Duration::from_secs(5), assert_serves(&rpc, "dawdlers"));
            quick.await.expect("other clients are served in time");
            sleep(Duration::from_millis(200)).await;
        }
    };
    let many = futures::future::join_all((0..32).map(|_| headers()));
    let (silent, preface, headers, no_body, drip_body, ()) =
        tokio::join!(silent(), preface(), many, no_body(), drip_body(), served);
    assert!(silent.is_empty(), "{silent}");
    assert!(preface.is_empty(), "{preface}");
    for answer in headers {
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    for answer in [no_body, drip_body] {
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        let json = answer.split("\r\n\r\n").nth(1).expect("a body follows");
        let error: Value = serde_json::from_str(json).expect("every body is JSON");
        assert_eq!(error["error"]["code"], -31004, "{error}");
    }
    assert_serves(&rpc, "all of them").await;
}

/// Sends `first` at once and `drip` one byte per second. Returns the bytes that arrive until the
/// server closes the connection, within a bound.
async fn dawdle(rpc: &Rpc, first: &[u8], drip: &[u8], within: Duration) -> String {
    let mut stream = TcpStream::connect(rpc.address()).await.expect("the gateway listens");
    stream.write_all(first).await.expect("the gateway takes the beginning");
    let (mut reading, mut writing) = stream.split();
    let dripping = async {
        for byte in drip {
            // A closed connection accepts no byte.
            if writing.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = read_to_close(&mut reading, within) => {
            let answer = answer.expect("the connection is closed in time");
            String::from_utf8_lossy(&answer).into_owned()
        }
        () = dripping => unreachable!("the drip has no end"),
    }
}
