//! Loops of a model and its tools, where the tools are agents: what a model is told, what it may
//! try again, and what ends the run, wherever the tool ran.

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
    start_beside(offers, &[]).await
}

/// With agents of another mesh besides, each under a name of ours and its own URL.
async fn start_beside(offers: Vec<Offer>, remotes: &[(&str, String)]) -> (Rpc, LocalMesh, TempDir) {
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

/// A tool that takes addresses of one domain, and whose database may be down.
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

/// A loop in which the model mends its argument when it is told to. The tool is a function of its
/// own, or the agent.
struct Looping {
    local: bool,
    retries: Arc<AtomicU32>,
}

impl Agent for Looping {
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
async fn a_model_mends_what_it_can_and_the_run_ends_where_it_cannot() {
    let retries = Arc::new(AtomicU32::new(0));
    let looping = |local| Looping { local, retries: Arc::clone(&retries) };
    let offers = vec![
        Offer::new("mail", Mail),
        Offer::new("local", looping(true)),
        Offer::new("delegating", looping(false)),
    ];
    let (rpc, _mesh, _dir) = start(offers).await;
    for agent in ["local", "delegating"] {
        let rpc = rpc.agent(agent);
        let mended = rpc.send("ada@example.com").await;
        assert_eq!(task::state(&mended), COMPLETED, "{agent}: {mended}");
        assert_eq!(task::artifacts(&mended)["loop"], "sent to ada@example.org");
        assert_eq!(retries.swap(0, Ordering::Relaxed), 1, "{agent}: one of the model's tries");
        // The same error, wherever the tool ran.
        let ended = rpc.send("down").await;
        assert_eq!(task::state(&ended), FAILED, "{agent}: {ended}");
        assert_eq!(failure(&ended)["reason"], "INTERNAL", "{agent}");
        assert_eq!(failure(&ended)["businessCode"], "DB_7", "{agent}");
        assert_eq!(retries.load(Ordering::Relaxed), 0, "{agent}: no try was spent on it");
        let hopeless = rpc.send("hopeless").await;
        assert_eq!(failure(&hopeless)["businessCode"], "40401", "{agent}: {hopeless}");
    }
}

/// What a program reads of a failure.
#[derive(Clone, Debug, PartialEq)]
struct Read {
    disposition: Disposition,
    code: i32,
    reason: String,
    business_code: String,
    fields: Vec<String>,
    retryable: bool,
}

impl Read {
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

/// Sends mail itself, by another agent, by one behind that, and by one of another house, and says
/// what it should do about the failure.
struct Comparing;

impl Agent for Comparing {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let argument = cx.text().into_owned();
        let local = send_mail(&argument).expect_err("it is not sent");
        let local = local.failure().expect("it failed").clone();
        let mut told = vec![local.disposition()];
        for (agent, foreign) in [("mail", false), ("hop", false), ("elsewhere", true)] {
            let outcome = cx.delegate(agent, argument.as_str()).outcome().await?;
            assert_eq!(outcome.state, Ending::Failed);
            told.push(outcome.disposition().expect("it failed"));
            let failure = outcome.failure.expect("it failed");
            assert_eq!(failure.foreign, foreign, "{agent}");
            assert_eq!(Read::of(&failure), Read::of(&local), "{agent}");
        }
        cx.reply(format!("{told:?}")).await
    }
}

/// One more hop.
struct Hop;

impl Agent for Hop {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.delegate("mail", cx.text()).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_error_is_handled_the_same_wherever_it_came_from() {
    let (_, there, _there_dir) = start(vec![Offer::new("mail", Mail)]).await;
    let offers =
        vec![Offer::new("mail", Mail), Offer::new("hop", Hop), Offer::new("comparing", Comparing)];
    let elsewhere = ("elsewhere", format!("{}/agents/mail", there.url()));
    let (rpc, _mesh, _dir) = start_beside(offers, &[elsewhere]).await;
    for (argument, disposition) in [("x@example.com", "ModelRetry"), ("down", "Abort")] {
        let task = rpc.agent("comparing").send(argument).await;
        assert_eq!(task::state(&task), COMPLETED, "{task}");
        let said = task::text(&task["status"]["message"]);
        assert_eq!(said, format!("[{}]", [disposition; 4].join(", ")));
    }
}

/// Tells its model what became of `script`, asks the user what `script` asks, and goes on with the
/// same task.
struct Relaying;

impl Agent for Relaying {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let mut outcome = cx.delegate("script", cx.text()).outcome().await?;
        let mut told = vec![outcome.to_string().replace(&outcome.task_id, "ID")];
        while outcome.state == Ending::InputRequired {
            let task_id = outcome.task_id.clone();
            let answer = cx.ask(outcome.text.as_str()).await?.text().into_owned();
            outcome = cx.delegate("script", answer).to_task(&task_id).outcome().await?;
            assert_eq!(outcome.task_id, task_id);
            told.push(outcome.to_string().replace(&outcome.task_id, "ID"));
        }
        cx.artifact("told", told.join("\n")).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_call_with_the_answer_resumes_the_same_task() {
    let (rpc, _mesh, _dir) = start(vec![Offer::new("relaying", Relaying)]).await;
    let rpc = rpc.agent("relaying");
    let task = rpc.send("ask Name?; chunk \"hi $answer\"; ask Age?; chunk \", $answer\"").await;
    let id = task::id(&task);
    assert_eq!(task::state(&task), INPUT_REQUIRED, "{task}");
    let task = rpc.call("SendMessage", answer(id, "Ada")).await.unwrap()["task"].clone();
    assert_eq!(task::text(&task["status"]["message"]), "Age?", "{task}");
    let task = rpc.call("SendMessage", answer(id, "36")).await.unwrap()["task"].clone();
    let told = [
        "[INPUT_REQUIRED:task_id=ID] Name?",
        "[INPUT_REQUIRED:task_id=ID] Age?",
        "[COMPLETED] hi Ada, 36",
    ];
    let told = told.join("\n");
    assert_eq!(task::artifacts(&task)["told"], told, "{task}");
}

/// Waits for `script` for a moment only.
struct Impatient;

impl Agent for Impatient {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let outcome = cx.delegate("script", cx.text()).outcome();
        let outcome = outcome.timeout(Duration::from_millis(300)).await?;
        assert_eq!(outcome.state, Ending::TimedOut);
        cx.artifact("told", outcome.to_string()).await?;
        cx.artifact("child", outcome.task_id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_patience_ends_the_other_and_not_us() {
    let (rpc, _mesh, _dir) = start(vec![Offer::new("impatient", Impatient)]).await;
    let task = rpc.agent("impatient").send("say here; sleep 60s").await;
    assert_eq!(task::state(&task), COMPLETED, "{task}");
    let artifacts = task::artifacts(&task);
    assert_eq!(artifacts["told"], "[TIMEOUT] Task timed out");
    let child = rpc.task(&artifacts["child"]).await;
    assert_eq!(task::state(&child), CANCELED, "{child}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_told_what_became_of_a_live_agent() {
    let (rpc, _mesh, _dir) = start(vec![Offer::new("relaying", Relaying)]).await;
    for (script, told) in [
        ("chunk done", "[COMPLETED] done"),
        ("sleep 1ms", "[COMPLETED] Task completed"),
        ("fail NOT_FOUND text=\"no such city\"", "[FAILED] no such city"),
        ("reject \"not mine\"", "[REJECTED] not mine"),
        ("panic", "[FAILED] the agent panicked"),
    ] {
        let task = rpc.agent("relaying").send(script).await;
        assert_eq!(task::artifacts(&task)["told"], told, "{task}");
    }
    // Somebody else stops the other, and whoever had it work is told that.
    let sent = rpc.agent("relaying").send_immediately("say here; sleep 60s").await;
    let child = until("the other is at work", SOON, async || {
        let list = rpc.agent("script").call("ListTasks", json!({"pageSize": 100})).await.unwrap();
        let mut tasks = list["tasks"].as_array().unwrap().iter();
        tasks.find(|t| t["metadata"]["faultline.dev/parent"] == sent["id"]).cloned()
    })
    .await;
    rpc.call("CancelTask", json!({"id": child["id"]})).await.expect("it can be");
    let told = until("the relay has ended", SOON, async || {
        Some(rpc.task(task::id(&sent)).await).filter(|t| task::is_final(task::state(t)))
    })
    .await;
    assert_eq!(task::artifacts(&told)["told"], "[CANCELLED] Task was cancelled", "{told}");
}
