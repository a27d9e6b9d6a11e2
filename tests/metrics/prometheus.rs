//! A real Prometheus scrapes a mesh: every panel of the dashboard is a valid query with data.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};

use faultline_tests::{Rpc, cluster::free_address, until, wait::SOON};
use serde_json::Value;

use crate::{
    counters::{exercise, start},
    deploy::{expressions, root},
};

/// A server process, killed when dropped.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// With the rules of `deploy/` and shorter intervals.
    fn start(dir: &Path, mesh: SocketAddr) -> Self {
        let rules = root().join("deploy/prometheus/rules.yaml");
        let config = format!(
            "global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n\
             - {{ job_name: faultline, static_configs: [{{ targets: ['{mesh}'] }}] }}\n",
            rules.display()
        );
        let file = dir.join("prometheus.yaml");
        std::fs::write(&file, config).unwrap();
        let address = free_address();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(dir.join("prometheus.log")).unwrap())
            .spawn()
            .expect("prometheus is installed, as by tests/run");
        Self { child, address }
    }

    /// The result of a query; none if the server does not answer yet.
    async fn ask(&self, query: &str) -> Option<Value> {
        let hex = |byte: u8| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        };
        let query: String = query.bytes().map(hex).collect();
        let mut request = http::Request::get(format!("/api/v1/query?query={query}"));
        request = request.header("host", self.address.to_string());
        let request = request.body(http_body_util::Full::default()).unwrap();
        let reply = Rpc::bare(self.address).request(request).await.ok()?;
        let answer: Value = serde_json::from_slice(&reply.body).ok()?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        Some(answer["data"]["result"].clone())
    }

    async fn until_more_than(&self, query: &str, least: f64) {
        until(&format!("{query} is above {least}"), SOON, async || {
            let seen = self.ask(query).await?;
            let number = seen[0]["value"][1].as_str()?.parse::<f64>().ok()?;
            (number > least).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_data() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = start().await;
    let prometheus = Prometheus::start(dir.path(), mesh.mesh.gateway_addr());
    let samples = "sum(count_over_time(faultline_link_up[1h]))";
    prometheus.until_more_than(samples, 1.).await;
    exercise(&mesh.mesh).await;
    // A rate needs two samples.
    let twice = "min(count_over_time(faultline_failures_total[1m]))";
    prometheus.until_more_than(twice, 1.).await;
    let retried = "sum(increase(faultline_retry_attempts_total{outcome=\"retried\"}[1m]))";
    prometheus.until_more_than(retried, 1.).await;
    prometheus.until_more_than("sum(rate(faultline_store_batch_size_sum[1m]))", 0.).await;
    prometheus.until_more_than("count(agent:faultline_task_failures:ratio_rate5m)", 0.).await;
    let mut silent = Vec::new();
    for (place, expression) in expressions() {
        let expression = expression
            .replace("$__rate_interval", "1m")
            .replace("$__range", "10m")
            .replace("$agent", ".*")
            .replace("$instance", ".*");
        let answer = prometheus.ask(&expression).await.expect("it answers");
        // Alerts have data only while they fire.
        let is_alert = place.starts_with("Faultline");
        if !is_alert && answer.as_array().is_none_or(Vec::is_empty) {
            silent.push(format!("{place}: {expression}"));
        }
    }
    assert!(silent.is_empty(), "no data for {silent:#?}");
    // The open circuit of this mesh fires its alert.
    prometheus.until_more_than("count(ALERTS{alertname=\"FaultlineCircuitOpen\"})", 0.).await;
}
