//! Questions in full: forms and their checks, noes, several at once, questions that expire, those
//! of children, and what of them survives.

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

/// Does what its message names.
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
                let word = match answer.action() {
                    Action::Accepted if answer.approved() => "deployed",
                    Action::Accepted => "not approved",
                    Action::Declined => "declined",
                    Action::Dismissed => "dismissed",
                };
                cx.reply(word).await
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
                        let failure = error.failure().ok_or("told to stop")?;
                        cx.reply(format!("went on after {}", failure.reason)).await
                    }
                }
            }
            "too late" => {
                let question = Question::input("Quick?").expires_in(Duration::from_millis(100));
                cx.ask(question).await.map(drop)
            }
            "sign in" | "sign in here" => {
                let elsewhere = cx.text() == "sign in";
                let signed_in = async {
                    // As if the provider had called back.
                    let after = if elsewhere { 200 } else { 60_000 };
                    cx.sleep(Duration::from_millis(after)).await?;
                    cx.artifact("credential", "delivered elsewhere").await
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
                Err(Error::new(&reason::INVALID_ARGUMENT).because(format!("what is {other}?")))
            }
        }
    }
}

/// Has the asker do it, and answers itself what it knows.
struct Knows;

impl Agent for Knows {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let made = cx
            .delegate("asker", cx.text())
            .key("c")
            .answer_with(async |question| (question.key == "town").then(|| Answer::new("Bern")));
        cx.append("output", made.await?.text()).await
    }
}

/// Hands it on, and every question with it.
struct Relay;

impl Agent for Relay {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let made = cx.delegate("asker", cx.text()).key("c").await?;
        cx.append("output", made.text()).await
    }
}

/// A loop of a model and one tool, which asks twice. Between the two it may die.
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
        let words = format!("words of attempt {}", cx.attempt());
        let next = cx.delegate("script", words).to_task(asked).outcome().await?;
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
        .offer(Offer::new("knows", Knows))
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

/// A message that answers this question in this way.
fn reply(id: &str, key: &str, action: &str, part: Value) -> Value {
    let mut answer = answer(id, "");
    answer["message"]["parts"] = json!([part]);
    let record = json!({"interruptId": key, "action": action});
    answer["message"]["metadata"] = json!({"faultline.dev/answer": record});
    answer
}

fn open(task: &Value) -> Vec<&str> {
    let listed = task["metadata"]["faultline.dev/interrupts"].as_array();
    let shown = &task["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    let one = std::slice::from_ref(shown);
    let all = listed.map_or(one, Vec::as_slice).iter();
    all.filter_map(|interrupt| interrupt["key"].as_str()).collect()
}

/// Waits until the task asks exactly these.
async fn asks(rpc: &Rpc, id: &str, keys: &[&str]) -> Value {
    until(&format!("it asks {keys:?}"), 2 * SOON, async || {
        Some(rpc.task(id).await).filter(|task| open(task) == keys)
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
async fn an_answer_out_of_bounds_is_refused_by_field_and_asked_for_again() {
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
    assert_eq!(up.rpc.task(id).await, task, "it asks as before");
    let right = reply(id, "ask-1", "accept", json!({"data": {"port": 8080}}));
    let done = asker.call("SendMessage", right).await.expect("it fits");
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
    let listens = &done["task"]["artifacts"][0]["parts"][0]["data"];
    assert_eq!(*listens, json!({"port": 8080, "host": "localhost"}), "with its default");
}

#[tokio::test(flavor = "multi_thread")]
async fn accept_decline_and_dismiss_are_three_things_at_the_agent() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    for (action, text, expected) in [
        ("accept", "yes", "deployed"),
        ("accept", "no", "not approved"),
        ("decline", "not today", "declined"),
        ("dismiss", "", "dismissed"),
    ] {
        let task = asker.send("approve").await;
        let said = reply(task::id(&task), "deploy", action, json!({"text": text}));
        let done = asker.call("SendMessage", said).await.expect("it is an answer");
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
    let done = asker.call("SendMessage", by_part).await.expect("a part says it as well");
    assert_eq!(task::text(&done["task"]["status"]["message"]), "declined");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_are_open_at_once_and_answered_out_of_order() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    let sent = asker.send("two").await;
    let id = task::id(&sent);
    let task = asks(&up.rpc, id, &["name", "town"]).await;
    assert_eq!(task::state(&task), INPUT_REQUIRED);
    assert_eq!(task::text(&task["status"]["message"]), "Name?", "the oldest is shown");
    let inspected = up.rpc.inspect(id).await;
    assert_eq!(inspected["interrupts"].as_array().map(Vec::len), Some(2), "{inspected}");
    let town = reply(id, "town", "accept", json!({"text": "Bern"}));
    let next = asker.call("SendMessage", town.clone()).await.expect("any may be answered");
    assert_eq!(task::state(&next["task"]), INPUT_REQUIRED, "it asks on: {next}");
    assert_eq!(open(&next["task"]), ["name"]);
    let again = asker.call("SendMessage", town).await.unwrap_err();
    assert_eq!(again["code"], -32004, "the first answer counts: {again}");
    let done = asker.call("SendMessage", answer(id, "Ada")).await.expect("plain words do");
    let done = &done["task"];
    assert_eq!(task::artifacts(done)["output"], "Ada of Bern", "{done}");
    let said: Vec<_> = done["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(said, ["two", "Name?", "Town?", "Bern", "Ada"], "each once");
    assert!(done["metadata"]["faultline.dev/interrupts"].is_null(), "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_prompts_in_one_turn_and_none_of_them_in_the_result() {
    let up = start().await;
    let script = "ask \"One?\"; chunk $answer; ask \"Two?\"; chunk $answer; ask \"Three?\"; \
                  chunk $answer; message done";
    let task = up.script.send(script).await;
    let id = task::id(&task).to_owned();
    let mut shown = task;
    for (prompt, text) in [("One?", "1"), ("Two?", "2"), ("Three?", "3")] {
        assert_eq!(task::text(&shown["status"]["message"]), prompt);
        let sent = up.script.call("SendMessage", answer(&id, text)).await.expect("it waits");
        shown = sent["task"].clone();
        assert_eq!(task::id(&shown), id, "the same task goes on");
    }
    assert_eq!(task::state(&shown), COMPLETED);
    assert_eq!(task::artifacts(&shown)["output"], "123", "answers and no prompts");
    assert_eq!(task::text(&shown["status"]["message"]), "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_may_expire_and_the_agent_decides_what_then() {
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
    // Through another agent: the child's own clock decides, and nobody above is left asking.
    let relayed = up.rpc.agent("relay").send_immediately("hurry").await;
    let relayed = ended(&up.rpc, task::id(&relayed)).await;
    assert_eq!(task::artifacts(&relayed)["output"], "went on after INPUT_TIMEOUT", "{relayed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_may_come_with_a_message_or_without() {
    let up = asking().await;
    let asker = up.rpc.agent("asker");
    let task = asker.send("sign in").await;
    assert_eq!(task::state(&task), AUTH_REQUIRED);
    let done = ended(&up.rpc, task::id(&task)).await;
    assert_eq!(task::artifacts(&done)["credential"], "delivered elsewhere", "{done}");
    assert_eq!(task::artifacts(&done)["output"], "signed in");
    let task = asker.send("sign in here").await;
    let done = asker.call("SendMessage", answer(task::id(&task), "here")).await.expect("it asks");
    assert_eq!(task::artifacts(&done["task"])["credential"], "here");
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_a_child_rise_and_each_answer_goes_down_whole() {
    let up = asking().await;
    let relay = up.rpc.agent("relay");
    let sent = relay.send("two").await;
    let id = task::id(&sent);
    let asked = asks(&up.rpc, id, &["c/name", "c/town"]).await;
    let interrupts = asked["metadata"]["faultline.dev/interrupts"].as_array().unwrap();
    assert!(interrupts.iter().all(|i| i["agent"] == "asker"), "{asked}");
    let town = reply(id, "c/town", "accept", json!({"text": "Bern"}));
    relay.call("SendMessage", town).await.expect("it asks that");
    asks(&up.rpc, id, &["c/name"]).await;
    let done = relay.call("SendMessage", answer(id, "Ada")).await.expect("it asks");
    assert_eq!(task::artifacts(&done["task"])["output"], "Ada of Bern", "{done}");
    let sent = relay.send("approve").await;
    let no = reply(task::id(&sent), "c/deploy", "decline", json!({"text": "no"}));
    let done = relay.call("SendMessage", no).await.expect("it asks");
    assert_eq!(task::artifacts(&done["task"])["output"], "declined", "{done}");
    let sent = relay.send("port").await;
    let bad = reply(task::id(&sent), "c/ask-1", "accept", json!({"data": {"port": 70000}}));
    let refused = relay.call("SendMessage", bad).await.unwrap_err();
    assert!(refused.to_string().contains("answer.port"), "checked at the top: {refused}");
    let good = reply(task::id(&sent), "c/ask-1", "accept", json!({"data": {"port": 80}}));
    let done = relay.call("SendMessage", good).await.expect("it fits");
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinating_agent_answers_for_the_human_what_it_knows() {
    let up = asking().await;
    let knows = up.rpc.agent("knows");
    let sent = knows.send("two").await;
    let id = task::id(&sent);
    asks(&up.rpc, id, &["c/name"]).await;
    let done = knows.call("SendMessage", answer(id, "Ada")).await.expect("it asks the rest");
    let done = &done["task"];
    assert_eq!(task::artifacts(done)["output"], "Ada of Bern", "{done}");
    let said: Vec<_> = done["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(said, ["two", "Name?", "Ada"], "the human was never asked for the town");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_that_is_cancelled_asks_no_longer_nor_does_its_child() {
    let up = asking().await;
    let relay = up.rpc.agent("relay");
    let sent = relay.send("two").await;
    let id = task::id(&sent);
    asks(&up.rpc, id, &["c/name", "c/town"]).await;
    let cancelled = up.rpc.call("CancelTask", json!({"id": id})).await.expect("it can be");
    assert_eq!(task::state(&cancelled), CANCELED);
    assert_eq!(open(&cancelled), [""; 0]);
    let list = up.rpc.call("ListTasks", json!({"pageSize": 100})).await.expect("tasks are listed");
    for task in list["tasks"].as_array().unwrap() {
        assert_eq!((task::state(task), open(task).len()), (CANCELED, 0), "{task}");
    }
    let late = relay.call("SendMessage", answer(id, "x")).await.unwrap_err();
    assert_eq!(late["code"], -32004, "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_asks_two_things_holds_no_slot_between_the_answers() {
    let up = asking_with(Config { slots: 1, ..Config::default() }).await;
    let asker = up.rpc.agent("asker");
    let first = asker.send("two").await;
    let id = task::id(&first);
    asks(&up.rpc, id, &["name", "town"]).await;
    asker.call("SendMessage", answer(id, "Ada")).await.expect("it asks");
    let second = asker.within(SOON).send("approve").await;
    assert_eq!(task::state(&second), INPUT_REQUIRED, "there is a slot for it");
    let done = asker.call("SendMessage", answer(id, "Bern")).await.expect("it asks");
    assert_eq!(task::artifacts(&done["task"])["output"], "Ada of Bern");
}

/// Where the process below finds its coordinator.
const COORDINATOR: &str = "FAULTLINE_TEST_ASKING_WORKER";

/// Nothing in a test run; a worker with the agents above when a test started it as one.
#[test]
fn asking_worker() {
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
    let itself = std::env::current_exe().expect("a test knows its executable");
    tokio::process::Command::new(itself)
        .args(["questions::forms::asking_worker", "--exact", "--nocapture"])
        .env(COORDINATOR, coordinator)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a worker starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_open_questions_outlive_the_death_of_everything() {
    let plan = Plan::default().with("reattach_grace_ms = 300");
    let mut cluster = plan.start().await;
    let coordinator = format!("http://{}", cluster.coordinator_proxies[0].address);
    let mut first = worker_process(&coordinator);
    let relay = cluster.rpc().agent("relay");
    let sent = until("the worker is there", 2 * SOON, async || {
        let params = faultline_tests::rpc::message("two");
        relay.call("SendMessage", params).await.ok()
    })
    .await["task"]
        .clone();
    let id = task::id(&sent);
    let before = asks(&relay, id, &["c/name", "c/town"]).await;
    first.kill().await.expect("the worker dies");
    cluster.coordinators[0].kill().await;
    cluster.coordinators[0].restart().await;
    let _second = worker_process(&coordinator);
    let after = until("the gateway is back", 2 * SOON, async || {
        relay.call("GetTask", json!({"id": id})).await.ok()
    })
    .await;
    assert_eq!(open(&after), open(&before), "both are still asked");
    let town = reply(id, "c/town", "accept", json!({"text": "Bern"}));
    relay.call("SendMessage", town).await.expect("it is still asked");
    asks(&relay, id, &["c/name"]).await;
    let name = relay.within(2 * SOON).call("SendMessage", answer(id, "Ada")).await;
    name.expect("that is asked too");
    let done = ended(&relay, id).await;
    assert_eq!(task::artifacts(&done)["output"], "Ada of Bern", "{done}");
    let said: Vec<_> = done["history"].as_array().unwrap().iter().map(task::text).collect();
    assert_eq!(said, ["two", "Name?", "Town?", "Bern", "Ada"], "each is there once");
    let all = cluster.rpc();
    let list = all.call("ListTasks", json!({"pageSize": 100})).await.expect("they are listed");
    let children = list["tasks"].as_array().unwrap().iter();
    let children: Vec<_> =
        children.filter(|t| t["metadata"]["faultline.dev/parent"] == *id).collect();
    assert_eq!(children.len(), 1, "one child: {children:?}");
    assert_eq!(task::state(children[0]), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_died_after_its_answer_does_not_answer_the_next_question_with_it() {
    let cluster = Plan::default().with("reattach_grace_ms = 300").start().await;
    let coordinator = format!("http://{}", cluster.coordinator_proxies[0].address);
    let mut first = worker_process(&coordinator);
    let agent = cluster.rpc().agent("loop");
    let mut go = faultline_tests::rpc::message("go");
    go["configuration"] = json!({"returnImmediately": true});
    let sent = until("the worker is there", 2 * SOON, async || {
        agent.call("SendMessage", go.clone()).await.ok()
    })
    .await["task"]
        .clone();
    let id = task::id(&sent);
    until("the second question is there", 2 * SOON, async || {
        let task = agent.task(id).await;
        task::text(&task["status"]["message"]).contains("Second?").then_some(())
    })
    .await;
    first.kill().await.expect("the worker dies");
    let _second = worker_process(&coordinator);
    let done = ended(&agent, id).await;
    let said = task::text(&done["status"]["message"]);
    assert!(said.ends_with("] Second?"), "it is asked still: {said}");
    let tasks = cluster.rpc().call("ListTasks", json!({"pageSize": 100})).await.unwrap();
    let child = tasks["tasks"].as_array().unwrap().iter();
    let child = child.clone().find(|t| t["metadata"]["faultline.dev/parent"] == *id).unwrap();
    let heard: Vec<_> = child["history"].as_array().unwrap().iter().map(task::text).collect();
    let answers: Vec<_> = heard.iter().filter(|text| text.starts_with("words")).collect();
    assert_eq!(answers, ["words of attempt 1"], "{child}");
}
