//! Tests of the Helm chart in `deploy/helm`: Kubernetes and KEDA accept its objects, the binary
//! reads its configuration, and pods have least privilege. No cluster is needed: helm renders the
//! chart, at the version that `install` pins.

mod agreement;
mod custom_resources;
mod image;
mod network_policies;
mod own_image;
mod pods;
mod refusals;
mod runbook;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// Name and namespace of the release.
const RELEASE: &str = "mesh";
const NAMESPACE: &str = "agents";
/// Prefix of the names of its objects.
const NAME: &str = "mesh-faultline";

/// The sizes of the chart, and combinations of its other options.
const SIZES: &[&[&str]] = &[
    &[],
    &["--values", "values-medium.yaml"],
    &["--values", "values-ha.yaml"],
    &[
        "--values",
        "values-medium.yaml",
        "--set",
        "workerDefaults.autoscaling.by=hpa",
        "--set-json",
        r#"workers=[{"name":"a","agents":["echo"],"autoscaling":{"min":1}},
                  {"name":"b","agents":["script"],"slots":2,"autoscaling":{"min":2}}]"#,
    ],
    &[
        "--set",
        "otlp.endpoint=http://collector.observability:4317",
        "--set-json",
        r#"workers=[{"name":"mine","agents":["refunds"],"slots":8,
                   "image":{"repository":"registry.example/refunds","tag":"1.2.3"},
                   "egress":[{"ports":[{"protocol":"TCP","port":443}]}]}]"#,
    ],
    // A database with a public certificate, at a fixed address.
    &[
        "--values",
        "values-ha.yaml",
        "--set",
        "coordinator.replicas=2,coordinator.leaseMs=20000,coordinator.storeConnections=4",
        "--set",
        "coordinator.keepEndedHours=null,gateway.drainDelayMs=12500",
        "--set",
        "gateway.publicUrl=https://mesh.example",
        "--set",
        "store.postgres.urlSecret.name=faultline-store-public,store.postgres.caSecret.name=",
        "--set-json",
        r#"networkPolicy.postgres=[{"ipBlock":{"cidr":"10.20.0.0/24"}}]"#,
        "--set",
        "networkPolicy.postgresPort=6432,workerDefaults.autoscaling.by=hpa",
        "--set-json",
        r#"workers=[{"name":"a","agents":["echo"],"autoscaling":{"min":1}}]"#,
    ],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

fn chart() -> PathBuf {
    root().join("deploy/helm/faultline")
}

/// The directory of the tools, which are installed if `tests/run` has not done so.
fn installed() -> &'static Path {
    static INTO: OnceLock<PathBuf> = OnceLock::new();
    INTO.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in target/");
        let into = target.join("chart");
        let script = root().join("tests/chart/install");
        let done = Command::new(script).arg(&into).status().expect("a script can be run");
        assert!(done.success(), "helm cannot be installed: see above");
        into
    })
}

fn helm(args: &[&str], more: &[&str]) -> Output {
    let helm = installed().join("helm");
    let output = Command::new(helm).args(args).args(more).current_dir(chart()).output();
    output.expect("helm runs")
}

/// The error of helm for values that it refuses.
fn refused(more: &[&str]) -> String {
    let output = helm(&["template", RELEASE, "."], more);
    assert!(!output.status.success(), "helm accepts {more:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every object of the release.
fn rendered(more: &[&str]) -> Vec<Value> {
    let output = helm(&["template", RELEASE, ".", "--namespace", NAMESPACE], more);
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("YAML is text");
    let documents = YamlLoader::load_from_str(&text).expect("helm writes YAML");
    let objects = documents.iter().map(json).filter(|object| !object.is_null());
    objects.collect()
}

fn json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::String(text) => text.clone().into(),
        Yaml::Integer(number) => (*number).into(),
        Yaml::Real(text) => text.parse::<f64>().expect("a real number").into(),
        Yaml::Boolean(value) => (*value).into(),
        Yaml::Array(items) => items.iter().map(json).collect(),
        Yaml::Hash(pairs) => {
            let key = |key: &Yaml| key.as_str().expect("keys are text").to_owned();
            Value::Object(pairs.iter().map(|(k, v)| (key(k), json(v))).collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

// Looking into objects.

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn kind(object: &Value) -> &str {
    text(object, "/kind")
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn of_kind<'a>(objects: &'a [Value], one: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| kind(object) == one).collect()
}

/// Objects that run pods.
fn workloads(objects: &[Value]) -> Vec<&Value> {
    objects.iter().filter(|o| ["Deployment", "StatefulSet"].contains(&kind(o))).collect()
}

/// Whether a selector matches these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let pairs = selector.as_object().filter(|pairs| !pairs.is_empty());
    pairs.expect("a selector is never empty").iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[test]
fn helm_lint_reports_nothing() {
    for size in SIZES {
        let output = helm(&["lint", "--strict", "."], size);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_clean = output.status.success() && !printed.contains("[WARNING]");
        assert!(is_clean, "{size:?}: {printed}");
    }
}

/// Validates objects against the schemas of Kubernetes, which do not contain custom resources.
fn validated(objects: &[Value]) -> Output {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let file = dir.path().join("objects.yaml");
    let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
    fs::write(&file, documents.join("\n---\n")).expect("a file can be written");
    let validate = installed().join("python/bin/kubernetes-validate");
    Command::new(validate).arg("--strict").arg(file).output().expect("the checker runs")
}

#[test]
fn kubernetes_schemas_accept_every_object() {
    for size in SIZES {
        let mut objects = rendered(size);
        let (custom, native): (Vec<_>, Vec<_>) =
            objects.drain(..).partition(|object| custom_resources::KINDS.contains(&kind(object)));
        let output = validated(&native);
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(output.status.success(), "{size:?}: {printed}");
        assert_eq!(printed.matches(" passed for resource ").count(), native.len(), "{printed}");
        assert!(size.len() < 2 || !custom.is_empty() || size[0] == "--set", "{size:?}");
    }
}

#[test]
fn schema_checker_rejects_wrong_objects() {
    for (pointer, wrong) in [
        ("/spec/replicas", Value::from("two")),
        ("/spec/template/spec/containers/0/securityContext/runAsRoot", Value::from(true)),
    ] {
        let mut objects = rendered(&[]);
        let at = objects.iter().position(|object| kind(object) == "Deployment");
        put(&mut objects[at.expect("there is a gateway")], pointer, wrong);
        assert!(!validated(&objects).status.success(), "{pointer}");
    }
}

/// Sets a value, which may be absent; `Null` removes it.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("there is {parent}"));
    match (parent, value) {
        (Value::Object(map), Value::Null) => drop(map.remove(&key)),
        (Value::Object(map), value) => drop(map.insert(key, value)),
        (other, value) => other[key.parse::<usize>().expect("an index")] = value,
    }
}
