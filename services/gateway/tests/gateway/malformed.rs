//! Malformed requests and the JSON errors that answer them.

use faultline_chassis::limits;
use faultline_gateway::ErrorTable;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    Mesh,
    client::{message, request},
    soon,
};

#[tokio::test]
async fn malformed_request_gets_a_json_rpc_error() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let deep = "[".repeat(5000);
    let deep_params = request("GetTask", Value::Null).replace("null", &deep);
    for (body, code, id) in [
        ("", -32700, Value::Null),
        ("{", -32700, Value::Null),
        ("nonsense", -32700, Value::Null),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":}}"#, -32700, Value::Null),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ListTasks"} x"#, -32700, Value::Null),
        (&deep, -32700, Value::Null),
        (&deep_params, -32700, Value::Null),
        ("[]", -32600, Value::Null),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ListTasks"}]"#, -32600, Value::Null),
        ("7", -32600, Value::Null),
        ("null", -32600, Value::Null),
        (r#""text""#, -32600, Value::Null),
        ("{}", -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","method":"ListTasks"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ListTasks"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ListTasks"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ListTasks"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ListTasks"}"#, -32600, Value::Null),
        (r#"{"jsonrpc":"1.0","id":9,"method":"ListTasks"}"#, -32600, json!(9)),
        (r#"{"jsonrpc":2.0,"id":9,"method":"ListTasks"}"#, -32600, json!(9)),
        (r#"{"id":9,"method":"ListTasks"}"#, -32600, json!(9)),
        (r#"{"jsonrpc":"2.0","id":"9"}"#, -32600, json!("9")),
        (r#"{"jsonrpc":"2.0","id":9,"method":7}"#, -32600, json!(9)),
        (r#"{"jsonrpc":"2.0","id":9,"method":null}"#, -32600, json!(9)),
        (r#"{"jsonrpc":"2.0","id":9,"method":"tasks/get"}"#, -32601, json!(9)),
        (r#"{"jsonrpc":"2.0","id":9,"method":"GetTask","params":[]}"#, -32602, json!(9)),
        (r#"{"jsonrpc":"2.0","id":9,"method":"GetTask","params":7}"#, -32602, json!(9)),
        (r#"{"jsonrpc":"2.0","id":9,"method":"GetTask"}"#, -32602, json!(9)),
    ] {
        let answer = client.post("/", body.to_owned()).await;
        let shown: String = body.chars().take(80).collect();
        assert_eq!(answer.status, StatusCode::OK, "{shown}");
        assert_eq!((answer.code(), &answer.body["id"]), (code, &id), "{shown}");
        assert_eq!(answer.body["jsonrpc"], "2.0");
    }
}

#[tokio::test]
async fn parse_error_names_its_position() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let answer = client.post("/", "{\"jsonrpc\":\n  oops}").await;
    assert!(answer.message().contains("line 2 column 3"), "{answer:?}");
    let answer = client.post("/", &b"{\"jsonrpc\":\"\xff\"}"[..]).await;
    assert_eq!(answer.code(), -32700);
    assert!(answer.message().contains("UTF-8 after byte 12"), "{answer:?}");
}

#[tokio::test]
async fn violations_name_their_parameters() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let with = |pointer: &str, value: Value| {
        let mut params = message("x");
        *params.pointer_mut(pointer).unwrap() = value;
        params
    };
    let long = "x".repeat(limits::KEY_BYTES_MAX + 1);
    let mut context = message("x");
    context["message"]["contextId"] = json!(long);
    let mut history = message("x");
    history["configuration"] = json!({"historyLength": -1});
    for (method, params, field) in [
        ("SendMessage", json!({}), "message"),
        ("SendMessage", with("/message", json!(7)), "message"),
        ("SendMessage", with("/message/messageId", json!("")), "message.messageId"),
        ("SendMessage", with("/message/messageId", json!(long)), "message.messageId"),
        ("SendMessage", with("/message/messageId", json!(7)), "message.messageId"),
        ("SendMessage", with("/message/role", json!("ROLE_UNSPECIFIED")), "message.role"),
        ("SendMessage", with("/message/role", json!("user")), "message.role"),
        ("SendMessage", with("/message/role", json!(9)), "message.role"),
        ("SendMessage", with("/message/parts", json!([])), "message.parts"),
        ("SendMessage", with("/message/parts", json!("x")), "message.parts"),
        ("SendMessage", with("/message/parts/0", json!({})), "message.parts[0]"),
        ("SendMessage", with("/message/parts/0/text", json!(7)), "message.parts[0].text"),
        (
            "SendMessage",
            with("/message/parts/0", json!({"text": "x", "url": "y"})),
            "message.parts[0].url",
        ),
        ("SendMessage", context, "message.contextId"),
        ("SendStreamingMessage", history, "configuration.historyLength"),
        ("GetTask", json!({"id": ""}), "id"),
        ("GetTask", json!({"id": "t", "historyLength": -1}), "historyLength"),
        ("CancelTask", json!({}), "id"),
        ("SubscribeToTask", json!({}), "id"),
        ("ListTasks", json!({"pageSize": 0}), "pageSize"),
        ("ListTasks", json!({"pageSize": 101}), "pageSize"),
        ("ListTasks", json!({"status": "DONE"}), "status"),
        ("ListTasks", json!({"statusTimestampAfter": "yesterday"}), "statusTimestampAfter"),
    ] {
        let answer = client.rpc(method, params.clone()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!((answer.code(), answer.fields()), (-32602, vec![field]), "{method} {params}");
    }
}

#[tokio::test]
async fn duplicate_key_is_rejected_and_named() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let text =
        |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"M","params":{params}}}"#);
    let send = |message: &str| {
        let message = format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER",{message}}}}}"#);
        text(&message).replace("\"M\"", "\"SendMessage\"")
    };
    let old = |message: &str| {
        send(message).replace("SendMessage", "message/send").replace("ROLE_USER", "user")
    };
    let get = text(r#"{"id":"a","id":"b"}"#).replace("\"M\"", "\"GetTask\"");
    let data = r#""parts":[{"data":{"pay":1,"pay":1000}}]"#;
    let metadata = r#""parts":[{"text":"x"}],"metadata":{"who":1,"who":2}"#;
    let key = |name: &str| format!("key \"{name}\" is given twice");
    for (version, body, field, says) in [
        ("1.0", get, "id", "given twice".to_owned()),
        ("1.0", send(r#""parts":[],"parts":[]"#), "message.parts", "given twice".to_owned()),
        ("1.0", send(data), "message.parts[0].data", key("pay")),
        ("1.0", send(metadata), "message.metadata", key("who")),
        ("0.3", old(r#""parts":[],"parts":[]"#), "params", key("parts")),
        ("1.0", send(r#""parts":[{"text":"x"}],"x":1,"x":2"#), "message", key("x")),
        ("0.3", old(metadata), "params", key("who")),
        ("0.3", old(r#""parts":[{"kind":"text","text":"x"}],"x":1,"x":2"#), "params", key("x")),
    ] {
        let answer = client.ask("POST", "/", &[("a2a-version", version)], body.clone()).await;
        assert_eq!((answer.code(), answer.fields()), (-32602, vec![field]), "{body}");
        assert!(answer.message().contains(&says), "{answer:?}");
    }
    let twice = text("{}").replace(r#""id":1"#, r#""id":1,"params":{}"#);
    let answer = client.post("/", twice).await;
    assert_eq!(answer.code(), -32600);
    assert!(answer.message().contains("duplicate field `params`"), "{answer:?}");
}

#[tokio::test]
async fn data_nesting_is_bounded() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let nested = |levels: usize| -> Value {
        (1..levels).fold(json!([]), |inner, i| match i % 2 {
            0 => json!([inner]),
            _ => json!({"x": inner}),
        })
    };
    // An object counts as the first level.
    let object = |levels: usize| json!({"x": nested(levels - 1)});
    let data = |levels| json!([{"text": "a"}, {"text": "b"}, {"data": nested(levels)}]);
    for (pointer, field, make) in [
        ("/message/parts", "message.parts[2].data", &data as &dyn Fn(usize) -> Value),
        ("/message/metadata", "message.metadata", &object),
        ("/metadata", "metadata", &object),
    ] {
        for levels in [limits::DATA_DEPTH_MAX, limits::DATA_DEPTH_MAX + 1, 100] {
            let mut params = message("x");
            params["metadata"] = json!({});
            params["message"]["metadata"] = json!({});
            *params.pointer_mut(pointer).unwrap() = make(levels);
            let answer = client.rpc("SendMessage", params).await;
            if levels <= limits::DATA_DEPTH_MAX {
                assert!(answer.body["result"].is_object(), "{answer:?}");
            } else {
                assert_eq!((answer.code(), answer.fields()), (-32602, vec![field]));
            }
        }
    }
}

#[tokio::test]
async fn oversized_content_is_413() {
    let mesh = Mesh::start().await;
    let text = |bytes: usize| request("SendMessage", message(&"x".repeat(bytes)));
    for (body, id) in
        [(text(limits::BODY_BYTES_MAX), json!(null)), (text(limits::MESSAGE_BYTES_MAX), json!(1))]
    {
        let answer = mesh.client().await.post("/", body).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!((answer.code(), &answer.body["id"]), (-32602, &id));
        assert_eq!(answer.body["error"]["data"][0]["reason"], "CONTENT_TOO_LARGE");
    }
    // The coordinator could not decode such a call, which would break the link of all callers.
    let large = "x".repeat(limits::MESSAGE_BYTES_MAX);
    let push = request("CreateTaskPushNotificationConfig", json!({"taskId": "t-1", "url": large}));
    let inspect = json!({"taskId": large}).to_string();
    for (path, body) in [("/", push), ("/mesh/Inspect", inspect)] {
        let answer = mesh.client().await.post(path, body).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
    }
    let fits = text(limits::MESSAGE_BYTES_MAX - 100);
    assert!(mesh.client().await.post("/", fits).await.body["result"].is_object());
}

#[tokio::test]
async fn chunked_body_is_bounded_too() {
    let mesh = Mesh::start().await;
    let mut stream = TcpStream::connect(mesh.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(0x10_0000));
    for _ in 0..12 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 1024];
    let n = soon("an answer", stream.read(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("CONTENT_TOO_LARGE"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn body_that_does_not_arrive_is_408() {
    let mesh = Mesh::start().await;
    let mut stream = TcpStream::connect(mesh.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{\"jsonrpc\":";
    stream.write_all(head.as_bytes()).await.unwrap();
    let started = tokio::time::Instant::now();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains(r#""jsonrpc":"2.0","id":null,"error":{"code":-31004"#), "{answer}");
    assert!(started.elapsed() >= limits::BODY_READ_TIMEOUT);
}

#[tokio::test]
async fn unknown_content_type_has_the_status_of_the_error_table() {
    for (table, status) in [(ErrorTable::V1_0_1, 400), (ErrorTable::V1_0_0, 415)] {
        let mesh = Mesh::start_with(|config| config.a2a_error_table = table).await;
        let mut client = mesh.client().await;
        let text = [("content-type", "text/plain")];
        let rpc = client.ask("POST", "/", &text, request("ListTasks", json!({}))).await;
        assert_eq!((rpc.status.as_u16(), rpc.code()), (status, -32005), "{table:?}");
        let rest = client.ask("POST", "/message:send", &text, "{}").await;
        assert_eq!((rest.status.as_u16(), rest.code()), (status, status.into()), "{table:?}");
    }
}

#[tokio::test]
async fn wrong_content_types_and_methods_are_rejected_in_json() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let body = request("ListTasks", json!({}));
    for (content_type, status) in [
        ("application/json", 200),
        ("application/a2a+json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("", 400),
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
    ] {
        let headers = [("content-type", content_type)];
        let answer = client.ask("POST", "/", &headers, body.clone()).await;
        assert_eq!(answer.status.as_u16(), status, "{content_type}");
        if status == 400 {
            assert_eq!(answer.code(), -32005);
        }
    }
    let packed = [("content-encoding", "gzip")];
    let packed = client.ask("POST", "/", &packed, body.clone()).await;
    assert_eq!((packed.status.as_u16(), packed.code()), (400, -32005));
    assert!(packed.message().contains("Content-Encoding"), "{packed:?}");
    for verb in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/", "/agents/echo"] {
            let answer = client.ask(verb, path, &[], "").await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{verb} {path}");
            assert_eq!(answer.headers["allow"], "POST");
            assert_eq!((answer.code(), &answer.body["jsonrpc"]), (-32600, &json!("2.0")));
        }
    }
    for path in ["/nowhere", "/agents", "/agents/a/b", "/mesh", "/mesh/Nothing"] {
        let answer = client.post(path, "{}").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.code(), 404);
    }
}
