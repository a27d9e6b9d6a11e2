//! One process of the mesh, with `kill -9`, restart, signals and its log.

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

/// Bound for the start of a process. A gateway waits for its coordinator meanwhile.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the log tail that a failed test prints.
const TAIL_BYTES: u64 = 16 * 1024;

/// A child process of one test. Killed when dropped; a failed test prints its log.
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
    /// Starts `faultline ARGS` in `dir` and waits for its ready line.
    pub async fn start(dir: &Path, name: &str, args: &[&str]) -> Self {
        Self::start_with(dir, name, args, &Environment::new()).await
    }

    /// [`start`](Self::start) with an environment.
    pub async fn start_with(dir: &Path, name: &str, args: &[&str], env: &Environment) -> Self {
        Self::start_program(Program::Faultline, dir, name, args, env).await
    }

    /// Starts a program in `dir` and waits for its ready line.
    pub async fn start_program(
        program: Program,
        dir: &Path,
        name: &str,
        args: &[&str],
        env: &Environment,
    ) -> Self {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let mut env = env.clone();
        // Scripts of tests abort, hang and panic; a test of the default sets it to false.
        env.entry("FAULTLINE_WORKER__DRILLS".to_owned()).or_insert("true".to_owned());
        let (child, ready) = expect_started(spawn(&program, dir, name, &args, &env).await);
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

    /// The rest of the ready line: the address of the process, if it has one.
    pub fn ready(&self) -> &str {
        &self.ready
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("a running process has an id")
    }

    /// `kill -9`. Returns when the process has ended.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    /// Starts the process again with the same arguments, and so on the same address.
    pub async fn restart(&mut self) {
        expect_started(self.try_restart().await);
    }

    /// [`restart`](Self::restart), with an error if the process does not start, such as without its
    /// database.
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

    /// Sends SIGTERM, which starts a drain.
    pub async fn terminate(&self) {
        self.signal("TERM").await;
    }

    /// Sends SIGSTOP: the process stalls, and its connections stay open.
    pub async fn pause(&self) {
        self.signal("STOP").await;
    }

    /// Sends SIGCONT after [`pause`](Self::pause).
    pub async fn resume(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        // The shell sends the signal: no crate for one system call.
        let command = format!("kill -{name} {}", self.pid());
        let sent = Command::new("sh").args(["-c", &command]).status().await;
        assert!(sent.is_ok_and(|s| s.success()), "no signal to {}", self.name);
    }

    /// Waits without a bound for the exit status.
    pub async fn wait(&mut self) -> ExitStatus {
        self.child.wait().await.expect("a child can be awaited")
    }

    /// The exit status, or `None` if the process still runs after that time.
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

fn expect_started<T>(result: Result<T, String>) -> T {
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
    let log =
        OpenOptions::new().create(true).append(true).open(log).expect("a log file can be opened");
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
            // The test runner may have printed the beginning of the line.
            if let Some(at) = line.find("ready") {
                return Some(line[at + "ready".len()..].trim().to_owned());
            }
        }
        None
    };
    match timeout(START_TIMEOUT, ready).await {
        Ok(Some(ready)) => Ok((child, ready)),
        Ok(None) => Err(format!("{name} ended before it was ready")),
        Err(_) => Err(format!("{name} was not ready within {START_TIMEOUT:?}")),
    }
}
