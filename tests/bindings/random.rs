//! Requests that nobody meant: valid ones, and valid ones with something broken. Whatever comes,
//! the answer is well-formed, nothing panics, and the tasks are all there afterwards.

use bytes::{Buf, BufMut, Bytes};
use faultline::Mesh;
use faultline_proto::{a2a, json};
use faultline_tests::{Binding, Rpc, in_process, rpc::Reply, task};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use prost::Message;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Endpoint,
};

const CASES: usize = 600;

#[tokio::test(flavor = "multi_thread")]
async fn by_json_rpc() {
    try_all(Binding::JsonRpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_rest() {
    try_all(Binding::Rest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_grpc() {
    try_all(Binding::Grpc).await;
}

fn seed() -> u64 {
    let given = std::env::var("FAULTLINE_SEED").ok().and_then(|s| s.parse().ok());
    given.unwrap_or_else(rand::random)
}

async fn try_all(binding: Binding) {
    let seed = seed();
    eprintln!("again with FAULTLINE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mesh = Mesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    let mut known = vec!["nobody".to_owned()];
    for _ in 0..CASES {
        let (operation, params) = valid(&mut rng, &known);
        match binding {
            Binding::JsonRpc => json_rpc(&mut rng, &rpc, operation, params).await,
            Binding::Rest => rest(&mut rng, &rpc, operation, params).await,
            Binding::Grpc => grpc(&mut rng, &rpc, operation, &params).await,
        }
        if rng.random_ratio(1, 20) {
            known = listed(&rpc).await.iter().take(8).map(|t| task::id(t).to_owned()).collect();
            known.push("nobody".to_owned());
        }
    }
    let before = listed(&rpc).await;
    for listed in &before {
        let id = task::id(listed);
        assert_eq!(task::state(&rpc.task(id).await), task::state(listed), "{listed}");
        assert_eq!(rpc.inspect(id).await["task"]["id"], id);
    }
    mesh.stop().await.expect("the mesh leaves in order");
    let mesh = Mesh::start(in_process(dir.path())).await.expect("the store is read again");
    let after = listed(&Rpc::at(mesh.gateway_addr())).await;
    let ids = |tasks: &[Value]| tasks.iter().map(|t| task::id(t).to_owned()).collect::<Vec<_>>();
    let (mut was, mut is) = (ids(&before), ids(&after));
    was.sort();
    is.sort();
    assert_eq!(was, is, "no task came or went");
    assert!(before.len() > CASES / 20, "enough of it was valid: {}", before.len());
}

/// Every task, page by page.
async fn listed(rpc: &Rpc) -> Vec<Value> {
    let (mut tasks, mut token) = (Vec::new(), String::new());
    loop {
        let params = json!({"pageSize": 100, "pageToken": token});
        let page = rpc.call("ListTasks", params).await.expect("a list");
        tasks.extend(page["tasks"].as_array().expect("tasks").clone());
        token = page["nextPageToken"].as_str().expect("a token").to_owned();
        if token.is_empty() {
            return tasks;
        }
    }
}

/// A request that somebody could mean.
fn valid(rng: &mut StdRng, known: &[String]) -> (&'static str, Value) {
    let id = known.choose(rng).expect("there is one").clone();
    let scripts = ["chunk x", "ask \"who?\"", "fail UNKNOWN", "message hi", "reject no", "say a"];
    let text = scripts.choose(rng).expect("there is one");
    let mut message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]});
    match rng.random_range(0..10) {
        0..=3 => {
            if rng.random() {
                message["contextId"] = "c".into();
            }
            let immediately: bool = rng.random();
            let configuration = json!({"returnImmediately": immediately, "historyLength": 1});
            let params =
                json!({"tenant": "script", "message": message, "configuration": configuration});
            ("SendMessage", params)
        }
        4 => {
            message["taskId"] = id.into();
            ("SendMessage", json!({"message": message}))
        }
        5 => ("GetTask", json!({"id": id, "historyLength": rng.random_range(0..4)})),
        6 => ("CancelTask", json!({"id": id, "metadata": {"why": [1, null, {"deep": "x"}]}})),
        7 => {
            let size = rng.random_range(1..=100);
            ("ListTasks", json!({"pageSize": size, "status": "TASK_STATE_FAILED"}))
        }
        8 => {
            let config = json!({"taskId": id, "url": "https://example.org/x", "id": "p"});
            ("CreateTaskPushNotificationConfig", config)
        }
        _ => ("ListTaskPushNotificationConfigs", json!({"taskId": id})),
    }
}

/// Breaks something, or nothing, in a tree of JSON.
fn break_tree(rng: &mut StdRng, value: &mut Value) {
    let odd = [
        json!(null),
        json!(-1),
        json!(1e300),
        json!("\u{0}\u{10ffff}"),
        json!([]),
        json!({}),
        json!({"@type": "x", "": {"": [[[[]]]]}}),
        json!("TASK_STATE_NONSENSE"),
        json!(true),
    ];
    match value {
        Value::Object(members) if !members.is_empty() && rng.random_ratio(4, 5) => {
            let keys: Vec<_> = members.keys().cloned().collect();
            let key = keys.choose(rng).expect("there is one").clone();
            match rng.random_range(0..6) {
                0 => drop(members.remove(&key)),
                1 => drop(members.insert(format!("{key}x"), json!(1))),
                _ => break_tree(rng, &mut members[&key]),
            }
        }
        Value::Array(items) if !items.is_empty() && rng.random_ratio(4, 5) => {
            let at = rng.random_range(0..items.len());
            break_tree(rng, &mut items[at]);
        }
        other => *other = odd.choose(rng).expect("there is one").clone(),
    }
}

/// Breaks something, or nothing, in bytes.
fn break_bytes(rng: &mut StdRng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(0..4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..4) {
            0 => bytes[at] = rng.random(),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, *b"{}[]\",:\\\0\xff".choose(rng).expect("there is one")),
            _ => drop(bytes.remove(at)),
        }
    }
}

async fn json_rpc(rng: &mut StdRng, rpc: &Rpc, operation: &str, params: Value) {
    let mut body = json!({"jsonrpc": "2.0", "id": 1, "method": operation, "params": params});
    if rng.random() {
        break_tree(rng, &mut body);
    }
    let mut bytes = body.to_string().into_bytes();
    if rng.random_ratio(1, 3) {
        break_bytes(rng, &mut bytes);
    }
    let reply = rpc.post(bytes.clone()).await;
    let said = String::from_utf8_lossy(&bytes).into_owned();
    assert!(!reply.status.is_server_error(), "{said}: {reply:?}");
    if is_stream(&reply) {
        return;
    }
    let answer = reply.json();
    assert_eq!(answer["jsonrpc"], "2.0", "{said}: {answer}");
    let (result, error) = (answer.get("result"), answer.get("error"));
    assert!(result.is_some() != error.is_some(), "{said}: {answer}");
    if let Some(error) = error {
        assert!(error["code"].is_i64() && error["message"].is_string(), "{said}: {answer}");
        assert_ne!(error["code"], -32603, "nothing of it is our fault: {said}: {answer}");
        assert!(says_whether_to_retry(&error["data"]), "{said}: {answer}");
    }
}

async fn rest(rng: &mut StdRng, rpc: &Rpc, operation: &str, mut params: Value) {
    if rng.random() {
        break_tree(rng, &mut params);
    }
    let id = params["id"].as_str().or(params["taskId"].as_str()).unwrap_or("x").to_owned();
    let (method, path) = match operation {
        "SendMessage" => (Method::POST, "/message:send".to_owned()),
        "GetTask" => {
            (Method::GET, format!("/tasks/{id}?historyLength={}", params["historyLength"]))
        }
        "CancelTask" => (Method::POST, format!("/tasks/{id}:cancel")),
        "ListTasks" => (Method::GET, format!("/tasks?pageSize={}", params["pageSize"])),
        "CreateTaskPushNotificationConfig" => {
            (Method::POST, format!("/tasks/{id}/pushNotificationConfigs"))
        }
        _ => (Method::GET, format!("/tasks/{id}/pushNotificationConfigs")),
    };
    let mut path = path.into_bytes();
    if rng.random_ratio(1, 4) {
        break_bytes(rng, &mut path);
    }
    // What no client could put into a request line is escaped, as a client would.
    let plain = |b: &u8| b.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(b);
    let path: String = path
        .iter()
        .map(|b| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02x}") })
        .collect();
    let mut body = params.to_string().into_bytes();
    if rng.random_ratio(1, 4) {
        break_bytes(rng, &mut body);
    }
    let methods = [Method::GET, Method::POST, Method::DELETE, Method::PUT, Method::PATCH];
    let method = match rng.random_ratio(1, 10) {
        true => methods.choose(rng).expect("there is one").clone(),
        false => method,
    };
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    let body = if method == Method::GET { Bytes::new() } else { body.into() };
    let said = format!("{method} {path} {body:?}");
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "x")
        .header("content-type", "application/json")
        .header("a2a-version", "1.0")
        .body(Full::new(body));
    // Some broken paths are no paths to any client either.
    let Ok(request) = request else { return };
    let reply = rpc.request(request).await.unwrap_or_else(|e| panic!("{said}: {e}"));
    if is_stream(&reply) {
        return;
    }
    let answer = reply.json();
    let status = reply.status;
    assert!(!status.is_server_error(), "{said}: {answer}");
    if answer["jsonrpc"] == "2.0" {
        // A path that was broken down to the one of JSON-RPC is answered as such.
        assert!(answer["error"]["code"].is_i64(), "{said}: {answer}");
    } else if status != StatusCode::OK {
        assert_eq!(answer["error"]["code"], status.as_u16(), "{said}: {answer}");
        assert!(answer["error"]["message"].is_string(), "{said}: {answer}");
        assert!(says_whether_to_retry(&answer["error"]["details"]), "{said}: {answer}");
    }
}

/// Details are never empty: the first of them says it.
fn says_whether_to_retry(details: &Value) -> bool {
    let said = details[0]["metadata"]["retryable"].as_str();
    matches!(said, Some("true" | "false"))
}

/// Bodies that were never meant to be anything.
#[tokio::test(flavor = "multi_thread")]
async fn noise_is_answered_in_json() {
    let seed = seed();
    eprintln!("again with FAULTLINE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mesh = Mesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let rpc = Rpc::at(mesh.gateway_addr());
    let paths = ["/", "/agents/echo", "/message:send", "/message:stream", "/tasks/x:cancel"];
    for _ in 0..CASES {
        let path = paths.choose(&mut rng).expect("there is one");
        let noise: Vec<u8> = (0..rng.random_range(0..200)).map(|_| rng.random()).collect();
        let reply = rpc.path(path).post(noise.clone()).await;
        let kind = &reply.headers["content-type"];
        assert!(kind == "application/json" || kind == "application/a2a+json", "{path} {noise:?}");
        let error = &reply.json()["error"];
        assert!(error["code"].is_i64() && error["message"].is_string(), "{path} {noise:?}");
        let details = error.get("data").or(error.get("details")).expect("details");
        assert!(says_whether_to_retry(details), "{path} {noise:?}: {error}");
        assert!(!reply.status.is_server_error(), "{path} {noise:?}: {error}");
    }
}

fn is_stream(reply: &Reply) -> bool {
    reply.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream")
}

/// Bytes as they are: neither side of the contract is asked.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining()).to_vec()))
    }
}

async fn grpc(rng: &mut StdRng, rpc: &Rpc, operation: &str, params: &Value) {
    let text = params.to_string();
    let mut bytes = match operation {
        "SendMessage" => encoded::<a2a::SendMessageRequest>(&text),
        "GetTask" => encoded::<a2a::GetTaskRequest>(&text),
        "CancelTask" => encoded::<a2a::CancelTaskRequest>(&text),
        "ListTasks" => encoded::<a2a::ListTasksRequest>(&text),
        "CreateTaskPushNotificationConfig" => encoded::<a2a::TaskPushNotificationConfig>(&text),
        _ => encoded::<a2a::ListTaskPushNotificationConfigsRequest>(&text),
    };
    if rng.random() {
        break_bytes(rng, &mut bytes);
    }
    let endpoint = Endpoint::from_shared(format!("http://{}", rpc.address()));
    let channel = endpoint.expect("an address is a URL").connect().await.expect("it connects");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("it is ready");
    let mut request = tonic::Request::new(bytes.clone());
    request.metadata_mut().insert("a2a-version", "1.0".parse().expect("text"));
    let path = format!("/lf.a2a.v1.A2AService/{operation}").parse().expect("a path");
    if let Err(status) = client.unary(request, path, Raw).await {
        let ours = [tonic::Code::Internal, tonic::Code::Unknown, tonic::Code::Unavailable];
        // Bytes that are no message are the caller's fault, which is all that tonic can tell.
        let unreadable = status.message().contains("decode");
        assert!(unreadable || !ours.contains(&status.code()), "{operation} {bytes:?}: {status}");
    }
}

fn encoded<M: Message + json::ProtoJson>(text: &str) -> Vec<u8> {
    json::from_str::<M>(text).expect("a valid request").encode_to_vec()
}
