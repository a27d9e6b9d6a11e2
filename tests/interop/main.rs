//! Interoperability with A2A clients of other projects: the official SDKs work against a mesh as
//! documented. Each client is a process that writes a JSON line for each check; `install` puts them
//! at their pinned versions below the target directory.

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
/// Time limit of all checks of one client.
const CHECKS_MAX: Duration = Duration::from_secs(200);
/// Number of clients that run concurrently.
const CONCURRENCY: usize = 2;

/// The token of the mesh with authentication.
const TOKEN: &str = "let-me-in";
/// `printf let-me-in | sha256sum`
const TOKEN_SHA256: &str = "a3ee786b5707c27d42570785081ec17f5c7db9262a01366af362a1aa61a420b9";

/// A client of another project, with a script in its language.
#[derive(Clone, Copy, Debug)]
enum Client {
    /// The directory of its script and of its environment.
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
            // Node resolves packages from the directory of the script, so the script is copied.
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
async fn every_client_passes_its_documented_checks() {
    let installed = install().await;
    let results = stream::iter(CLIENTS).map(|client| run(client, &installed)).buffered(CONCURRENCY);
    let lines: Vec<Line> = results.collect::<Vec<_>>().await.concat();
    let failed = lines.iter().filter(|line| !line.ok);
    let failed: Vec<_> = failed
        .map(|line| format!("{} {} {}: {}", line.client, line.binding, line.check, line.why))
        .collect();
    assert!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));

    let document = root().join("docs/interop.md");
    let text = fs::read_to_string(&document).expect("docs/interop.md exists");
    let table = table::table(&lines);
    let expected =
        table::replace(&text, &table).expect("docs/interop.md has a place for the table");
    if env::var_os(WRITE).is_some() {
        fs::write(&document, expected).expect("docs/interop.md can be written");
    } else {
        let same = text == expected;
        assert!(
            same,
            "the table of docs/interop.md differs (`tests/run clients` writes it):\n{table}"
        );
    }
}

/// a2a-lint checks cards and endpoints of A2A agents.
#[tokio::test(flavor = "multi_thread")]
async fn a2a_lint_reports_nothing() {
    let installed = install().await;
    let running = Running::start().await;
    for agent in ["echo", "script"] {
        let url = format!("{}/agents/{agent}", running.mesh.url());
        let linted = Command::new(installed.join("lint/bin/a2a-lint"))
            .args(["--live", "--strict", &url])
            .output()
            .await
            .expect("it is installed");
        let printed = String::from_utf8_lossy(&linted.stdout).into_owned();
        assert!(linted.status.success(), "{printed}{}", String::from_utf8_lossy(&linted.stderr));
    }
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root");
    root.to_owned()
}

/// The directory of the clients, which are installed if `tests/run` has not done so.
async fn install() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below target/");
    let into = target.join("interop");
    let script = root().join("tests/interop/install");
    let done = Command::new(script).arg(&into).status().await.expect("a script can be run");
    assert!(done.success(), "the clients cannot be installed: see above, or run tests/run");
    into
}

/// A mesh with the built-in agents and the strict ones, and signed cards of all three bindings.
struct Running {
    mesh: LocalMesh,
    /// The public key of its cards, in PEM.
    public_key: String,
    _dir: TempDir,
}

impl Running {
    /// Without authentication.
    async fn start() -> Self {
        Self::start_with(Vec::new()).await
    }

    /// With authentication: [`TOKEN`] allows the agent echo only.
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
        // Clients should see the first failure, without retries.
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

/// All lines of one client, on a mesh of its own. Its stderr is passed through.
async fn run(client: Client, installed: &Path) -> Vec<Line> {
    let running = Running::start().await;
    let locked = Running::start_locked().await;
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
            lines.push(
                Line::read(&text).unwrap_or_else(|| panic!("not the line of a check: {text}")),
            );
        }
        (lines, child.wait().await.expect("a child can be awaited"))
    };
    let (lines, status) = timeout(CHECKS_MAX, reading)
        .await
        .unwrap_or_else(|_| panic!("{client:?} does not end within {CHECKS_MAX:?}"));
    let all_well = lines.iter().all(|line| line.ok);
    assert!(!lines.is_empty(), "{client:?} checked nothing: {status}");
    assert_eq!(status.success(), all_well, "{client:?} exited with {status}");
    lines
}
