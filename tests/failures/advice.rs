//! The advice on a failure, through a whole mesh: for callers with a task or an error, for
//! operators in `Inspect`, and consistent with the retries of the coordinator.

use faultline::LocalMesh;
use faultline_tests::{
    Rpc, in_process,
    rpc::{answer, message},
    task::{self, FAILED, REJECTED},
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Question, Worker, reason};
use serde_json::{Value, json};

/// Asks for an approval. Without one the agent rejects the task or fails it.
struct Refunds;

impl Agent for Refunds {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let answer = cx.ask(Question::approval("Pay back 5000 EUR?")).await?;
        if answer.approved() {
            Err(Error::new(&reason::FAILED_PRECONDITION).because("the account is empty"))
        } else if cx.text() == "reject" {
            Err(Error::rejected("A human said no"))
        } else {
            Err(Error::new(&reason::FAILED_PRECONDITION).because("not without approval"))
        }
    }
}

async fn start() -> (LocalMesh, Rpc, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("there is room for files");
    let mut mesh = LocalMesh::start(in_process(dir.path())).await.expect("the mesh starts");
    let offer = Offer::new("refunds", Refunds);
    mesh.attach(Config::default(), |config| Worker::new(config).offer(offer))
        .await
        .expect("the worker attaches");
    let rpc = Rpc::at(mesh.gateway_addr());
    (mesh, rpc, dir)
}

fn advice(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/advice"]
}

#[tokio::test(flavor = "multi_thread")]
async fn overload_without_a_delay_is_retried_and_advised_alike() {
    let (_mesh, rpc, _dir) = start().await;
    let task = rpc.agent("script").send("fail OVERLOADED").await;
    let expected = json!({"verdict": "retry", "actor": "caller", "retryAfterMs": 1000,
        "party": "the caller",
        "text": "wait 1s, then send again; if it happens again, tell the owner of agent 'script'"});
    assert_eq!(*advice(&task), expected, "{task}");
    let inspected = rpc.inspect(task::id(&task)).await;
    assert_ne!(inspected["notRetried"], "NOT_RETRIED_REASON", "{inspected}");
    assert_eq!(inspected["advice"]["verdict"], "retry", "{inspected}");
    assert_eq!(rpc.task(task::id(&task)).await, task, "the stored task is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_request_between_agents_is_reported_to_the_owner_of_the_sender() {
    let (_mesh, rpc, _dir) = start().await;
    let script = rpc.agent("script");
    let near = script.send("fail INVALID_ARGUMENT").await;
    assert_eq!(
        (&advice(&near)["verdict"], &advice(&near)["actor"]),
        (&json!("fix"), &json!("caller"))
    );
    let far = "delegate script { delegate script { delegate script { delegate script { \
               fail INVALID_ARGUMENT } } } }";
    let far = script.send(far).await;
    let advice = advice(&far);
    assert_eq!(
        (&advice["verdict"], &advice["actor"]),
        (&json!("report"), &json!("owner")),
        "{advice}"
    );
    assert_eq!(advice["agent"], "script", "{advice}");
    assert!(!advice["text"].as_str().unwrap().contains("correct the request"), "{advice}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bug_of_an_agent_is_reported_to_its_owner_with_the_failure_id() {
    let (_mesh, rpc, _dir) = start().await;
    let task = rpc.agent("script").send("fail INTERNAL").await;
    let id = task["metadata"]["faultline.dev/failure"]["id"].as_str().unwrap();
    for advice in [advice(&task), &rpc.inspect(task::id(&task)).await["advice"]] {
        assert_eq!(
            (&advice["actor"], &advice["agent"]),
            (&json!("owner"), &json!("script")),
            "{advice}"
        );
        let text = advice["text"].as_str().unwrap();
        assert!(
            text.contains("has a bug") && text.contains(id) && !text.contains("mesh"),
            "{advice}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_by_a_person_is_named_in_the_advice() {
    let (_mesh, rpc, _dir) = start().await;
    let refunds = rpc.agent("refunds");
    let fields = |approved: bool| json!([{"data": {"approved": approved}}]);
    for (text, parts, state) in [
        ("reject", fields(false), REJECTED),
        ("reject", json!([{"text": "no"}]), REJECTED),
        ("fail", fields(false), FAILED),
    ] {
        let asked = refunds.send(text).await;
        let mut reply = answer(task::id(&asked), "");
        reply["message"]["parts"] = parts;
        let task = &refunds.call("SendMessage", reply).await.unwrap()["task"];
        assert_eq!(task::state(task), state, "{task}");
        let advice = advice(task);
        assert_eq!(
            (&advice["verdict"], &advice["actor"]),
            (&json!("stop"), &json!("person")),
            "{task}"
        );
        assert!(advice["text"].as_str().unwrap().starts_with("a person refused this"), "{advice}");
    }
    // A failure after an approval is a failure of the agent.
    let asked = refunds.send("fail").await;
    let mut reply = answer(task::id(&asked), "");
    reply["message"]["parts"] = fields(true);
    let task = &refunds.call("SendMessage", reply).await.unwrap()["task"];
    assert_eq!(advice(task)["verdict"], "fix", "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_carries_the_advice_in_its_details() {
    let (_mesh, rpc, _dir) = start().await;
    let refused = rpc.agent("nobody").call("SendMessage", message("x")).await.unwrap_err();
    let details = refused["data"].as_array().unwrap();
    let advice = details.iter().find(|d| d["@type"].as_str().unwrap().ends_with("v1.Advice"));
    let expected = json!({"@type": "type.googleapis.com/faultline.v1.Advice", "verdict": "fix",
        "actor": "caller", "party": "the caller",
        "text": "there is no agent 'nobody': check the name"});
    assert_eq!(advice, Some(&expected), "{refused}");
}
