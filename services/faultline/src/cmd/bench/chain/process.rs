//! One process of this binary: started, awaited until it is ready, measured through /proc, and
//! killed on drop.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{self, Stdio},
    sync::LazyLock,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use faultline_chassis::Secret;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The unit of CPU time in /proc: Linux reports 100 ticks per second to user space.
const TICK: Duration = Duration::from_millis(10);
/// The wait for the end of a killed process: the number of checks and the pause between them.
const REAP_LOOKS: u32 = 400;
const REAP_PAUSE: Duration = Duration::from_millis(5);
/// Bound on the part of a log that is shown when a process does not start.
const LOG_BYTES: usize = 2000;

/// The mesh token that the processes of one bench share.
pub(crate) static TOKEN: LazyLock<Secret> = LazyLock::new(Secret::random);

/// The names and values of environment variables.
pub(crate) type Env<'a> = &'a [(&'a str, &'a str)];

/// A child process. A drop kills it, and it exits by itself if the bench is killed.
pub(crate) struct Process {
    child: Child,
    pid: u32,
    /// The text after `ready` in its first line: an address, or nothing.
    pub(crate) address: String,
    /// Held open: a closed stdout would break its prints, and a closed stdin ends it.
    _pipes: (BufReader<ChildStdout>, Option<ChildStdin>),
}

impl Process {
    /// Starts a role of this binary and waits for its line `ready`.
    pub(crate) async fn start(dir: &Path, name: &str, args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(dir, name, args, &[]).await
    }

    /// Starts a role with these variables in its environment.
    pub(crate) async fn start_with(
        dir: &Path,
        name: &str,
        args: &[&str],
        env: Env<'_>,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        // The user's environment must not influence the measurement.
        for (key, _) in std::env::vars_os().filter(|(k, _)| is_ours(&k.to_string_lossy())) {
            command.env_remove(key);
        }
        let mut child = command
            .arg("bench-role")
            .args(args)
            .env("FAULTLINE_MESH__TOKEN", TOKEN.reveal())
            .envs(env.iter().copied())
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().context("no stdout")?;
        let pid = child.id().context("it ended at once")?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        let read = timeout(READY_TIMEOUT, stdout.read_line(&mut line)).await;
        let Some(address) = line.strip_prefix("ready").filter(|_| matches!(read, Ok(Ok(_)))) else {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let tail = said.len().saturating_sub(LOG_BYTES);
            bail!("{name} did not start: {line}{}", said.get(tail..).unwrap_or(&said));
        };
        let address = address.trim().to_owned();
        Ok(Self { child, pid, address, _pipes: (stdout, stdin) })
    }

    /// The CPU time, user and system; `None` without /proc.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        Some(Stat::of(self.pid)?.own)
    }

    /// The resident memory in bytes.
    pub(crate) fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill a process of the bench")
    }
}

/// Waits for the end of the process without the runtime: its directory is deleted next, and a child
/// that is not awaited becomes a zombie.
impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        for _ in 0..REAP_LOOKS {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(REAP_PAUSE),
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }
}

/// The entry of any process in /proc.
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) parent: u32,
    /// The CPU time of the process, user and system.
    pub(crate) own: Duration,
    /// The CPU time of its children that have ended.
    pub(crate) ended: Duration,
}

impl Stat {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may contain any character, so fields are counted after it.
        let (head, fields) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u32>().ok();
        let own = number(11)? + number(12)?;
        let ended = number(13)? + number(14)?;
        Some(Self { name, parent: number(1)?, own: TICK * own, ended: TICK * ended })
    }

    /// All processes.
    pub(crate) fn all() -> impl Iterator<Item = (u32, Self)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| Some((pid, Self::of(pid)?)))
    }
}

fn is_ours(key: &str) -> bool {
    key.starts_with("FAULTLINE_") || key.starts_with("OTEL_")
}

/// A temporary directory; a drop deletes it.
pub(crate) struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("faultline-{name}-{}", process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // An error is ignored: the system empties the temporary directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}
