//! Resource exhaustion by anonymous clients: memory stays bounded, links stay up, and other clients
//! are served meanwhile. The floods are bounded as well, so that a failing test does not exhaust
//! the machine.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use faultline_chassis::{Secret, limits};
use faultline_proto::{
    a2a::{GetTaskRequest, Message as A2aMessage, Part, Role, SendMessageRequest, part::Content},
    v1::{Call, Caller, Drop as Dropped, call, link_client::LinkClient, reply},
};
use faultline_tests::{
    Cluster, Plan, Process, Rpc,
    http2::{Body, Connection, endless, framed},
    task::{self, COMPLETED},
    until,
    wait::SOON,
};
use futures::future::join_all;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Empty, Full};
use tokio::{io::AsyncWriteExt, net::TcpSocket, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use yaml_rust2::YamlLoader;

use crate::start_with;

pub(super) const MIB: u64 = 1024 * 1024;
/// Streams that a gateway allows on one connection.
const STREAMS: usize = limits::PUBLIC_STREAMS_PER_CONNECTION_MAX as usize;
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// Memory limit of a role in the chart, in MiB.
fn chart_limit(role: &str) -> u64 {
    let values = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/faultline/values.yaml");
    let values = fs::read_to_string(values).expect("the chart has values");
    let values = YamlLoader::load_from_str(&values).expect("YAML");
    let limit = values[0][role]["resources"]["limits"]["memory"].as_str().expect("a limit");
    match limit.strip_suffix("Mi") {
        Some(mebi) => mebi.parse().expect("a number"),
        None => {
            1024 * limit.strip_suffix("Gi").expect("Mi or Gi").parse::<u64>().expect("a number")
        }
    }
}

/// Peak resident memory of a process, in MiB.
fn peak(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid()));
    let status = status.expect("the process runs");
    let line =
        status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux reports the peak");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib * 1024 / MIB
}

/// Sends endless bodies on many streams of many connections, until each stream is answered or has
/// sent `bytes`.
async fn flood(port: SocketAddr, path: &'static str, kind: &'static str, bytes: usize) {
    let connections = (0..8).map(|n| async move {
        let connection = Connection::open(2 + n % 2, port).await.expect("the port listens");
        let streams = (0..16).map(|_| {
            let mut sender = connection.sender.clone();
            let request = connection.request(path, kind, endless(bytes));
            async move {
                let answer = async {
                    sender.ready().await?;
                    sender.send_request(request).await
                };
                // An unanswered stream has sent all its bytes by then.
                let _ = timeout(Duration::from_secs(4), answer).await;
            }
        });
        join_all(streams).await;
    });
    join_all(connections).await;
}

/// Sends tasks until `stop` is set; returns the number of completed tasks.
pub(super) async fn send_until(rpc: Rpc, stop: Arc<AtomicBool>) -> usize {
    let mut count = 0;
    while !stop.load(Relaxed) {
        let sent = rpc.send("hello").await;
        assert_eq!(task::state(&sent), COMPLETED, "{sent}");
        count += 1;
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_anonymous_clients_stay_within_the_memory_of_the_chart() {
    let cluster = Plan::default().workers(&["echo"]).start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let rpc = cluster.rpc().agent("echo").within(SOON);
    let well_behaved = tokio::spawn(send_until(rpc, Arc::clone(&stop)));
    let gateway = cluster.addresses[0];
    let hub = cluster.coordinator_proxies[0].address;
    let grpc = "application/grpc";
    // 768 MiB each, if a server buffered the bodies.
    flood(gateway, CHECK, grpc, 6 * MIB as usize).await;
    flood(hub, CHECK, grpc, 6 * MIB as usize).await;
    flood(hub, "/externalscaler.ExternalScaler/IsActive", grpc, 6 * MIB as usize).await;
    flood(gateway, "/", "application/json", 6 * MIB as usize).await;
    flood(gateway, "/lf.a2a.v1.A2AService/SendMessage", grpc, 6 * MIB as usize).await;
    stop.store(true, Relaxed);
    let served = well_behaved.await.expect("every request of other clients succeeds");
    assert!(served > 0);
    check_memory(&cluster);
}

/// Sends heads that are small in transit and large in memory, because header compression makes a
/// repeated header one byte, with endless bodies.
async fn compressed_heads(port: SocketAddr) {
    let connections = (0..4).map(|_| async move {
        let connection = Connection::open(2, port).await.expect("the port listens");
        let streams = (0..STREAMS).map(|_| {
            let mut sender = connection.sender.clone();
            let mut request = connection.request(CHECK, "application/grpc", endless(1));
            for _ in 0..450 {
                request.headers_mut().append("a", HeaderValue::from_static(""));
            }
            async move {
                let answer = async {
                    sender.ready().await?;
                    sender.send_request(request).await
                };
                let _ = timeout(Duration::from_secs(4), answer).await;
            }
        });
        join_all(streams).await;
    });
    join_all(connections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_heads_of_anonymous_clients_stay_within_the_memory_of_the_chart() {
    let cluster = Plan::default().workers(&["echo"]).start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let rpc = cluster.rpc().agent("echo").within(SOON);
    let well_behaved = tokio::spawn(send_until(rpc, Arc::clone(&stop)));
    compressed_heads(cluster.addresses[0]).await;
    compressed_heads(cluster.coordinator_proxies[0].address).await;
    stop.store(true, Relaxed);
    assert!(well_behaved.await.expect("every request of other clients succeeds") > 0);
    check_memory(&cluster);
}

/// Raw HTTP/2 requests without bodies, because the client of hyper always reads.
fn raw_requests(count: u32) -> Vec<u8> {
    const HEADERS: u8 = 1;
    const END_STREAM_AND_HEADERS: u8 = 5;
    // :method GET and :scheme http of the static table, then :path and :authority as literals.
    let head = [&[0x82, 0x86, 0x04, 8], &b"/nothing"[..], &[0x01, 9], b"localhost"].concat();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    for stream in (0..count).map(|n| 2 * n + 1) {
        bytes.extend([0, 0, head.len() as u8, HEADERS, END_STREAM_AND_HEADERS]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(&head);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_unread_sockets_stay_within_the_memory_of_the_chart() {
    let cluster = Plan::default().workers(&["echo"]).start().await;
    let bytes = raw_requests(4000);
    let unread = (0..100).map(|_| async {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        let mut stream = socket.connect(cluster.addresses[0]).await.expect("the port listens");
        // The gateway may close the connection or stop reading from it.
        let _ = timeout(Duration::from_secs(4), stream.write_all(&bytes)).await;
        stream
    });
    let _unread = join_all(unread).await;
    let sent = cluster.rpc().agent("echo").within(SOON).send("hello").await;
    assert_eq!(task::state(&sent), COMPLETED, "{sent}");
    check_memory(&cluster);
}

pub(super) fn check_memory(cluster: &Cluster) {
    for (role, process) in
        [("gateway", &cluster.gateways[0]), ("coordinator", &cluster.coordinators[0])]
    {
        let peak = peak(process);
        let limit = chart_limit(role);
        eprintln!("{role}: at most {peak} MiB of {limit} MiB");
        assert!(peak < limit * 3 / 4, "{role}: {peak} MiB of {limit} MiB");
    }
}

/// Sends requests on many streams of many connections and reads no answer. Returns the connections,
/// which the test keeps open.
async fn read_nothing(port: SocketAddr, path: &'static str, window: u32) -> impl Sized {
    let connections = (0..32).map(|_| async move {
        let connection = Connection::with_window(2, port, Some(window))
            .await
            .expect("the port accepts connections");
        let asked = (0..STREAMS).map(|_| {
            let mut sender = connection.sender.clone();
            let uri = format!("http://{port}{path}");
            async move {
                sender.ready().await?;
                let body = Empty::new().boxed();
                sender.send_request(Request::get(uri).body(body).expect("a request")).await
            }
        });
        let answers = timeout(SOON, join_all(asked)).await.expect("headers need no window");
        (connection, answers)
    });
    join_all(connections).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_of_anonymous_clients_stay_within_the_memory_of_the_chart() {
    let cluster = Plan::default().workers(&["echo"]).start().await;
    let gateway = cluster.addresses[0];
    let hub = cluster.coordinator_proxies[0].address;
    let card = "/agents/echo/.well-known/agent-card.json";
    let _open = [
        read_nothing(gateway, card, 0).await,
        // With a window of one byte the HTTP/2 library buffers a whole answer.
        read_nothing(gateway, card, 1).await,
        read_nothing(hub, "/", 0).await,
    ];
    check_memory(&cluster);
    let mut other = Connection::open(3, gateway).await.unwrap();
    other.sender.ready().await.unwrap();
    let asked = Request::get(format!("http://{gateway}{card}")).body(Empty::new().boxed()).unwrap();
    let answer = timeout(SOON, other.sender.send_request(asked)).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200, "another client is answered");
    assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    let sent = cluster.rpc().agent("echo").within(SOON).send("hello").await;
    assert_eq!(task::state(&sent), COMPLETED);
}

/// Requests cards and resets the streams before the answer, on new connections as needed.
async fn reset_repeatedly(from: u8, port: SocketAddr, resets: Arc<AtomicUsize>, most: usize) {
    while resets.load(Relaxed) < most {
        let Ok(connection) = Connection::open(from, port).await else { continue };
        while !connection.is_closed() && resets.load(Relaxed) < most {
            let asked = (0..64).map(|n| {
                let agent = ["echo", "script"][n % 2];
                let uri = format!("http://{port}/agents/{agent}/.well-known/agent-card.json");
                let request = http::Request::get(uri).body(endless(0)).expect("a request");
                connection.sender.clone().send_request(request)
            });
            // Only a request that has gone out can be reset.
            let _ = timeout(Duration::from_millis(2), join_all(asked)).await;
            resets.fetch_add(64, Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_requests_of_one_client_do_not_cut_the_link_of_others() {
    let cluster = Plan::default().workers(&["echo,script"]).slots(128).start().await;
    let script = cluster.rpc().agent("script").within(Duration::from_secs(60));
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let script = script.clone();
            tokio::spawn(async move { script.send(&format!("sleep 4s; chunk {n}")).await })
        })
        .collect();
    let resets = Arc::new(AtomicUsize::new(0));
    let port = cluster.addresses[0];
    let storm = (0..8).map(|_| reset_repeatedly(2, port, Arc::clone(&resets), 30_000));
    timeout(Duration::from_secs(60), join_all(storm)).await.expect("a bounded storm ends");
    for sent in join_all(waiting).await {
        let sent = sent.expect("every waiting send is answered");
        assert_eq!(task::state(&sent), COMPLETED, "{sent}");
    }
    let log = cluster.gateways[0].log();
    assert_eq!(log.matches("connected to the coordinator").count(), 1, "{log}");
    assert!(!log.contains("no connection to the coordinator"), "{log}");
}

fn link_call(id: u64, body: call::Body) -> Call {
    Call {
        id,
        caller: Some(Caller { principal: "acme".into(), ..Caller::default() }),
        body: Some(body),
    }
}

/// A gateway with too many calls in flight, because it does not read the replies.
#[tokio::test(flavor = "multi_thread")]
async fn coordinator_refuses_calls_above_the_limit_alone_and_keeps_the_link() {
    let up = start_with(|config| config.mesh.token = Some(Secret::new("hunter2").unwrap())).await;
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{}", up.mesh.hub_addr()));
    // A small window, so that replies wait at the coordinator.
    let endpoint = endpoint.unwrap().initial_stream_window_size(1024);
    let channel = endpoint.connect().await.unwrap();
    let most = limits::LINK_CALLS_MAX as u64 + 500;
    let unknown = || GetTaskRequest { id: "none".to_owned(), ..GetTaskRequest::default() };
    let (calls, next) = mpsc::channel(1024);
    let mut request = tonic::Request::new(ReceiverStream::new(next));
    request.metadata_mut().insert("authorization", "Bearer hunter2".parse().unwrap());
    let mut client = LinkClient::new(channel);
    let mut replies = timeout(SOON, client.open(request)).await.unwrap().unwrap().into_inner();
    let asking = calls.clone();
    tokio::spawn(async move {
        for id in 1..=most {
            asking.send(link_call(id, call::Body::Get(unknown()))).await.expect("the link is up");
        }
    });
    // No reply is read until the coordinator has refused the first call.
    until("a call is refused", SOON, || async {
        let numbers = up.rpc.path("/metrics").get().await;
        String::from_utf8_lossy(&numbers.body).contains("OVERLOADED").then_some(())
    })
    .await;
    let mut answered = vec![0; most as usize + 1];
    let mut refused = 0;
    for _ in 0..most {
        let reply = timeout(SOON, replies.message()).await.expect("in time");
        let reply = reply.expect("the link is not cut").expect("the link is not closed");
        answered[reply.id as usize] += 1;
        let Some(reply::Body::Failure(failure)) = reply.body else {
            panic!("an unknown task is a failure")
        };
        refused += usize::from(failure.reason == "OVERLOADED");
    }
    assert!(answered[1..].iter().all(|count| *count == 1), "each call is answered once");
    assert!(refused > 0, "no call was refused as overload");

    // The link goes on, and a call that is dropped is confirmed.
    let part = Part { content: Some(Content::Text("sleep 60s".into())), ..Part::default() };
    let message = A2aMessage {
        message_id: "m-1".into(),
        role: Role::User as i32,
        parts: vec![part],
        ..A2aMessage::default()
    };
    let send = SendMessageRequest {
        tenant: "script".into(),
        message: Some(message),
        ..SendMessageRequest::default()
    };
    let id = most + 1;
    let sent = link_call(id, call::Body::Send(send));
    let left = call::Body::Drop(Dropped {});
    calls.send(sent).await.unwrap();
    calls.send(Call { id, caller: None, body: Some(left) }).await.unwrap();
    let confirmed = timeout(SOON, replies.message()).await.expect("in time").unwrap().unwrap();
    assert_eq!(confirmed.id, id);
    assert!(matches!(confirmed.body, Some(reply::Body::End(_))), "{confirmed:?}");
}

/// The status of a whole request.
pub(super) async fn send_whole(
    port: SocketAddr,
    request: impl Fn(&Connection) -> Request<Body>,
) -> u16 {
    let mut connection = Connection::open(2, port).await.expect("it listens");
    connection.sender.ready().await.expect("the connection is open");
    let sent = connection.sender.send_request(request(&connection));
    let answer = timeout(SOON, sent).await.expect("in time").expect("an answer");
    let status = answer.status().as_u16();
    answer.into_body().collect().await.expect("the answer ends");
    status
}

/// A protobuf field with a length.
pub(super) fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut wire = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut wire);
    wire.extend_from_slice(content);
    wire
}

/// Elements of two or three bytes that take up to several hundred in memory.
#[tokio::test(flavor = "multi_thread")]
async fn small_elements_of_anonymous_clients_stay_within_the_memory_of_the_chart() {
    let cluster = Plan::default().workers(&["echo"]).start().await;
    let gateway = cluster.addresses[0];
    let bytes = limits::BODY_BYTES_MAX - 1000;
    for (parts, element) in [(true, "{}"), (false, r#"{"":0}"#), (false, "[]")] {
        let list = vec![element; bytes / (element.len() + 1)].join(",");
        let parts = if parts { list } else { format!(r#"{{"data":[{list}]}}"#) };
        let message = format!(r#"{{"messageId":"m","role":"ROLE_USER","parts":[{parts}]}}"#);
        let params = format!(r#"{{"tenant":"echo","message":{message}}}"#);
        let rpc = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{params}}}"#);
        let rest = format!(r#"{{"message":{message}}}"#);
        for (path, body) in [("/", rpc), ("/agents/echo/message:send", rest)] {
            let body = Bytes::from(body);
            let request = |connection: &Connection| {
                let body = Full::new(body.clone()).boxed();
                connection.request(path, "application/json", body)
            };
            assert_eq!(send_whole(gateway, request).await, 413, "{path} {element}");
        }
    }
    let message = field(2, &field(5, &[]).repeat(bytes / 2));
    let request = |connection: &Connection| {
        connection.request(
            "/lf.a2a.v1.A2AService/SendMessage",
            "application/grpc",
            framed(&message),
        )
    };
    assert_eq!(send_whole(gateway, request).await, 200, "the status of gRPC is in its trailers");
    let sent = cluster.rpc().agent("echo").within(SOON).send("hello").await;
    assert_eq!(task::state(&sent), COMPLETED, "{sent}");
    check_memory(&cluster);
}
