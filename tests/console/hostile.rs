//! Attack by a hostile web page (CSRF and DNS rebinding) in a real browser, on the machine of a
//! mesh without tokens: it fails to start, read, answer or cancel tasks on both ports.

use std::process::Stdio;

use faultline::LocalMesh;
use faultline_proto::{
    a2a::{
        CancelTaskRequest, ListTasksRequest, Message as A2aMessage, Part, Role, SendMessageRequest,
        part::Content,
    },
    v1::{OperatorAnswerRequest, OperatorCancelRequest, TasksRequest},
};
use faultline_tests::{Rpc, in_process, task, until, wait::SOON};
use faultline_worker::Worker;
use prost::Message;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::{CHECKS_MAX, agents, install};

/// A mesh with one task, which waits for an approval.
struct WaitingTask {
    mesh: LocalMesh,
    rpc: Rpc,
    task: String,
    _dir: tempfile::TempDir,
}

impl WaitingTask {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("there is room");
        let mut mesh = LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
        let build = |config| agents::offers().into_iter().fold(Worker::new(config), Worker::offer);
        mesh.attach(faultline_worker::Config::default(), build).await.expect("a worker attaches");
        let rpc = Rpc::at(mesh.gateway_addr());
        let sent = rpc.agent("deploys").send_immediately("deploy").await;
        let task = task::id(&sent).to_owned();
        until("the task asks", SOON, async || {
            let now = rpc.task(&task).await;
            (task::state(&now) == "TASK_STATE_INPUT_REQUIRED").then_some(())
        })
        .await;
        Self { mesh, rpc, task, _dir: dir }
    }

    /// Runs the attack, then checks that the task is unchanged and no other exists.
    async fn attacked(&self, port: u16, grpc: &Value) {
        let installed = install().await;
        let mut command = Command::new(installed.join("run-node"));
        command
            .arg(installed.join("hostile.js"))
            .env("FAULTLINE_PORT", port.to_string())
            .env("FAULTLINE_TASK", &self.task)
            .env("FAULTLINE_GRPC", grpc.to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = timeout(CHECKS_MAX, command.output()).await.expect("the browser ends in time");
        let output = output.expect("node starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Value> = printed
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect();
        let succeeded: Vec<_> = lines.iter().filter(|line| line["ok"] != true).collect();
        assert!(succeeded.is_empty(), "attempts of the page succeeded: {succeeded:#?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && lines.len() > 20, "{} {errors}", lines.len());

        let tasks = self.rpc.mesh("Tasks", json!({})).await;
        let tasks = tasks["tasks"].as_array().expect("tasks");
        assert_eq!(tasks.len(), 1, "the page started a task: {tasks:#?}");
        let now = self.rpc.task(&self.task).await;
        assert_eq!(task::state(&now), "TASK_STATE_INPUT_REQUIRED", "answered or cancelled: {now}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_page_has_no_access_to_the_gateway_port() {
    let waiting = WaitingTask::start().await;
    waiting.attacked(waiting.mesh.gateway_addr().port(), &json!([])).await;
}

/// A message as gRPC frames it, in hexadecimal digits.
fn framed(message: &impl Message) -> String {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    let bytes = [&[0], &length[..], &message].concat();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_page_has_no_access_to_the_coordinator_port() {
    let waiting = WaitingTask::start().await;
    let task_id = waiting.task.clone();
    let part = Part { content: Some(Content::Text("pay 5000 EUR".into())), ..Part::default() };
    let message = A2aMessage {
        message_id: "m-evil".into(),
        role: Role::User as i32,
        parts: vec![part],
        ..A2aMessage::default()
    };
    let tenant = "writer".to_owned();
    let send = SendMessageRequest { tenant, message: Some(message), ..Default::default() };
    let cancel = CancelTaskRequest { id: task_id.clone(), ..Default::default() };
    let stop = OperatorCancelRequest { task_id: task_id.clone(), ..Default::default() };
    let answer = OperatorAnswerRequest { task_id, text: "yes".into(), ..Default::default() };
    let grpc = json!([
        ["/lf.a2a.v1.A2AService/SendMessage", framed(&send)],
        ["/lf.a2a.v1.A2AService/ListTasks", framed(&ListTasksRequest::default())],
        ["/lf.a2a.v1.A2AService/CancelTask", framed(&cancel)],
        ["/faultline.v1.Mesh/Tasks", framed(&TasksRequest::default())],
        ["/faultline.v1.Mesh/Cancel", framed(&stop)],
        ["/faultline.v1.Mesh/Answer", framed(&answer)],
    ]);
    waiting.attacked(waiting.mesh.hub_addr().port(), &grpc).await;
}
