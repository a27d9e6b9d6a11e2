//! Blocks that are data: configuration is read by the binary itself, YAML and JSON are parsed, and
//! statements of SQL are whole.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;
use yaml_rust2::YamlLoader;

use crate::{
    blocks::{self, Block},
    root,
};

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
        // The reader's own secret or digest.
        let text = block.text().replace("\"…\"", &format!("\"{}\"", "0".repeat(64)));
        fs::write(&file, text).expect("there is room");
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.args(["config", "--config"]).arg(&file).stdin(Stdio::null());
        let Output { status, stderr, .. } = command.output().expect("the binary runs");
        match status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&stderr).into_owned()),
        }
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
fn sql_blocks_are_statements_with_an_end() {
    wrong("sql", |block| match block.lines.iter().all(|line| line.ends_with(';')) {
        true => Ok(()),
        false => Err("a statement ends with a semicolon".to_owned()),
    });
}
