//! The rules of the house that a compiler does not know, read from the tree and from
//! `cargo metadata`. ARCHITECTURE.md says why each exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root");
    root.to_owned()
}

/// Files that git tracks or would track, so that nothing hides by not being committed yet.
fn files(ending: &str) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let all = match listed {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
            text.lines().map(|line| root().join(line)).filter(|p| p.exists()).collect()
        }
        // A tree without git, from an archive: everything but what is built.
        _ => walk(&root()),
    };
    let fits = |path: &PathBuf| path.to_string_lossy().ends_with(ending);
    let found: Vec<_> = all.into_iter().filter(fits).collect();
    assert!(!found.is_empty(), "no file ends with {ending}: is this the whole tree?");
    found
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory can be read");
    let entries = entries.map(|entry| entry.expect("an entry can be read").path());
    let built = |path: &PathBuf| path.ends_with("target") || path.ends_with(".faultline");
    let kept = entries.filter(|path| !built(path));
    kept.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// Each package and what it depends on, build and test dependencies left out.
fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let named = packages.iter().map(|package| {
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        let normal = dependencies.iter().filter(|d| d["kind"].is_null());
        (text(&package["name"]), normal.map(|d| text(&d["name"])).collect())
    });
    named.collect()
}

#[test]
fn services_depend_only_on_what_the_architecture_draws() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("faultline-proto", &[][..]),
        ("faultline-chassis", &["faultline-proto"][..]),
        ("faultline-client", &["faultline-proto", "faultline-chassis"][..]),
        ("faultline-gateway", &["faultline-proto", "faultline-chassis"][..]),
        ("faultline-coordinator", &["faultline-proto", "faultline-chassis"][..]),
        ("faultline-worker", &["faultline-proto", "faultline-chassis"][..]),
    ]);
    for (package, dependencies) in edges() {
        let Some(allowed) = allowed.get(package.as_str()) else {
            assert!(
                ["faultline", "faultline-tests"].contains(&package.as_str()),
                "{package} is not drawn in ARCHITECTURE.md"
            );
            continue;
        };
        for dependency in dependencies.iter().filter(|d| d.starts_with("faultline")) {
            assert!(allowed.contains(&dependency.as_str()), "{package} must not know {dependency}");
        }
    }
}

#[test]
fn third_parties_stay_where_they_belong() {
    let places: &[(&str, &[&str])] = &[
        ("rusqlite", &["faultline-coordinator"]),
        ("tokio-postgres", &["faultline-coordinator"]),
        ("deadpool-postgres", &["faultline-coordinator"]),
        ("clap", &["faultline"]),
        ("anyhow", &["faultline"]),
        ("axum", &["faultline-chassis", "faultline-gateway", "faultline"]),
        ("tonic-health", &["faultline-coordinator", "faultline-gateway"]),
        ("opentelemetry", &["faultline-chassis"]),
        ("opentelemetry_sdk", &["faultline-chassis"]),
        ("tracing-opentelemetry", &["faultline-chassis"]),
        // For numbers. Tests read spans with it, too; whoever makes those writes bytes.
        ("opentelemetry-proto", &["faultline-chassis"]),
        ("rlimit", &["faultline-chassis"]),
        ("rustls", &["faultline-chassis"]),
        ("rustls-native-certs", &["faultline-chassis"]),
        ("tokio-rustls", &["faultline-chassis"]),
    ];
    let edges = edges();
    for (third, allowed) in places {
        for (package, dependencies) in &edges {
            let fine = allowed.contains(&package.as_str()) || package == "faultline-tests";
            assert!(fine || !dependencies.contains(*third), "{package} must not use {third}");
        }
    }
}

#[test]
fn sql_and_http_servers_are_written_in_their_places_only() {
    let places: &[(&str, &[&str])] = &[
        ("rusqlite::", &["services/coordinator/src/store"]),
        ("tokio_postgres", &["services/coordinator/src/store"]),
        ("deadpool_postgres", &["services/coordinator/src/store"]),
        ("axum::", &["services/chassis", "services/gateway", "services/faultline/src/cmd/bench"]),
    ];
    for path in files(".rs") {
        let text = read(&path);
        let relative = path.strip_prefix(root()).expect("below the root");
        for (word, allowed) in places.iter().filter(|(word, _)| text.contains(word)) {
            let fine = allowed.iter().any(|place| relative.starts_with(place));
            assert!(fine || relative.ends_with("tidy.rs"), "{} uses {word}", relative.display());
        }
    }
}

#[test]
fn there_is_one_binary_and_every_crate_obeys_the_lints() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages.iter().flat_map(|p| p["targets"].as_array().expect("targets"));
    let binaries: Vec<_> =
        targets.filter(|t| t["kind"][0] == "bin").map(|t| t["name"].clone()).collect();
    assert_eq!(binaries, ["faultline"]);
    // What tries the mesh from outside is no part of it.
    let outside = root().join("tests/interop");
    for manifest in files("Cargo.toml").into_iter().filter(|m| !m.starts_with(&outside)) {
        let text = read(&manifest);
        let is_root = manifest == root().join("Cargo.toml");
        assert!(is_root || text.contains("[lints]\nworkspace = true"), "{}", manifest.display());
        assert!(!text.contains("default-members"), "{}", manifest.display());
    }
}

#[test]
fn the_state_machine_is_pure() {
    for file in [
        "task.rs",
        "fold.rs",
        "show.rs",
        "judge.rs",
        "questions.rs",
        "answer.rs",
        "budget.rs",
        "retry.rs",
        "run.rs",
        "frame.rs",
        "artifact.rs",
        "gate.rs",
    ] {
        let text = read(&root().join("services/coordinator/src").join(file));
        for banned in ["tokio", "SystemTime", "Instant", "async ", "rand::", "Uuid", "std::fs"] {
            assert!(!text.contains(banned), "{file} must not know {banned}");
        }
    }
}

#[test]
fn every_file_says_what_it_owns_and_can_be_read_in_a_sitting() {
    for path in files(".rs") {
        let text = read(&path);
        let name = path.display();
        assert!(text.starts_with("//!"), "{name} does not open with what it owns");
        let lines = text.lines().count();
        assert!(lines <= 600, "{name} has {lines} lines, which is no sitting");
        for (at, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            assert!(columns <= 100, "{name}:{} has {columns} columns", at + 1);
        }
    }
}

#[test]
fn the_console_is_read_like_the_rest_and_makes_no_markup() {
    let console = root().join("services/gateway/src/operators/console");
    for path in files(".js").into_iter().filter(|path| path.starts_with(&console)) {
        let (text, name) = (read(&path), path.display());
        assert!(text.starts_with("// "), "{name} does not open with what it owns");
        let lines = text.lines().count();
        assert!(lines <= 400, "{name} has {lines} lines, which is no sitting");
        for banned in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(banned), "{name} uses {banned}");
        }
    }
}

#[test]
fn nothing_is_left_unfinished_or_skipped() {
    let banned = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("#[igno", "re"),
        concat!("dbg", "!("),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("unbounded_", "channel("),
        concat!("#[should_", "panic"),
    ];
    for path in files(".rs") {
        let text = read(&path);
        for word in banned {
            assert!(!text.contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn the_root_holds_only_what_belongs_there() {
    let allowed = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
        "proto",
        "services",
        "deploy",
        "tests",
        "docs",
    ];
    for path in files("") {
        let relative = path.strip_prefix(root()).expect("below the root").to_owned();
        let first = relative.iter().next().expect("a name").to_string_lossy().into_owned();
        let fine = first.starts_with('.');
        assert!(fine || allowed.contains(&first.as_str()), "{first} does not belong in the root");
    }
}

#[test]
fn the_readme_has_the_two_commands_and_they_exist() {
    let readme = read(&root().join("README.md"));
    for command in ["cargo run --release -- up", "tests/run"] {
        assert!(readme.contains(command), "the README does not say `{command}`");
    }
    assert!(root().join("tests/run").exists());
    let ci = read(&root().join(".ci/run"));
    assert!(ci.contains("tests/run"), ".ci/run does what the README says");
}
