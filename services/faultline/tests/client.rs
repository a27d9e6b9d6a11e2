//! The client against a mesh: every operation has the same outcome on each binding.

use std::{fs, path::PathBuf};

use faultline::{Config, LocalMesh};
use faultline_chassis::tls::Files;
use faultline_client::{Answer, Binding, Client, Draft, Ending, Error, text, text_of};
use faultline_proto::{
    Failure,
    a2a::{
        DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
        ListTaskPushNotificationConfigsRequest, ListTasksRequest, TaskPushNotificationConfig,
        TaskState,
    },
    reason,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

struct Setup {
    mesh: LocalMesh,
    _data: TempDir,
}

impl Setup {
    async fn start() -> Self {
        let data = TempDir::new().expect("a directory can be made");
        let mut config = Config::local(data.path()).on_free_ports();
        config.coordinator.retries = 0;
        let mesh = LocalMesh::start(config).await.expect("the mesh starts");
        Self { mesh, _data: data }
    }

    /// Clients of this agent, one for each binding.
    fn each(&self, agent: &str) -> impl Iterator<Item = (Binding, Client)> {
        let clients = Binding::ALL.map(|binding| {
            let client = Client::builder(&self.mesh.url()).binding(binding).direct();
            (binding, client.expect("the mesh has a good URL").agent(agent))
        });
        clients.into_iter()
    }
}

fn failure<T: std::fmt::Debug>(result: Result<T, Error>) -> Failure {
    Failure::from(result.expect_err("the call fails"))
}

#[tokio::test]
async fn agent_is_discovered_by_its_card() {
    let Setup { mesh, .. } = &Setup::start().await;
    for url in [format!("{}/agents/echo", mesh.url()), mesh.url()] {
        for binding in [Binding::JsonRpc, Binding::HttpJson] {
            let client = Client::builder(&url).binding(binding).connect().await.unwrap();
            assert_eq!(client.card().unwrap().name, "echo");
            assert_eq!(client.run("hello").await.unwrap().text(), "hello", "{binding}");
        }
    }
    let missing = failure(Client::connect(&format!("{}/agents/nobody", mesh.url())).await);
    assert_eq!(missing.row().code, reason::NOT_FOUND.code);
}

#[tokio::test]
async fn every_outcome_of_a_task_is_the_same_on_each_binding() {
    let setup = Setup::start().await;
    for (binding, client) in setup.each("script") {
        let made = client.run("say busy; chunk one; chunk two").await.unwrap();
        assert_eq!(made.text(), "onetwo", "{binding}");

        let failed = "artifact a one; artifact b two; fail RATE_LIMITED code=7 text=\"slow down\"";
        let error = client.run(failed).await.unwrap_err();
        let Error::Ended(ended) = &error else { panic!("{binding}: {error}") };
        assert_eq!((ended.how, ended.task.artifacts.len()), (Ending::Failed, 2), "{binding}");
        assert!(!ended.task.history.is_empty(), "{binding}");
        assert_eq!(ended.failure.row(), &reason::RATE_LIMITED, "{binding}");
        assert_eq!(ended.failure.business_code, "7", "{binding}");

        let error = client.run("ask \"Your name?\"; chunk $answer").await.unwrap_err();
        let Error::Ended(ended) = error else { panic!("{binding}: {error}") };
        assert_eq!(ended.how, Ending::InputRequired, "{binding}");
        assert!(ended.failure.public_message.contains("Your name?"), "{binding}");
        let answered = client.run(text("Ada").to_task(&ended.task.id)).await.unwrap();
        assert_eq!(answered.text(), "Ada", "{binding}");

        let sent = client.send(text("sleep 30s").return_immediately()).await.unwrap();
        let task = sent.task().unwrap();
        client.cancel(&task.id).await.unwrap();
        let error = client.wait(&task.id).await.unwrap_err();
        assert!(error.is_terminal(), "{binding}: {error}");
    }
}

#[tokio::test]
async fn follower_answers_questions_and_the_same_task_continues() {
    let setup = Setup::start().await;
    for (binding, client) in setup.each("script") {
        let script =
            "chunk \"to \"; ask \"Which city?\"; chunk $answer; ask \"When?\"; chunk \", $answer\"";
        let mut follow = client.follow(script).await.unwrap();
        let mut asked = Vec::new();
        let mut shown = String::new();
        let mut ids = Vec::new();
        loop {
            while let Some(event) = follow.next().await {
                shown.push_str(&event.unwrap().text());
                if follow.asks() {
                    break;
                }
            }
            ids.push(follow.task_id().to_owned());
            if !follow.asks() {
                break;
            }
            let question = follow.task_so_far().status.as_ref().unwrap().message.clone().unwrap();
            let question = text_of(&question);
            let reply = if question == "Which city?" { "Paris" } else { "today" };
            asked.push(question);
            follow.answer(text(reply)).await.unwrap();
        }
        assert_eq!(asked, ["Which city?", "When?"], "{binding}");
        assert_eq!(shown, "to Paris, today", "{binding}: each chunk arrives once");
        ids.dedup();
        assert_eq!(ids.len(), 1, "{binding}: one task");
        let task = client.task(&ids[0]).await.unwrap();
        assert_eq!(task.status.as_ref().unwrap().state(), TaskState::Completed, "{binding}");
        assert_eq!(Answer::Task(task).text(), "to Paris, today", "{binding}");
    }
}

#[tokio::test]
async fn every_operation_returns_the_same_on_each_binding() {
    let setup = Setup::start().await;
    for (binding, client) in setup.each("echo") {
        let Answer::Task(sent) = client.send("hello").await.unwrap() else { panic!("{binding}") };
        assert_eq!(client.task(&sent.id).await.unwrap(), sent, "{binding}");
        let request = ListTasksRequest {
            context_id: sent.context_id.clone(),
            status: TaskState::Completed as i32,
            page_size: Some(5),
            include_artifacts: Some(true),
            ..ListTasksRequest::default()
        };
        let listed = client.list_tasks(request).await.unwrap();
        assert_eq!((listed.tasks.len(), listed.total_size), (1, 1), "{binding}");
        assert_eq!(listed.tasks[0].artifacts, sent.artifacts, "{binding}");
        let extended = client.agent("script").extended_card().await.unwrap();
        assert_eq!(extended.name, "script", "{binding}");

        let cancel = failure(client.cancel(&sent.id).await);
        assert_eq!(cancel.row(), &reason::TASK_NOT_CANCELABLE, "{binding}");
        let missing = failure(client.task("01890000-0000-7000-8000-000000000000").await);
        assert_eq!(missing.row(), &reason::TASK_NOT_FOUND, "{binding}");
        let empty = failure(client.send(Draft::new([])).await);
        assert_eq!(empty.row().code, reason::INVALID_ARGUMENT.code, "{binding}");
        assert_eq!(empty.violations[0].field, "message.parts", "{binding}");
    }
}

#[tokio::test]
async fn webhooks_are_configured_on_each_binding() {
    let setup = Setup::start().await;
    for (binding, client) in setup.each("script") {
        let sent = client.send(text("ask why").return_immediately()).await.unwrap();
        let task_id = sent.task().unwrap().id.clone();
        let config = TaskPushNotificationConfig {
            id: "hook".to_owned(),
            task_id: task_id.clone(),
            url: "http://127.0.0.1:9/".to_owned(),
            ..TaskPushNotificationConfig::default()
        };
        assert_eq!(client.create_push_config(config).await.unwrap().id, "hook", "{binding}");
        let get = GetTaskPushNotificationConfigRequest {
            task_id: task_id.clone(),
            id: "hook".to_owned(),
            ..GetTaskPushNotificationConfigRequest::default()
        };
        let kept = client.get_push_config(get.clone()).await.unwrap();
        assert_eq!(kept.url, "http://127.0.0.1:9/", "{binding}");
        let list = ListTaskPushNotificationConfigsRequest {
            task_id: task_id.clone(),
            ..ListTaskPushNotificationConfigsRequest::default()
        };
        assert_eq!(client.list_push_configs(list).await.unwrap().configs.len(), 1, "{binding}");
        let delete = DeleteTaskPushNotificationConfigRequest {
            task_id,
            id: "hook".to_owned(),
            ..DeleteTaskPushNotificationConfigRequest::default()
        };
        client.delete_push_config(delete.clone()).await.unwrap();
        client.delete_push_config(delete).await.unwrap();
        assert_eq!(failure(client.get_push_config(get).await).row(), &reason::TASK_NOT_FOUND);
    }
}

#[tokio::test]
async fn idempotency_key_starts_one_task_on_each_binding() {
    let setup = Setup::start().await;
    for (binding, client) in setup.each("echo") {
        let draft = text("once").idempotent();
        let first = client.send(draft.clone()).await.unwrap();
        let second = client.send(draft).await.unwrap();
        assert_eq!(first.task().unwrap().id, second.task().unwrap().id, "{binding}");
    }
}

/// Writes a certificate for this machine to `data`; its files and that of its CA.
fn certificate(data: &TempDir) -> (Files, PathBuf) {
    let mut params = CertificateParams::new([]).expect("no names are good names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = || KeyPair::generate().expect("a key can be made");
    let ca = CertifiedIssuer::self_signed(params, key()).expect("a CA can be made");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("an address is a name");
    let key = key();
    let cert = params.signed_by(&key, &ca).expect("the CA signs");
    let write = |name: &str, text: String| {
        let path = data.path().join(name);
        fs::write(&path, text).expect("a file can be written");
        path
    };
    let files =
        Files { cert: write("cert.pem", cert.pem()), key: write("key.pem", key.serialize_pem()) };
    (files, write("ca.pem", ca.pem()))
}

#[tokio::test]
async fn clients_that_trust_the_certificate_connect_on_each_binding() {
    let data = TempDir::new().unwrap();
    let (files, ca) = certificate(&data);
    let mut config = Config::local(data.path()).on_free_ports();
    config.gateway.tls = Some(files);
    let mesh = LocalMesh::start(config).await.unwrap();
    assert!(mesh.url().starts_with("https://"));
    for binding in Binding::ALL {
        let builder = || Client::builder(&mesh.url()).binding(binding);
        let client = builder().ca(&ca).direct().unwrap().agent("echo");
        assert_eq!(client.run("hello").await.unwrap().text(), "hello", "{binding}");
        let stranger = builder().direct().unwrap().agent("echo");
        let refused = failure(stranger.task("t").await);
        assert_eq!(refused.row(), &reason::UNAVAILABLE, "{binding}");
        let why = "the server cannot be reached: its certificate is not trusted here";
        assert!(binding == Binding::Grpc || refused.public_message == why, "{refused}");
    }
    let found = Client::builder(&mesh.url()).ca(&ca).connect().await.unwrap();
    assert_eq!(found.run("hello").await.unwrap().text(), "hello");
}
