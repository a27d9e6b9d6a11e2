//! Clients that others wrote, against a mesh: whatever the official SDKs promise their users must
//! hold here. Each client is a process of its own that writes a JSON line a check; `install` puts
//! them at their pinned versions below the target directory.

mod agents;
mod remotes;
mod table;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use faultline::LocalMesh;
use faultline_gateway::{Scope, Token};
use faultline_tests::{cluster::free_address, in_process};
use faultline_worker::Worker;
use futures::{StreamExt, stream};
use table::Line;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

/// Set to have the README's table written instead of compared.
const WRITE: &str = "FAULTLINE_WRITE_TABLE";
/// For all checks of one client.
const PATIENCE: Duration = Duration::from_secs(200);
/// Clients that run at once: more would only measure each other.
const AT_ONCE: usize = 2;

/// What opens the mesh that asks who calls.
const TOKEN: &str = "let-me-in";
/// `printf let-me-in | sha256sum`
const TOKEN_SHA256: &str = "a3ee786b5707c27d42570785081ec17f5c7db9262a01366af362a1aa61a420b9";

/// A program that others wrote, with a script of ours in its language.
#[derive(Clone, Copy, Debug)]
enum Client {
    /// By the directory of its script and of its environment.
    Python(&'static str),
    JavaScript,
    Rust,
}

/// The columns of the table, in order.
const CLIENTS: [Client; 5] = [
    Client::Python("python"),
    Client::JavaScript,
    Client::Rust,
    Client::Python("python03"),
    Client::Python("framework"),
];

impl Client {
    fn command(self, installed: &Path) -> Command {
        match self {
            Self::Python(name) => {
                let scripts = root().join("tests/interop");
                let mut command = Command::new(installed.join(name).join("bin/python"));
                command
                    .arg(scripts.join(name).join("main.py"))
                    .env("PYTHONPATH", scripts.join("shared"))
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            // Node looks for packages where the script lies, so the script is copied to them.
            Self::JavaScript => {
                let mut command = Command::new(installed.join("js/node"));
                command.arg(installed.join("js/main.js"));
                command
            }
            Self::Rust => Command::new(installed.join("rust/debug/interop")),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_does_as_documented() {
    let installed = install().await;
    let results = stream::iter(CLIENTS).map(|client| run(client, &installed)).buffered(AT_ONCE);
    let lines: Vec<Line> = results.collect::<Vec<_>>().await.concat();
    let failed = lines.iter().filter(|line| !line.ok);
    let failed: Vec<_> = failed
        .map(|line| format!("{} {} {}: {}", line.client, line.binding, line.check, line.why))
        .collect();
    assert!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));

    let document = root().join("docs/interop.md");
    let text = fs::read_to_string(&document).expect("docs/interop.md exists");
    let table = table::table(&lines);
    let expected = table::replace(&text, &table).expect("docs/interop.md has a place for the table");
    if env::var_os(WRITE).is_some() {
        fs::write(&document, expected).expect("docs/interop.md can be written");
    } else {
        let same = text == expected;
        assert!(same, "the table of docs/interop.md differs (`tests/run clients` writes it):\n{table}");
    }
}

/// The linter of cards and endpoints that others use before they trust an agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_linter_finds_nothing() {
    let (installed, running) = (install().await, Running::start().await);
    for agent in ["echo", "script"] {
        let url = format!("{}/agents/{agent}", running.mesh.url());
        let linted = Command::new(installed.join("lint/bin/a2a-lint"))
            .args(["--live", "--strict", &url])
            .output()
            .await
            .expect("it is installed");
        let said = String::from_utf8_lossy(&linted.stdout).into_owned();
        assert!(linted.status.success(), "{said}{}", String::from_utf8_lossy(&linted.stderr));
    }
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root");
    root.to_owned()
}

/// Installs what is not there yet. `tests/run` has done it before; `cargo test` alone works too.
async fn install() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below target/");
    let into = target.join("interop");
    let script = root().join("tests/interop/install");
    let done = Command::new(script).arg(&into).status().await.expect("a script can be run");
    assert!(done.success(), "the clients cannot be installed: see above, or run tests/run");
    into
}

/// A mesh with the built-in agents and the strict ones, its three bindings on signed cards.
struct Running {
    mesh: LocalMesh,
    /// What its cards can be verified with, in PEM.
    public_key: String,
    _dir: TempDir,
}

impl Running {
    /// Open to everybody.
    async fn start() -> Self {
        Self::start_with(Vec::new()).await
    }

    /// Only for who has [`TOKEN`], and then only for the agent echo.
    async fn start_locked() -> Self {
        let token = Token {
            sha256: TOKEN_SHA256.to_owned(),
            principal: "interop".to_owned(),
            agents: vec!["echo".to_owned()],
            scopes: vec![Scope::Send, Scope::Read],
        };
        Self::start_with(vec![token]).await
    }

    async fn start_with(tokens: Vec<Token>) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a temporary directory");
        let key = rcgen::KeyPair::generate().expect("a key of P-256 can be made");
        let file = dir.path().join("card-key.pem");
        fs::write(&file, key.serialize_pem()).expect("a file can be written");
        let mut config = in_process(dir.path());
        config.auth.token = tokens;
        // Clients are to see failures as they are, and soon.
        config.coordinator.retries = 0;
        config.coordinator.breaker_failures = 0;
        config.gateway.listen = free_address();
        config.gateway.public_grpc = Some(config.gateway.listen.to_string());
        config.gateway.card_key = Some(file);
        config.gateway.card_key_id = Some("interop".to_owned());
        let mut mesh = LocalMesh::start(config).await.expect("a mesh starts");
        let build = |config| agents::offers().into_iter().fold(Worker::new(config), Worker::offer);
        mesh.attach(faultline_worker::Config::default(), build).await.expect("a worker attaches");
        Self { mesh, public_key: key.public_key_pem(), _dir: dir }
    }
}

/// All lines of one client on a mesh of its own. What it says on stderr is shown as it comes.
async fn run(client: Client, installed: &Path) -> Vec<Line> {
    let (running, locked) = (Running::start().await, Running::start_locked().await);
    let mut child = client
        .command(installed)
        .env("FAULTLINE_URL", running.mesh.url())
        .env("FAULTLINE_CARD_KEY", &running.public_key)
        .env("FAULTLINE_LOCKED_URL", locked.mesh.url())
        .env("FAULTLINE_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|e| panic!("{client:?} does not start: {e}"));
    let mut output = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let reading = async {
        let mut lines = Vec::new();
        while let Ok(Some(text)) = output.next_line().await {
            println!("{text}");
            lines.push(Line::read(&text).unwrap_or_else(|| panic!("no line of a check: {text}")));
        }
        (lines, child.wait().await.expect("a child can be awaited"))
    };
    let (lines, status) = timeout(PATIENCE, reading)
        .await
        .unwrap_or_else(|_| panic!("{client:?} is not done within {PATIENCE:?}"));
    let all_well = lines.iter().all(|line| line.ok);
    assert!(!lines.is_empty(), "{client:?} checked nothing: {status}");
    assert_eq!(status.success(), all_well, "{client:?} left with {status}");
    lines
}
