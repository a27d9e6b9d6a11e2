//! Rust blocks compile: each is an example of a package that is generated in the target directory
//! and shares it, so that third-party crates are not compiled again.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use toml::{Table, Value};

use crate::{
    blocks::{self, Block},
    root,
};

/// The packages that examples may use.
const DEPENDENCIES: [&str; 9] = [
    "anyhow",
    "faultline",
    "faultline-client",
    "faultline-proto",
    "faultline-worker",
    "serde_json",
    "tokio",
    "tracing",
    "tracing-subscriber",
];

/// The names that a block may use without importing them. Imported by a glob, so that a block may
/// also import them itself.
const PRELUDE: &str = "\
pub use faultline::testing::{Peer, Reply, TestMesh};
pub use faultline_client::text;
pub use faultline_worker::*;
pub use serde_json::json;
";

/// The target directory of this build.
pub(crate) fn target() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.expect("the directory is below target/").to_owned()
}

#[test]
fn rust_blocks_compile() {
    let package = target().join("documents");
    let examples = examples();
    assert!(!examples.is_empty(), "no document has Rust in it");
    let _ = fs::remove_dir_all(package.join("examples"));
    for (name, text) in &examples {
        write(&package.join("examples").join(format!("{name}.rs")), text);
    }
    write(&package.join("src/lib.rs"), PRELUDE);
    write(&package.join("Cargo.toml"), &manifest());
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("there is a lock file");
    write(&package.join("Cargo.lock"), &lock);
    let mut command = Command::new(env!("CARGO"));
    // A test runner sets variables of the tested package. Build scripts that depend on them would
    // run again, here and in the next build of the workspace.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_") && name != "CARGO_HOME" {
            command.env_remove(&*name);
        }
    }
    let output = command
        .args(["check", "--offline", "--quiet", "--examples"])
        .env("CARGO_TARGET_DIR", target())
        .env("CARGO_TERM_COLOR", "never")
        .current_dir(&package)
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "an example is named after document and line of its block:\n{said}"
    );
}

/// Each block as a program, named after its document and line.
fn examples() -> Vec<(String, String)> {
    let mut examples = Vec::new();
    let mut items: Option<Block> = None;
    for block in blocks::all().into_iter().filter(|block| block.is("rust", None)) {
        let mut text =
            format!("//! {block}\n\n#![allow(unused)]\n\nuse faultline_documents::*;\n\n");
        let given = block.given.clone().unwrap_or_default() + "\n";
        if block.has("fragment") {
            let before = items.as_ref().filter(|items| items.document == block.document);
            text += &before.map(Block::text).unwrap_or_default();
            text += "async fn fragment() -> anyhow::Result<()> {\n";
            text += &(given + &block.text());
            text += "Ok(())\n}\n";
        } else {
            text += &(given + &block.text());
            // A program with its own main adds no items for later fragments.
            if !text.contains("fn main(") {
                items = Some(block.clone());
            }
        }
        if !text.contains("fn main(") {
            text += "fn main() {}\n";
        }
        let place: String = block.document.to_lowercase().trim_end_matches(".md").to_owned();
        let place = place.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        examples.push((format!("{place}_{}", block.line), text));
    }
    examples
}

/// The package, with the versions, features and profile of the workspace.
fn manifest() -> String {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("there is a workspace");
    let ours: Table = text.parse().expect("the workspace is TOML");
    let dependencies = DEPENDENCIES.map(|name| {
        let mut how = ours["workspace"]["dependencies"][name].clone();
        if let Some(path) = how.get_mut("path") {
            let at = root().join(path.as_str().expect("a path is text"));
            *path = Value::String(at.to_string_lossy().into_owned());
        }
        // A feature that tests of the workspace enable: without it tokio and its dependents would
        // be compiled once more.
        if let ("tokio", Some(Value::Array(features))) = (name, how.get_mut("features")) {
            features.push(Value::String("test-util".to_owned()));
        }
        (name.to_owned(), how)
    });
    let edition = ours["workspace"]["package"]["edition"].clone();
    let package = Table::from_iter([
        ("name".to_owned(), Value::String("faultline-documents".to_owned())),
        ("edition".to_owned(), edition),
    ]);
    let manifest = Table::from_iter([
        ("package".to_owned(), Value::Table(package)),
        ("dependencies".to_owned(), Value::Table(Table::from_iter(dependencies))),
        // A separate workspace, although it is in a directory of this one.
        ("workspace".to_owned(), Value::Table(Table::new())),
        ("profile".to_owned(), ours["profile"].clone()),
    ]);
    toml::to_string(&manifest).expect("a table can be written")
}

/// Writes a file unless its contents are equal already: cargo would compile it again.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("there is room");
    fs::write(path, text).expect("there is room");
}
