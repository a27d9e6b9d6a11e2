//! Cross-site request forgery at the coordinator's port: the requests that a web page can make a
//! browser send, as raw bytes and over HTTP/2. None is served, with or without a valid token.

use std::net::SocketAddr;

use bytes::Bytes;
use faultline_chassis::{Secret, dial::Connector, tls::Trust};
use faultline_proto::{
    a2a::{Message, Part, Role, SendMessageRequest, part::Content},
    v1::OperatorAnswerRequest,
};
use faultline_tests::{
    raw::read_to_close,
    task::{self, INPUT_REQUIRED},
    wait::SOON,
};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::start_with;

const SEND: &str = "/lf.a2a.v1.A2AService/SendMessage";
const ANSWER: &str = "/faultline.v1.Mesh/Answer";

/// A message with its gRPC frame.
fn framed(message: &impl prost::Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(body.len()).expect("the message is short").to_be_bytes());
    frame.extend(body);
    frame
}

fn send() -> Vec<u8> {
    let part = Part { content: Some(Content::Text("chunk pay".into())), ..Part::default() };
    let message = Message {
        message_id: "m".into(),
        role: Role::User.into(),
        parts: vec![part],
        ..Message::default()
    };
    let tenant = "script".into();
    let message = Some(message);
    framed(&SendMessageRequest { tenant, message, ..SendMessageRequest::default() })
}

/// A POST over HTTP/1.1, and the status of its answer.
async fn posted(hub: SocketAddr, path: &str, headers: &[String], body: &[u8]) -> String {
    let mut stream = TcpStream::connect(hub).await.expect("the port listens");
    let mut head = format!("POST {path} HTTP/1.1\r\nhost: {hub}\r\nconnection: close\r\n");
    for header in headers {
        head += &format!("{header}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.expect("the server reads");
    stream.write_all(body).await.expect("the server reads");
    let answer = read_to_close(&mut stream, SOON).await.expect("the server closes the connection");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(!answer.to_ascii_lowercase().contains("access-control"), "{answer}");
    answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn web_page_can_neither_start_a_task_nor_answer_a_question_at_the_coordinator() {
    let token = Secret::new("hunter2").unwrap();
    let up = start_with(|config| config.mesh.token = Some(token)).await;
    let asks = up.script.send("ask \"Pay back 5000 EUR?\"").await;
    let task_id = task::id(&asks).to_owned();
    let answer = OperatorAnswerRequest { task_id, text: "yes".into(), ..<_>::default() };
    let calls = [(SEND, send()), (ANSWER, framed(&answer))];
    let hub = up.mesh.hub_addr();

    for (path, body) in &calls {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/grpc"] {
            for token in [None, Some("authorization: Bearer hunter2".to_owned())] {
                let kind = format!("content-type: {kind}");
                let plain: Vec<String> = [kind].into_iter().chain(token).collect();
                assert_eq!(posted(hub, path, &plain, body).await, "505", "{path} {plain:?}");
                for origin in ["http://evil.example", "null"] {
                    let origin = format!("origin: {origin}");
                    let headers = [&plain[..], &[origin]].concat();
                    assert_eq!(posted(hub, path, &headers, body).await, "403", "{headers:?}");
                }
            }
        }
    }

    // HTTP/2, as browsers speak it to a port with TLS.
    let connector = Connector::new(Trust::system()).http2_only();
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
    let sent = async |method: Method, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let mut request = Request::builder().method(method).uri(format!("http://{hub}{path}"));
        request = request.header("authorization", "Bearer hunter2");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        let answer = client.request(request).await.unwrap();
        let status = answer.status();
        let headers = answer.headers().clone();
        (status, headers, answer.into_body().collect().await.unwrap())
    };
    let grpc = ("content-type", "application/grpc");
    let origin = ("origin", "http://evil.example");
    for (path, body) in &calls {
        for (headers, status) in [
            (&[grpc, origin][..], StatusCode::FORBIDDEN),
            (&[("content-type", "text/plain")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
            (&[("content-type", "application/grpc-web")], StatusCode::UNSUPPORTED_MEDIA_TYPE),
            (&[], StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ] {
            assert_eq!(sent(Method::POST, path, headers, body).await.0, status, "{headers:?}");
        }
        let preflight = [origin, ("access-control-request-method", "POST")];
        let (status, headers, _) = sent(Method::OPTIONS, path, &preflight, b"").await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(!headers.contains_key("access-control-allow-origin"), "{headers:?}");
    }

    let there = up.rpc.mesh("Tasks", json!({})).await;
    assert_eq!(there["tasks"].as_array().map(Vec::len), Some(1), "{there}");
    assert_eq!(task::state(&up.script.task(task::id(&asks)).await), INPUT_REQUIRED);
    // The same bytes with the token are served as a gRPC request.
    let (status, headers, body) =
        sent(Method::POST, SEND, &[grpc, ("te", "trailers")], &send()).await;
    let status =
        (status, headers.get("grpc-status").or(body.trailers().unwrap().get("grpc-status")));
    assert_eq!((status.0, status.1.unwrap().as_bytes()), (StatusCode::OK, &b"0"[..]));
    let there = up.rpc.mesh("Tasks", json!({})).await;
    assert_eq!(there["tasks"].as_array().map(Vec::len), Some(2), "{there}");
}
