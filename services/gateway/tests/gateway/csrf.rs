//! Attacks of web pages on a gateway without tokens on the machine of their user: DNS rebinding,
//! and requests that a browser sends without a preflight (CSRF).

use faultline_gateway::{Auth, Config, Scope, Token};
use faultline_proto::v1::{Call, call};
use http::{Method, Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;

use crate::{Mesh, soon};

const EVIL: &str = "evil.example";
const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// Method, path, headers and body of a request; one for each route that reads or changes anything.
type Asked = (&'static str, &'static str, &'static [(&'static str, &'static str)], String);

fn every_route() -> Vec<Asked> {
    let rpc = |method: &str| json!({"jsonrpc": "2.0", "id": 1, "method": method}).to_string();
    vec![
        ("POST", "/", &[], rpc("ListTasks")),
        ("POST", "/agents/echo", &[], rpc("SendMessage")),
        ("GET", "/tasks", &[], String::new()),
        ("POST", "/message:send", &[], "{}".to_owned()),
        ("POST", "/v1/tasks/t:cancel", &[("a2a-version", "")], String::new()),
        ("GET", "/.well-known/agent-card.json", &[], String::new()),
        ("POST", "/mesh/Tasks", &[], "{}".to_owned()),
        ("GET", "/metrics", &[], String::new()),
        ("GET", "/console/", &[], String::new()),
        ("GET", "/console/config.json", &[], String::new()),
        ("GET", "/nothing", &[], String::new()),
        ("POST", "/lf.a2a.v1.A2AService/ListTasks", &[GRPC], "\0\0\0\0\0".to_owned()),
    ]
}

/// The calls that reached the coordinator.
fn reached(mesh: &Mesh) -> Vec<Call> {
    mesh.fake.calls()
}

/// Sends `:authority` over HTTP/2, or `Host` over HTTP/1.1.
async fn ask(
    mesh: &Mesh,
    version: Version,
    authority: Option<&str>,
    (method, path, headers, body): Asked,
) -> (StatusCode, http::HeaderMap, String) {
    let stream = TcpStream::connect(mesh.address).await.unwrap();
    let method = method.parse::<Method>().unwrap();
    let mut request = Request::builder().method(method).version(version);
    for (name, value) in [("a2a-version", "1.0"), ("content-type", "application/json")] {
        if !headers.iter().any(|(said, _)| *said == name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(bytes::Bytes::from(body));
    let response = match version {
        Version::HTTP_2 => {
            let request = match authority {
                Some(name) => request.uri(format!("http://{name}{path}")),
                None => request.uri(path),
            };
            let handshake =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            soon("an answer", sender.send_request(request.body(body).unwrap())).await
        }
        _ => {
            let mut request = request.uri(path);
            if let Some(name) = authority {
                request = request.header("host", name);
            }
            let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            soon("an answer", sender.send_request(request.body(body).unwrap())).await
        }
    };
    let (head, body) = response.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, String::from_utf8_lossy(&body).into_owned())
}

fn is_refused(path: &str, (status, headers, body): &(StatusCode, http::HeaderMap, String)) -> bool {
    if path.starts_with("/lf.a2a") {
        return *status == StatusCode::OK
            && headers.get("grpc-status").is_some_and(|code| code == "7");
    }
    // JSON-RPC has its envelope, and 0.3 another format.
    *status == StatusCode::FORBIDDEN
        && (path.starts_with("/v1") || body.contains("PERMISSION_DENIED"))
}

#[tokio::test]
async fn foreign_host_is_refused_on_every_route_of_every_binding() {
    let mesh = Mesh::start().await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for authority in [Some("evil.example:8080"), Some("127.0.0.1.evil.example"), None] {
            for asked in every_route() {
                // An HTTP/2 client of hyper always sends an authority.
                if version == Version::HTTP_2 && authority.is_none() {
                    continue;
                }
                let path = asked.1;
                let answer = ask(&mesh, version, authority, asked).await;
                assert!(is_refused(path, &answer), "{version:?} {authority:?} {path}: {answer:?}");
            }
        }
    }
    assert_eq!(reached(&mesh), [], "no request reached the coordinator");
    for health in ["/healthz"] {
        let asked = ("GET", health, &[][..], String::new());
        let (status, ..) = ask(&mesh, Version::HTTP_11, Some(EVIL), asked).await;
        assert_eq!(status, StatusCode::OK, "health checks may use any name");
    }
    let asked = ("POST", "/grpc.health.v1.Health/Check", &[GRPC][..], "\0\0\0\0\0".to_owned());
    let (status, headers, _) = ask(&mesh, Version::HTTP_2, Some(EVIL), asked).await;
    assert_eq!(status, StatusCode::OK);
    assert!(!headers.contains_key("grpc-status"), "{headers:?}");
    for asked in every_route() {
        let path = asked.1;
        let host = format!("localhost:{}", mesh.address.port());
        let answer = ask(&mesh, Version::HTTP_11, Some(&host), asked).await;
        assert!(!is_refused(path, &answer), "{path}: {answer:?}");
    }
}

fn with_token(config: &mut Config) {
    let token = Token {
        // `printf %s secret | sha256sum`
        sha256: "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b".to_owned(),
        principal: "acme".to_owned(),
        agents: Vec::new(),
        scopes: vec![Scope::Send, Scope::Read],
    };
    config.auth = Auth { token: vec![token] };
}

#[tokio::test]
async fn configured_hosts_are_the_only_names_also_with_tokens() {
    let mesh = Mesh::start_with(|config| {
        with_token(config);
        config.hosts = vec!["agents.example".to_owned()];
        config.public_url = Some("https://mesh.example".to_owned());
    })
    .await;
    let mut client = mesh.client().await;
    for (host, status) in [
        ("agents.example", StatusCode::OK),
        ("MESH.example:443", StatusCode::OK),
        ("127.0.0.1:8080", StatusCode::OK),
        ("evil.example", StatusCode::FORBIDDEN),
    ] {
        let headers = [("host", host), ("authorization", "Bearer secret")];
        let answer = client.ask("GET", "/tasks", &headers, "").await;
        assert_eq!(answer.status, status, "{host}");
    }
    let config = Config { hosts: vec!["https://x".to_owned()], ..Config::default() };
    let refused = config.bind().await.err().unwrap().to_string();
    assert!(refused.contains("gateway.hosts: 'https://x'"), "{refused}");
}

/// 0.3 has its version in the path, and 1.0 may have it in the query: neither needs a header.
#[tokio::test]
async fn cancel_without_body_is_not_a_simple_request() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let paths = ["/v1/tasks/t:cancel", "/agents/echo/v1/tasks/t:cancel"];
    let kinds = ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
    for path in paths.into_iter().chain(["/tasks/t:cancel?A2A-Version=1.0"]) {
        for kind in kinds {
            let request = match kind {
                "" => {
                    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
                }
                kind => format!(
                    "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
                     content-length: 0\r\n\r\n"
                ),
            };
            let status = raw(&mesh, &request).await;
            assert!(
                status.contains(" 415 ") || status.contains(" 400 "),
                "{path} {kind}: {status}"
            );
        }
    }
    assert_eq!(reached(&mesh), [], "no request reached the coordinator");
    // Each of these headers makes a browser send a preflight.
    for headers in [
        [("a2a-version", ""), ("content-type", "application/json")],
        [("a2a-version", "0.3"), ("content-type", "text/plain")],
    ] {
        let answer = client.ask("POST", "/v1/tasks/t:cancel", &headers, "").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{headers:?}: {answer:?}");
        assert!(matches!(mesh.fake.last_call().await.body, Some(call::Body::Cancel(_))));
    }
    // A browser does not add a token by itself.
    let known = Mesh::start_with(with_token).await;
    let request = "POST /v1/tasks/t:cancel HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n\
                   content-length: 0\r\n\r\n";
    let status = raw(&known, request).await;
    assert!(status.contains(" 404 "), "{status}");
}

/// The status line of the answer to these bytes.
async fn raw(mesh: &Mesh, request: &str) -> String {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let mut stream = BufReader::new(TcpStream::connect(mesh.address).await.unwrap());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut line = String::new();
    soon("an answer", stream.read_line(&mut line)).await.unwrap();
    line
}

#[tokio::test]
async fn foreign_page_is_refused_and_the_console_is_not() {
    let mesh = Mesh::start_with(|config| {
        config.operators_act = true;
        config.public_url = Some("https://mesh.example/x".to_owned());
    })
    .await;
    let mut client = mesh.client().await;
    let port = mesh.address.port();
    let here = format!("127.0.0.1:{port}");
    let neighbour = format!("http://127.0.0.1:{}", port.wrapping_add(1));
    for origin in ["https://evil.example", "null", "http://localhost", &neighbour, "file://"] {
        for (method, path, headers, body) in every_route() {
            if headers.contains(&GRPC) {
                continue;
            }
            let mut headers = headers.to_vec();
            headers.extend([("host", here.as_str()), ("origin", origin)]);
            let answer = client.send(method, path, &headers, body).await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{origin} {method} {path}");
            drop(answer.into_body().collect().await);
        }
    }
    assert_eq!(reached(&mesh), [], "no request reached the coordinator");
    let own = format!("http://{here}");
    for origin in [own.as_str(), "https://mesh.example"] {
        let headers = [("host", here.as_str()), ("origin", origin)];
        let answer = client.ask("POST", "/mesh/Cancel", &headers, r#"{"taskId":"t-1"}"#).await;
        assert_eq!(answer.status, StatusCode::OK, "{origin}: {answer:?}");
    }
}
