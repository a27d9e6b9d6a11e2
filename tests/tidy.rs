//! Rules for the tree that no compiler checks, read from its files and from `cargo metadata`.
//! ARCHITECTURE.md gives the reason of each. This file has those for crates and for the root.

// An inline module, so that the files below are in tests/tidy.
mod tidy {
    pub(crate) mod documents;
    pub(crate) mod folders;
    pub(crate) mod language;
    pub(crate) mod source;
}

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

pub(crate) use tidy::source;

/// Words of clocks, randomness, files and concurrency.
const BANNED_IN_PURE_CODE: &[&str] =
    &["tokio", "SystemTime", "Instant", "::now", "now()", "async ", "rand::", "Uuid", "std::fs"];

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root");
    root.to_owned()
}

/// Files with this ending that git tracks or would track: uncommitted ones are checked too.
pub(crate) fn files(ending: &str) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let mut found: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
            text.lines().map(|line| root().join(line)).filter(|p| p.exists()).collect()
        }
        // A tree without git, from an archive: all files but build output.
        _ => walk(&root()),
    };
    found.retain(|path| path.to_string_lossy().ends_with(ending));
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

pub(crate) fn read(path: &Path) -> String {
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

/// Each package with its dependencies, except those of builds and tests.
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
fn services_depend_only_on_crates_below_them() {
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
fn third_party_crates_stay_in_their_services() {
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
        // For metrics; spans are encoded by chassis itself.
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
fn sql_and_http_servers_stay_in_their_folders() {
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
fn workspace_has_one_binary_and_every_crate_obeys_the_lints() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let targets = packages.iter().flat_map(|p| p["targets"].as_array().expect("targets"));
    let binaries: Vec<_> =
        targets.filter(|t| t["kind"][0] == "bin").map(|t| t["name"].clone()).collect();
    assert_eq!(binaries, ["faultline"]);
    // Clients that call the mesh from outside are not part of the workspace.
    let outside = root().join("tests/interop");
    for manifest in files("Cargo.toml").into_iter().filter(|m| !m.starts_with(&outside)) {
        let text = read(&manifest);
        let is_root = manifest == root().join("Cargo.toml");
        assert!(is_root || text.contains("[lints]\nworkspace = true"), "{}", manifest.display());
        assert!(!text.contains("default-members"), "{}", manifest.display());
    }
}

#[test]
fn state_machine_and_policies_are_pure() {
    let sources = source::all();
    let tests = source::test_files(&sources);
    for folder in ["services/coordinator/src/task", "services/coordinator/src/policy"] {
        let inside = sources.iter().filter(|source| source.path.starts_with(folder));
        let pure: Vec<_> = inside.filter(|source| !tests.contains(&source.path)).collect();
        assert!(!pure.is_empty(), "{folder} has no files: follow the state machine's new path");
        for source in pure {
            // The type of a point in time is an argument here; reading a clock is not allowed.
            let takes_time = source.path.ends_with("policy/circuit_breaker.rs");
            let allowed: &[&str] = if takes_time { &["tokio", "Instant"] } else { &[] };
            for word in BANNED_IN_PURE_CODE.iter().filter(|word| !allowed.contains(word)) {
                let is_pure = !source.code.contains(word);
                assert!(is_pure, "{} is pure and must not use {word}", source.name());
            }
        }
    }
}

#[test]
fn files_have_a_header_and_bounded_size() {
    for path in files(".rs") {
        let text = read(&path);
        let name = path.display();
        assert!(text.starts_with("//!"), "{name} does not open with a header (`//!`)");
        let lines = text.lines().count();
        assert!(lines <= 600, "{name} has {lines} lines, at most 600 are allowed");
        for (at, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            assert!(columns <= 100, "{name}:{} has {columns} columns", at + 1);
        }
    }
}

#[test]
fn console_scripts_have_headers_bounded_size_and_make_no_markup() {
    let console = root().join("services/gateway/src/operators/console");
    for path in files(".js").into_iter().filter(|path| path.starts_with(&console)) {
        let (text, name) = (read(&path), path.display());
        assert!(text.starts_with("// "), "{name} does not open with a header (`// `)");
        let lines = text.lines().count();
        assert!(lines <= 400, "{name} has {lines} lines, at most 400 are allowed");
        for banned in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(banned), "{name} uses {banned}");
        }
    }
}

#[test]
fn files_contain_no_unfinished_or_skipped_work() {
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
fn root_holds_only_listed_files() {
    let allowed = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "deny.toml",
        "rust-toolchain.toml",
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
fn readme_has_the_two_commands_and_they_exist() {
    let readme = read(&root().join("README.md"));
    for command in ["cargo run --release -- up", "tests/run"] {
        assert!(readme.contains(command), "README.md does not contain `{command}`");
    }
    assert!(root().join("tests/run").exists());
    let ci = read(&root().join(".ci/run"));
    assert!(ci.contains("tests/run"), ".ci/run does not run tests/run");
}

#[test]
fn deny_toml_skips_only_versions_that_are_locked() {
    let locked = read(&root().join("Cargo.lock"));
    let deny = read(&root().join("deny.toml"));
    let skips = deny.lines().filter_map(|line| line.trim().strip_prefix("{ crate = \""));
    for skip in skips.filter_map(|rest| rest.split('"').next()) {
        let (name, version) = skip.split_once('@').expect("a skip names a version");
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(locked.contains(&entry), "deny.toml skips {skip}, which Cargo.lock does not have");
    }
}
