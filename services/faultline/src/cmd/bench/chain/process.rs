//! One process of this binary: started, known to be ready, measured through /proc, and killed
//! whatever happens.

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
/// What /proc counts CPU time in: Linux shows everybody 100 ticks a second.
const TICK: Duration = Duration::from_millis(10);
/// How long a killed process may take to be gone, in looks and the pause between them.
const REAP_LOOKS: u32 = 400;
const REAP_PAUSE: Duration = Duration::from_millis(5);
/// How much of a log is shown when a process does not start.
const LOG_BYTES: usize = 2000;

/// The token that the processes of one bench present to each other.
pub(crate) static TOKEN: LazyLock<Secret> = LazyLock::new(Secret::random);

/// Names and values.
pub(crate) type Env<'a> = &'a [(&'a str, &'a str)];

/// Killed when dropped, and by itself when the bench dies without a chance to.
pub(crate) struct Process {
    child: Child,
    pid: u32,
    /// What followed `ready`: an address, or nothing.
    pub(crate) address: String,
    /// Held open: a process must not die of what it prints, and it ends when its stdin does.
    _pipes: (BufReader<ChildStdout>, Option<ChildStdin>),
}

impl Process {
    /// Starts a role of this binary and waits for the line that says that it serves.
    pub(crate) async fn start(dir: &Path, name: &str, args: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(dir, name, args, &[]).await
    }

    /// The same with these variables in its environment.
    pub(crate) async fn start_with(
        dir: &Path,
        name: &str,
        args: &[&str],
        env: Env<'_>,
    ) -> anyhow::Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut command = Command::new(std::env::current_exe()?);
        // Neither a faultline.toml nor the environment may change what is measured.
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

    /// CPU time so far, user and system; `None` where there is no /proc.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        Some(Stat::of(self.pid)?.own)
    }

    /// Resident memory, in bytes.
    pub(crate) fn memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot kill a process of ours")
    }
}

/// Waits for its end, also where nothing is polled any more: the directory of its files goes next,
/// and what nobody waits for stays behind as a zombie.
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

/// What /proc says of a process, which need not be ours.
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) parent: u32,
    /// CPU time so far, user and system.
    pub(crate) own: Duration,
    /// The same of those of its children that have ended.
    pub(crate) ended: Duration,
}

impl Stat {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may hold anything, so fields count from behind it.
        let (head, fields) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u32>().ok();
        let own = number(11)? + number(12)?;
        let ended = number(13)? + number(14)?;
        Some(Self { name, parent: number(1)?, own: TICK * own, ended: TICK * ended })
    }

    /// Those that there are.
    pub(crate) fn all() -> impl Iterator<Item = (u32, Self)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| Some((pid, Self::of(pid)?)))
    }
}

fn is_ours(key: &str) -> bool {
    key.starts_with("FAULTLINE_") || key.starts_with("OTEL_")
}

/// A directory that goes away with its owner.
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
        // Nobody is left to tell, and the system empties the place anyway.
        let _ = fs::remove_dir_all(&self.path);
    }
}
