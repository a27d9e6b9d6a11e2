//! `faultline::testing`, the in-memory mesh for tests of user agents: every binding without
//! sockets, and REST alone.

use std::net::SocketAddr;

use faultline::testing;
use faultline_client::{Binding, Client, Ending, Error as CallError, a2a::TaskState, text};
use faultline_tests::without_sockets;
use faultline_worker::{Agent, Context, Error, Offer, Question, reason};
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Greets the name in its message, asks for a name on `ask`, and fails for its own name.
struct Greeter(&'static str);

impl Agent for Greeter {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let whom = match cx.text().as_ref() {
            "ask" => cx.ask(Question::input("Whom?")).await?.text().into_owned(),
            named => named.to_owned(),
        };
        if whom == self.0 {
            let error = Error::new(&reason::FAILED_PRECONDITION).because("That is me");
            return Err(error);
        }
        cx.artifact("greeting", format!("{} greets {whom}", self.0)).await
    }
}

async fn mesh(name: &'static str) -> testing::TestMesh {
    let offer = Offer::new("greeter", Greeter(name));
    without_sockets().agent(offer).start().await.expect("a mesh starts")
}

fn message(text: &str) -> Value {
    json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn mesh_without_sockets_answers_on_every_binding() {
    let mesh = mesh("ada").await;
    for binding in Binding::ALL {
        let client = mesh.client_by(binding, "greeter").unwrap();
        let answer = client.run(text("bob")).await.unwrap();
        assert_eq!(answer.text(), "ada greets bob", "{binding}");
        // Streams, questions and failures use the same connections.
        let mut follow = client.follow(text("ask")).await.unwrap();
        let mut events = 0;
        while let Some(event) = follow.next().await {
            event.unwrap();
            events += 1;
        }
        assert!(events > 1, "{binding}");
        let asked = client.run(text("ask")).await.unwrap_err();
        let CallError::Ended(ended) = asked else { panic!("{binding}: {asked}") };
        assert_eq!(ended.how, Ending::InputRequired, "{binding}");
        let answered = client.run(text("eve").to_task(&ended.task.id)).await.unwrap();
        assert_eq!(answered.text(), "ada greets eve", "{binding}");
        let failed = client.run(text("ada")).await.unwrap_err();
        assert!(failed.is_terminal(), "{binding}: {failed}");
        assert_eq!(failed.failure().unwrap().public_message, "That is me", "{binding}");
        let stored = client.task(failed.task_id().unwrap()).await.unwrap();
        assert_eq!(stored.status.unwrap().state(), TaskState::Failed, "{binding}");
    }
    let by_card = mesh.connect("greeter").await.unwrap();
    assert_eq!(by_card.binding(), Binding::JsonRpc);
    assert_eq!(by_card.run(text("bob")).await.unwrap().text(), "ada greets bob");
    let address = mesh.url();
    mesh.stop().await.unwrap();
    let away = Client::new(&address).unwrap().run(text("bob")).await;
    assert!(away.is_err(), "the mesh has no address outside the process");
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_http_requests_are_answered_in_memory() {
    let mesh = mesh("ada").await;
    let call = json!({"jsonrpc": "2.0", "id": "x", "method": "SendMessage",
        "params": message("bob")});
    let (status, answer) = mesh.post("/agents/greeter", &call).await.unwrap();
    assert_eq!((status, &answer["id"]), (StatusCode::OK, &json!("x")));
    let task = &answer["result"]["task"];
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "ada greets bob");
    let (_, got) = mesh.get(&format!("/tasks/{}", task["id"].as_str().unwrap())).await.unwrap();
    assert_eq!(&got, task, "the root is served by the same mesh");
    let broken = Request::post("/").header("content-type", "application/json").body("{").unwrap();
    let response = mesh.http(broken).await.unwrap();
    let error: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(error["error"]["code"], -32700);
    let stream = Request::post("/agents/greeter/message:stream")
        .header("content-type", "application/a2a+json")
        .header("a2a-version", "1.0")
        .body(message("bob").to_string())
        .unwrap();
    let stream = mesh.http(stream).await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let frames = String::from_utf8(stream.body().to_vec()).unwrap();
    assert!(
        frames.trim_end().ends_with('}') && frames.contains("TASK_STATE_COMPLETED"),
        "{frames}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn meshes_in_one_process_are_isolated() {
    let names: [&'static str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let meshes = futures::future::join_all(names.map(mesh)).await;
    for (mesh, name) in meshes.iter().zip(names) {
        assert_eq!(mesh.url(), meshes[0].url(), "the addresses need not differ");
        for binding in Binding::ALL {
            let answer = mesh.client_by(binding, "greeter").unwrap().run(text("z")).await;
            assert_eq!(answer.unwrap().text(), format!("{name} greets z"), "{binding}");
        }
        let address: SocketAddr = mesh.url().strip_prefix("http://").unwrap().parse().unwrap();
        assert!(
            TcpStream::connect(address).await.is_err(),
            "{address} is not reachable from outside"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_only_mesh_serves_no_other_binding() {
    let offer = Offer::new("greeter", Greeter("ada"));
    let mesh = without_sockets().agent(offer).rest_only().start().await.unwrap();
    let (_, card) = mesh.get("/agents/greeter/.well-known/agent-card.json").await.unwrap();
    let interfaces = card["supportedInterfaces"].as_array().unwrap();
    assert!(interfaces.iter().all(|i| i["protocolBinding"] == "HTTP+JSON"), "{card}");
    assert_eq!(interfaces[0]["protocolVersion"], "1.0", "{card}");
    // With the card, and without it.
    let client = mesh.connect("greeter").await.unwrap();
    assert_eq!(client.binding(), Binding::HttpJson);
    for client in [client, mesh.client("greeter").unwrap()] {
        assert_eq!(client.run(text("bob")).await.unwrap().text(), "ada greets bob");
        let failed = client.run(text("ada")).await.unwrap_err();
        assert_eq!(failed.failure().unwrap().reason, "FAILED_PRECONDITION");
        let asked = client.send(text("ask")).await.unwrap();
        let id = asked.task().unwrap().id.clone();
        let canceled = client.cancel(&id).await.unwrap();
        assert_eq!(canceled.status.unwrap().state(), TaskState::Canceled);
    }
    // Every call of the binding.
    let (status, sent) = mesh.post("/agents/greeter/message:send", &message("bob")).await.unwrap();
    assert_eq!(status, StatusCode::OK);
    let id = sent["task"]["id"].as_str().unwrap();
    let (_, listed) = mesh.get("/agents/greeter/tasks").await.unwrap();
    assert_eq!(listed["totalSize"], 7, "{listed}");
    let (_, got) = mesh.get(&format!("/agents/greeter/tasks/{id}")).await.unwrap();
    assert_eq!(got, sent["task"]);
    let again = mesh.post(&format!("/tasks/{id}:cancel"), &json!({})).await.unwrap();
    assert_eq!(
        (again.0, &again.1["error"]["status"]),
        (StatusCode::BAD_REQUEST, &json!("FAILED_PRECONDITION"))
    );
    // A binding that is not served answers in its own error format.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": id}});
    let (status, refused) = mesh.post("/agents/greeter", &call).await.unwrap();
    assert_eq!((status, &refused["error"]["code"]), (StatusCode::NOT_FOUND, &json!(-32601)));
    let grpc = mesh.client_by(Binding::Grpc, "greeter").unwrap().task(id).await.unwrap_err();
    assert_eq!(grpc.failure().unwrap().reason, "METHOD_NOT_FOUND");
}

#[tokio::test]
async fn start_without_agents_names_the_missing_call() {
    let error = without_sockets().start().await.err().unwrap();
    assert!(error.to_string().contains("Builder::agent"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delegation_works_in_memory() {
    let built_in = |config: &mut faultline::Config| config.worker.agents = vec!["script".into()];
    let offer = Offer::new("greeter", Greeter("ada"));
    let mesh = without_sockets().agent(offer).configure(built_in).start().await.unwrap();
    let made = mesh.send("script", "delegate script { delegate script { chunk deep } }").await;
    assert_eq!(made.unwrap().text(), "deep");
    let failed = mesh.send("script", "delegate script { fail NOT_FOUND code=X text=gone }").await;
    let failed = failed.unwrap().ok().unwrap_err();
    let failure = failed.failure().unwrap();
    assert_eq!((failure.business_code.as_str(), failure.causes.len()), ("X", 2), "{failure:?}");
}
