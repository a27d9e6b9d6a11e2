//! The admin port of each role: liveness, startup and readiness probes, and metrics.

use std::{net::SocketAddr, path::Path};

use faultline_chassis::{client::Channel, config::Environment};
use faultline_tests::{
    CuttableProxy, Process, Rpc,
    cluster::free_address,
    postgres::{Database, Server},
    until,
    wait::SOON,
};
use tokio::{net::TcpStream, time::timeout};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::scrape::Scraped;

pub(crate) async fn probe(admin: SocketAddr, path: &str) -> (u16, String) {
    let reply = Rpc::bare(admin).path(path).get().await;
    (reply.status.as_u16(), String::from_utf8_lossy(&reply.body).trim().to_owned())
}

pub(crate) async fn until_ready(admin: SocketAddr, status: u16) {
    until(&format!("/readyz answers {status}"), SOON, async || {
        (probe(admin, "/readyz").await.0 == status).then_some(())
    })
    .await;
}

async fn role(dir: &Path, name: &str, admin: SocketAddr, args: &[&str]) -> Process {
    let admin = admin.to_string();
    Process::start(dir, name, &[&[name], args, &["--admin", &admin]].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_serves_its_own_probes_and_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let [hub, listen, c, g, w] = [(); 5].map(|()| free_address());
    let (hub, url) = (hub.to_string(), format!("http://{hub}"));
    let mut coordinator = role(dir.path(), "coordinator", c, &["--listen", &hub]).await;
    let listen = listen.to_string();
    let gateway = ["--listen", &listen, "--coordinator", &url];
    let gateway = role(dir.path(), "gateway", g, &gateway).await;
    let mut worker =
        role(dir.path(), "worker", w, &["--coordinator", &url, "--agents", "echo,script"]).await;
    for admin in [c, g, w] {
        for path in ["/livez", "/readyz", "/startupz"] {
            assert_eq!(probe(admin, path).await, (200, "ok".to_owned()), "{path}");
        }
        assert_eq!(probe(admin, "/nowhere").await.0, 404);
    }
    let address = gateway.ready().strip_prefix("http://").unwrap().parse().unwrap();
    Rpc::at(address).agent("echo").send("hello").await;
    for (admin, name, own, others) in [
        (c, "coordinator", "faultline_task_duration_seconds_count", "faultline_link_up"),
        (g, "gateway", "faultline_link_up", "faultline_worker_attached"),
        (w, "worker", "faultline_worker_attached", "faultline_task_duration_seconds_count"),
    ] {
        let scraped = Scraped::of(&Rpc::bare(admin)).await;
        scraped.check();
        let name = format!("faultline-{name}");
        assert_eq!(scraped.sum("target_info", &[("service_name", &name)]), 1.);
        assert!(scraped.sum(own, &[]) >= 1., "{name} has {own}");
        assert!(scraped.find(others, &[]).is_empty(), "{name} has no {others}");
    }
    // Without a coordinator the other roles are alive and started, and not ready.
    coordinator.kill().await;
    for admin in [g, w] {
        until_ready(admin, 503).await;
        let (_, reason) = probe(admin, "/readyz").await;
        assert!(reason.contains("coordinator"), "{reason}");
        assert_eq!((probe(admin, "/livez").await.0, probe(admin, "/startupz").await.0), (200, 200));
    }
    let scraped = Scraped::of(&Rpc::bare(g)).await;
    assert_eq!(scraped.sum("faultline_link_up", &[]), 0.);
    coordinator.restart().await;
    for admin in [c, g, w] {
        until_ready(admin, 200).await;
    }
    // A draining worker is not ready.
    let held = Rpc::at(address).agent("script").send_immediately("say busy; sleep 2s").await;
    until("the task runs", SOON, async || {
        let task = Rpc::at(address).task(faultline_tests::task::id(&held)).await;
        (task["status"]["state"] == "TASK_STATE_WORKING").then_some(())
    })
    .await;
    worker.terminate().await;
    until_ready(w, 503).await;
    assert_eq!(probe(w, "/readyz").await.1, "it is leaving");
    assert!(worker.exit_within(SOON).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn mesh_in_one_process_has_one_admin_port() {
    let dir = tempfile::tempdir().unwrap();
    let (admin, any) = (free_address(), "127.0.0.1:0");
    let _up = role(dir.path(), "up", admin, &["--listen", any, "--hub", any]).await;
    assert_eq!(probe(admin, "/readyz").await.0, 200);
    let scraped = Scraped::of(&Rpc::bare(admin)).await;
    for name in ["faultline_link_up", "faultline_worker_attached", "faultline_slots_offered"] {
        assert!(scraped.sum(name, &[]) >= 1., "{name}");
    }
    let refused = Rpc::bare(admin).path("/metrics").post("{}").await;
    assert_eq!(
        (refused.status.as_u16(), &refused.headers["allow"]),
        (405, &"GET, HEAD".parse().unwrap())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_is_ready_only_with_its_database() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let database = Database::on(server.url());
    let proxy = CuttableProxy::to(database.address()).await;
    let [hub, admin] = [(); 2].map(|()| free_address());
    let [listen, port] = [hub, admin].map(|address| address.to_string());
    let store = database.url_via(proxy.address);
    let args = ["coordinator", "--listen", &listen, "--store", &store, "--admin", &port];
    let lease = ("FAULTLINE_COORDINATOR__LEASE_MS".to_owned(), "2000".to_owned());
    let token = ("FAULTLINE_MESH__TOKEN".to_owned(), faultline_tests::TOKEN.to_owned());
    let env = Environment::from([lease, token]);
    // The database accepts the connection and does not answer.
    proxy.stall();
    let starting = Process::start_with(dir.path(), "coordinator", &args, &env);
    let probing = async {
        until("the admin port is open", SOON, async || TcpStream::connect(admin).await.ok()).await;
        for path in ["/startupz", "/readyz"] {
            let answer = probe(admin, path).await;
            assert_eq!(answer, (503, "it is starting".to_owned()), "{path}");
        }
        assert_eq!(probe(admin, "/livez").await.0, 200);
        proxy.heal();
    };
    let (mut coordinator, ()) = tokio::join!(starting, probing);
    let all = async || {
        let probed = ["/livez", "/startupz", "/readyz"].map(|path| probe(admin, path));
        futures::future::join_all(probed).await.into_iter().map(|(status, _)| status).collect()
    };
    let statuses: Vec<u16> = all().await;
    assert_eq!(statuses, [200, 200, 200]);
    let health = HealthClient::new(Channel::without_token(&hub.to_string()).unwrap());
    let whole = HealthCheckRequest::default;
    let watched = health.clone().watch(whole()).await.unwrap();
    let mut watched = watched.into_inner();
    let mut next = async || {
        let update = timeout(SOON, watched.message()).await.expect("in time").unwrap();
        update.map(|update| update.status())
    };
    assert_eq!(next().await, Some(ServingStatus::Serving));
    for _ in 0..2 {
        server.stop();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        let statuses: Vec<u16> = all().await;
        assert_eq!(statuses, [200, 200, 503], "alive, because a restart would not help");
        let (_, reason) = probe(admin, "/readyz").await;
        assert!(reason.contains("store"), "{reason}");
        for service in ["", "lf.a2a.v1.A2AService"] {
            let asked = HealthCheckRequest { service: service.to_owned() };
            let checked = health.clone().check(asked).await.unwrap();
            assert_eq!(checked.get_ref().status(), ServingStatus::NotServing, "'{service}'");
        }
        server.start_again();
        assert_eq!(next().await, Some(ServingStatus::Serving));
        until_ready(admin, 200).await;
    }
    coordinator.terminate().await;
    assert_eq!((next().await, next().await), (Some(ServingStatus::NotServing), None));
    assert!(coordinator.exit_within(SOON).await.unwrap().success(), "{}", coordinator.log());
    // Without a database a coordinator does not start; a supervisor may retry.
    server.stop();
    let error = coordinator.try_restart().await.unwrap_err();
    assert!(error.contains("ended before"), "{error}");
    server.start_again();
    coordinator.restart().await;
    until_ready(admin, 200).await;
}
