//! Private text never reaches callers: canaries in panics, paths, queries, the environment and the
//! configuration are searched in every byte that leaves a gateway and in every notification. The
//! log has the private text under the failure id of the caller.

use std::{error, fmt, fs, io, path::Path};

use faultline::{Config, LocalMesh};
use faultline_chassis::{Drain, Secret};
use faultline_tests::{
    A2aEndpoint, Binding, Rpc, in_process,
    log::Log,
    recording_proxy::RecordingProxy,
    rpc::message,
    task::{self, FAILED},
    until,
    wait::SOON,
    webhook::Webhook,
};
use faultline_worker::{Agent, Context, Error, Offer, Worker, reason};
use serde_json::{Value, json};

/// Part of every private text in these tests.
const CANARY: &str = "canary";

const SQL: &str = "SELECT * FROM canary_cards WHERE cvv = '999'";
const FILE: &str = "/home/canary/.ssh/id_ed25519";
const SECRET: &str = "postgres://admin:canary@10.0.0.7";

/// An error with a source, as libraries build them.
#[derive(Debug)]
struct Nested(Option<Box<Nested>>);

impl fmt::Display for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "cannot load" } else { SQL })
    }
}

impl error::Error for Nested {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.as_deref().map(|inner| inner as _)
    }
}

/// Fails in the way that its message names, with a canary in the private text.
struct Leaky;

/// Message, public reason, and private text in the log.
const CASES: &[(&str, &str, &str)] = &[
    ("io", "UNKNOWN", FILE),
    ("string", "UNKNOWN", SECRET),
    ("nested", "UNKNOWN", SQL),
    ("environment", "UNKNOWN", "PATH="),
    ("panic", "AGENT_PANICKED", SECRET),
    ("panic with a value", "AGENT_PANICKED", FILE),
    ("typed", "INTERNAL", SQL),
    ("delegate", "UNKNOWN", SECRET),
];

impl Agent for Leaky {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        match cx.text().as_ref() {
            "io" => Err(io::Error::new(io::ErrorKind::NotFound, FILE))?,
            "string" => Err(SECRET)?,
            "nested" => Err(Nested(Some(Box::new(Nested(None)))))?,
            "environment" => Err(format!("PATH={} of canary", path()))?,
            "panic" => panic!("{SECRET}"),
            "panic with a value" => std::panic::panic_any(FILE.to_owned()),
            "typed" => Err(Error::new(&reason::INTERNAL).because("our fault").caused_by(SQL)),
            "delegate" => cx.delegate("leaky", "string").await.map(drop),
            other => cx.artifact("echo", other).await,
        }
    }
}

fn path() -> String {
    std::env::var("PATH").expect("every process here has one")
}

fn has_canary(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    text.contains(CANARY) || text.contains(&path().to_ascii_lowercase())
}

/// Calls every operation about a task by one binding; returns the answers as text.
async fn call_every_operation(endpoint: &A2aEndpoint, id: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for (operation, params) in [
        ("GetTask", json!({"id": id})),
        ("ListTasks", json!({"includeArtifacts": true})),
        ("CancelTask", json!({"id": id})),
        ("ListTaskPushNotificationConfigs", json!({"taskId": id})),
        ("GetExtendedAgentCard", json!({})),
    ] {
        answers.push(format!("{:?}", endpoint.exchange(operation, params).await));
    }
    answers.push(match endpoint.stream("SubscribeToTask", json!({"id": id})).await {
        Ok(events) => format!("{:?}", events.all().await),
        Err(refusal) => format!("{refusal:?}"),
    });
    answers
}

async fn call_operator_api(rpc: &Rpc, id: &str) {
    for path in [
        "/.well-known/agent-card.json",
        "/agents/leaky/.well-known/agent-card.json",
        "/.well-known/agent.json",
        "/healthz",
        "/nothing/here",
    ] {
        rpc.path(path).get().await;
    }
    rpc.mesh("Agents", json!({})).await;
    rpc.mesh("Workers", json!({})).await;
    rpc.inspect(id).await;
}

/// The failure in the answer to the caller.
fn public_failure(task: &Value) -> &Value {
    assert_eq!(task::state(task), FAILED, "{task}");
    &task["metadata"]["faultline.dev/failure"]
}

#[tokio::test]
async fn private_text_of_an_agent_is_in_the_log_and_in_no_answer() {
    let log = Log::capture();
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    config.mesh.token = Some(Secret::new("canary-of-the-mesh").unwrap());
    let mut mesh = LocalMesh::start(config).await.unwrap();
    let leaky = Offer::new("leaky", Leaky);
    let build = |config| Worker::new(config).offer(leaky);
    mesh.attach(faultline_worker::Config::default(), build).await.unwrap();
    let proxy = RecordingProxy::to(mesh.gateway_addr()).await;
    let webhook = Webhook::start().await;
    let rpc = Rpc::at(proxy.address);
    let mut answers = Vec::new();
    let mut ends = 0;
    for binding in Binding::ALL {
        let endpoint = A2aEndpoint::new(binding, proxy.address).agent("leaky");
        for (case, reason, canary) in CASES {
            let mut params = message(case);
            let push = json!({"url": webhook.url().replace("canary", "q")});
            params["configuration"] = json!({"taskPushNotificationConfig": push});
            let answer = endpoint.exchange("SendMessage", params).await.unwrap();
            answers.push(format!("{answer:?}"));
            let failure = public_failure(&answer.body["task"]);
            assert_eq!(failure["reason"], *reason, "{case}: {failure}");
            let id = failure["id"].as_str().unwrap();
            let lines = log.of_failure(id);
            let has_detail =
                |line: &&Value| line["detail"].as_str().is_some_and(|d| d.contains(canary));
            let line = lines.iter().find(has_detail);
            let line =
                line.unwrap_or_else(|| panic!("{case}: the log has it under {id}: {lines:?}"));
            assert_eq!(line["trace.id"], failure["traceId"], "{case}: {line}");
            assert_eq!(line["agent"], "leaky", "{case}: {line}");
            let frames = endpoint.stream("SendStreamingMessage", message(case)).await.unwrap();
            answers.push(format!("{:?}", frames.headers()));
            answers.push(format!("{:?}", frames.all().await));
            let task_id = task::id(&answer.body["task"]);
            answers.extend(call_every_operation(&endpoint, task_id).await);
            call_operator_api(&rpc, task_id).await;
            ends += 1;
        }
    }
    until("the webhook received every final status", SOON, async || {
        let failed = webhook.states().into_iter().filter(|state| state == FAILED).count();
        (failed >= ends).then_some(())
    })
    .await;
    for one in webhook.received() {
        answers.push(format!("{:?} {}", one.headers, one.body));
    }
    for text in answers {
        assert!(!has_canary(text.as_bytes()), "an answer leaks: {text}");
    }
    let heard = proxy.recorded();
    assert!(heard.len() > 10_000 && !has_canary(&heard), "a byte of an answer leaks");
    for line in log.lines() {
        assert!(!line.to_string().contains("canary-of-the-mesh"), "the log leaks: {line}");
    }
    // Readers of the store may not be allowed to read the log.
    mesh.stop().await.unwrap();
    for file in fs::read_dir(dir.path()).unwrap() {
        let path = file.unwrap().path();
        assert!(!has_canary(&fs::read(&path).unwrap()), "{} leaks", path.display());
    }
}

/// Overwrites the files of a store in use, like a faulty disk.
fn break_store(dir: &Path) {
    let files = fs::read_dir(dir).expect("the store is there");
    for path in files.map(|file| file.expect("a file can be seen").path()) {
        let name = path.to_string_lossy();
        if name.ends_with(".db") || name.ends_with("-wal") {
            let length = fs::read(&path).expect("a file can be read").len();
            fs::write(&path, vec![0xAA; length]).expect("a file can be written");
        }
    }
}

#[tokio::test]
async fn broken_store_leaks_neither_path_nor_error_text() {
    let log = Log::capture();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("canary");
    let mesh = LocalMesh::start(Config::local(&data).on_free_ports()).await.unwrap();
    let proxy = RecordingProxy::to(mesh.gateway_addr()).await;
    let rpc = Rpc::at(proxy.address);
    let sent = rpc.agent("echo").send("before").await;
    break_store(&data);
    let mut ids = Vec::new();
    for binding in Binding::ALL {
        let endpoint = A2aEndpoint::new(binding, proxy.address).agent("echo");
        let refusals = [
            endpoint.exchange("GetTask", json!({"id": task::id(&sent)})).await.map(drop),
            endpoint.exchange("ListTasks", json!({})).await.map(drop),
            endpoint.exchange("SendMessage", message("after")).await.map(drop),
            endpoint.stream("SendStreamingMessage", message("after")).await.map(drop),
        ];
        assert!(refusals[0].is_err() && refusals[1].is_err(), "{binding:?} reads a broken store");
        for refusal in refusals.into_iter().filter_map(Result::err) {
            let text = format!("{refusal:?}").to_lowercase();
            let leaks = ["canary", "sqlite", "database", ".db", "disk", "malformed"];
            for part in leaks {
                assert!(!text.contains(part), "'{part}' is in {text}");
            }
            let known = ["STORE_UNAVAILABLE", "OUTCOME_UNKNOWN", "OVERLOADED", "UNAVAILABLE"];
            assert!(known.contains(&refusal.reason().1), "{refusal:?}");
            let failure = refusal.detail("faultline.v1.Failure").expect("the record");
            ids.push(failure["id"].as_str().unwrap().to_owned());
        }
    }
    assert!(!has_canary(&proxy.recorded()));
    let has_detail = |id: &String| {
        log.of_failure(id).iter().any(|l| !l["detail"].as_str().unwrap_or_default().is_empty())
    };
    assert!(ids.iter().any(has_detail), "the log has the error of the store: {:?}", log.lines());
}

#[tokio::test]
async fn gateway_without_coordinator_leaks_no_address() {
    let log = Log::capture();
    let mut config = Config::default().gateway;
    config.listen.set_port(0);
    config.coordinator = "http://canary.invalid:4711".to_owned();
    config.mesh.token = Some(Secret::new("canary-of-the-mesh").unwrap());
    let gateway = config.bind().await.unwrap();
    let proxy = RecordingProxy::to(gateway.addr()).await;
    let drain = Drain::new();
    let running = tokio::spawn(gateway.run(drain.clone()));
    for binding in Binding::ALL {
        let endpoint = A2aEndpoint::new(binding, proxy.address).agent("echo");
        let refusal = endpoint.exchange("SendMessage", message("x")).await.unwrap_err();
        assert_eq!(refusal.status.as_deref().unwrap_or("UNAVAILABLE"), "UNAVAILABLE");
        let text = format!("{refusal:?}").to_lowercase();
        // With its colon, because ids and times may contain the digits by chance.
        assert!(!text.contains("canary") && !text.contains(":4711"), "{text}");
        let failure = refusal.detail("faultline.v1.Failure").expect("the record");
        let lines = log.of_failure(failure["id"].as_str().unwrap());
        assert_eq!(lines.len(), 1, "the failure is logged once: {lines:?}");
        assert_eq!(lines[0]["trace.id"], failure["traceId"], "{lines:?}");
    }
    let card = Rpc::at(proxy.address).path("/agents/echo/.well-known/agent-card.json").get().await;
    assert_eq!(card.status, 503);
    assert!(!has_canary(&proxy.recorded()));
    // The resolver of the machine decides how soon the lookup fails.
    let is_logged = async || {
        let mut lines = log.lines().into_iter().map(|line| line.to_string());
        lines.any(|line| line.contains("canary.invalid")).then_some(())
    };
    until("the log names the coordinator's address", SOON, is_logged).await;
    assert!(!log.lines().iter().any(|line| line.to_string().contains("canary-of-the-mesh")));
    running.abort();
}

#[tokio::test]
async fn token_of_a_caller_is_in_no_answer_and_no_log_line() {
    let log = Log::capture();
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    // `printf canary-token | sha256sum`.
    let sha256 = "4b598de5faa6a2208f99f7b8a6b61378ac7d7a36d9524056e9be61c17c37667f";
    let token = json!({"token": [{"sha256": sha256, "principal": "acme", "agents": ["script"]}]});
    config.auth = serde_json::from_value(token).unwrap();
    let mesh = LocalMesh::start(config).await.unwrap();
    let proxy = RecordingProxy::to(mesh.gateway_addr()).await;
    let mut answers = Vec::new();
    for binding in Binding::ALL {
        let endpoint = A2aEndpoint::new(binding, proxy.address).agent("script");
        let known = endpoint.bearer("canary-token");
        let sent = known.exchange("SendMessage", message("fail INTERNAL")).await.unwrap();
        answers.push(format!("{sent:?}"));
        for wrong in ["canary-of-an-attacker", "canary token", ""] {
            let refused =
                endpoint.bearer(wrong).exchange("SendMessage", message("x")).await.unwrap_err();
            assert_eq!(refused.reason().1, "UNAUTHENTICATED_CALLER", "{refused:?}");
            answers.push(format!("{refused:?}"));
        }
    }
    answers.extend(log.lines().iter().map(Value::to_string));
    for text in answers {
        assert!(
            !has_canary(text.as_bytes()) && !text.contains(sha256),
            "an answer or a log line leaks: {text}"
        );
    }
    assert!(!has_canary(&proxy.recorded()));
}
