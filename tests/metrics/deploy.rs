//! Consistency of the files in `deploy/`: Prometheus rules, the dashboard, the collector and
//! compose refer only to metrics, services and files that exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use faultline::Config;
use faultline_chassis::{
    config::Environment,
    credential::{Credentials, Role},
};
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::{counters::exercised, promql::named, scrape::Scraped};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn yaml(path: &str) -> Yaml {
    let mut documents =
        YamlLoader::load_from_str(&read(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert_eq!(documents.len(), 1, "{path}");
    documents.remove(0)
}

fn keys(of: &Yaml) -> BTreeSet<String> {
    let pairs = of.as_hash().into_iter().flatten();
    pairs.filter_map(|(key, _)| key.as_str()).map(str::to_owned).collect()
}

fn texts(of: &Yaml) -> Vec<&str> {
    of.as_vec().into_iter().flatten().filter_map(Yaml::as_str).collect()
}

fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).current_dir(root()).output();
    let output = output.expect("promtool is installed, as by tests/run");
    let printed =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{args:?}: {}", printed.concat());
}

#[test]
fn prometheus_configuration_is_valid_and_alerts_fire_as_tested() {
    promtool(&["check", "config", "deploy/prometheus/prometheus.yaml"]);
    promtool(&["check", "rules", "deploy/prometheus/rules.yaml"]);
    promtool(&["test", "rules", "tests/metrics/rules.yaml"]);
}

#[test]
fn every_alert_has_a_summary_a_description_a_runbook_and_a_test() {
    let rules = yaml("deploy/prometheus/rules.yaml");
    let tested = read("tests/metrics/rules.yaml");
    let groups = rules["groups"].as_vec().unwrap().iter();
    let alerts = groups.flat_map(|group| group["rules"].as_vec().unwrap());
    for alert in alerts.filter(|rule| !rule["alert"].is_badvalue()) {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        for text in ["summary", "description", "runbook"] {
            let value = alert["annotations"][text].as_str().unwrap_or_default();
            assert!(value.len() > 15, "{name} has no {text}");
        }
        assert!(tested.contains(&format!("alertname=\"{name}\"")), "{name} has no test");
    }
}

/// Every PromQL expression with the name of its rule or panel.
pub(crate) fn expressions() -> Vec<(String, String)> {
    let rules = yaml("deploy/prometheus/rules.yaml");
    let groups = rules["groups"].as_vec().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_vec().unwrap());
    let mut found: Vec<_> = rules
        .map(|rule| {
            let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
            (name.to_owned(), rule["expr"].as_str().unwrap().to_owned())
        })
        .collect();
    let dashboard = dashboard();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    let annotations = dashboard["annotations"]["list"].as_array().unwrap();
    let annotations = annotations.iter().map(|a| a["expr"].as_str().unwrap());
    found.extend(annotations.map(|expr| ("an annotation".to_owned(), expr.to_owned())));
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["definition"].as_str().and_then(|q| q.strip_prefix("label_values("));
        let query = query.and_then(|q| q.strip_suffix(')')?.split_once(','));
        if let Some((metric, label)) = query {
            let expr = format!("sum by ({label}) ({metric})");
            found.push((variable["name"].to_string(), expr));
        }
    }
    found
}

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/grafana/faultline.json")).expect("the dashboard is JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_the_dashboard_and_the_alerts_are_exported_by_a_mesh() {
    let scraped = exercised().await;
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, labels) in scraped.names() {
        exported.insert(name.to_owned(), labels.into_iter().map(str::to_owned).collect());
    }
    // Added by Prometheus itself.
    exported.insert("up".to_owned(), BTreeSet::new());
    let recorded: BTreeSet<_> = expressions().into_iter().map(|(name, _)| name).collect();
    // Labels that Prometheus adds to every series, on Kubernetes.
    let always = ["instance", "job", "le", "namespace"];
    let always: BTreeSet<String> = always.map(str::to_owned).into();
    let mut used = BTreeSet::new();
    for (place, expression) in expressions() {
        let found = named(&expression);
        assert!(!found.metrics.is_empty(), "{place}: {expression}");
        let mut known = always.clone();
        for (metric, selected) in found.metrics {
            used.insert(metric.clone());
            if metric.contains(':') {
                assert!(recorded.contains(&metric), "{place}: no rule records {metric}");
                known.insert("agent".to_owned());
                continue;
            }
            let labels = exported.get(&metric);
            let labels = labels.unwrap_or_else(|| panic!("{place}: no mesh exports {metric}"));
            known.extend(labels.iter().cloned());
            let here: BTreeSet<_> = labels.union(&always).cloned().collect();
            let unknown: Vec<_> = selected.difference(&here).collect();
            assert!(unknown.is_empty(), "{place}: {metric} has no {unknown:?}");
        }
        let unknown: Vec<_> = found.grouped.difference(&known).collect();
        assert!(unknown.is_empty(), "{place}: no {unknown:?} in {expression}");
    }
    every_metric_is_described(&scraped);
    // Conversely, every exported metric is shown somewhere.
    let suffixes = ["_bucket", "_sum", "_count"];
    let stem =
        |name: &str| suffixes.iter().fold(name.to_owned(), |n, s| n.trim_end_matches(s).to_owned());
    let used: BTreeSet<_> = used.iter().map(|name| stem(name)).collect();
    let unseen = exported.keys().map(|name| stem(name)).filter(|name| !used.contains(name));
    let unseen: BTreeSet<_> = unseen.collect();
    let not_shown = [
        // Read by an HPA.
        "faultline_demand",
        "faultline_failure_details_truncated_total",
        "faultline_worker_slots",
    ];
    let not_shown = not_shown.map(str::to_owned).into();
    assert_eq!(unseen, not_shown, "exported, and not on the dashboard");
}

/// `deploy/README.md` lists every metric by its OpenTelemetry name.
fn every_metric_is_described(scraped: &Scraped) {
    let readme = read("deploy/README.md");
    let described = readme.split('`').skip(1).step_by(2).map(|name| name.replace('.', "_"));
    let described: BTreeSet<_> = described.collect();
    for line in scraped.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap().trim_end_matches("_total");
        let units = ["_seconds", "_bytes", ""];
        let known = |unit: &&str| name.strip_suffix(*unit).is_some_and(|n| described.contains(n));
        assert!(units.iter().any(known), "deploy/README.md does not list {name}");
    }
}

#[test]
fn every_panel_has_a_description_and_no_two_overlap() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is not unique");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title} is too wide");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} overlaps another panel");
            }
        }
        if panel["type"] != "row" {
            let described = panel["description"].as_str().is_some_and(|d| d.ends_with('.'));
            assert!(described, "{title} is not described");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn collector_defines_every_component_of_its_pipelines() {
    let config = yaml("deploy/otel/collector.yaml");
    for extension in texts(&config["service"]["extensions"]) {
        assert!(keys(&config["extensions"]).contains(extension), "{extension}");
    }
    let mut used = BTreeSet::new();
    let pipelines = config["service"]["pipelines"].as_hash().unwrap();
    for (signal, pipeline) in pipelines {
        for kind in ["receivers", "processors", "exporters"] {
            let named = texts(&pipeline[kind]);
            assert!(!named.is_empty(), "{signal:?} has no {kind}");
            for name in named {
                assert!(keys(&config[kind]).contains(name), "{signal:?}: no {kind} {name}");
                used.insert((kind, name.to_owned()));
            }
        }
        let processors = texts(&pipeline["processors"]);
        let ends = (processors.first(), processors.last());
        assert_eq!(ends, (Some(&"memory_limiter"), Some(&"batch")), "{signal:?}");
    }
    for kind in ["receivers", "processors", "exporters"] {
        for name in keys(&config[kind]) {
            assert!(used.contains(&(kind, name.clone())), "no pipeline uses {name}");
        }
    }
    // Traces with a failure are kept, also if no span has an error status.
    let policies = config["processors"]["tail_sampling"]["policies"].as_vec().unwrap();
    let policy = |kind: &str| policies.iter().find(|p| p["type"].as_str() == Some(kind)).unwrap();
    assert_eq!(texts(&policy("status_code")["status_code"]["status_codes"]), ["ERROR"]);
    for place in ["span", "spanevent"] {
        let conditions = texts(&policy("ottl_condition")["ottl_condition"][place]);
        assert!(conditions[0].contains("faultline.failure.id"), "{conditions:?}");
    }
}

/// Resolves the merge keys `<<`; keys beside them have priority.
fn merged(of: &Yaml) -> Yaml {
    let Some(pairs) = of.as_hash() else { return of.clone() };
    let mut whole = yaml_rust2::yaml::Hash::new();
    let is_merge = |key: &Yaml| key.as_str() == Some("<<");
    for (_, base) in pairs.iter().filter(|(key, _)| is_merge(key)) {
        whole.extend(merged(base).into_hash().expect("a merged value is a map"));
    }
    for (key, value) in pairs.iter().filter(|(key, _)| !is_merge(key)) {
        whole.insert(key.clone(), merged(value));
    }
    Yaml::Hash(whole)
}

/// The services of compose, each with its name.
fn composed() -> Vec<(String, Yaml)> {
    let services = merged(&yaml("deploy/compose.yaml")["services"]);
    let services = services.into_hash().expect("there are services").into_iter();
    services.map(|(name, service)| (name.into_string().unwrap(), service)).collect()
}

/// The environment variables of a service.
fn environment(service: &Yaml) -> Environment {
    let pairs = service["environment"].as_hash().into_iter().flatten();
    let text = |y: &Yaml| y.as_str().expect("variables are text").to_owned();
    pairs.map(|(name, value)| (text(name), text(value))).collect()
}

#[test]
fn compose_refers_to_existing_files_services_and_pinned_images() {
    let compose = yaml("deploy/compose.yaml");
    let names = keys(&compose["services"]);
    let services = composed();
    for (name, service) in &services {
        let image = service["image"].as_str();
        let pinned = image.is_some_and(|i| i.contains(':') && !i.ends_with(":latest"));
        let build = &service["build"];
        if build.is_badvalue() {
            assert!(pinned, "{name}: {image:?} is not pinned");
        } else {
            let context = root().join("deploy").join(build["context"].as_str().unwrap());
            assert!(context.join(build["dockerfile"].as_str().unwrap()).exists(), "{name}");
        }
        let others = texts(&service["depends_on"]).into_iter().map(str::to_owned);
        for other in others.chain(keys(&service["depends_on"])) {
            assert!(names.contains(&other), "{name} depends on {other}");
            let waited_for = service["depends_on"][&*other]["condition"].as_str();
            let has_check =
                |(n, s): &(String, Yaml)| *n == other && !s["healthcheck"].is_badvalue();
            let is_fine = waited_for != Some("service_healthy") || services.iter().any(has_check);
            assert!(is_fine, "{name} waits for {other}, which has no health check");
        }
        for volume in texts(&service["volumes"]) {
            let source = volume.split(':').next().unwrap();
            let exists = if source.starts_with('.') {
                root().join("deploy").join(source).exists()
            } else {
                keys(&compose["volumes"]).contains(source)
            };
            assert!(exists, "{name} mounts {source}");
        }
        // No token is required, so ports are published on loopback only.
        for port in texts(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port}");
        }
    }
}

/// Several coordinators share one database; gateways and workers find them by their DNS name.
#[test]
fn binary_reads_the_configuration_of_compose() {
    let services = composed();
    let find = |one: &str| services.iter().find(|(name, _)| name == one).map(|(_, s)| s);
    let load = |name: &str| {
        let service = find(name).unwrap_or_else(|| panic!("there is no {name}"));
        assert_eq!(texts(&service["command"]), [name], "all other settings are variables");
        let loaded = Config::default().load(None, &environment(service));
        let config = loaded.unwrap_or_else(|e| panic!("{name} refuses the configuration: {e}"));
        (service, config)
    };
    let (service, config) = load("coordinator");
    let port = config.coordinator.port();
    let known = Credentials::load(&config.mesh, port).expect("the credentials are valid");
    for (name, role) in [("gateway", Role::Gateway), ("worker", Role::Worker)] {
        let token = load(name).1.mesh.token.expect("it has its own token");
        let bearer = format!("Bearer {}", token.reveal()).parse().expect("a header");
        let headers = [(http::header::AUTHORIZATION, bearer)].into_iter().collect();
        let identity = known.identify(&headers).expect("the credential is known");
        assert_eq!(identity.role(), Some(role), "{name}");
        let offers = load(name).1.worker.agents;
        assert!(role != Role::Worker || offers.iter().all(|agent| identity.may_offer(agent)));
    }
    assert!(service["deploy"]["replicas"].as_i64().is_some_and(|n| n > 1), "several of them");
    assert_eq!(service["depends_on"]["postgres"]["condition"].as_str(), Some("service_healthy"));
    let hub = format!("http://coordinator:{}", config.coordinator.listen.port());
    assert!(config.coordinator.listen.ip().is_unspecified());
    // The store URL names the database service with its user and password.
    let database = environment(find("postgres").expect("there is a database"));
    let [user, password, name] =
        ["USER", "PASSWORD", "DB"].map(|key| &database[&format!("POSTGRES_{key}")]);
    let store = format!("postgres://{user}:{password}@postgres:5432/{name}?sslmode=disable");
    assert_eq!(config.coordinator.store, store);
    let (_, config) = load("gateway");
    assert_eq!(config.gateway.coordinator, hub);
    let (service, config) = load("worker");
    assert_eq!(config.worker.coordinator, hub);
    assert!(service["deploy"]["replicas"].as_i64().is_some_and(|n| n > 1), "several of them");
}

/// The scrape targets are the services of compose, at their configured admin ports.
#[test]
fn prometheus_scrapes_every_service_of_compose() {
    let mut served = BTreeSet::new();
    for (name, service) in composed() {
        let environment = environment(&service);
        let admin = environment.iter().find(|(key, _)| key.ends_with("__ADMIN"));
        served.extend(admin.map(|(_, at)| format!("{name}:{}", at.rsplit(':').next().unwrap())));
    }
    let collector = yaml("deploy/otel/collector.yaml");
    let exported = collector["exporters"]["prometheus"]["endpoint"].as_str().unwrap();
    served.insert(format!("otel-collector:{}", exported.rsplit(':').next().unwrap()));
    let mut targets = BTreeSet::new();
    let scraped = yaml("deploy/prometheus/prometheus.yaml");
    for job in scraped["scrape_configs"].as_vec().unwrap() {
        for config in job["static_configs"].as_vec().into_iter().flatten() {
            targets.extend(texts(&config["targets"]).into_iter().map(str::to_owned));
        }
        // A name with several addresses.
        for config in job["dns_sd_configs"].as_vec().into_iter().flatten() {
            assert_eq!(config["type"].as_str(), Some("A"));
            let port = config["port"].as_i64().expect("addresses have no port of their own");
            targets.extend(texts(&config["names"]).iter().map(|name| format!("{name}:{port}")));
        }
    }
    assert_eq!(targets, served);
    let compose = yaml("deploy/compose.yaml");
    let datasources = yaml("deploy/grafana/provisioning/datasources/datasources.yaml");
    for source in datasources["datasources"].as_vec().unwrap() {
        let host = source["url"].as_str().unwrap().strip_prefix("http://").unwrap();
        let host = host.split(':').next().unwrap();
        assert!(keys(&compose["services"]).contains(host), "{host}");
    }
}
