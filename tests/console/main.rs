//! Tests of the console in a real browser, against three meshes: one with ten thousand tasks, one
//! with tokens, and an empty one. `browser` drives it and writes a JSON line for each check;
//! `install` puts the driver below the target directory.

mod agents;
mod hostile;
mod seed;

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use faultline::LocalMesh;
use faultline_gateway::{Scope, Token};
use faultline_tests::in_process;
use faultline_worker::Worker;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

/// Set to write the pictures in `docs/`.
const PICTURES: &str = "FAULTLINE_WRITE_PICTURES";
/// Time limit of all checks.
const CHECKS_MAX: Duration = Duration::from_secs(200);

/// Tokens of the locked mesh with their digests and scopes; the second may not operate.
const TOKENS: [(&str, &str, &[Scope]); 2] = [
    (
        "let-me-in",
        "a3ee786b5707c27d42570785081ec17f5c7db9262a01366af362a1aa61a420b9",
        &[Scope::Send, Scope::Read, Scope::Operate],
    ),
    (
        "only-read",
        "a419886dbbbc345b81f7405ce298822c757903c82874084d899facedb7cb1f09",
        &[Scope::Send, Scope::Read],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn console_passes_all_checks_in_a_browser() {
    let installed = install().await;
    let meshes = Meshes::start().await;
    let mut command = Command::new(installed.join("run-node"));
    command
        .arg(installed.join("main.js"))
        .env("FAULTLINE_URL", meshes.busy.url())
        .env("FAULTLINE_LOCKED_URL", meshes.locked.url())
        .env("FAULTLINE_EMPTY_URL", meshes.empty.url())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if env::var_os(PICTURES).is_some() {
        command.env("FAULTLINE_DOCS", root().join("docs"));
    }
    let mut child = command.spawn().expect("node starts");
    let mut output = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let reading = async {
        let mut checks = 0;
        let mut failed = Vec::new();
        while let Ok(Some(line)) = output.next_line().await {
            println!("{line}");
            let line: Value = serde_json::from_str(&line).expect("a line is JSON");
            checks += 1;
            if line["ok"] != true {
                failed.push(format!("{}: {}", line["check"], line["why"]));
            }
        }
        (checks, failed, child.wait().await.expect("a child can be awaited"))
    };
    let done = timeout(CHECKS_MAX, reading).await;
    let (checks, failed, status) = done.expect("the browser ends in time");
    assert!(failed.is_empty(), "{} checks failed:\n{}", failed.len(), failed.join("\n"));
    assert!(
        status.success() && checks > 0,
        "{checks} checks passed, then the browser exited: {status}"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

/// The directory of the driver, which is installed if `tests/run` has not done so.
async fn install() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below target/");
    let into = target.join("console");
    let script = root().join("tests/console/install");
    let done = Command::new(script).arg(&into).status().await.expect("a script can be run");
    assert!(done.success(), "the browser cannot be driven: see above, or run tests/run");
    into
}

/// The meshes that the browser visits.
struct Meshes {
    /// Agents that work, fail and ask, and ten thousand ended tasks.
    busy: LocalMesh,
    /// With authentication.
    locked: LocalMesh,
    /// Without tasks, agents and actions of operators.
    empty: LocalMesh,
    _dirs: [TempDir; 3],
}

impl Meshes {
    async fn start() -> Self {
        let dirs = [(); 3].map(|()| tempfile::tempdir().expect("there is room"));
        let mut config = in_process(dirs[0].path());
        config.coordinator.breaker_failures = 0;
        config.gateway.trace_url = Some("https://traces.example/{trace_id}".to_owned());
        faultline_coordinator::seed(&seed::store(dirs[0].path()), seed::tasks())
            .await
            .expect("a store can be filled");
        let mut busy = LocalMesh::start(config).await.expect("a mesh starts");
        for name in ["worker-eu-1", "worker-eu-2"] {
            let config = faultline_worker::Config {
                name: Some(name.to_owned()),
                slots: 16,
                ..faultline_worker::Config::default()
            };
            let build =
                |config| agents::offers().into_iter().fold(Worker::new(config), Worker::offer);
            busy.attach(config, build).await.expect("a worker attaches");
        }

        let mut config = in_process(dirs[1].path());
        let token = |(_, sha256, scopes): (&str, &str, &[Scope])| Token {
            sha256: sha256.to_owned(),
            principal: "acme".to_owned(),
            agents: Vec::new(),
            scopes: scopes.to_vec(),
        };
        config.auth.token = TOKENS.map(token).to_vec();
        let locked = LocalMesh::start(config).await.expect("a mesh starts");

        let mut config = in_process(dirs[2].path());
        config.worker.agents.clear();
        config.gateway.operators_act = false;
        let empty = LocalMesh::start(config).await.expect("a mesh starts");
        Self { busy, locked, empty, _dirs: dirs }
    }
}
