//! What was promised to somebody stays true: a task that was named exists, an agent's own reason
//! is the one that is told, and a large answer is its reader's business alone.

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

/// Behaves as its message says, in ways a script cannot.
struct Odd;

impl Agent for Odd {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let soon = tokio::time::sleep(Duration::from_millis(50));
        match &*cx.text() {
            "gives up" => tokio::select! {
                answer = cx.ask("anybody?") => answer.map(drop),
                () = soon => Err(Error::new(&reason::INPUT_TIMEOUT).because("nobody came")),
            },
            "goes on" => {
                tokio::select! {
                    answer = cx.ask("anybody?") => answer.map(drop)?,
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

async fn with_odd(dir: &tempfile::TempDir) -> (LocalMesh, Rpc) {
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.expect("a mesh starts");
    let offer = Offer::new("odd", Odd);
    let attached = mesh.attach(Config::default(), |config| Worker::new(config).offer(offer)).await;
    attached.expect("the worker attaches");
    let rpc = Rpc::at(mesh.gateway_addr()).agent("odd");
    (mesh, rpc)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_somebody_was_told_of_never_vanishes() {
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
    let ended = until("the task the caller was told of ends", SOON, || async {
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
async fn an_agent_may_take_its_question_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mesh, odd) = with_odd(&dir).await;
    for (text, state) in [("gives up", FAILED), ("goes on", COMPLETED)] {
        let asked = odd.send(text).await;
        let id = task::id(&asked).to_owned();
        let ended = until("the agent goes on by itself", SOON, || async {
            let task = odd.task(&id).await;
            task::is_final(task::state(&task)).then_some(task)
        })
        .await;
        assert_eq!(task::state(&ended), state, "{ended}");
        match state {
            FAILED => {
                let failure = &ended["metadata"]["faultline.dev/failure"];
                assert_eq!(failure["reason"], "INPUT_TIMEOUT", "its own reason: {failure}");
            }
            _ => assert_eq!(task::artifacts(&ended)["out"], "without you"),
        }
        let error = odd.call("SendMessage", answer(&id, "late")).await.unwrap_err();
        assert_eq!(error["code"], -32004, "nobody asks any more: {error}");
    }
    mesh.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_asked_at_once_are_put_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (mesh, odd) = with_odd(&dir).await;
    let asked = odd.send("asks twice at once").await;
    let id = task::id(&asked);
    assert_eq!(task::text(&asked["status"]["message"]), "left?");
    let again = odd.call("SendMessage", answer(id, "one")).await.unwrap();
    assert_eq!(task::state(&again["task"]), INPUT_REQUIRED);
    assert_eq!(task::text(&again["task"]["status"]["message"]), "right?");
    let ended = odd.call("SendMessage", answer(id, "two")).await.unwrap();
    assert_eq!(task::artifacts(&ended["task"])["out"], "one two");
    mesh.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_tasks_ends_early_and_nobody_else_suffers() {
    let dir = tempfile::tempdir().unwrap();
    let (mesh, odd) = with_odd(&dir).await;
    for _ in 0..3 {
        assert_eq!(task::state(&odd.send("large").await), COMPLETED);
    }
    let mut seen = 0;
    let mut token = String::new();
    for pages in 1.. {
        let query = json!({"includeArtifacts": true, "pageToken": token});
        let page = odd.call("ListTasks", query).await.unwrap();
        seen += page["tasks"].as_array().unwrap().len();
        token = page["nextPageToken"].as_str().unwrap().to_owned();
        if token.is_empty() {
            assert_eq!((seen, pages), (3, 2), "two of nine mebibytes fill a page");
            break;
        }
    }
    mesh.stop().await.unwrap();
}
