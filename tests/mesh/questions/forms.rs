//! Questions in detail: forms with a JSON Schema, approvals, parallel questions, expiry, questions
//! of child tasks, and recovery after a crash.

use std::{process::Stdio, time::Duration};

use faultline_tests::{
    Plan, Rpc,
    rpc::answer,
    task::{self, AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, is_final},
    until,
    wait::SOON,
};
use faultline_worker::{
    Action, Agent, Answer, Config, Context, Error, Offer, Question, Worker, reason,
};
use serde_json::{Value, json};

use crate::{Running, start};

/// Asks the question that its message names.
struct Asker;

impl Agent for Asker {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        match cx.text().as_ref() {
            "port" => {
                let schema = json!({"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                    "host": {"type": "string", "default": "localhost"},
                }});
                let answer = cx.ask(Question::input("Listen where?").schema(schema)).await?;
                cx.artifact("listens", answer.value()).await
            }
            "approve" => {
                let answer = cx.ask(Question::approval("Deploy?").key("deploy")).await?;
                let outcome = match answer.action() {
                    Action::Accepted if answer.approved() => "deployed",
                    Action::Accepted => "not approved",
                    Action::Declined => "declined",
                    Action::Dismissed => "dismissed",
                };
                cx.reply(outcome).await
            }
            "two" => {
                let name = cx.ask(Question::input("Name?").key("name"));
                let town = cx.ask(Question::input("Town?").key("town"));
                let (name, town) = tokio::try_join!(name, town)?;
                cx.append("output", format!("{} of {}", name.text(), town.text())).await
            }
            "hurry" => {
                let question = Question::input("Quick?").expires_in(Duration::from_millis(300));
                match cx.ask(question).await {
                    Ok(answer) => cx.reply(answer.text()).await,
                    Err(error) => {
                        let failure = error.failure().ok_or("cancelled")?;
                        cx.reply(format!("went on after {}", failure.reason)).await
                    }
                }
            }
            "too late" => {
                let question = Question::input("Quick?").expires_in(Duration::from_millis(100));
                cx.ask(question).await.map(drop)
            }
            "sign in" | "sign in here" => {
                let by_provider = cx.text() == "sign in";
                let signed_in = async {
                    // Simulates the callback of the provider.
                    let after = if by_provider { 200 } else { 60_000 };
                    cx.sleep(Duration::from_millis(after)).await?;
                    cx.artifact("credential", "from the provider").await
                };
                tokio::select! {
                    signed_in = signed_in => signed_in?,
                    answer = cx.auth("https://login.example") => {
                        cx.artifact("credential", answer?.text()).await?;
                    }
                }
                cx.append("output", "signed in").await
            }
            other => {
                Err(Error::new(&reason::INVALID_ARGUMENT)
                    .because(format!("unknown question: {other}")))
            }
        }
    }
}

/// Delegates to `asker` and answers the question `town` itself.
struct Partial;

impl Agent for Partial {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let made = cx
            .delegate("asker", cx.text())
            .key("c")
            .answer_with(async |question| (question.key == "town").then(|| Answer::new("Bern")));
        cx.append("output", made.await?.text()).await
    }
}

/// Delegates to `asker`, whose questions rise to the caller.
struct Relay;

impl Agent for Relay {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let made = cx.delegate("asker", cx.text()).key("c").await?;
        cx.append("output", made.text()).await
    }
}

/// A tool loop whose tool asks two questions. The test kills the worker between them.
struct Loop;

impl Agent for Loop {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let asked = match cx.restored() {
            Some(id) => String::from_utf8_lossy(id).into_owned(),
            None => {
                let asks = "ask \"First?\"; chunk $answer; ask \"Second?\"; chunk $answer";
                let asked = cx.delegate("script", asks).outcome().await?;
                cx.checkpoint(asked.task_id.clone()).await?;
                asked.task_id
            }
        };
        let text = format!("answer of attempt {}", cx.attempt());
        let next = cx.delegate("script", text).to_task(asked).outcome().await?;
        cx.status(next.to_string()).await?;
        if cx.attempt() == 1 {
            cx.sleep(Duration::from_secs(60)).await?;
        }
        cx.reply(next.to_string()).await
    }
}

fn worker(config: Config) -> Worker {
    Worker::new(config)
        .offer(Offer::new("loop", Loop))
        .offer(Offer::new("asker", Asker))
        .offer(Offer::new("partial", Partial))
        .offer(Offer::new("relay", Relay))
}

async fn asking() -> Running {
    asking_with(Config::default()).await
}

async fn asking_with(config: Config) -> Running {
    let mut up = start().await;
    up.mesh.attach(config, worker).await.expect("a worker attaches");
    up
}

/// A message with an answer record: key of the question, action and one part.
fn reply(id: &str, key: &str, action: &str, part: Value) -> Value {
    let mut answer = answer(id, "");
    answer["message"]["parts"] = json!([part]);
    let record = json!({"interruptId": key, "action": action});
    answer["message"]["metadata"] = json!({"faultline.dev/answer": record});
    answer
}

fn open_questions(task: &Value) -> Vec<&str> {
    let listed = task["metadata"]["faultline.dev/interrupts"].as_array();
    let shown = &task["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    let one = std::slice::from_ref(shown);
    let all = listed.map_or(one, Vec::as_slice).iter();
    all.filter_map(|interrupt| interrupt["key"].as_str()).collect()
}

/// Waits until exactly these questions are open.
async fn until_asks(rpc: &Rpc, id: &str, keys: &[&str]) -> Value {
    until(&format!("the task asks {keys:?}"), 2 * SOON, async || {
        Some(rpc.task(id).await).filter(|task| open_questions(task) == keys)
    })
    .await
}

async fn ended(rpc: &Rpc, id: &str) -> Value {
    until("the task has ended", 2 * SOON, async || {
        Some(rpc.task(id).await).filter(|task| is_final(task::state(task)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_form_answer_is_refused_by_field_and_leaves_the_question_open() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    let task = asker.send("port").await;
    let id = task::id(&task);
    let interrupt = &task["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    assert_eq!(interrupt["schema"]["properties"]["port"]["maximum"], 65535, "{interrupt}");
    let high = reply(id, "ask-1", "accept", json!({"data": {"port": 70000, "hots": "x"}}));
    let refused = asker.call("SendMessage", high).await.unwrap_err();
    assert_eq!(refused["code"], -32602, "{refused}");
    let text = refused.to_string();
    for named in ["answer.port", "must be at most 65535", "answer.hots"] {
        assert!(text.contains(named), "{named} in {text}");
    }
    assert_eq!(up.rpc.task(id).await, task, "the question is unchanged");
    let right = reply(id, "ask-1", "accept", json!({"data": {"port": 8080}}));
    let done = asker.call("SendMessage", right).await.expect("the answer is valid");
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
    let listens = &done["task"]["artifacts"][0]["parts"][0]["data"];
    assert_eq!(
        *listens,
        json!({"port": 8080, "host": "localhost"}),
        "with the default of the schema"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn accept_decline_and_dismiss_differ_at_the_agent() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    for (action, text, expected) in [
        ("accept", "yes", "deployed"),
        ("accept", "no", "not approved"),
        ("decline", "not today", "declined"),
        ("dismiss", "", "dismissed"),
    ] {
        let task = asker.send("approve").await;
        let message = reply(task::id(&task), "deploy", action, json!({"text": text}));
        let done = asker.call("SendMessage", message).await.expect("the answer is accepted");
        assert_eq!(task::text(&done["task"]["status"]["message"]), expected);
    }
    let task = asker.send("approve").await;
    let id = task::id(&task);
    let as_part = json!({"data": {"faultline.dev/answer": {"action": "decline"}}});
    let mut by_part = answer(id, "");
    by_part["message"]["parts"] = json!([as_part]);
    for (bad, field) in [
        (reply(id, "deploy", "perhaps", json!({"text": "yes"})), "faultline.dev/answer.action"),
        (reply(id, "launch", "accept", json!({"text": "yes"})), "faultline.dev/answer.interruptId"),
        (answer(id, "perhaps"), "answer.approved"),
    ] {
        let refused = asker.call("SendMessage", bad).await.unwrap_err();
        assert_eq!(refused["code"], -32602, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains(field), "{field}: {refused}");
    }
    let done = asker.call("SendMessage", by_part).await.expect("a data part may carry the record");
    assert_eq!(task::text(&done["task"]["status"]["message"]), "declined");
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_questions_are_answered_in_any_order() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    let sent = asker.send("two").await;
    let id = task::id(&sent);
    let task = until_asks(&up.rpc, id, &["name", "town"]).await;
    assert_eq!(task::state(&task), INPUT_REQUIRED);
    assert_eq!(task::text(&task["status"]["message"]), "Name?", "the oldest question is shown");
    let inspected = up.rpc.inspect(id).await;
    assert_eq!(inspected["interrupts"].as_array().map(Vec::len), Some(2), "{inspected}");
    let town = reply(id, "town", "accept", json!({"text": "Bern"}));
    let next =
        asker.call("SendMessage", town.clone()).await.expect("any open question may be answered");
    assert_eq!(task::state(&next["task"]), INPUT_REQUIRED, "one question is left: {next}");
    assert_eq!(open_questions(&next["task"]), ["name"]);
    let again = asker.call("SendMessage", town).await.unwrap_err();
    assert_eq!(again["code"], -32004, "the first answer counts: {again}");
    let done = asker
        .call("SendMessage", answer(id, "Ada"))
        .await
        .expect("plain text answers the only question");
    let done = &done["task"];
    assert_eq!(task::artifacts(done)["output"], "Ada of Bern", "{done}");
    let texts: Vec<_> = done["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(texts, ["two", "Name?", "Town?", "Bern", "Ada"], "each text once");
    assert!(done["metadata"]["faultline.dev/interrupts"].is_null(), "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_not_part_of_the_result() {
    let up = start().await;
    let script = "ask \"One?\"; chunk $answer; ask \"Two?\"; chunk $answer; ask \"Three?\"; \
                  chunk $answer; message done";
    let task = up.script.send(script).await;
    let id = task::id(&task).to_owned();
    let mut shown = task;
    for (prompt, text) in [("One?", "1"), ("Two?", "2"), ("Three?", "3")] {
        assert_eq!(task::text(&shown["status"]["message"]), prompt);
        let sent = up.script.call("SendMessage", answer(&id, text)).await.expect("the task waits");
        shown = sent["task"].clone();
        assert_eq!(task::id(&shown), id, "the same task goes on");
    }
    assert_eq!(task::state(&shown), COMPLETED);
    assert_eq!(task::artifacts(&shown)["output"], "123", "the output holds answers and no prompts");
    assert_eq!(task::text(&shown["status"]["message"]), "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_question_is_handled_by_the_agent() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    let hurry = asker.send("hurry").await;
    let interrupt = &hurry["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    assert!(interrupt["expiresAt"].is_string(), "{interrupt}");
    let done = ended(&up.rpc, task::id(&hurry)).await;
    assert_eq!(task::state(&done), COMPLETED, "{done}");
    assert_eq!(task::text(&done["status"]["message"]), "went on after INPUT_TIMEOUT");
    let late = asker.call("SendMessage", answer(task::id(&hurry), "x")).await.unwrap_err();
    assert_eq!(late["code"], -32004, "{late}");
    let failed = asker.send_immediately("too late").await;
    let failed = ended(&up.rpc, task::id(&failed)).await;
    assert_eq!(task::state(&failed), FAILED);
    assert_eq!(failed["metadata"]["faultline.dev/failure"]["reason"], "INPUT_TIMEOUT");
    // Through another agent: the expiry at the child closes the question of the parent too.
    let relayed = up.rpc.agent("relay").send_immediately("hurry").await;
    let relayed = ended(&up.rpc, task::id(&relayed)).await;
    assert_eq!(task::artifacts(&relayed)["output"], "went on after INPUT_TIMEOUT", "{relayed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_arrives_with_or_without_a_message() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    let task = asker.send("sign in").await;
    assert_eq!(task::state(&task), AUTH_REQUIRED);
    let done = ended(&up.rpc, task::id(&task)).await;
    assert_eq!(task::artifacts(&done)["credential"], "from the provider", "{done}");
    assert_eq!(task::artifacts(&done)["output"], "signed in");
    let task = asker.send("sign in here").await;
    let done = asker
        .call("SendMessage", answer(task::id(&task), "here"))
        .await
        .expect("the question is open");
    assert_eq!(task::artifacts(&done["task"])["credential"], "here");
}

#[tokio::test(flavor = "multi_thread")]
async fn child_questions_reach_the_caller_and_answers_reach_the_child() {
    let up = asking().await;
    let relay = up.rpc.agent("relay");
    let sent = relay.send("two").await;
    let id = task::id(&sent);
    let asked = until_asks(&up.rpc, id, &["c/name", "c/town"]).await;
    let interrupts = asked["metadata"]["faultline.dev/interrupts"].as_array().unwrap();
    assert!(interrupts.iter().all(|i| i["agent"] == "asker"), "{asked}");
    let town = reply(id, "c/town", "accept", json!({"text": "Bern"}));
    relay.call("SendMessage", town).await.expect("the question is open");
    until_asks(&up.rpc, id, &["c/name"]).await;
    let done = relay.call("SendMessage", answer(id, "Ada")).await.expect("the question is open");
    assert_eq!(task::artifacts(&done["task"])["output"], "Ada of Bern", "{done}");
    let sent = relay.send("approve").await;
    let no = reply(task::id(&sent), "c/deploy", "decline", json!({"text": "no"}));
    let done = relay.call("SendMessage", no).await.expect("the question is open");
    assert_eq!(task::artifacts(&done["task"])["output"], "declined", "{done}");
    let sent = relay.send("port").await;
    let bad = reply(task::id(&sent), "c/ask-1", "accept", json!({"data": {"port": 70000}}));
    let refused = relay.call("SendMessage", bad).await.unwrap_err();
    assert!(refused.to_string().contains("answer.port"), "the root checks the answer: {refused}");
    let good = reply(task::id(&sent), "c/ask-1", "accept", json!({"data": {"port": 80}}));
    let done = relay.call("SendMessage", good).await.expect("the answer is valid");
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delegating_agent_answers_questions_of_its_child() {
    let up = asking().await;
    let partial = up.rpc.agent("partial");
    let sent = partial.send("two").await;
    let id = task::id(&sent);
    until_asks(&up.rpc, id, &["c/name"]).await;
    let done =
        partial.call("SendMessage", answer(id, "Ada")).await.expect("the other question is open");
    let done = &done["task"];
    assert_eq!(task::artifacts(done)["output"], "Ada of Bern", "{done}");
    let texts: Vec<_> = done["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(texts, ["two", "Name?", "Ada"], "the caller was not asked for the town");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_closes_the_questions_of_a_task_and_its_child() {
    let up = asking().await;
    let relay = up.rpc.agent("relay");
    let sent = relay.send("two").await;
    let id = task::id(&sent);
    until_asks(&up.rpc, id, &["c/name", "c/town"]).await;
    let cancelled =
        up.rpc.call("CancelTask", json!({"id": id})).await.expect("the task is cancelled");
    assert_eq!(task::state(&cancelled), CANCELED);
    assert_eq!(open_questions(&cancelled), [""; 0]);
    let list = up.rpc.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    for task in list["tasks"].as_array().unwrap() {
        assert_eq!((task::state(task), open_questions(task).len()), (CANCELED, 0), "{task}");
    }
    let late = relay.call("SendMessage", answer(id, "x")).await.unwrap_err();
    assert_eq!(late["code"], -32004, "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_with_two_open_questions_holds_no_slot() {
    let up = asking_with(Config { slots: 1, ..Config::default() }).await;
    let asker = up.rpc.agent("asker");
    let first = asker.send("two").await;
    let id = task::id(&first);
    until_asks(&up.rpc, id, &["name", "town"]).await;
    asker.call("SendMessage", answer(id, "Ada")).await.expect("the question is open");
    let second = asker.within(SOON).send("approve").await;
    assert_eq!(task::state(&second), INPUT_REQUIRED, "the slot is free");
    let done = asker.call("SendMessage", answer(id, "Bern")).await.expect("the question is open");
    assert_eq!(task::artifacts(&done["task"])["output"], "Ada of Bern");
}

/// Variable with the address of the coordinator.
const COORDINATOR: &str = "FAULTLINE_TEST_ASKING_WORKER";

/// Does nothing in a test run; runs a worker with the agents above as a process of a test.
#[test]
fn worker_role() {
    let Ok(coordinator) = std::env::var(COORDINATOR) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(async {
        let mesh = faultline_tests::mesh_config();
        let config = Config { coordinator, mesh, ..Config::default() };
        let bound = worker(config).bind().await.expect("the worker starts");
        bound.run_until_signalled().await.expect("the worker runs");
    });
}

fn worker_process(coordinator: &str) -> tokio::process::Child {
    let itself = std::env::current_exe().expect("a test partial its executable");
    tokio::process::Command::new(itself)
        .args(["questions::forms::worker_role", "--exact", "--nocapture"])
        .env(COORDINATOR, coordinator)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a worker starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn open_questions_survive_the_loss_of_worker_and_coordinator() {
    let plan = Plan::default().with("reattach_grace_ms = 300");
    let mut cluster = plan.start().await;
    let coordinator = format!("http://{}", cluster.coordinator_proxies[0].address);
    let mut first = worker_process(&coordinator);
    let relay = cluster.rpc().agent("relay");
    let sent = until("the worker is attached", 2 * SOON, async || {
        let params = faultline_tests::rpc::message("two");
        relay.call("SendMessage", params).await.ok()
    })
    .await["task"]
        .clone();
    let id = task::id(&sent);
    let before = until_asks(&relay, id, &["c/name", "c/town"]).await;
    first.kill().await.expect("the worker is killed");
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    let _second = worker_process(&coordinator);
    let after = until("the gateway answers again", 2 * SOON, async || {
        relay.call("GetTask", json!({"id": id})).await.ok()
    })
    .await;
    assert_eq!(open_questions(&after), open_questions(&before), "both questions are open");
    let town = reply(id, "c/town", "accept", json!({"text": "Bern"}));
    relay.call("SendMessage", town).await.expect("the question is still open");
    until_asks(&relay, id, &["c/name"]).await;
    let name = relay.within(2 * SOON).call("SendMessage", answer(id, "Ada")).await;
    name.expect("the second question is open");
    let done = ended(&relay, id).await;
    assert_eq!(task::artifacts(&done)["output"], "Ada of Bern", "{done}");
    let texts: Vec<_> = done["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(texts, ["two", "Name?", "Town?", "Bern", "Ada"], "each text is there once");
    let all = cluster.rpc();
    let list = all.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    let children = list["tasks"].as_array().unwrap().iter();
    let children: Vec<_> =
        children.filter(|t| t["metadata"]["faultline.dev/parent"] == *id).collect();
    assert_eq!(children.len(), 1, "one child: {children:?}");
    assert_eq!(task::state(children[0]), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_loop_does_not_reuse_its_answer_for_the_next_question() {
    let cluster = Plan::default().with("reattach_grace_ms = 300").start().await;
    let coordinator = format!("http://{}", cluster.coordinator_proxies[0].address);
    let mut first = worker_process(&coordinator);
    let agent = cluster.rpc().agent("loop");
    let mut go = faultline_tests::rpc::message("go");
    go["configuration"] = json!({"returnImmediately": true});
    let sent = until("the worker is attached", 2 * SOON, async || {
        agent.call("SendMessage", go.clone()).await.ok()
    })
    .await["task"]
        .clone();
    let id = task::id(&sent);
    until("the second question is open", 2 * SOON, async || {
        let task = agent.task(id).await;
        task::text(&task["status"]["message"]).contains("Second?").then_some(())
    })
    .await;
    first.kill().await.expect("the worker is killed");
    let _second = worker_process(&coordinator);
    let done = ended(&agent, id).await;
    let text = task::text(&done["status"]["message"]);
    assert!(text.ends_with("] Second?"), "the question is still open: {text}");
    let tasks = cluster.rpc().call("ListTasks", json!({"pageSize": 100})).await.unwrap();
    let child = tasks["tasks"].as_array().unwrap().iter();
    let child = child.clone().find(|t| t["metadata"]["faultline.dev/parent"] == *id).unwrap();
    let heard: Vec<_> = child["history"].as_array().unwrap().iter().map(task::text).collect();
    let answers: Vec<_> = heard.iter().filter(|text| text.starts_with("answer of")).collect();
    assert_eq!(answers, ["answer of attempt 1"], "{child}");
}
