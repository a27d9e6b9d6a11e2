//! The files in `deploy/`: what reads them elsewhere must find in them what it needs, and they must
//! speak of nothing that a mesh does not export.

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

use crate::{numbers::exercised, query::named, scrape::Scraped};

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
    let output = output.expect("promtool is there, as tests/run sees to");
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{args:?}: {}", said.concat());
}

#[test]
fn prometheus_takes_its_configuration_and_the_alerts_ring_when_they_should() {
    promtool(&["check", "config", "deploy/prometheus/prometheus.yaml"]);
    promtool(&["check", "rules", "deploy/prometheus/rules.yaml"]);
    promtool(&["test", "rules", "tests/metrics/rules.yaml"]);
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do() {
    let rules = yaml("deploy/prometheus/rules.yaml");
    let tested = read("tests/metrics/rules.yaml");
    let groups = rules["groups"].as_vec().unwrap().iter();
    let alerts = groups.flat_map(|group| group["rules"].as_vec().unwrap());
    for alert in alerts.filter(|rule| !rule["alert"].is_badvalue()) {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        for text in ["summary", "description", "runbook"] {
            let said = alert["annotations"][text].as_str().unwrap_or_default();
            assert!(said.len() > 15, "{name} has no {text}");
        }
        assert!(tested.contains(&format!("alertname=\"{name}\"")), "{name} has no test");
    }
}

/// Every expression, with where it stands.
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
async fn whatever_the_dashboard_and_the_alerts_name_is_exported_by_a_mesh() {
    let scraped = exercised().await;
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, labels) in scraped.names() {
        exported.insert(name.to_owned(), labels.into_iter().map(str::to_owned).collect());
    }
    // What Prometheus adds itself.
    exported.insert("up".to_owned(), BTreeSet::new());
    let recorded: BTreeSet<_> = expressions().into_iter().map(|(name, _)| name).collect();
    // And what it adds to every series, on Kubernetes.
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
                assert!(recorded.contains(&metric), "{place}: nobody records {metric}");
                known.insert("agent".to_owned());
                continue;
            }
            let labels = exported.get(&metric);
            let labels = labels.unwrap_or_else(|| panic!("{place}: nobody exports {metric}"));
            known.extend(labels.iter().cloned());
            let here: BTreeSet<_> = labels.union(&always).cloned().collect();
            let strange: Vec<_> = selected.difference(&here).collect();
            assert!(strange.is_empty(), "{place}: {metric} has no {strange:?}");
        }
        let strange: Vec<_> = found.grouped.difference(&known).collect();
        assert!(strange.is_empty(), "{place}: no {strange:?} in {expression}");
    }
    every_metric_is_described(&scraped);
    // And the other way round: what is exported is looked at somewhere.
    let suffixes = ["_bucket", "_sum", "_count"];
    let stem =
        |name: &str| suffixes.iter().fold(name.to_owned(), |n, s| n.trim_end_matches(s).to_owned());
    let used: BTreeSet<_> = used.iter().map(|name| stem(name)).collect();
    let unseen = exported.keys().map(|name| stem(name)).filter(|name| !used.contains(name));
    let unseen: BTreeSet<_> = unseen.collect();
    let elsewhere = [
        // What an HPA reads.
        "faultline_demand",
        "faultline_failure_details_truncated_total",
        "faultline_worker_slots",
    ];
    let elsewhere = elsewhere.map(str::to_owned).into();
    assert_eq!(unseen, elsewhere, "exported, and shown nowhere");
}

/// In the words of `deploy/README.md`, under the name that OpenTelemetry has for it.
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
fn every_panel_says_what_it_shows_and_stands_where_no_other_does() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title} is too wide");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} covers another");
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
fn the_collector_has_whatever_its_pipelines_name() {
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
            assert!(used.contains(&(kind, name.clone())), "nobody uses {name}");
        }
    }
    // What fails is kept, also where it did not end in an error.
    let policies = config["processors"]["tail_sampling"]["policies"].as_vec().unwrap();
    let policy = |kind: &str| policies.iter().find(|p| p["type"].as_str() == Some(kind)).unwrap();
    assert_eq!(texts(&policy("status_code")["status_code"]["status_codes"]), ["ERROR"]);
    for place in ["span", "spanevent"] {
        let conditions = texts(&policy("ottl_condition")["ottl_condition"][place]);
        assert!(conditions[0].contains("faultline.failure.id"), "{conditions:?}");
    }
}

/// With what `<<` brings in, which is laid under what stands beside it.
fn merged(of: &Yaml) -> Yaml {
    let Some(pairs) = of.as_hash() else { return of.clone() };
    let mut whole = yaml_rust2::yaml::Hash::new();
    let is_merge = |key: &Yaml| key.as_str() == Some("<<");
    for (_, brought) in pairs.iter().filter(|(key, _)| is_merge(key)) {
        whole.extend(merged(brought).into_hash().expect("what is merged has keys"));
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

/// What it is told by its variables.
fn environment(service: &Yaml) -> Environment {
    let pairs = service["environment"].as_hash().into_iter().flatten();
    let text = |y: &Yaml| y.as_str().expect("variables are text").to_owned();
    pairs.map(|(name, value)| (text(name), text(value))).collect()
}

#[test]
fn compose_starts_what_there_is_and_mounts_what_exists() {
    let compose = yaml("deploy/compose.yaml");
    let names = keys(&compose["services"]);
    let services = composed();
    for (name, service) in &services {
        let image = service["image"].as_str();
        let pinned = image.is_some_and(|i| i.contains(':') && !i.ends_with(":latest"));
        let build = &service["build"];
        match build.is_badvalue() {
            true => assert!(pinned, "{name}: {image:?} is not pinned"),
            false => {
                let context = root().join("deploy").join(build["context"].as_str().unwrap());
                assert!(context.join(build["dockerfile"].as_str().unwrap()).exists(), "{name}");
            }
        }
        let others = texts(&service["depends_on"]).into_iter().map(str::to_owned);
        for other in others.chain(keys(&service["depends_on"])) {
            assert!(names.contains(&other), "{name} depends on {other}");
            let waited_for = service["depends_on"][&*other]["condition"].as_str();
            let tells = |(n, s): &(String, Yaml)| *n == other && !s["healthcheck"].is_badvalue();
            let told = waited_for != Some("service_healthy") || services.iter().any(tells);
            assert!(told, "{name} waits for {other}, which never says that it is well");
        }
        for volume in texts(&service["volumes"]) {
            let source = volume.split(':').next().unwrap();
            let exists = match source.starts_with('.') {
                true => root().join("deploy").join(source).exists(),
                false => keys(&compose["volumes"]).contains(source),
            };
            assert!(exists, "{name} mounts {source}");
        }
        // Nobody is asked for a token, so nobody else may come.
        for port in texts(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port}");
        }
    }
}

/// Several coordinators on one database; everybody else finds them by their name.
#[test]
fn the_binary_understands_what_compose_tells_it() {
    let services = composed();
    let called = |wanted: &str| services.iter().find(|(name, _)| name == wanted).map(|(_, s)| s);
    let load = |name: &str| {
        let service = called(name).unwrap_or_else(|| panic!("there is no {name}"));
        assert_eq!(texts(&service["command"]), [name], "all else stands in its variables");
        let loaded = Config::default().load(None, &environment(service));
        let config = loaded.unwrap_or_else(|e| panic!("{name} does not take it: {e}"));
        (service, config)
    };
    let (service, config) = load("coordinator");
    let port = config.coordinator.port();
    let known = Credentials::load(&config.mesh, port).expect("the coordinator takes them");
    for (name, role) in [("gateway", Role::Gateway), ("worker", Role::Worker)] {
        let token = load(name).1.mesh.token.expect("it has a token of its own");
        let said = format!("Bearer {}", token.reveal()).parse().expect("a header");
        let headers = [(http::header::AUTHORIZATION, said)].into_iter().collect();
        let identity = known.identify(&headers).expect("it is known");
        assert_eq!(identity.role(), Some(role), "{name}");
        let offers = load(name).1.worker.agents;
        assert!(role != Role::Worker || offers.iter().all(|agent| identity.may_offer(agent)));
    }
    assert!(service["deploy"]["replicas"].as_i64().is_some_and(|n| n > 1), "several of them");
    assert_eq!(service["depends_on"]["postgres"]["condition"].as_str(), Some("service_healthy"));
    let hub = format!("http://coordinator:{}", config.coordinator.listen.port());
    assert!(config.coordinator.listen.ip().is_unspecified());
    // The address of the store is that of the database beside it, by the words it was set up with.
    let database = environment(called("postgres").expect("there is a database"));
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

/// The targets of Prometheus are services, at the ports that they were told to serve.
#[test]
fn compose_is_scraped_where_it_serves() {
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
        // A name of several: each of its addresses.
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
