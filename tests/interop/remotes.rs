//! Agents on the official Python SDK of A2A 0.3 as remote agents of a mesh, by each of its
//! transports, with streams and without.

use std::{path::Path, process::Stdio, time::Duration};

use faultline::{LocalMesh, remote::Remote};
use faultline_tests::{
    Rpc,
    cluster::free_address,
    in_process,
    rpc::{answer, message},
    task::{self, CANCELED, COMPLETED, FAILED, Fold, INPUT_REQUIRED, REJECTED},
    until,
    wait::SOON,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// Time limit for Python to load the SDK, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// A server of 0.3, and a mesh that offers its agent as `old`.
struct Running {
    old: Rpc,
    /// One line for each task that the server has to cancel.
    stops: Lines<BufReader<ChildStdout>>,
    _mesh: LocalMesh,
    _dir: TempDir,
    _server: Child,
}

impl Running {
    async fn start(installed: &Path, transport: &str, streams: bool) -> Self {
        let address = free_address();
        let script = crate::root().join("tests/interop/python03/server.py");
        let mut server = Command::new(installed.join("python03/bin/python"))
            .arg(script)
            .args([&*address.port().to_string(), transport])
            .args((!streams).then_some("--no-streams"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the server is installed");
        let stops = BufReader::new(server.stdout.take().expect("stdout is piped")).lines();
        until("the server listens", START, async || TcpStream::connect(address).await.ok()).await;
        let dir = tempfile::tempdir().expect("there is room for a temporary directory");
        let mut config = in_process(dir.path());
        let remote = Remote { card: format!("http://{address}"), ..Remote::default() };
        config.remote.insert("old".to_owned(), remote);
        let mesh = LocalMesh::start(config).await.expect("a mesh starts");
        let old = Rpc::at(mesh.gateway_addr()).agent("old");
        Self { old, stops, _mesh: mesh, _dir: dir, _server: server }
    }

    async fn completes(&self) {
        let sent =
            self.old.stream("SendStreamingMessage", message("stream")).await.expect("it streams");
        let frames = sent.all().await;
        let fold = Fold::of(&frames);
        assert_eq!(fold.finals(), [COMPLETED], "{frames:?}");
        assert_eq!(fold.artifacts["output"], "a b c", "{frames:?}");
        let task = self.old.task(task::id(&frames[0].body["task"])).await;
        assert_eq!(task::text(&task["status"]["message"]), "done", "{task}");
        assert!(task["artifacts"].to_string().contains(r#""data":{"total":7}"#), "{task}");
        let bare = self.old.send("message").await;
        assert_eq!(task::state(&bare), COMPLETED, "{bare}");
        assert_eq!(task::text(&bare["status"]["message"]), "only a message", "{bare}");
    }

    async fn asks(&self) {
        let asked = self.old.send("ask").await;
        assert_eq!(task::state(&asked), INPUT_REQUIRED, "{asked}");
        assert_eq!(task::text(&asked["status"]["message"]), "Your name?", "{asked}");
        let done = self.old.call("SendMessage", answer(task::id(&asked), "Ada")).await;
        let done = done.expect("it waits");
        assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
        assert_eq!(task::artifacts(&done["task"])["output"], "hello Ada", "{done}");
    }

    async fn fails(&self) {
        let failed = self.old.send("fail").await;
        let failure = &failed["metadata"]["faultline.dev/failure"];
        assert_eq!((task::state(&failed), &failure["foreign"]), (FAILED, &json!(true)), "{failed}");
        let text = failure["publicMessage"].as_str().unwrap_or_default();
        assert!(text.contains("the books are closed"), "{failure}");
        let rejected = self.old.send("reject").await;
        assert_eq!(task::state(&rejected), REJECTED, "{rejected}");
        assert_eq!(task::text(&rejected["status"]["message"]), "not my work", "{rejected}");
    }

    async fn stops(&mut self) {
        let task = self.old.send_immediately("wait").await;
        until("the first chunk has arrived", SOON, async || {
            let task = self.old.task(task::id(&task)).await;
            task::artifacts(&task).get("output").cloned()
        })
        .await;
        let canceled = self.old.call("CancelTask", json!({"id": task["id"]})).await;
        let canceled = canceled.expect("the task is cancelled");
        assert_eq!(task::state(&canceled), CANCELED, "{canceled}");
        let stopped =
            timeout(SOON, self.stops.next_line()).await.expect("the server gets the cancel");
        assert_eq!(stopped.expect("it is piped").as_deref(), Some("canceled"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_the_a2a_0_3_sdk_work_as_remote_agents() {
    let installed = crate::install().await;
    for transport in ["JSONRPC", "HTTP+JSON"] {
        for streams in [true, false] {
            println!("{transport}, streams: {streams}");
            let mut running = Running::start(&installed, transport, streams).await;
            running.completes().await;
            running.asks().await;
            running.fails().await;
            running.stops().await;
        }
    }
}
