//! The container image: `deploy/Dockerfile` agrees with the chart and with compose. The file is
//! read and not built.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};
use yaml_rust2::YamlLoader;

use crate::{SIZES, list, name, rendered, root, text, workloads};

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The arguments of each use of an instruction.
fn arguments(instruction: &str) -> Vec<String> {
    let file = read("deploy/Dockerfile");
    let lines = file.lines().filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
    let found: Vec<_> = lines.map(|line| line.trim().to_owned()).collect();
    assert!(!found.is_empty(), "the Dockerfile has no {instruction}");
    found
}

/// The value of a key of the workspace.
fn of_workspace(key: &str) -> String {
    let file = read("Cargo.toml");
    let value = file.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
    value.unwrap_or_else(|| panic!("Cargo.toml has no {key}")).trim_matches('"').to_owned()
}

#[test]
fn image_is_built_with_the_rust_version_of_the_workspace() {
    let from = arguments("FROM");
    let rust = format!("rust:{}-", of_workspace("rust-version"));
    assert!(from[0].starts_with(&rust), "{} is not {rust}…", from[0]);
    for image in from {
        let image = image.split(' ').next().unwrap_or_default();
        let tag = image.rsplit_once(':').map(|(_, tag)| tag);
        assert!(tag.is_some_and(|tag| tag != "latest"), "the tag of {image} is not fixed");
    }
}

#[test]
fn image_matches_the_pods_of_the_chart() {
    let version = of_workspace("version");
    for size in SIZES {
        for workload in workloads(&rendered(size)) {
            let pod = &workload["spec"]["template"]["spec"];
            let security = &pod["securityContext"];
            let user = format!("{}:{}", security["runAsUser"], security["runAsGroup"]);
            assert_eq!(arguments("USER"), [user], "{}", name(workload));
            let container = &pod["containers"][0];
            // The entry point is the binary; pods set only its arguments.
            assert!(container.get("command").is_none(), "{}", name(workload));
            let image = text(container, "/image");
            let ours = image.starts_with("faultline:");
            assert!(!ours || image == format!("faultline:{version}"), "{image}");
            for mount in list(container, "/volumeMounts").iter().filter(|m| m["name"] == "data") {
                assert_eq!(
                    arguments("WORKDIR").last().map(String::as_str),
                    mount["mountPath"].as_str()
                );
            }
        }
    }
}

#[test]
fn image_entry_point_is_the_binary_and_listens_on_all_addresses() {
    let [entry, without_arguments] = ["ENTRYPOINT", "CMD"].map(|instruction| {
        let found = arguments(instruction);
        serde_json::from_str::<Value>(&found[0]).expect("a list, because there is no shell")
    });
    let copied = arguments("COPY");
    let copied = copied.iter().find(|line| line.contains("/release/faultline "));
    let binary = copied.and_then(|line| line.rsplit(' ').next()).expect("the binary is copied");
    assert_eq!(entry, json!([binary]));
    assert_eq!(without_arguments, json!(["up", "--listen", "0.0.0.0:8080"]));
}

#[test]
fn compose_runs_the_image_that_it_builds() {
    let compose = &YamlLoader::load_from_str(&read("deploy/compose.yaml")).expect("it is YAML")[0];
    let image = compose["x-faultline"]["image"].as_str();
    assert_eq!(image, Some(&*format!("faultline:{}", of_workspace("version"))));
    let services = compose["services"].as_hash().expect("there are services");
    let roles = services.iter().filter(|(_, service)| !service["<<"].is_badvalue());
    let roles: BTreeSet<_> = roles
        .map(|(name, service)| {
            assert!(service["image"].is_badvalue(), "{name:?} has its own image");
            assert!(service["entrypoint"].is_badvalue(), "{name:?} does not start the binary");
            name.as_str().unwrap_or_default()
        })
        .collect();
    assert_eq!(roles, BTreeSet::from(["coordinator", "gateway", "worker"]));
}
