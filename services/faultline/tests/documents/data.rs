//! Blocks with data: the binary loads TOML as its configuration, YAML and JSON are parsed, and SQL
//! runs on the PostgreSQL of the tests.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;
use yaml_rust2::YamlLoader;

use crate::{
    blocks::{self, Block},
    postgres::Database,
    root,
    session::without_settings,
};

/// The name of the role and of the database in the documents.
const SHOWN: &str = "faultline";

fn wrong(language: &str, read: impl Fn(&Block) -> Result<(), String>) {
    let blocks = blocks::all().into_iter().filter(|block| block.is(language, None));
    let wrong: Vec<_> = blocks
        .filter_map(|block| read(&block).err().map(|why| format!("{block}: {why}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn toml_blocks_are_read_as_configuration() {
    let scratch = TempDir::new().expect("there is room");
    let file = scratch.path().join("faultline.toml");
    wrong("toml", |block| {
        // A placeholder for a secret or a digest.
        let text = block.text().replace("\"…\"", &format!("\"{}\"", "0".repeat(64)));
        fs::write(&file, text).expect("there is room");
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.args(["config", "--config"]).arg(&file).stdin(Stdio::null());
        let Output { status, stderr, .. } = command.output().expect("the binary runs");
        if status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&stderr).into_owned()) }
    });
}

#[test]
fn yaml_blocks_and_the_files_of_compose_are_yaml() {
    let parse = |text: &str| YamlLoader::load_from_str(text).map_err(|error| error.to_string());
    wrong("yaml", |block| parse(&block.text()).map(drop));
    let compose = fs::read_to_string(root().join("deploy/compose.yaml")).expect("it is there");
    assert!(parse(&compose).is_ok_and(|documents| !documents[0]["services"].is_badvalue()));
}

#[test]
fn json_blocks_are_json() {
    wrong("json", |block| {
        let read: Result<serde_json::Value, _> = serde_json::from_str(&block.text());
        read.map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn sql_statements_end_with_a_semicolon() {
    wrong("sql", |block| {
        if block.lines.iter().all(|line| line.ends_with(';')) {
            Ok(())
        } else {
            Err("a statement ends with a semicolon".to_owned())
        }
    });
}

/// The statements of a document run in their order, and a coordinator starts with the role and the
/// database that they create.
#[test]
fn sql_blocks_create_a_database_for_a_coordinator() {
    let mut documents: BTreeMap<String, Vec<Block>> = BTreeMap::new();
    for block in blocks::all().into_iter().filter(|block| block.is("sql", None)) {
        documents.entry(block.document.clone()).or_default().push(block);
    }
    for blocks in documents.values() {
        let Some(database) = Database::planned() else {
            eprintln!("{}: not run, because FAULTLINE_TEST_POSTGRES is not set", blocks[0]);
            return;
        };
        for block in blocks {
            for line in &block.lines {
                // Whole words only, no parts of longer names.
                let words = line.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let named = words.map(|word| match word.strip_prefix(SHOWN) {
                    Some(end) if end.len() <= 1 => format!("{}{end}", database.name),
                    _ => word.to_owned(),
                });
                let statement: String = named.collect();
                database.run(&statement).unwrap_or_else(|error| panic!("{block}: {error}"));
            }
        }
        let printed = first_line_of_coordinator(&database.url(&database.name));
        assert!(printed.starts_with("ready"), "{}: {printed}", blocks[0]);
    }
}

/// The first line that a coordinator prints; empty if it does not start.
fn first_line_of_coordinator(store: &str) -> String {
    let scratch = TempDir::new().expect("there is room");
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_faultline")));
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--store", store]);
    command.env("FAULTLINE_MESH__TOKEN", "token-of-this-test").current_dir(scratch.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut coordinator = command.spawn().expect("the binary runs");
    let stdout = coordinator.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("it prints text");
    let _ = coordinator.kill();
    let _ = coordinator.wait();
    line
}
