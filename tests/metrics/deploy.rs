//! The files in `deploy/`: what reads them elsewhere must find in them what it needs, and they must
//! speak of nothing that a mesh does not export.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
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
    let always: BTreeSet<String> = ["instance", "job", "le"].map(str::to_owned).into();
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

#[test]
fn compose_starts_what_there_is_and_mounts_what_exists() {
    let compose = yaml("deploy/compose.yaml");
    let services = compose["services"].as_hash().unwrap();
    let names = keys(&compose["services"]);
    for (name, service) in services {
        let name = name.as_str().unwrap();
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
        for other in texts(&service["depends_on"]) {
            assert!(names.contains(other), "{name} depends on {other}");
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
    assert_scraped_where_served(&compose);
}

/// The targets of Prometheus are services, at the ports that they were told to serve.
fn assert_scraped_where_served(compose: &Yaml) {
    let command = texts(&compose["services"]["faultline"]["command"]);
    let at = command.iter().position(|word| *word == "--admin").unwrap();
    let port = command[at + 1].rsplit(':').next().unwrap();
    let scraped = yaml("deploy/prometheus/prometheus.yaml");
    let jobs = scraped["scrape_configs"].as_vec().unwrap().iter();
    let configs = jobs.flat_map(|job| job["static_configs"].as_vec().unwrap());
    let targets: Vec<_> = configs.flat_map(|config| texts(&config["targets"])).collect();
    let collector = yaml("deploy/otel/collector.yaml");
    let exported = collector["exporters"]["prometheus"]["endpoint"].as_str().unwrap();
    let exported = exported.rsplit(':').next().unwrap();
    assert_eq!(targets, [format!("faultline:{port}"), format!("otel-collector:{exported}")]);
    let datasources = yaml("deploy/grafana/provisioning/datasources/datasources.yaml");
    for source in datasources["datasources"].as_vec().unwrap() {
        let host = source["url"].as_str().unwrap().strip_prefix("http://").unwrap();
        let host = host.split(':').next().unwrap();
        assert!(keys(&compose["services"]).contains(host), "{host}");
    }
}
