//! The operator's port of real processes: probes that mean something, and numbers.

use std::{net::SocketAddr, path::Path};

use faultline_tests::{Process, Rpc, cluster::free_address, until, wait::SOON};

use crate::scrape::Scraped;

async fn probe(admin: SocketAddr, path: &str) -> (u16, String) {
    let reply = Rpc::bare(admin).path(path).get().await;
    (reply.status.as_u16(), String::from_utf8_lossy(&reply.body).trim().to_owned())
}

async fn until_ready(admin: SocketAddr, wanted: u16) {
    until(&format!("/readyz says {wanted}"), SOON, async || {
        (probe(admin, "/readyz").await.0 == wanted).then_some(())
    })
    .await;
}

async fn role(dir: &Path, name: &str, admin: SocketAddr, args: &[&str]) -> Process {
    let admin = admin.to_string();
    Process::start(dir, name, &[&[name], args, &["--admin", &admin]].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_has_probes_and_numbers_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let [hub, listen, c, g, w] = [(); 5].map(|()| free_address());
    let (hub, url) = (hub.to_string(), format!("http://{hub}"));
    let mut coordinator = role(dir.path(), "coordinator", c, &["--listen", &hub]).await;
    let listen = listen.to_string();
    let gateway = ["--listen", &listen, "--coordinator", &url];
    let gateway = role(dir.path(), "gateway", g, &gateway).await;
    let mut worker = role(dir.path(), "worker", w, &["--coordinator", &url]).await;
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
    // Without a coordinator the others live, have started, and are of no use.
    coordinator.kill().await;
    for (admin, why) in [(g, "coordinator"), (w, "coordinator")] {
        until_ready(admin, 503).await;
        let (_, said) = probe(admin, "/readyz").await;
        assert!(said.contains(why), "{said}");
        assert_eq!((probe(admin, "/livez").await.0, probe(admin, "/startupz").await.0), (200, 200));
    }
    let scraped = Scraped::of(&Rpc::bare(g)).await;
    assert_eq!(scraped.sum("faultline_link_up", &[]), 0.);
    coordinator.restart().await;
    for admin in [c, g, w] {
        until_ready(admin, 200).await;
    }
    // One that leaves says so for as long as it is there.
    let held = Rpc::at(address).agent("script").send_immediately("say busy; sleep 2s").await;
    until("the task runs", SOON, async || {
        let task = Rpc::at(address).task(faultline_tests::task::id(&held)).await;
        (task["status"]["state"] == "TASK_STATE_WORKING").then_some(())
    })
    .await;
    worker.terminate().await;
    until_ready(w, 503).await;
    assert_eq!(probe(w, "/readyz").await.1, "it is leaving");
    assert!(worker.ended(SOON).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_mesh_has_one_port_for_it() {
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
