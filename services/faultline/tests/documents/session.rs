//! `console` blocks: their commands run against one mesh, in the order of the documents, and print
//! the documented output.
//!
//! The mesh is the binary on free ports; `localhost:8080` in a command is replaced by its address.
//! Outputs are compared line by line, without blank lines and with any space between words. Ids,
//! times, traces and durations may differ; an id in a command is replaced by the id that an earlier
//! output had in its place. `…` stands for any text, and alone in a line for any lines.
//!
//! With `FAULTLINE_WRITE_DOCUMENTS=1` differing outputs are written to the documents instead.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::symlink, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    blocks::{self, Block},
    masks::{Look, ids},
    root,
};

/// If set, the documents are updated with the printed outputs.
pub(crate) const WRITE: &str = "FAULTLINE_WRITE_DOCUMENTS";
/// Timeout for one command.
const PATIENCE: Duration = Duration::from_secs(60);
/// The address in the documents.
const SHOWN: &str = "127.0.0.1:8080";

#[test]
fn console_blocks_print_the_documented_output() {
    let mut session = Session::start();
    let mut wrong = Vec::new();
    let mut edits = Vec::new();
    for block in blocks::all() {
        let commands = match block.language.as_str() {
            "console" => commands(&block),
            "sh" if !block.has("dry-run") && !block.has("roles") => vec![Shown::whole(&block)],
            _ => continue,
        };
        session.code = 0;
        for command in commands {
            let printed = session.run(&block, &command);
            let look = Look { numbers: block.has("numbers") };
            let fits = match block.language.as_str() {
                "console" => look.fits(&command.output, &printed),
                _ => session.code == 0,
            };
            if !fits {
                let line = block.line + command.at;
                let shown = command.output.join("\n");
                wrong.push(format!(
                    "{}:{line}: $ {}\n--- the document shows\n{shown}\n--- it printed\n{}\n",
                    block.document,
                    command.text,
                    printed.join("\n"),
                ));
                edits.push((block.document.clone(), line, command.output.len(), printed));
            }
        }
    }
    if env::var_os(WRITE).is_some() {
        return write(edits);
    }
    assert!(wrong.is_empty(), "{}\n{WRITE}=1 writes what was printed", wrong.join("\n"));
}

/// A command of a block and its documented output.
struct Shown {
    /// The line of its output, counted from the fence.
    at: usize,
    text: String,
    output: Vec<String>,
}

impl Shown {
    fn whole(block: &Block) -> Self {
        Self { at: 0, text: block.text(), output: Vec::new() }
    }
}

fn commands(block: &Block) -> Vec<Shown> {
    let mut commands: Vec<Shown> = Vec::new();
    let mut goes_on = false;
    for (at, line) in (1..).zip(&block.lines) {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(text), _) => {
                commands.push(Shown { at: at + 1, text: text.to_owned(), output: Vec::new() });
            }
            (None, Some(last)) if goes_on => {
                last.text += &format!("\n{line}");
                last.at = at + 1;
            }
            (None, Some(last)) => last.output.push(line.clone()),
            (None, None) => panic!("{block} does not begin with a command"),
        }
        goes_on = line.ends_with('\\') && (goes_on || line.starts_with("$ "));
    }
    commands
}

/// A mesh and a shell in a directory of its own. The test of all blocks owns it and runs one
/// command after the other.
struct Session {
    up: Child,
    address: String,
    scratch: TempDir,
    /// The ids in the documents and the corresponding ids of this mesh.
    ids: BTreeMap<String, String>,
    /// The exit code of the last command.
    code: i32,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

impl Session {
    fn start() -> Self {
        let scratch = TempDir::new().expect("there is room");
        fs::create_dir(scratch.path().join("bin")).expect("there is room");
        let binary = env!("CARGO_BIN_EXE_faultline");
        symlink(binary, scratch.path().join("bin/faultline")).expect("there is room");
        let mut command = without_settings(Command::new(binary));
        let any = "127.0.0.1:0";
        command.args(["up", "--listen", any, "--hub", any, "--data", ".faultline"]);
        // The documents show links to traces, which need this setting.
        command.env("FAULTLINE_GATEWAY__TRACE_URL", "https://traces.example/trace/{trace_id}");
        command.current_dir(scratch.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped());
        let mut up = command.spawn().expect("the binary runs");
        let mut ready = String::new();
        let stdout = up.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut ready).expect("it prints");
        let address = ready.trim().strip_prefix("ready http://").expect("it is ready").to_owned();
        Self { up, address, scratch, ids: BTreeMap::new(), code: 0 }
    }

    fn shell(&self, text: &str) -> Command {
        let mut command = without_settings(Command::new("bash"));
        let paths = env::var_os("PATH").unwrap_or_default();
        let first = self.scratch.path().join("bin");
        let paths: Vec<PathBuf> = [first].into_iter().chain(env::split_paths(&paths)).collect();
        command
            .args(["-c", text])
            .env("PATH", env::join_paths(paths).expect("a path has no colon"))
            .env("FAULTLINE_GATEWAY_URL", format!("http://{}", self.address))
            .current_dir(self.scratch.path())
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// The lines that a command prints on stdout and stderr.
    fn run(&mut self, block: &Block, command: &Shown) -> Vec<String> {
        let text = self.here(block, &command.text);
        // Every command of an `sh` block must succeed, not only the last one.
        let strict = if block.is("sh", None) { "set -euo pipefail" } else { "" };
        let script = format!("exec 2>&1\n(exit {})\n{strict}\n{text}", self.code);
        let mut child = self.shell(&script).stdout(Stdio::piped()).spawn().expect("bash runs");
        let lines = lines(child.stdout.take().expect("stdout is piped"));
        let end = Instant::now() + PATIENCE;
        let mut printed = Vec::new();
        let mut beside = None;
        let look = Look { numbers: block.has("numbers") };
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => printed.push(self.shown(&line)),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    stop(&child);
                    panic!("{block}: `{text}` did not end and printed {printed:#?}");
                }
            }
            if !block.has("stream") {
                continue;
            }
            if let (None, Some(meanwhile)) = (&beside, &block.meanwhile) {
                let command = self.here(block, meanwhile);
                let output = self.shell(&command).output().expect("bash runs");
                assert!(output.status.success(), "{block}: `{meanwhile}` failed: {output:?}");
                beside = Some(output);
            }
            if look.fits(&command.output, &printed) {
                stop(&child);
                break;
            }
        }
        self.code = child.wait().expect("a child can be awaited").code().unwrap_or(-1);
        for (shown, printed) in ids(&command.output).into_iter().zip(ids(&printed)) {
            self.ids.entry(shown).or_insert(printed);
        }
        printed
    }

    /// A command with the addresses and ids of this mesh.
    fn here(&self, block: &Block, text: &str) -> String {
        let text = text.replace(SHOWN, &self.address).replace("localhost:8080", &self.address);
        ids(std::slice::from_ref(&text)).iter().fold(text, |text, id| {
            let ours = self.ids.get(id);
            let ours = ours.unwrap_or_else(|| panic!("{block}: no output before shows {id}"));
            text.replace(id, ours)
        })
    }

    /// A line with the documented address and without trailing space.
    fn shown(&self, line: &str) -> String {
        line.trim_end().replace(&self.address, SHOWN)
    }
}

/// Removes settings in the environment of the tests.
pub(crate) fn without_settings(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("FAULTLINE_") || name.starts_with("OTEL_") {
            command.env_remove(&*name);
        }
    }
    command.env("NO_COLOR", "1");
    command
}

#[test]
fn failed_command_in_the_middle_of_an_sh_block_is_found() {
    let mut session = Session::start();
    for (text, succeeds) in
        [("true\ntrue", true), ("false\ntrue", false), ("false | true\ntrue", false)]
    {
        let block = blocks::blocks_of("d.md", &format!("```sh\n{text}\n```\n")).remove(0);
        session.code = 0;
        session.run(&block, &Shown::whole(&block));
        assert_eq!(session.code == 0, succeeds, "{text}");
    }
}

/// Kills a process with its process group.
pub(crate) fn stop(child: &Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
}

fn lines(output: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    receiver
}

/// Replaces differing outputs in the documents, from the end on.
fn write(mut edits: Vec<(String, usize, usize, Vec<String>)>) {
    edits.reverse();
    for (document, line, length, printed) in edits {
        let path = root().join(&document);
        let text = fs::read_to_string(&path).expect("a document can be read");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.splice(line - 1..line - 1 + length, printed);
        fs::write(&path, lines.join("\n") + "\n").expect("a document can be written");
    }
}
