//! Guarantees to callers: a task that an answer names stays in the store, a failure keeps the
//! reason of its agent, and large tasks do not break lists.

use std::time::Duration;

use faultline::LocalMesh;
use faultline_tests::{
    in_process,
    rpc::{Rpc, answer, message},
    task::{self, COMPLETED, FAILED, INPUT_REQUIRED},
    until,
    wait::SOON,
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Question, Worker, reason};
use serde_json::json;

/// Withdraws questions, asks in parallel or writes large artifacts, as its message says.
struct Scenario;

impl Agent for Scenario {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let soon = tokio::time::sleep(Duration::from_millis(50));
        match &*cx.text() {
            "gives up" => tokio::select! {
                answer = cx.ask("well?") => answer.map(drop),
                () = soon => Err(Error::new(&reason::INPUT_TIMEOUT).because("no answer in time")),
            },
            "goes on" => {
                tokio::select! {
                    answer = cx.ask("well?") => answer.map(drop)?,
                    () = soon => {}
                }
                cx.artifact("out", "without you").await
            }
            "asks twice at once" => {
                let left = Question::input("left?").key("l");
                let right = Question::input("right?");
                let (left, right) = tokio::join!(cx.ask(left), cx.ask(right.key("r")));
                cx.artifact("out", format!("{} {}", left?.text(), right?.text())).await
            }
            _ => {
                for _ in 0..9 {
                    cx.append("large", "x".repeat(1024 * 1024)).await?;
                }
                Ok(())
            }
        }
    }
}

async fn with_scenario(dir: &tempfile::TempDir) -> (LocalMesh, Rpc) {
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let offer = Offer::new("scenario", Scenario);
    let attached = mesh.attach(Config::default(), |config| Worker::new(config).offer(offer)).await;
    attached.expect("the worker attaches");
    let rpc = Rpc::at(mesh.gateway_addr()).agent("scenario");
    (mesh, rpc)
}

#[tokio::test(flavor = "multi_thread")]
async fn task_named_in_a_timeout_is_never_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    config.worker.slots = 1;
    let mesh = LocalMesh::start(config).await.unwrap();
    let script = Rpc::at(mesh.gateway_addr()).agent("script");
    let busy = script.send_immediately("sleep 1500ms").await;
    let impatient = script.header("prefer", "wait=1");
    let error = impatient.call("SendMessage", message("message hi")).await.unwrap_err();
    assert_eq!(error["code"], -31004, "{error}");
    let id = error["data"][0]["metadata"]["taskId"].as_str().expect("the task is named").to_owned();
    let ended = until("the named task ends", SOON, || async {
        let task = script.task(&id).await;
        task::is_final(task::state(&task)).then_some(task)
    })
    .await;
    assert_eq!(task::state(&ended), COMPLETED);
    assert_eq!(task::text(&ended["status"]["message"]), "hi");
    assert_eq!(task::state(&script.task(task::id(&busy)).await), COMPLETED);
    mesh.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_may_withdraw_its_question() {
    let dir = tempfile::tempdir().unwrap();
    let (mesh, scenario) = with_scenario(&dir).await;
    for (text, state) in [("gives up", FAILED), ("goes on", COMPLETED)] {
        let asked = scenario.send(text).await;
        let id = task::id(&asked).to_owned();
        let ended = until("the agent goes on", SOON, || async {
            let task = scenario.task(&id).await;
            task::is_final(task::state(&task)).then_some(task)
        })
        .await;
        assert_eq!(task::state(&ended), state, "{ended}");
        match state {
            FAILED => {
                let failure = &ended["metadata"]["faultline.dev/failure"];
                assert_eq!(
                    failure["reason"], "INPUT_TIMEOUT",
                    "the reason of the agent: {failure}"
                );
            }
            _ => assert_eq!(task::artifacts(&ended)["out"], "without you"),
        }
        let error = scenario.call("SendMessage", answer(&id, "late")).await.unwrap_err();
        assert_eq!(error["code"], -32004, "the question is closed: {error}");
    }
    mesh.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_questions_are_shown_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (mesh, scenario) = with_scenario(&dir).await;
    let asked = scenario.send("asks twice at once").await;
    let id = task::id(&asked);
    assert_eq!(task::text(&asked["status"]["message"]), "left?");
    let again = scenario.call("SendMessage", answer(id, "one")).await.unwrap();
    assert_eq!(task::state(&again["task"]), INPUT_REQUIRED);
    assert_eq!(task::text(&again["task"]["status"]["message"]), "right?");
    let ended = scenario.call("SendMessage", answer(id, "two")).await.unwrap();
    assert_eq!(task::artifacts(&ended["task"])["out"], "one two");
    mesh.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn page_of_large_tasks_ends_at_the_size_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (mesh, scenario) = with_scenario(&dir).await;
    for _ in 0..3 {
        assert_eq!(task::state(&scenario.send("large").await), COMPLETED);
    }
    let mut seen = 0;
    let mut token = String::new();
    for pages in 1.. {
        let query = json!({"includeArtifacts": true, "pageToken": token});
        let page = scenario.call("ListTasks", query).await.unwrap();
        seen += page["tasks"].as_array().unwrap().len();
        token = page["nextPageToken"].as_str().unwrap().to_owned();
        if token.is_empty() {
            assert_eq!((seen, pages), (3, 2), "two tasks of 9 MiB fill a page");
            break;
        }
    }
    mesh.stop().await.unwrap();
}
