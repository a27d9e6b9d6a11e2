//! The advice beside a failure, through a whole mesh: for callers with the task and with an error,
//! for operators in their view, and never in contradiction to the retry that was or was not made.

use faultline::LocalMesh;
use faultline_tests::{
    Rpc, in_process,
    rpc::{answer, message},
    task::{self, FAILED, REJECTED},
};
use faultline_worker::{Agent, Config, Context, Error, Offer, Question, Worker, reason};
use serde_json::{Value, json};

/// Asks for an approval. Without one it gives up, by a rejection or by an error that it raises.
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
async fn an_overload_without_a_delay_is_retried_and_advised_alike() {
    let (_mesh, rpc, _dir) = start().await;
    let task = rpc.agent("script").send("fail OVERLOADED").await;
    let expected = json!({"verdict": "retry", "actor": "caller", "retryAfterMs": 1000,
        "party": "the caller",
        "text": "wait 1s, then send again; if it happens again, tell the owner of agent 'script'"});
    assert_eq!(*advice(&task), expected, "{task}");
    let inspected = rpc.inspect(task::id(&task)).await;
    assert_ne!(inspected["notRetried"], "NOT_RETRIED_REASON", "{inspected}");
    assert_eq!(inspected["advice"]["verdict"], "retry", "{inspected}");
    assert_eq!(rpc.task(task::id(&task)).await, task, "as it is stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_between_agents_is_reported_to_the_owner_of_its_writer() {
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
    let told = advice(&far);
    assert_eq!((&told["verdict"], &told["actor"]), (&json!("report"), &json!("owner")), "{told}");
    assert_eq!(told["agent"], "script", "{told}");
    assert!(!told["text"].as_str().unwrap().contains("correct the request"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bug_of_an_agent_is_told_to_its_owner_with_the_failure_id() {
    let (_mesh, rpc, _dir) = start().await;
    let task = rpc.agent("script").send("fail INTERNAL").await;
    let id = task["metadata"]["faultline.dev/failure"]["id"].as_str().unwrap();
    for told in [advice(&task), &rpc.inspect(task::id(&task)).await["advice"]] {
        assert_eq!((&told["actor"], &told["agent"]), (&json!("owner"), &json!("script")), "{told}");
        let text = told["text"].as_str().unwrap();
        assert!(
            text.contains("has a bug") && text.contains(id) && !text.contains("mesh"),
            "{told}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_of_a_person_ends_in_advice_that_says_so() {
    let (_mesh, rpc, _dir) = start().await;
    let refunds = rpc.agent("refunds");
    let fields = |approved: bool| json!([{"data": {"approved": approved}}]);
    for (way, parts, state) in [
        ("reject", fields(false), REJECTED),
        ("reject", json!([{"text": "no"}]), REJECTED),
        ("fail", fields(false), FAILED),
    ] {
        let asked = refunds.send(way).await;
        let mut reply = answer(task::id(&asked), "");
        reply["message"]["parts"] = parts;
        let task = &refunds.call("SendMessage", reply).await.unwrap()["task"];
        assert_eq!(task::state(task), state, "{task}");
        let told = advice(task);
        assert_eq!(
            (&told["verdict"], &told["actor"]),
            (&json!("stop"), &json!("person")),
            "{task}"
        );
        assert!(told["text"].as_str().unwrap().starts_with("a person refused this"), "{told}");
    }
    // A failure after a yes is the agent's own.
    let asked = refunds.send("fail").await;
    let mut reply = answer(task::id(&asked), "");
    reply["message"]["parts"] = fields(true);
    let task = &refunds.call("SendMessage", reply).await.unwrap()["task"];
    assert_eq!(advice(task)["verdict"], "fix", "{task}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_carries_the_advice_among_its_details() {
    let (_mesh, rpc, _dir) = start().await;
    let refused = rpc.agent("nobody").call("SendMessage", message("x")).await.unwrap_err();
    let details = refused["data"].as_array().unwrap();
    let told = details.iter().find(|d| d["@type"].as_str().unwrap().ends_with("v1.Advice"));
    let expected = json!({"@type": "type.googleapis.com/faultline.v1.Advice", "verdict": "fix",
        "actor": "caller", "party": "the caller",
        "text": "there is no agent 'nobody': check the name"});
    assert_eq!(told, Some(&expected), "{refused}");
}
