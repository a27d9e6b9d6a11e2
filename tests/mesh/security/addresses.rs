//! Limits per client address, before authentication: one address cannot exhaust the connections,
//! health watches or KEDA streams of a port.

use std::time::Duration;

use faultline_chassis::MeshConfig;
use faultline_proto::keda::ScaledObjectRef;
use faultline_tests::{
    http2::{Connection, grpc_status},
    task::{self, COMPLETED},
    until,
    wait::SOON,
};
use futures::future::join_all;
use http_body_util::BodyExt;
use prost::Message;
use serde_json::json;
use tokio::time::timeout;

use crate::start_with;

const WATCH: &str = "/grpc.health.v1.Health/Watch";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const KEDA: &str = "/externalscaler.ExternalScaler/StreamIsActive";
/// Status code of gRPC.
const RESOURCE_EXHAUSTED: &str = "8";

/// Opens streams until one is refused; returns the open streams and the status of the refusal.
async fn take_all(
    connection: &mut Connection,
    path: &str,
    message: &[u8],
) -> (Vec<hyper::body::Incoming>, String) {
    let mut open = Vec::new();
    loop {
        let mut answer = timeout(SOON, connection.grpc(path, message))
            .await
            .expect("in time")
            .expect("the call is answered");
        if answer.headers().contains_key("grpc-status") {
            return (open, grpc_status(answer).await);
        }
        timeout(SOON, answer.body_mut().frame())
            .await
            .expect("in time")
            .expect("the stream has a first frame")
            .expect("the frame is valid");
        open.push(answer.into_body());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_watches_of_one_address_leave_room_for_others() {
    let up = start_with(|config| {
        config.gateway.health_watches_per_address_max = 5;
        config.coordinator.health_watches_per_address_max = 5;
    })
    .await;
    for port in [up.mesh.gateway_addr(), up.mesh.hub_addr()] {
        let mut greedy = Connection::open(2, port).await.unwrap();
        let mut same = Connection::open(2, port).await.unwrap();
        let mut other = Connection::open(3, port).await.unwrap();
        let (open, refused) = take_all(&mut greedy, WATCH, b"").await;
        assert_eq!((open.len(), refused.as_str()), (5, RESOURCE_EXHAUSTED), "{port}");
        let again = same.grpc(WATCH, b"").await.unwrap();
        assert_eq!(
            grpc_status(again).await,
            RESOURCE_EXHAUSTED,
            "the limit counts the address, not the connection"
        );
        let watch = other.grpc(WATCH, b"").await.unwrap();
        assert!(!watch.headers().contains_key("grpc-status"), "another address may watch");
        let check = same.grpc(CHECK, b"").await.unwrap();
        assert_eq!(grpc_status(check).await, "0", "a check is not a watch");
        drop(open);
        until("closed streams free their places", SOON, || {
            let watch =
                same.request(WATCH, "application/grpc", faultline_tests::http2::framed(b""));
            let watch = same.sender.send_request(watch);
            async move { (!watch.await.ok()?.headers().contains_key("grpc-status")).then_some(()) }
        })
        .await;
    }
    let sent = up.rpc.agent("echo").send("hello").await;
    assert_eq!(task::state(&sent), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn keda_streams_of_one_address_leave_room_for_others() {
    let up = start_with(|config| config.coordinator.scaler_streams_per_address_max = 3).await;
    let metadata = [("agents", "script")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let object = ScaledObjectRef { scaler_metadata: metadata.into(), ..Default::default() };
    let object = object.encode_to_vec();
    let mut greedy = Connection::open(2, up.mesh.hub_addr()).await.unwrap();
    let (open, refused) = take_all(&mut greedy, KEDA, &object).await;
    assert_eq!((open.len(), refused.as_str()), (3, RESOURCE_EXHAUSTED));
    let mut other = Connection::open(3, up.mesh.hub_addr()).await.unwrap();
    let answer = other.grpc(KEDA, &object).await.unwrap();
    assert!(!answer.headers().contains_key("grpc-status"), "another address is served");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_address_leave_room_for_others() {
    let most = 20;
    let up = start_with(|config| {
        config.gateway.connections_per_address_max = most;
        config.coordinator.connections_per_address_max = most;
        config.gateway.trusted_proxies = vec!["127.0.0.4/32".parse().unwrap()];
    })
    .await;
    let served = async |from: u8, port| {
        let connections = join_all((0..2 * most).map(|_| Connection::open(from, port))).await;
        let asked = connections.into_iter().map(|connection| async {
            let mut connection = connection.ok()?;
            let answer = connection.grpc(CHECK, b"").await.ok()?;
            (grpc_status(answer).await == "0").then_some(connection)
        });
        let served = join_all(asked).await.into_iter().flatten();
        served.collect::<Vec<_>>()
    };
    for port in [up.mesh.gateway_addr(), up.mesh.hub_addr()] {
        let greedy = timeout(SOON, served(2, port)).await.expect("refused ones are closed at once");
        assert_eq!(greedy.len(), most, "{port}");
        let mut other = Connection::open(3, port).await.unwrap();
        assert_eq!(grpc_status(other.grpc(CHECK, b"").await.unwrap()).await, "0");
        drop(greedy);
        until("closed connections make room", SOON, || async move {
            let mut again = Connection::open(2, port).await.ok()?;
            (grpc_status(again.grpc(CHECK, b"").await.ok()?).await == "0").then_some(())
        })
        .await;
    }
    let proxy = timeout(SOON, served(4, up.mesh.gateway_addr())).await.unwrap();
    assert_eq!(proxy.len(), 2 * most, "a trusted proxy stands for many clients");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_http2_connections_are_closed_and_open_streams_are_not() {
    let idle = Duration::from_millis(300);
    let up = start_with(|config| config.gateway.idle_connection_ms = idle.as_millis() as u64).await;
    let port = up.mesh.gateway_addr();
    let mut idle: Vec<_> = Vec::new();
    for from in 2..8 {
        let mut connection = Connection::open(from, port).await.unwrap();
        // Every second connection never sends a request.
        if from % 2 == 0 {
            assert_eq!(grpc_status(connection.grpc(CHECK, b"").await.unwrap()).await, "0");
        }
        idle.push(connection);
    }
    let mut watching = Connection::open(9, port).await.unwrap();
    let mut watch = watching.grpc(WATCH, b"").await.unwrap().into_body();
    watch.frame().await.unwrap().unwrap();
    let quiet = up.script.stream(
        "SendStreamingMessage",
        json!({
            "message": {"messageId": "m-1", "role": "ROLE_USER",
                "parts": [{"text": "sleep 2s; chunk done"}]},
        }),
    );
    let quiet = quiet.await.unwrap();
    until("idle connections are closed", SOON, || {
        let closed = idle.iter().all(Connection::is_closed);
        async move { closed.then_some(()) }
    })
    .await;
    assert!(!watching.is_closed(), "a connection with an open stream is not idle");
    assert!(quiet.all().await.len() > 2, "a stream over HTTP/1 goes on too");
    assert_eq!(grpc_status(watching.grpc(CHECK, b"").await.unwrap()).await, "0");
}

#[tokio::test]
async fn unusable_limits_are_refused_by_name() {
    let gateway = async |change: fn(&mut faultline_gateway::Config)| {
        let listen = ([127, 0, 0, 1], 0).into();
        let mut config = faultline_gateway::Config { listen, ..Default::default() };
        change(&mut config);
        config.bind().await.err().expect("the configuration is refused").to_string()
    };
    for (refused, key) in [
        (gateway(|c| c.connections_per_address_max = 0).await, "connections_per_address_max is 0"),
        (gateway(|c| c.idle_connection_ms = 0).await, "idle_connection_ms is 0"),
        (gateway(|c| c.body_budget_mib = 8).await, "body_budget_mib is 8"),
    ] {
        assert!(refused.contains(key), "{refused}");
    }
    let data = tempfile::tempdir().unwrap();
    let config = faultline_coordinator::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        mesh: MeshConfig { data: Some(data.path().to_owned()), ..MeshConfig::default() },
        scaler_streams_per_address_max: 0,
        ..faultline_coordinator::Config::default()
    };
    let refused = config.bind().await.err().expect("the configuration is refused").to_string();
    assert!(refused.contains("scaler_streams_per_address_max is 0"), "{refused}");
    assert!(!data.path().join("mesh.token").exists(), "no token without a coordinator");
}
