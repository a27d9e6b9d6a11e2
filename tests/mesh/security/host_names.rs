//! Host-header checks of the ports of a mesh against DNS rebinding.

use faultline_chassis::{
    Metrics, Secret,
    admin::{Admin, Probes},
};
use faultline_tests::wait::SOON;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::timeout};

use crate::start_with;

const TOKEN: &str = "hunter2";

/// A gRPC call to `address` under this `:authority`, with the token of the mesh.
async fn call(address: std::net::SocketAddr, authority: &str, path: &str) -> HeaderMap {
    let stream = TcpStream::connect(address).await.expect("the port listens");
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("the port speaks HTTP/2");
    tokio::spawn(connection);
    let request = Request::post(format!("http://{authority}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(Full::new(bytes::Bytes::from_static(b"\0\0\0\0\0")))
        .expect("a request");
    let answer = timeout(SOON, sender.send_request(request))
        .await
        .expect("in time")
        .expect("the call is answered");
    assert_eq!(answer.status(), StatusCode::OK);
    let (head, body) = answer.into_parts();
    let trailers =
        body.collect().await.expect("the answer ends").trailers().cloned().unwrap_or_default();
    head.headers.into_iter().chain(trailers).filter_map(|(k, v)| Some((k?, v))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_on_loopback_refuses_a_foreign_authority_also_with_the_token() {
    let up = start_with(|config| config.mesh.token = Some(Secret::new(TOKEN).unwrap())).await;
    let address = up.mesh.hub_addr();
    let agents = "/faultline.v1.Mesh/Agents";
    for name in ["evil.example:8081", "127.0.0.1.evil.example"] {
        for path in
            [agents, "/lf.a2a.v1.A2AService/ListTasks", "/externalscaler.ExternalScaler/IsActive"]
        {
            let answer = call(address, name, path).await;
            assert_eq!(answer["grpc-status"], "7", "{name} {path}: {answer:?}");
        }
        let health = call(address, name, "/grpc.health.v1.Health/Check").await;
        assert_eq!(health["grpc-status"], "0", "health checks are allowed under any name");
    }
    for name in ["localhost:1", &address.to_string()] {
        let answer = call(address, name, agents).await;
        assert_eq!(answer["grpc-status"], "0", "{name}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_answers_under_configured_hosts_only() {
    let up = start_with(|config| {
        config.mesh.token = Some(Secret::new(TOKEN).unwrap());
        config.coordinator.hosts = vec!["coordinator.agents.svc".to_owned()];
    });
    let up = up.await;
    let agents = "/faultline.v1.Mesh/Agents";
    for (name, code) in [("coordinator.agents.svc:8081", "0"), ("evil.example", "7")] {
        let answer = call(up.mesh.hub_addr(), name, agents).await;
        assert_eq!(answer["grpc-status"], code, "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn admin_port_on_loopback_refuses_metrics_for_a_foreign_host() {
    let metrics = Metrics::default();
    let probes = Probes::default();
    let admin = Admin::bind(([127, 0, 0, 1], 0).into(), metrics, probes).await.unwrap();
    let address = admin.addr();
    tokio::spawn(admin.serve());
    let ask = async |host: &str, path: &str| {
        let stream = TcpStream::connect(address).await.unwrap();
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request = Request::get(path).header("host", host).body(Full::<bytes::Bytes>::default());
        let answer = timeout(SOON, sender.send_request(request.unwrap())).await;
        answer.expect("in time").unwrap().status()
    };
    assert_eq!(ask("evil.example", "/metrics").await, StatusCode::FORBIDDEN);
    assert_eq!(
        ask("evil.example", "/livez").await,
        StatusCode::OK,
        "probes are allowed under any name"
    );
    assert_eq!(ask("localhost:9090", "/metrics").await, StatusCode::OK);
}
