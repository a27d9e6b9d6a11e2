//! Credentials by role at the coordinator's port. The attacker holds one worker's credential and
//! tries every method and every identity: other tenants, operators, agents and workers.

use std::net::SocketAddr;

use bytes::Bytes;
use faultline::{Config, LocalMesh};
use faultline_chassis::{
    Secret,
    client::{Channel, Dial},
    credential::{Credential, Role},
};
use faultline_proto::{
    a2a::{
        GetTaskRequest, Message, Part, Role as Speaker, SendMessageConfiguration,
        SendMessageRequest, a2a_service_client::A2aServiceClient, part::Content,
    },
    id::WorkerId,
    v1::{
        AgentOffer, Assign, Completed, FromWorker, Hello, Report, Reports, TasksRequest, ToWorker,
        from_worker, hub_client::HubClient, mesh_client::MeshClient, report, to_worker,
    },
};
use faultline_tests::{
    Rpc, in_process,
    task::{self, COMPLETED, INPUT_REQUIRED, WORKING},
    until,
    wait::SOON,
};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::{Running, start_with};

const GATEWAY: (&str, &str) =
    ("gateway-token", "f15ae5b5899f8327f52779c081b7b25d5217f62042ae4b6d677b0f25096e2141");
const REFUNDS: (&str, &str) =
    ("refunds-token", "2a8f0e54f3bedb4f0b4707558b660b2ddc5fc6461aa66f6435d2040cf54b1a28");
const BILLING: (&str, &str) =
    ("billing-token", "a351b85dde0cfbe62345dd4f3e362b0e61535e7df62a2f0e1f1615240b0b54fd");
const OPERATOR: (&str, &str) =
    ("operator-token", "0850123315d21ab90f4f7236408a52ef6dbd6a02a6550e5c10dc73f4d993680e");

/// Secret of a webhook, which only its owner may read.
const WEBHOOK_SECRET: &str = "webhook-secret";

fn credentials(config: &mut Config) {
    let entry = |role, (_, sha256): (&str, &str), agents: &[&str]| Credential {
        role,
        sha256: sha256.to_owned(),
        agents: agents.iter().map(|name| (*name).to_owned()).collect(),
        name: None,
    };
    config.mesh.credential = vec![
        entry(Role::Gateway, GATEWAY, &[]),
        entry(Role::Operator, OPERATOR, &[]),
        entry(Role::Worker, REFUNDS, &["refunds"]),
        entry(Role::Worker, BILLING, &["billing"]),
    ];
    config.coordinator.push.allow_private = true;
}

fn channel(hub: SocketAddr, (token, _): (&str, &str)) -> Channel {
    let token = Some(Secret::new(token).expect("a valid token"));
    Channel::lazy(&Dial { address: hub.to_string(), token, ..Dial::default() })
        .expect("a valid address")
}

/// A worker whose messages the test sends by hand.
struct ManualWorker {
    sender: mpsc::Sender<FromWorker>,
    incoming: Streaming<ToWorker>,
}

fn offer(agent: &str, description: &str) -> AgentOffer {
    let card = faultline_proto::a2a::AgentCard {
        description: description.to_owned(),
        ..Default::default()
    };
    AgentOffer { name: agent.to_owned(), card: Some(card), ..AgentOffer::default() }
}

async fn attach(
    hub: SocketAddr,
    credential: (&str, &str),
    id: WorkerId,
    offers: Vec<AgentOffer>,
) -> Result<ManualWorker, Status> {
    let hello = Hello { worker_id: id.to_string(), agents: offers, slots: 4, ..Hello::default() };
    let (sender, outgoing) = mpsc::channel(16);
    sender
        .send(FromWorker { body: Some(from_worker::Body::Hello(hello)) })
        .await
        .expect("the channel has room");
    let mut client = HubClient::new(channel(hub, credential));
    let attached = client.attach(ReceiverStream::new(outgoing));
    let mut incoming = timeout(SOON, attached).await.expect("in time")?.into_inner();
    let first = timeout(SOON, incoming.message()).await.expect("in time")?.expect("a message").body;
    assert!(matches!(first, Some(to_worker::Body::Welcome(_))), "{first:?}");
    Ok(ManualWorker { sender, incoming })
}

impl ManualWorker {
    async fn assigned(&mut self) -> Assign {
        loop {
            match timeout(SOON, self.incoming.message())
                .await
                .expect("in time")
                .expect("the stream continues")
                .expect("a message")
                .body
            {
                Some(to_worker::Body::Assign(assign)) => return assign,
                _ => continue,
            }
        }
    }

    /// Sends a report and waits for its acknowledgement.
    async fn report(&mut self, assign: &Assign, number: u32, body: report::Body) {
        let task_id = assign.task_id.clone();
        let attempt = assign.attempt;
        let report = Report { task_id: task_id.clone(), attempt, number, body: Some(body) };
        let body = Some(from_worker::Body::Reports(Reports { reports: vec![report] }));
        self.sender.send(FromWorker { body }).await.expect("the stream is open");
        loop {
            match timeout(SOON, self.incoming.message())
                .await
                .expect("in time")
                .expect("the stream continues")
                .expect("a message")
                .body
            {
                Some(to_worker::Body::Acks(acks))
                    if acks.acks.iter().any(|ack| ack.task_id == task_id) =>
                {
                    return;
                }
                _ => continue,
            }
        }
    }
}

/// Every method of every service of the port, read from the proto files.
fn methods() -> Vec<String> {
    let contracts = [
        include_str!("../../../proto/a2a/v1/a2a.proto"),
        include_str!("../../../proto/faultline/v1/hub.proto"),
        include_str!("../../../proto/faultline/v1/link.proto"),
        include_str!("../../../proto/faultline/v1/mesh.proto"),
    ];
    let mut methods = Vec::new();
    for contract in contracts {
        let mut package = "";
        let mut service = "";
        for line in contract.lines() {
            let line = line.trim();
            let declared = |keyword| {
                line.strip_prefix(keyword).map(|rest: &str| rest.trim_end_matches([';', ' ', '{']))
            };
            package = declared("package ").unwrap_or(package);
            service = declared("service ").unwrap_or(service);
            if let Some(method) = line.strip_prefix("rpc ").and_then(|rest| rest.split_once('(')) {
                methods.push(format!("/{package}.{service}/{}", method.0));
            }
        }
    }
    assert!(methods.len() > 22, "{methods:?}");
    methods
}

/// Calls a method with an empty message; returns the status code and its message.
async fn code(
    hub: SocketAddr,
    token: Option<&str>,
    path: &str,
    more: &[(&str, &str)],
) -> (Code, String) {
    let client = legacy::Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let mut request = http::Request::post(format!("http://{hub}{path}"));
    request = request.header("content-type", "application/grpc").header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from_static(&[0; 5]))).expect("a request");
    let answer =
        timeout(SOON, client.request(request)).await.expect("in time").expect("the port answers");
    let head = answer.headers().clone();
    let trailers = if head.contains_key("grpc-status") {
        head
    } else {
        let body = timeout(SOON, answer.into_body().collect())
            .await
            .expect("in time")
            .expect("the answer has trailers");
        body.trailers().cloned().unwrap_or_default()
    };
    let text = |name| {
        trailers.get(name).map_or("", |value| value.to_str().expect("valid text")).to_owned()
    };
    (Code::from_bytes(text("grpc-status").as_bytes()), text("grpc-message"))
}

/// A waiting task of a tenant, with a webhook.
async fn victim(up: &Running) -> String {
    let asks = up.script.send("ask \"Pay back 5000 EUR?\"").await;
    let id = task::id(&asks).to_owned();
    let config = json!({"taskId": id, "url": "http://127.0.0.1:9/hook", "token": WEBHOOK_SECRET});
    up.script
        .call("CreateTaskPushNotificationConfig", config)
        .await
        .expect("the configuration is created");
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn one_workers_credential_calls_no_method_but_its_own() {
    let up = start_with(credentials).await;
    let hub = up.mesh.hub_addr();
    let task = victim(&up).await;
    let forged = format!("v1.{task}.1.{}", "00".repeat(32));
    for path in methods() {
        let own = path == "/faultline.v1.Hub/Attach";
        for principal in ["local", "acme"] {
            let as_tenant = [("faultline-principal", principal)];
            let as_attempt = [as_tenant[0], ("faultline-task", forged.as_str())];
            for headers in [&as_tenant[..], &as_attempt] {
                let (code, text) = code(hub, Some(REFUNDS.0), &path, headers).await;
                if own {
                    assert_eq!(code, Code::InvalidArgument, "an empty hello: {text}")
                } else {
                    assert_eq!(code, Code::PermissionDenied, "{path} {headers:?}: {text}")
                }
                assert!(!text.contains(WEBHOOK_SECRET), "{path}: {text}");
            }
        }
        for token in [None, Some("guessed"), Some(REFUNDS.1)] {
            let (code, text) = code(hub, token, &path, &[]).await;
            assert_eq!(code, Code::Unauthenticated, "{path} {token:?}: {text}");
        }
    }
    let (code, text) = code(hub, Some(REFUNDS.0), "/faultline.v1.Mesh/Tasks", &[]).await;
    assert_eq!(code, Code::PermissionDenied);
    assert!(text.contains("worker") && text.contains("migrating-credentials"), "{text}");
    assert_eq!(task::state(&up.script.task(&task).await), INPUT_REQUIRED);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_calls_its_own_service_and_no_other() {
    let up = start_with(credentials).await;
    let hub = up.mesh.hub_addr();
    for path in methods() {
        for (credential, service) in
            [(GATEWAY, "/faultline.v1.Link/"), (OPERATOR, "/faultline.v1.Mesh/")]
        {
            if !path.starts_with(service) {
                let headers = [("faultline-principal", "local")];
                let (code, text) = code(hub, Some(credential.0), &path, &headers).await;
                assert_eq!(code, Code::PermissionDenied, "{credential:?} {path}: {text}");
            }
        }
    }
    let mut operator = MeshClient::new(channel(hub, OPERATOR));
    let asks = up.script.send("ask well").await;
    let seen = operator.tasks(TasksRequest::default()).await.unwrap().into_inner();
    assert_eq!(seen.tasks[0].task_id, task::id(&asks));
    // Probes and KEDA have no credential.
    let health = "/grpc.health.v1.Health/Check";
    assert_eq!(code(hub, None, health, &[]).await.0, Code::Ok);
    let scaler = code(hub, None, "/externalscaler.ExternalScaler/IsActive", &[]).await;
    assert_ne!(scaler.0, Code::Unauthenticated, "{scaler:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_offers_only_the_agents_of_its_credential() {
    let up = start_with(credentials).await;
    let hub = up.mesh.hub_addr();
    let billing = attach(hub, BILLING, WorkerId::new(), vec![offer("billing", "honest")]).await;
    let _billing = billing.expect("its own agent");
    let card = async || up.rpc.mesh("Agents", json!({"name": "billing"})).await.to_string();
    let before = card().await;
    assert!(before.contains("honest"), "{before}");
    for offers in [
        vec![offer("billing", "evil")],
        vec![offer("refunds", "fine"), offer("billing", "evil")],
        vec![offer("script", "evil")],
        vec![offer("new-agent", "evil")],
    ] {
        let named = offers.last().unwrap().name.clone();
        let refused = attach(hub, REFUNDS, WorkerId::new(), offers).await.err().expect("refused");
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        let text = refused.message();
        assert!(text.contains(&format!("'{named}'")), "{text}");
        assert!(text.contains("`agents` of its [[mesh.credential]]"), "{text}");
    }
    assert_eq!(card().await, before);
    let all = up.rpc.mesh("Agents", json!({})).await.to_string();
    assert!(!all.contains("evil") && !all.contains("new-agent"), "{all}");
    attach(hub, REFUNDS, WorkerId::new(), vec![offer("refunds", "fine")]).await.ok().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_id_cannot_be_taken_over_with_another_credential() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = in_process(dir.path());
    credentials(&mut config);
    let mesh = LocalMesh::start(config.clone()).await.unwrap();
    let hub = mesh.hub_addr();
    let rpc = Rpc::at(mesh.gateway_addr()).agent("billing");
    let id = WorkerId::new();
    let mut owner = attach(hub, BILLING, id, vec![offer("billing", "")]).await.ok().unwrap();
    let sent = rpc.send_immediately("pay").await;
    let assign = owner.assigned().await;
    assert_eq!(assign.task_id, task::id(&sent));
    let assert_takeover_refused = async |hub| {
        let refused = attach(hub, REFUNDS, id, vec![offer("refunds", "")]).await.err().unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains("another credential"), "{refused}");
    };
    assert_takeover_refused(hub).await;

    // A worker of the attacker reports for a task that is assigned to another worker.
    let mut other =
        attach(hub, REFUNDS, WorkerId::new(), vec![offer("refunds", "")]).await.ok().unwrap();
    other.report(&assign, 1, report::Body::Completed(Completed::default())).await;
    let seen = rpc.task(&assign.task_id).await;
    assert!([WORKING, "TASK_STATE_SUBMITTED"].contains(&task::state(&seen)), "{seen}");

    // The stream of the owner is undisturbed.
    owner.report(&assign, 1, report::Body::Completed(Completed::default())).await;
    let done = until("the task of the owner ends", SOON, async || {
        let seen = rpc.task(&assign.task_id).await;
        (task::state(&seen) == COMPLETED).then_some(seen)
    });
    done.await;

    // The same after the stream of the owner ends and after a restart of the coordinator.
    drop(owner);
    assert_takeover_refused(hub).await;
    mesh.stop().await.unwrap();
    let mesh = LocalMesh::start(config).await.unwrap();
    assert_takeover_refused(mesh.hub_addr()).await;
    attach(mesh.hub_addr(), BILLING, id, vec![offer("billing", "")]).await.expect("its own");
    mesh.stop().await.unwrap();
}

fn delegation(token: &str) -> Request<SendMessageRequest> {
    let part = Part { content: Some(Content::Text("chunk done".into())), ..Part::default() };
    let message = Message {
        message_id: "m".into(),
        role: Speaker::User.into(),
        parts: vec![part],
        ..Message::default()
    };
    let now = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    let mut request = Request::new(SendMessageRequest {
        tenant: "script".into(),
        message: Some(message),
        configuration: Some(now),
        ..SendMessageRequest::default()
    });
    request.metadata_mut().insert("faultline-task", token.parse().expect("valid text"));
    request.metadata_mut().insert("faultline-key", "child".parse().expect("valid text"));
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_an_attempt_works_for_its_own_worker_and_its_own_children_only() {
    let up = start_with(credentials).await;
    let hub = up.mesh.hub_addr();
    let victim = victim(&up).await;
    let mut billing =
        attach(hub, BILLING, WorkerId::new(), vec![offer("billing", "")]).await.ok().unwrap();
    let mut refunds =
        attach(hub, REFUNDS, WorkerId::new(), vec![offer("refunds", "")]).await.ok().unwrap();
    up.rpc.agent("billing").send_immediately("pay").await;
    up.rpc.agent("refunds").send_immediately("pay").await;
    let theirs = billing.assigned().await;
    let own = refunds.assigned().await;

    let mut a2a = A2aServiceClient::new(channel(hub, REFUNDS));
    let stolen = a2a.send_message(delegation(&theirs.token)).await.unwrap_err();
    assert_eq!(stolen.code(), Code::PermissionDenied, "{stolen}");
    let child = a2a.send_message(delegation(&own.token)).await.unwrap().into_inner();
    let Some(faultline_proto::a2a::send_message_response::Payload::Task(child)) = child.payload
    else {
        panic!("a task")
    };

    let get = async |id: &str| {
        let mut request = Request::new(GetTaskRequest { id: id.into(), ..<_>::default() });
        request.metadata_mut().insert("faultline-task", own.token.parse().unwrap());
        A2aServiceClient::new(channel(hub, REFUNDS)).get_task(request).await
    };
    assert_eq!(get(&child.id).await.unwrap().into_inner().id, child.id);
    // Tasks of the same principal that are not its children.
    for other in [&victim, &theirs.task_id, &own.task_id] {
        assert_eq!(get(other).await.unwrap_err().code(), Code::NotFound, "{other}");
    }
    let mut answers = delegation(&own.token);
    answers.get_mut().message.as_mut().unwrap().task_id = victim.clone();
    answers.get_mut().tenant.clear();
    let refused = a2a.send_message(answers).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    let headers = [("faultline-task", own.token.as_str())];
    for method in ["ListTasks", "ListTaskPushNotificationConfigs", "GetTaskPushNotificationConfig"]
    {
        let path = format!("/lf.a2a.v1.A2AService/{method}");
        assert_eq!(code(hub, Some(REFUNDS.0), &path, &headers).await.0, Code::PermissionDenied);
    }
    assert_eq!(task::state(&up.script.task(&victim).await), INPUT_REQUIRED);
}
