//! An approval given in the console, on the command line or by a plain A2A message is an approval
//! at the agent of the README, and a refusal is a refusal.

use std::{
    fs,
    io::Write,
    process::{Command, Output, Stdio},
};

use faultline::{Config, LocalMesh};
use faultline_client::{Answer, Client, text};
use faultline_proto::{
    a2a::{Task, TaskState},
    json,
    v1::{InspectResponse, OperatorAnswerRequest},
};
use faultline_worker::Worker;
use tempfile::TempDir;

use crate::{refunds, root};

/// The front ends through which a person answers.
#[derive(Clone, Copy, Debug)]
enum By {
    /// `POST /mesh/Answer` with these fields, as
    /// `services/gateway/src/operators/console/question.js` sends them for the buttons Approve,
    /// Decline and Dismiss.
    Console(&'static str),
    /// `faultline answer TASK …`.
    CommandLine(&'static [&'static str]),
    /// `faultline send` on a terminal at which these keys are typed.
    Terminal(&'static str),
    /// A message of A2A whose only part is this text.
    Message(&'static str),
}

const APPROVALS: [By; 6] = [
    By::Console(r#""action":"ANSWER_ACTION_ACCEPT","fields":{"approved":true}"#),
    By::CommandLine(&["yes"]),
    By::CommandLine(&["--data", r#"{"approved": true}"#]),
    By::Terminal("y\n"),
    By::Message("yes"),
    By::Message("Yes"),
];

const REFUSALS: [By; 9] = [
    By::Console(r#""action":"ANSWER_ACTION_DECLINE""#),
    By::Console(r#""action":"ANSWER_ACTION_DISMISS""#),
    By::Console(r#""action":"ANSWER_ACTION_ACCEPT","fields":{"approved":false}"#),
    By::CommandLine(&["no"]),
    By::CommandLine(&["--decline"]),
    By::CommandLine(&["--decline", "yes, but not today"]),
    By::Terminal("n\n"),
    By::Terminal("\n"),
    By::Message("no"),
];

struct Setup {
    mesh: LocalMesh,
    _data: TempDir,
}

impl Setup {
    async fn start() -> Self {
        let data = TempDir::new().expect("a directory can be made");
        let config = Config::local(data.path()).on_free_ports();
        let mut mesh = LocalMesh::start(config).await.expect("the mesh starts");
        let own = |config| Worker::new(config).offer(refunds::offer());
        let attached = mesh.attach(faultline_worker::Config::default(), own).await;
        attached.expect("the agent attaches");
        Self { mesh, _data: data }
    }

    fn client(&self) -> Client {
        self.mesh.client().agent("refunds")
    }

    /// The id of a task that asks whether to pay.
    async fn asking(&self) -> String {
        let sent = self.client().send(text("500")).await.expect("the call runs");
        let Answer::Task(task) = sent else { panic!("no task: {sent:?}") };
        assert_eq!(state(&task), TaskState::InputRequired);
        task.id
    }

    /// A task that was answered and has ended.
    async fn answered(&self, by: By) -> Task {
        let url = self.mesh.url();
        let id = match by {
            By::Console(fields) => {
                let id = self.asking().await;
                let request = format!(r#"{{"taskId":"{id}","key":"ask-1",{fields}}}"#);
                let request: OperatorAnswerRequest =
                    json::from_str(&request).expect("the console sends JSON of the contract");
                let answered = self.client().mesh("Answer", &request).await;
                let _: InspectResponse = answered.unwrap_or_else(|e| panic!("{by:?}: {e}"));
                id
            }
            By::CommandLine(words) => {
                let id = self.asking().await;
                faultline(&[&["answer", &id, "--gateway", &url], words].concat());
                id
            }
            By::Terminal(keys) => {
                let shown = on_a_terminal(&["send", "refunds", "500", "--gateway", &url], keys);
                let id = shown.split_whitespace().find(|word| word.matches('-').count() == 4);
                id.unwrap_or_else(|| panic!("no id in {shown}")).to_owned()
            }
            By::Message(words) => {
                let id = self.asking().await;
                let sent = self.client().send(text(words).to_task(&id)).await;
                sent.unwrap_or_else(|error| panic!("{by:?}: {error}"));
                id
            }
        };
        // Waits for the end. A rejected task is an error of this call, which is expected here.
        let _ = self.client().wait(&id).await;
        self.client().task(&id).await.expect("the task is stored")
    }
}

fn state(task: &Task) -> TaskState {
    task.status.as_ref().expect("a task has a status").state()
}

/// Runs one command, which may fail: the test asserts the state of the task.
fn faultline(args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    let output = command.args(args).env("NO_COLOR", "1").stdin(Stdio::null()).output();
    let Output { status, stderr, .. } = output.expect("the binary runs");
    let message = String::from_utf8_lossy(&stderr);
    assert!(matches!(status.code(), Some(0 | 65)), "{args:?}: {status}: {message}");
}

/// The output of a command on a terminal at which `keys` are typed.
fn on_a_terminal(args: &[&str], keys: &str) -> String {
    let terminal = "import os, pty, sys\n\
        sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut command = Command::new("python3");
    command.args(["-c", terminal, env!("CARGO_BIN_EXE_faultline")]).args(args);
    command.env("NO_COLOR", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("python3 is installed, as tests/run checks");
    let mut typed = child.stdin.take().expect("stdin is piped");
    typed.write_all(keys.as_bytes()).expect("stdin is open");
    let Output { stdout, .. } = child.wait_with_output().expect("the command ends");
    String::from_utf8_lossy(&stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_by_any_front_end_completes_the_task() {
    let setup = Setup::start().await;
    for by in APPROVALS {
        let task = setup.answered(by).await;
        assert_eq!(state(&task), TaskState::Completed, "{by:?}: {task:?}");
        assert_eq!(task.artifacts[0].name, "receipt", "{by:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_by_any_front_end_rejects_the_task() {
    let setup = Setup::start().await;
    for by in REFUSALS {
        let task = setup.answered(by).await;
        assert_eq!(state(&task), TaskState::Rejected, "{by:?}: {task:?}");
        assert!(task.artifacts.is_empty(), "{by:?}: nothing was paid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_other_than_yes_or_no_is_rejected_and_the_question_stays_open() {
    let setup = Setup::start().await;
    let id = setup.asking().await;
    let error = setup.client().send(text("perhaps").to_task(&id)).await.unwrap_err();
    let message = error.failure().unwrap();
    assert!(message.public_message.contains("answer.approved"), "{}", message.public_message);
    let task = setup.client().task(&id).await.unwrap();
    assert_eq!(state(&task), TaskState::InputRequired);
}

#[test]
fn readme_agent_equals_the_example_and_the_tested_agent() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let readme = read("docs/writing-agents.md");
    let from = readme.find("struct Refunds;").expect("the README has an agent");
    let agent = readme[from..].split("\n```").next().unwrap();
    for copy in ["services/worker/examples/refunds.rs", file!()] {
        let copy = copy.replace("approvals.rs", "refunds.rs");
        assert!(read(&copy).contains(agent), "{copy} is another agent than the README's");
    }
}
