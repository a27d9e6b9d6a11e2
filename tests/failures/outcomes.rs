//! Tool loops of a model, where the tools are agents: the outcome text for the model, retries with
//! corrected arguments, and failures that end the run, for local and remote tools alike.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use faultline::{LocalMesh, remote::Remote};
use faultline_tests::{
    Rpc, in_process,
    rpc::answer,
    task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED},
    until,
    wait::SOON,
};
use faultline_worker::{
    Agent, Config, Context, Disposition, Ending, Error, Failure, Offer, Worker, reason,
};
use serde_json::{Value, json};
use tempfile::TempDir;

async fn start(offers: Vec<Offer>) -> (Rpc, LocalMesh, TempDir) {
    start_with_remotes(offers, &[]).await
}

/// [`start`] with remote agents, by local name and URL.
async fn start_with_remotes(
    offers: Vec<Offer>,
    remotes: &[(&str, String)],
) -> (Rpc, LocalMesh, TempDir) {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let mut config = in_process(dir.path());
    for (name, card) in remotes.iter().cloned() {
        config.remote.insert(name.to_owned(), Remote { card, ..Remote::default() });
    }
    let mut mesh = LocalMesh::start(config).await.expect("a mesh starts");
    let offered = |config| offers.into_iter().fold(Worker::new(config), Worker::offer);
    mesh.attach(Config::default(), offered).await.expect("a worker attaches");
    (Rpc::at(mesh.gateway_addr()), mesh, dir)
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

/// A tool that accepts addresses of one domain, with an error for a broken database.
fn send_mail(address: &str) -> Result<String, Error> {
    match address {
        "down" => Err(Error::new(&reason::INTERNAL).because("the database is down").code("DB_7")),
        other if !other.ends_with("@example.org") => {
            let error = Error::new(&reason::INVALID_ARGUMENT).because("only @example.org");
            Err(error.code(40401).violation("address", "of another domain"))
        }
        other => Ok(format!("sent to {other}")),
    }
}

struct Mail;

impl Agent for Mail {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let sent = send_mail(&cx.text())?;
        cx.artifact("mail", sent).await
    }
}

/// A tool loop in which the model corrects its argument after a refusal. The tool is a local
/// function or an agent.
struct ToolLoop {
    local: bool,
    retries: Arc<AtomicU32>,
}

impl Agent for ToolLoop {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let mut argument = cx.text().into_owned();
        loop {
            let called = if self.local {
                send_mail(&argument)
            } else {
                let outcome = cx.delegate("mail", argument.as_str()).outcome().strict().await;
                outcome.map(|outcome| outcome.text)
            };
            match called {
                Ok(text) => return cx.artifact("loop", text).await,
                Err(error) if error.is_model_retry() && argument != "hopeless" => {
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    argument = argument.replace("example.com", "example.org");
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn model_retries_correctable_errors_and_the_run_ends_on_others() {
    let retries = Arc::new(AtomicU32::new(0));
    let tool_loop = |local| ToolLoop { local, retries: Arc::clone(&retries) };
    let offers = vec![
        Offer::new("mail", Mail),
        Offer::new("local", tool_loop(true)),
        Offer::new("delegating", tool_loop(false)),
    ];
    let (rpc, _mesh, _dir) = start(offers).await;
    for agent in ["local", "delegating"] {
        let rpc = rpc.agent(agent);
        let corrected = rpc.send("ada@example.com").await;
        assert_eq!(task::state(&corrected), COMPLETED, "{agent}: {corrected}");
        assert_eq!(task::artifacts(&corrected)["loop"], "sent to ada@example.org");
        assert_eq!(retries.swap(0, Ordering::Relaxed), 1, "{agent}: one retry of the model");
        // The error is the same for a local and a delegated tool.
        let ended = rpc.send("down").await;
        assert_eq!(task::state(&ended), FAILED, "{agent}: {ended}");
        assert_eq!(failure(&ended)["reason"], "INTERNAL", "{agent}");
        assert_eq!(failure(&ended)["businessCode"], "DB_7", "{agent}");
        assert_eq!(retries.load(Ordering::Relaxed), 0, "{agent}: no retry of the model");
        let hopeless = rpc.send("hopeless").await;
        assert_eq!(failure(&hopeless)["businessCode"], "40401", "{agent}: {hopeless}");
    }
}

/// The fields of a failure that a program reads.
#[derive(Clone, Debug, PartialEq)]
struct Fields {
    disposition: Disposition,
    code: i32,
    reason: String,
    business_code: String,
    fields: Vec<String>,
    retryable: bool,
}

impl Fields {
    fn of(failure: &Failure) -> Self {
        Self {
            disposition: failure.disposition(),
            code: failure.code() as i32,
            reason: failure.reason.clone(),
            business_code: failure.business_code.clone(),
            fields: failure.violations.iter().map(|v| v.field.clone()).collect(),
            retryable: failure.may_retry(),
        }
    }
}

/// Sends mail locally, by another agent, by a chain of two and by a remote agent, and replies with
/// the disposition of each failure.
struct Comparing;

impl Agent for Comparing {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let argument = cx.text().into_owned();
        let local = send_mail(&argument).expect_err("the tool fails");
        let local = local.failure().expect("a failure").clone();
        let mut dispositions = vec![local.disposition()];
        for (agent, foreign) in [("mail", false), ("hop", false), ("partner", true)] {
            let outcome = cx.delegate(agent, argument.as_str()).outcome().await?;
            assert_eq!(outcome.state, Ending::Failed);
            dispositions.push(outcome.disposition().expect("a failure"));
            let failure = outcome.failure.expect("a failure");
            assert_eq!(failure.foreign, foreign, "{agent}");
            assert_eq!(Fields::of(&failure), Fields::of(&local), "{agent}");
        }
        cx.reply(format!("{dispositions:?}")).await
    }
}

/// Delegates to `mail`: one more hop.
struct Hop;

impl Agent for Hop {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.delegate("mail", cx.text()).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_is_handled_alike_for_local_delegated_and_remote_tools() {
    let (_, there, _there_dir) = start(vec![Offer::new("mail", Mail)]).await;
    let offers =
        vec![Offer::new("mail", Mail), Offer::new("hop", Hop), Offer::new("comparing", Comparing)];
    let partner = ("partner", format!("{}/agents/mail", there.url()));
    let (rpc, _mesh, _dir) = start_with_remotes(offers, &[partner]).await;
    for (argument, disposition) in [("x@example.com", "ModelRetry"), ("down", "Abort")] {
        let task = rpc.agent("comparing").send(argument).await;
        assert_eq!(task::state(&task), COMPLETED, "{task}");
        let text = task::text(&task["status"]["message"]);
        assert_eq!(text, format!("[{}]", [disposition; 4].join(", ")));
    }
}

/// Collects the outcome text of `script`, forwards its questions to the user, and resumes the same
/// task with the answers.
struct Relaying;

impl Agent for Relaying {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let mut outcome = cx.delegate("script", cx.text()).outcome().await?;
        let mut outcomes = vec![outcome.to_string().replace(&outcome.task_id, "ID")];
        while outcome.state == Ending::InputRequired {
            let task_id = outcome.task_id.clone();
            let answer = cx.ask(outcome.text.as_str()).await?.text().into_owned();
            outcome = cx.delegate("script", answer).to_task(&task_id).outcome().await?;
            assert_eq!(outcome.task_id, task_id);
            outcomes.push(outcome.to_string().replace(&outcome.task_id, "ID"));
        }
        cx.artifact("outcomes", outcomes.join("\n")).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_call_with_the_answer_resumes_the_same_task() {
    let (rpc, _mesh, _dir) = start(vec![Offer::new("relaying", Relaying)]).await;
    let rpc = rpc.agent("relaying");
    let task = rpc.send("ask Name?; chunk \"hi $answer\"; ask Age?; chunk \", $answer\"").await;
    let id = task::id(&task);
    assert_eq!(task::state(&task), INPUT_REQUIRED, "{task}");
    let task = rpc.call("SendMessage", answer(id, "Ada")).await.unwrap()["task"].clone();
    assert_eq!(task::text(&task["status"]["message"]), "Age?", "{task}");
    let task = rpc.call("SendMessage", answer(id, "36")).await.unwrap()["task"].clone();
    let outcomes = [
        "[INPUT_REQUIRED:task_id=ID] Name?",
        "[INPUT_REQUIRED:task_id=ID] Age?",
        "[COMPLETED] hi Ada, 36",
    ];
    let outcomes = outcomes.join("\n");
    assert_eq!(task::artifacts(&task)["outcomes"], outcomes, "{task}");
}

/// Waits for `script` with a timeout of 300 ms.
struct Impatient;

impl Agent for Impatient {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let outcome = cx.delegate("script", cx.text()).outcome();
        let outcome = outcome.timeout(Duration::from_millis(300)).await?;
        assert_eq!(outcome.state, Ending::TimedOut);
        cx.artifact("outcomes", outcome.to_string()).await?;
        cx.artifact("child", outcome.task_id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_of_a_parent_cancels_the_child_and_not_the_parent() {
    let (rpc, _mesh, _dir) = start(vec![Offer::new("impatient", Impatient)]).await;
    let task = rpc.agent("impatient").send("say here; sleep 60s").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    let artifacts = task::artifacts(&task);
    assert_eq!(artifacts["outcomes"], "[TIMEOUT] Task timed out");
    let child = rpc.task(&artifacts["child"]).await;
    assert_eq!(task::state(&child), CANCELED, "{child}");
}

#[tokio::test(flavor = "multi_thread")]
async fn outcome_text_names_the_end_of_a_running_agent() {
    let (rpc, _mesh, _dir) = start(vec![Offer::new("relaying", Relaying)]).await;
    for (script, outcomes) in [
        ("chunk done", "[COMPLETED] done"),
        ("sleep 1ms", "[COMPLETED] Task completed"),
        ("fail NOT_FOUND text=\"no such city\"", "[FAILED] no such city"),
        ("reject \"not mine\"", "[REJECTED] not mine"),
        ("panic", "[FAILED] the agent panicked"),
    ] {
        let task = rpc.agent("relaying").send(script).await;
        assert_eq!(task::artifacts(&task)["outcomes"], outcomes, "{task}");
    }
    // A cancel of the child is an outcome of the parent.
    let sent = rpc.agent("relaying").send_immediately("say here; sleep 60s").await;
    let child = until("the child works", SOON, async || {
        let list = rpc.agent("script").call("ListTasks", json!({"pageSize": 100})).await.unwrap();
        let mut tasks = list["tasks"].as_array().unwrap().iter();
        tasks.find(|t| t["metadata"]["faultline.dev/parent"] == sent["id"]).cloned()
    })
    .await;
    rpc.call("CancelTask", json!({"id": child["id"]})).await.expect("the child is cancelled");
    let ended = until("the relay has ended", SOON, async || {
        Some(rpc.task(task::id(&sent)).await).filter(|t| task::is_final(task::state(t)))
    })
    .await;
    assert_eq!(task::artifacts(&ended)["outcomes"], "[CANCELLED] Task was cancelled", "{ended}");
}
