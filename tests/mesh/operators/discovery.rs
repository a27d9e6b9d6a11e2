//! Discovery and operator lists: agent cards, agents, workers, inspected tasks, and the removal of
//! an agent.

use faultline_chassis::{config::Environment, limits};
use faultline_tests::{
    program::Program,
    rpc::answer,
    task::{self, COMPLETED},
};
use serde_json::json;

use crate::{Running, start};

#[tokio::test(flavor = "multi_thread")]
async fn agents_have_cards_and_the_root_has_the_default_card() {
    let up = start().await;
    let url = up.mesh.url();
    let card = async |path: &str| up.rpc.path(path).get().await;
    for (path, name, at) in [
        ("/.well-known/agent-card.json", "echo", format!("{url}/")),
        ("/agents/echo/.well-known/agent-card.json", "echo", format!("{url}/agents/echo")),
        ("/agents/script/.well-known/agent-card.json", "script", format!("{url}/agents/script")),
    ] {
        let reply = card(path).await;
        assert_eq!((reply.status.as_u16(), &reply.headers["content-type"]), (200, &json_type()));
        let card = reply.json();
        assert_eq!(card["name"], name, "{card}");
        let interface = &card["supportedInterfaces"][0];
        assert_eq!(interface["url"], at, "{card}");
        assert_eq!(interface["protocolBinding"], "JSONRPC", "{card}");
        assert_eq!(interface["protocolVersion"], "1.0", "{card}");
        assert!(interface.get("tenant").is_none(), "{card}");
        assert_eq!(card["capabilities"]["streaming"], true, "{card}");
        assert!(card["skills"].as_array().is_some_and(|s| !s.is_empty()), "{card}");
        // The address on the card works.
        let path = at.strip_prefix(&url).unwrap();
        assert_eq!(task::state(&up.rpc.path(path).send("chunk x").await), COMPLETED);
    }
    let missing = card("/agents/nobody/.well-known/agent-card.json").await;
    assert_eq!(missing.status, 404);
    assert_eq!(missing.json()["error"]["status"], "NOT_FOUND");
}

fn json_type() -> http::HeaderValue {
    http::HeaderValue::from_static("application/json")
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_agents_workers_and_queues() {
    let up = start().await;
    let waiting = up.script.send("ask \"well?\"").await;
    let running = up.script.send_immediately("say busy; sleep 60s").await;
    let agents = up.rpc.mesh("Agents", json!({})).await;
    let names: Vec<_> = agents["agents"].as_array().unwrap().iter().map(|a| &a["name"]).collect();
    assert_eq!(names, ["echo", "script"]);
    let echo = &agents["agents"][0];
    assert_eq!((&echo["isDefault"], &echo["workers"]), (&json!(true), &json!(1)), "{echo}");
    let script = &agents["agents"][1];
    assert_eq!((&script["computing"], &script["waiting"]), (&json!(1), &json!(1)), "{script}");
    let only = up.rpc.mesh("Agents", json!({"name": "script"})).await;
    assert_eq!(only["agents"].as_array().map(Vec::len), Some(1), "{only}");
    let workers = up.rpc.mesh("Workers", json!({})).await;
    let worker = &workers["workers"][0];
    assert_eq!((&worker["name"], &worker["slots"]), (&json!("local"), &json!(64)), "{worker}");
    assert_eq!((&worker["attached"], &worker["used"]), (&json!(true), &json!(1)), "{worker}");
    assert_eq!(worker["agents"], json!(["echo", "script"]), "{worker}");
    let inspected = up.rpc.inspect(task::id(&running)).await;
    assert_eq!(inspected["attempts"][0]["outcome"], "OUTCOME_RUNNING", "{inspected}");
    assert_eq!(inspected["attempts"][0]["workerId"], worker["id"], "{inspected}");
    assert_eq!(inspected["attempts"][0]["worker"], "local", "{inspected}");
    assert!(inspected["created"].as_str().is_some_and(|t| t.ends_with('Z')), "{inspected}");
    let inspected = up.rpc.inspect(task::id(&waiting)).await;
    assert_eq!(inspected["interrupts"][0]["prompt"], "well?", "{inspected}");
    up.script.call("SendMessage", answer(task::id(&waiting), "x")).await.unwrap();
    let agents = up.rpc.mesh("Agents", json!({"name": "script"})).await;
    assert_eq!(agents["agents"][0]["waiting"].as_u64().unwrap_or(0), 0, "{agents}");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_operator_requests_are_refused_in_json() {
    let up = start().await;
    let post = async |path: &str, body: &'static str| up.rpc.path(path).post(body).await;
    let reply = post("/mesh/Nothing", "{}").await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (404, &json!(404)));
    let reply = post("/mesh/Inspect", r#"{"taskId":"nobody"}"#).await;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()["error"]["details"][0]["reason"], "TASK_NOT_FOUND");
    let reply = post("/mesh/Inspect", r#"{"taskId":7}"#).await;
    assert_eq!(reply.status, 400);
    let reply = post("/mesh/Agents", "nonsense").await;
    assert_eq!(reply.status, 400);
    let reply = post("/mesh/Agents", "").await;
    assert_eq!(reply.status, 200, "an empty body is an empty request");
    let reply = up.rpc.path("/mesh/Agents").get().await;
    assert_eq!((reply.status.as_u16(), &reply.headers["allow"]), (405, &"POST".parse().unwrap()));
    let reply = up.rpc.path("/nowhere").get().await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (404, &json!(404)));
    assert_eq!(up.rpc.path("/healthz").get().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn event_number_out_of_range_is_a_400_and_ejects_no_coordinator() {
    let up = start().await;
    let task = up.script.send("chunk x").await;
    // More failures than the outlier ejection of a coordinator needs.
    for _ in 0..2 * limits::EJECT_AFTER {
        for after in [1_u64 << 63, u64::MAX] {
            let body = json!({"taskId": task::id(&task), "after": after.to_string()});
            let reply = up.rpc.path("/mesh/Events").post(body.to_string()).await;
            let refused = reply.json();
            assert_eq!(reply.status, 400, "{refused}");
            assert!(refused.to_string().contains(r#""field":"after""#), "{refused}");
        }
    }
    let numbers = up.rpc.path("/metrics").get().await;
    let numbers = String::from_utf8_lossy(&numbers.body).into_owned();
    let ejected = numbers.lines().find(|line| line.contains(r#"{state="ejected"}"#));
    assert!(ejected.is_some_and(|line| line.ends_with(" 0")), "{ejected:?}");
    let last = json!({"taskId": task::id(&task), "after": (u64::MAX >> 1).to_string()});
    assert!(up.rpc.mesh("Events", last).await["events"].as_array().is_none_or(Vec::is_empty));
}

#[tokio::test(flavor = "multi_thread")]
async fn command_removes_an_agent_that_no_worker_offers() {
    let mut up = start().await;
    let run = async |up: &Running, name: &str| {
        let args = ["agents", "remove", name, "--gateway", &up.mesh.url()].map(str::to_owned);
        let mut command = Program::Faultline.command(&args, &Environment::new());
        let output = command.output().await.expect("the program runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, output) = run(&up, "script").await;
    assert!(code != Some(0) && output.contains("1 worker offers it"), "{code:?}: {output}");
    up.mesh.detach().await.expect("the workers leave");
    let (code, output) = run(&up, "script").await;
    assert!(code == Some(0) && output.contains("agent script removed"), "{code:?}: {output}");
    let agents = up.rpc.mesh("Agents", json!({})).await;
    let names = agents["agents"].as_array().into_iter().flatten().map(|agent| &agent["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["echo"], "{agents}");
    let (code, output) = run(&up, "script").await;
    assert!(code != Some(0) && output.contains("AGENT_NOT_FOUND"), "{code:?}: {output}");
}
