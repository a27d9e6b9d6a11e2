//! Floods from a client with one worker's credential: they cost the coordinator a bounded amount of
//! memory (admission control), and others are served meanwhile.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use faultline_proto::id::TaskId;
use faultline_tests::{
    Cluster, Plan,
    http2::{Body, Connection, framed},
    task::{self, COMPLETED},
    wait::SOON,
};
use futures::{StreamExt, future::join_all, stream};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::time::timeout;

use super::floods::{MIB, check_memory, field, send_until, send_whole};

const SEND: &str = "/lf.a2a.v1.A2AService/SendMessage";
const ATTACH: &str = "/faultline.v1.Hub/Attach";
/// Of the agent `refunds`. The hash is that of `refunds-token`.
const CREDENTIAL: &str = "[[mesh.credential]]\nrole = \"worker\"\nagents = [\"refunds\"]\n\
    sha256 = \"2a8f0e54f3bedb4f0b4707558b660b2ddc5fc6461aa66f6435d2040cf54b1a28\"";

async fn start() -> (Cluster, SocketAddr) {
    let cluster = Plan::default().workers(&["echo"]).with(CREDENTIAL).start().await;
    // Past the proxy, which gives all clients one address.
    let hub = cluster.coordinators[0].ready();
    let hub = hub.rsplit('/').next().unwrap_or(hub).parse().expect("the coordinator's address");
    (cluster, hub)
}

/// A message that announces so many bytes and ends before the last.
fn unfinished(announced: usize) -> Body {
    const CHUNK: usize = 16 * 1024;
    let length = u32::try_from(announced).expect("a gRPC length").to_be_bytes();
    let prefix = Bytes::from([&[0], &length[..]].concat());
    let chunks = std::iter::repeat_n(Bytes::from_static(&[0; CHUNK]), announced / CHUNK - 1);
    let chunks = stream::iter([prefix]).chain(stream::iter(chunks));
    BodyExt::boxed(StreamBody::new(
        chunks.map(|data| Ok(Frame::data(data))).chain(stream::pending()),
    ))
}

fn authorized(mut request: Request<Body>, token: &str) -> Request<Body> {
    let headers = request.headers_mut();
    headers.insert("authorization", HeaderValue::from_static("Bearer refunds-token"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    headers.insert("faultline-task", token.parse().expect("a header"));
    request
}

/// Two connections with twenty streams each, which end when they are answered or have sent all.
async fn flood(hub: SocketAddr, path: &'static str, token: &str, announced: usize) {
    let connections = (0..2).map(|_| async move {
        let connection = Connection::open(2, hub).await.expect("it listens");
        let streams = (0..20).map(|_| {
            let mut sender = connection.sender.clone();
            let request = connection.request(path, "application/grpc", unfinished(announced));
            let request = authorized(request, token);
            async move {
                let answer = async {
                    sender.ready().await?;
                    sender.send_request(request).await
                };
                let _ = timeout(Duration::from_secs(6), answer).await;
            }
        });
        join_all(streams).await;
    });
    join_all(connections).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_messages_of_a_worker_stay_within_the_memory_of_the_chart() {
    let (cluster, hub) = start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let rpc = cluster.rpc().agent("echo").within(SOON);
    let served = tokio::spawn(send_until(rpc, Arc::clone(&stop)));
    // Only the store knows that there is no such task.
    let forged = format!("v1.{}.1.{}", TaskId::new(), "00".repeat(32));
    let mib = MIB as usize;
    for (path, token, announced) in [
        (SEND, "v1.x.1.00", 40 * mib),
        (SEND, &forged, 40 * mib),
        (SEND, &forged, 9 * mib - 100),
        (ATTACH, "v1.x.1.00", 40 * mib),
        (ATTACH, "v1.x.1.00", 20 * mib - 100),
    ] {
        flood(hub, path, token, announced).await;
    }
    stop.store(true, Relaxed);
    assert!(served.await.expect("every request of another caller succeeds") > 0);
    check_memory(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_elements_of_a_worker_stay_within_the_memory_of_the_chart() {
    let (cluster, hub) = start().await;
    let forged = format!("v1.{}.1.{}", TaskId::new(), "00".repeat(32));
    let mib = MIB as usize;
    let agents = field(1, &field(3, &[]).repeat(9 * mib));
    let held = field(1, &field(5, &[]).repeat(9 * mib));
    let reports = field(2, &field(1, &[]).repeat(9 * mib));
    let parts = field(2, &field(5, &[]).repeat(4 * mib));
    for (path, message) in [(ATTACH, agents), (ATTACH, held), (ATTACH, reports), (SEND, parts)] {
        let request = |connection: &Connection| {
            let request = connection.request(path, "application/grpc", framed(&message));
            authorized(request, &forged)
        };
        assert_eq!(send_whole(hub, request).await, 200, "the status of gRPC is in its trailers");
    }
    let sent = cluster.rpc().agent("echo").within(SOON).send("hello").await;
    assert_eq!(task::state(&sent), COMPLETED, "{sent}");
    check_memory(&cluster);
}
