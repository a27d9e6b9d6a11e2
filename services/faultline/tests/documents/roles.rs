//! `sh roles` blocks: each line starts a role, and the resulting mesh serves a task.
//!
//! The roles run in one fresh directory, each started once the previous one is ready. Addresses of
//! this machine are replaced by free ports, `/tmp` by the directory, and the named database by a
//! fresh one of the tests. Without a PostgreSQL server a block with a database is not run
//! (`postgres.rs`).

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader},
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use tempfile::TempDir;

use crate::{
    blocks::{self, Block},
    postgres::Database,
    session::{stop, without_settings},
};

/// The URL of the database in the documents.
const DATABASE: &str = "postgres://me@localhost/mesh";
/// The default addresses of roles.
const COORDINATOR: &str = "127.0.0.1:8081";
const GATEWAY: &str = "127.0.0.1:8080";

#[test]
fn roles_of_each_block_serve_a_task_together() {
    let blocks = blocks::all().into_iter().filter(|block| block.is("sh", Some("roles")));
    let blocks: Vec<_> = blocks.collect();
    assert!(blocks.iter().any(|block| !names_database(block)), "a block runs without a database");
    for block in blocks {
        let database = if names_database(&block) { Database::created() } else { None };
        if names_database(&block) && database.is_none() {
            eprintln!("{block}: not run, because FAULTLINE_TEST_POSTGRES is not set");
            continue;
        }
        let scratch = TempDir::new().expect("there is room");
        let mut terminals = Terminals::new(scratch.path(), database.as_ref());
        let lines = block.text().replace("\\\n", " ");
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            terminals.run(&block, line);
        }
        let sent = terminals.shell("faultline send echo hello").output().expect("bash runs");
        let said = String::from_utf8_lossy(&sent.stderr);
        assert_eq!(String::from_utf8_lossy(&sent.stdout), "hello\n", "{block}: {said}");
    }
}

fn names_database(block: &Block) -> bool {
    block.text().contains(DATABASE)
}

/// The shell environment of one block and the roles that run in it.
struct Terminals<'a> {
    directory: &'a Path,
    database: Option<&'a Database>,
    /// Commands that apply to every later line, such as `export`.
    settings: String,
    /// The addresses in the block, or the defaults, and the addresses that replace them.
    addresses: BTreeMap<String, String>,
    roles: Vec<Child>,
}

impl Drop for Terminals<'_> {
    fn drop(&mut self) {
        for role in &mut self.roles {
            stop(role);
            let _ = role.wait();
        }
    }
}

impl<'a> Terminals<'a> {
    fn new(directory: &'a Path, database: Option<&'a Database>) -> Self {
        fs::create_dir(directory.join("bin")).expect("there is room");
        let binary = env!("CARGO_BIN_EXE_faultline");
        symlink(binary, directory.join("bin/faultline")).expect("there is room");
        Self {
            directory,
            database,
            settings: String::new(),
            addresses: BTreeMap::new(),
            roles: Vec::new(),
        }
    }

    fn run(&mut self, block: &Block, line: &str) {
        if !line.starts_with("faultline ") {
            self.settings += &format!("{line}\n");
            return;
        }
        let shown = listens_at(line);
        let role = self.shell(&self.here(line, shown)).stdout(Stdio::piped()).spawn();
        self.roles.push(role.expect("bash runs"));
        let stdout = self.roles.last_mut().and_then(|role| role.stdout.take());
        let mut stdout = BufReader::new(stdout.expect("stdout is piped"));
        let mut ready = String::new();
        stdout.read_line(&mut ready).expect("a role prints text");
        let address = ready.trim().strip_prefix("ready").map(str::trim);
        let address = address.unwrap_or_else(|| panic!("{block}: `{line}` printed {ready:?}"));
        // The pipe is drained and held open, so that later output does not end the role.
        thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        if let Some(shown) = shown {
            let address = address.rsplit("//").next().unwrap_or(address);
            self.addresses.insert(shown.to_owned(), address.to_owned());
        }
    }

    /// The command with the directory, addresses and database of this test.
    fn here(&self, line: &str, listens_at: Option<&str>) -> String {
        let mut text = line.replace("/tmp/", &format!("{}/", self.directory.display()));
        if let Some(database) = self.database {
            text = text.replace(DATABASE, &database.url(""));
        }
        if let Some(own) = listens_at {
            text = text.replace(&format!("--listen {own}"), "--listen 127.0.0.1:0");
        }
        self.addresses.iter().fold(text, |text, (shown, ours)| text.replace(shown, ours))
    }

    fn shell(&self, text: &str) -> Command {
        let mut command = without_settings(Command::new("bash"));
        let paths = env::var_os("PATH").unwrap_or_default();
        let first = self.directory.join("bin");
        let paths = [first].into_iter().chain(env::split_paths(&paths));
        let at = |shown: &str| {
            let ours = self.addresses.get(shown).map_or("127.0.0.1:1", String::as_str);
            format!("http://{ours}")
        };
        command
            .args(["-c", &format!("{}{text}", self.settings)])
            .env("PATH", env::join_paths(paths).expect("a path has no colon"))
            .env("FAULTLINE_COORDINATOR__LISTEN", "127.0.0.1:0")
            .env("FAULTLINE_GATEWAY__LISTEN", "127.0.0.1:0")
            .env("FAULTLINE_GATEWAY__COORDINATOR", at(COORDINATOR))
            .env("FAULTLINE_WORKER__COORDINATOR", at(COORDINATOR))
            .env("FAULTLINE_GATEWAY_URL", at(GATEWAY))
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .process_group(0);
        command
    }
}

/// The address of the role in the document.
fn listens_at(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let role = words.nth(1)?;
    let named = words.skip_while(|word| *word != "--listen").nth(1);
    named.or(match role {
        "coordinator" => Some(COORDINATOR),
        "gateway" => Some(GATEWAY),
        _ => None,
    })
}
