//! One process of the mesh, which can be killed and started again as it was.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use faultline_chassis::config::Environment;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    Program, TOKEN,
    postgres::{Store, store_in},
};

/// How long a process may take until it serves. A gateway waits for its coordinator meanwhile.
const START: Duration = Duration::from_secs(30);
/// How much of a log is shown when a test fails.
const TAIL_BYTES: u64 = 16 * 1024;

/// Killed when dropped; its log is shown if the test fails.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: Program,
    args: Vec<String>,
    env: Environment,
    dir: PathBuf,
    child: Child,
    ready: String,
}

impl Process {
    /// Starts `faultline ARGS` in `dir` and waits until it says that it is ready.
    pub async fn start(dir: &Path, name: &str, args: &[&str]) -> Self {
        Self::start_with(dir, name, args, &Environment::new()).await
    }

    /// The same with an environment.
    pub async fn start_with(dir: &Path, name: &str, args: &[&str], env: &Environment) -> Self {
        Self::start_program(Program::Faultline, dir, name, args, env).await
    }

    /// Starts a program in `dir` and waits until it says that it is ready.
    pub async fn start_program(
        program: Program,
        dir: &Path,
        name: &str,
        args: &[&str],
        env: &Environment,
    ) -> Self {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let mut env = env.clone();
        // Tests make workers die, hang and panic; a test of the default says otherwise.
        env.entry("FAULTLINE_WORKER__DRILLS".to_owned()).or_insert("true".to_owned());
        let (child, ready) = spawned(spawn(&program, dir, name, &args, &env).await);
        let name = name.to_owned();
        let dir = dir.to_owned();
        Self { name, program, args, env, dir, child, ready }
    }

    /// A whole mesh in one process, on free ports, with the store of `dir`.
    pub async fn up(dir: &Path) -> Self {
        let any = "127.0.0.1:0";
        let mut env = Environment::new();
        let mut args = vec!["up", "--listen", any, "--hub", any];
        match Store::default() {
            Store::Sqlite => args.extend(["--data", "data"]),
            _ => {
                env.insert("FAULTLINE_COORDINATOR__STORE".to_owned(), store_in(dir));
                env.insert("FAULTLINE_MESH__TOKEN".to_owned(), TOKEN.to_owned());
            }
        }
        Self::start_with(dir, "up", &args, &env).await
    }

    /// What it said when it was ready, after the word itself: its address, if it has one.
    pub fn ready(&self) -> &str {
        &self.ready
    }

    pub fn id(&self) -> u32 {
        self.child.id().expect("asked only while it runs")
    }

    /// `kill -9`. Returns when it is gone.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    /// Starts it again, with the same arguments and so on the same address.
    pub async fn restart(&mut self) {
        spawned(self.try_restart().await);
    }

    /// The same, where what it needs may be away: then it says why it could not be started.
    pub async fn try_restart(&mut self) -> Result<(), String> {
        let (child, ready) =
            spawn(&self.program, &self.dir, &self.name, &self.args, &self.env).await?;
        self.child = child;
        self.ready = ready;
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks it to leave.
    pub async fn terminate(&self) {
        self.signal("TERM").await;
    }

    /// It does nothing any more, and nobody is told: as when its machine has no time for it.
    pub async fn pause(&self) {
        self.signal("STOP").await;
    }

    /// It goes on as if nothing had been.
    pub async fn resume(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        // A shell can always send signals; no crate for one system call.
        let command = format!("kill -{name} {}", self.id());
        let sent = Command::new("sh").args(["-c", &command]).status().await;
        assert!(sent.is_ok_and(|s| s.success()), "{} takes a signal", self.name);
    }

    /// How it ends, whenever that is.
    pub async fn wait(&mut self) -> ExitStatus {
        self.child.wait().await.expect("a child can be awaited")
    }

    /// How it ended, or nothing if it still runs after that time.
    pub async fn exit_within(&mut self, within: Duration) -> Option<ExitStatus> {
        timeout(within, self.wait()).await.ok()
    }

    pub fn log(&self) -> String {
        let path = log_path(&self.dir, &self.name);
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(path) {
            let length = file.metadata().map_or(0, |m| m.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)));
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {}:\n{}", self.name, self.log());
        }
    }
}

fn log_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.log"))
}

fn spawned<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|why| panic!("{why}"))
}

async fn spawn(
    program: &Program,
    dir: &Path,
    name: &str,
    args: &[String],
    env: &Environment,
) -> Result<(Child, String), String> {
    let log = log_path(dir, name);
    let log = OpenOptions::new().create(true).append(true).open(log).expect("a log can be kept");
    let mut child = program
        .command(args, env)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .expect("a process can be started");
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    let ready = async {
        while let Ok(Some(line)) = lines.next_line().await {
            // The test runner may have begun the line.
            if let Some(at) = line.find("ready") {
                return Some(line[at + "ready".len()..].trim().to_owned());
            }
        }
        None
    };
    match timeout(START, ready).await {
        Ok(Some(ready)) => Ok((child, ready)),
        Ok(None) => Err(format!("{name} ended before it was ready")),
        Err(_) => Err(format!("{name} was not ready within {START:?}")),
    }
}
