//! A gateway with several coordinators: balancing, ejection, handover, and resuming of streams.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use faultline_chassis::{Drain, members::Resolver};
use faultline_gateway::Config;
use faultline_proto::v1::{Call, Moved, call, reply};
use http::StatusCode;
use serde_json::json;

use crate::{
    client::{Client, Event, detail, message, request},
    fake::{Fake, drops},
    soon,
};

const STREAM: &str = "SendStreamingMessage";

/// A gateway in front of two coordinators.
struct Pair {
    fakes: [Fake; 2],
    address: SocketAddr,
    drain: Drain,
}

impl Pair {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let fakes = [Fake::start().await, Fake::start().await];
        let coordinator = format!("http://{}, {}", fakes[0].address(), fakes[1].address());
        let mut config =
            Config { listen: ([127, 0, 0, 1], 0).into(), coordinator, ..Config::default() };
        change(&mut config);
        let service = config.bind().await.unwrap();
        let address = service.addr();
        let drain = Drain::new();
        tokio::spawn(service.run(drain.clone()));
        for fake in &fakes {
            fake.until_connected().await;
        }
        let pair = Self { fakes, address, drain };
        pair.client().await.until_healthy().await;
        pair
    }

    async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// The coordinator with the last call of this kind, the call, and the other coordinator.
    async fn holder(&self, is: impl Fn(&call::Body) -> bool) -> (&Fake, Call, &Fake) {
        let found = async {
            loop {
                for (one, other) in [(0, 1), (1, 0)] {
                    let calls = self.fakes[one].calls();
                    let call = calls.into_iter().rfind(|c| c.body.as_ref().is_some_and(&is));
                    if let Some(call) = call {
                        return (&self.fakes[one], call, &self.fakes[other]);
                    }
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        soon("a call of this kind", found).await
    }

    /// The value of a metric.
    async fn metric(&self, name: &str) -> f64 {
        let mut client = self.client().await;
        let response = client.send("GET", "/metrics", &[], "").await;
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

fn is_stream(body: &call::Body) -> bool {
    matches!(body, call::Body::Stream(_))
}

fn is_send(body: &call::Body) -> bool {
    matches!(body, call::Body::Send(_))
}

#[tokio::test]
async fn calls_are_balanced_and_avoid_a_coordinator_that_is_down() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    for _ in 0..40 {
        let answer = client.rpc("SendMessage", message("x")).await;
        assert!(answer.body["result"].is_object(), "{answer:?}");
    }
    assert!(pair.fakes.iter().all(|fake| fake.calls().len() > 5));
    let Pair { fakes: [one, other], address, .. } = pair;
    one.go_down();
    let before = other.calls().len();
    let mut client = Client::connect(address).await;
    for _ in 0..20 {
        let answer = client.rpc("GetTask", json!({"id": "t"})).await;
        assert!(answer.body["result"].is_object(), "{answer:?}");
    }
    assert_eq!(other.calls().len(), before + 20);
    assert_eq!(client.ask("GET", "/healthz", &[], "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn interrupted_read_and_send_with_key_are_repeated_elsewhere_but_not_send_without_key() {
    let pair = Pair::start().await;
    let mut reader = pair.client().await;
    let reading = tokio::spawn(async move { reader.rpc("GetTask", json!({"id": "hang"})).await });
    let (holder, _, other) = pair.holder(|body| matches!(body, call::Body::Get(_))).await;
    holder.cut();
    other.until("the repeated call", |calls| !calls.is_empty()).await;
    let again = other.calls().pop().unwrap();
    assert!(matches!(again.body, Some(call::Body::Get(_))), "{again:?}");
    other.say(again.id, reply::Body::Task(Box::default()));
    assert!(soon("an answer", reading).await.unwrap().body["result"].is_object());

    // A new pair, of which both are up.
    let pair = Pair::start().await;
    let mut sender = pair.client().await;
    let key = [("idempotency-key", "k-1")];
    let sending = request("SendMessage", message("hang"));
    let sending = tokio::spawn(async move { sender.ask("POST", "/", &key, sending).await });
    let (holder, first, other) = pair.holder(is_send).await;
    holder.cut();
    let has_key = |c: &Call| c.caller.as_ref().is_some_and(|c| c.idempotency_key == "k-1");
    other.until("the repeated call", |calls| calls.iter().any(has_key)).await;
    let again = other.calls().pop().unwrap();
    assert_eq!((&again.caller, &again.body), (&first.caller, &first.body));
    other.say(again.id, reply::Body::Sent(Default::default()));
    soon("an answer", sending).await.unwrap();

    let pair = Pair::start().await;
    let mut sender = pair.client().await;
    let sending = tokio::spawn(async move { sender.rpc("SendMessage", message("hang")).await });
    let (holder, _, other) = pair.holder(is_send).await;
    holder.cut();
    assert_eq!(soon("an answer", sending).await.unwrap().reason(), "OUTCOME_UNKNOWN");
    assert_eq!(other.calls().len(), 0);
}

#[tokio::test]
async fn stream_resumes_at_another_coordinator_without_loss_or_duplicates() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let mut events = client.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let (holder, call, other) = pair.holder(is_stream).await;
    // More frames than the credit: the next coordinator starts with a new credit.
    for seq in 2..=40 {
        holder.say(call.id, crate::fake::frame(seq));
    }
    for seq in 2..=40 {
        assert_eq!(events.next_data().await.0, Some(seq));
    }
    holder.cut();
    assert_eq!(events.numbers().await, [41, 42, 43]);
    let resumed = other.calls().pop().unwrap();
    let Some(call::Body::Subscribe(subscribe)) = resumed.body else { panic!("{resumed:?}") };
    assert_eq!((subscribe.request.unwrap().id.as_str(), subscribe.after), ("t-1", Some(40)));
    assert_eq!(resumed.caller, call.caller);
    let resumed = "faultline_stream_resumes_total{outcome=\"resumed\"}";
    assert_eq!(pair.metric(resumed).await, 1.0);
}

#[tokio::test]
async fn stream_without_events_is_repeated_only_with_a_key() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let mut events = client.events(&[("idempotency-key", "k-2")], STREAM, message("hang")).await;
    let (holder, call, other) = pair.holder(is_stream).await;
    holder.cut();
    other.until("the repeated call", |calls| !calls.is_empty()).await;
    let again = other.calls().pop().unwrap();
    assert_eq!(again.body, call.body);
    other.say(again.id, crate::fake::frame(1));
    other.say(again.id, reply::Body::End(Default::default()));
    assert_eq!(events.numbers().await, [1]);

    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let opening = tokio::spawn(async move { client.rpc(STREAM, message("hang")).await });
    let (holder, _, other) = pair.holder(is_stream).await;
    holder.cut();
    assert_eq!(soon("an answer", opening).await.unwrap().reason(), "OUTCOME_UNKNOWN");
    assert_eq!(other.calls().len(), 0);
}

#[tokio::test]
async fn stream_without_a_coordinator_in_time_ends_with_advice() {
    let pair = Pair::start_with(|config| config.resume_ms = 300).await;
    let mut client = pair.client().await;
    let mut events = client.events(&[], "SubscribeToTask", json!({"id": "open"})).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let Pair { fakes, address, drain: _drain } = pair;
    fakes.iter().for_each(Fake::go_down);
    let (_, last) = events.next_data().await;
    assert!(last["error"]["message"].as_str().unwrap().contains("resume with Last-Event-ID"));
    let info = detail(&last["error"]["data"], "google.rpc.ErrorInfo");
    assert_eq!(info["reason"], "UNAVAILABLE");
    assert_eq!(soon("the end", events.next()).await, None);
    let health = Client::connect(address).await.ask("GET", "/healthz", &[], "").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn watch_resumes_and_reports_missed_changes() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let body = json!({"filter": {"agent": "silent"}}).to_string();
    let opening = tokio::spawn(async move {
        let response = client.send("POST", "/mesh/Watch", &[], body).await;
        (crate::client::Events::of(response), client)
    });
    let (holder, call, other) = pair.holder(|b| matches!(b, call::Body::Watch(_))).await;
    holder.cut();
    let (mut events, _client) = soon("the stream", opening).await.unwrap();
    let (_, first) = events.next_data().await;
    assert_eq!(first["missed"], true, "{first}");
    other.until("the repeated call", |calls| calls.iter().any(|c| c.body == call.body)).await;
}

#[tokio::test]
async fn leaving_coordinator_gets_no_new_calls_and_finishes_its_own() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let mut events = client.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let (leaving, call, other) = pair.holder(is_stream).await;
    leaving.say(0, reply::Body::Moved(Moved::default()));
    let state = "faultline_links{state=\"leaving\"}";
    let waiting = async {
        while pair.metric(state).await < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the status leaving", waiting).await;
    let mut asker = pair.client().await;
    for _ in 0..20 {
        asker.rpc("SendMessage", message("x")).await;
    }
    assert_eq!((leaving.calls().len(), other.calls().len()), (1, 20));
    leaving.say(call.id, crate::fake::frame(2));
    assert_eq!(events.next_data().await.0, Some(2));
    // The stream is handed over at the end, which its client does not notice.
    leaving.say(call.id, reply::Body::Moved(Moved::default()));
    assert_eq!(events.numbers().await, [3, 4, 5]);
}

#[tokio::test]
async fn blocking_send_is_answered_by_another_coordinator_after_handover() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let mut params = message("hang");
    params["configuration"] = json!({"historyLength": 3});
    let sending = tokio::spawn(async move { client.rpc("SendMessage", params).await });
    let (leaving, call, other) = pair.holder(is_send).await;
    leaving.say(0, reply::Body::Moved(Moved::default()));
    leaving.say(call.id, reply::Body::Moved(Moved { task_id: "hang".into() }));
    other.until("a wait", |calls| !calls.is_empty()).await;
    let wait = other.calls().pop().unwrap();
    assert_eq!(wait.caller, call.caller);
    let Some(call::Body::Wait(wanted)) = &wait.body else { panic!("{wait:?}") };
    assert_eq!((wanted.task_id.as_str(), wanted.history_length), ("hang", Some(3)));
    // The second coordinator leaves too, and the first one is back.
    leaving.cut();
    leaving.until_connected().await;
    other.say(0, reply::Body::Moved(Moved::default()));
    other.say(wait.id, reply::Body::Moved(Moved { task_id: "hang".into() }));
    leaving.until("a wait", |calls| calls.iter().any(|c| c.body == wait.body)).await;
    let wait = leaving.calls().pop().unwrap();
    // Its link breaks: the task is known, so the wait is repeated.
    leaving.cut();
    leaving
        .until("another", |calls| calls.iter().filter(|c| c.body == wait.body).count() == 2)
        .await;
    let wait = leaving.calls().pop().unwrap();
    leaving.say(wait.id, reply::Body::Sent(Default::default()));
    let answer = soon("an answer", sending).await.unwrap();
    assert!(answer.body["result"].is_object(), "{answer:?}");
}

#[tokio::test]
async fn undone_call_of_a_leaving_coordinator_is_repeated_without_a_key() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let sending = tokio::spawn(async move { client.rpc("SendMessage", message("hang")).await });
    let (leaving, call, other) = pair.holder(is_send).await;
    leaving.say(0, reply::Body::Moved(Moved::default()));
    leaving.say(call.id, reply::Body::Moved(Moved::default()));
    other.until("the repeated call", |calls| !calls.is_empty()).await;
    let again = other.calls().pop().unwrap();
    assert_eq!((&again.caller, &again.body), (&call.caller, &call.body));
    other.say(again.id, reply::Body::Sent(Default::default()));
    let answer = soon("an answer", sending).await.unwrap();
    assert!(answer.body["result"].is_object(), "{answer:?}");

    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let mut events = client.events(&[], STREAM, message("hang")).await;
    let (leaving, call, other) = pair.holder(is_stream).await;
    leaving.say(0, reply::Body::Moved(Moved::default()));
    leaving.say(call.id, reply::Body::Moved(Moved::default()));
    other.until("the repeated call", |calls| !calls.is_empty()).await;
    let again = other.calls().pop().unwrap();
    assert_eq!((&again.caller, &again.body), (&call.caller, &call.body));
    other.say(again.id, crate::fake::frame(1));
    other.say(again.id, reply::Body::End(Default::default()));
    assert_eq!(events.numbers().await, [1]);
}

#[tokio::test]
async fn outcome_is_unknown_if_the_repeated_call_breaks_or_an_answer_moved() {
    for method in ["SendMessage", STREAM] {
        let pair = Pair::start().await;
        let mut client = pair.client().await;
        let sending = tokio::spawn(async move { client.rpc(method, message("hang")).await });
        let (leaving, call, other) = pair.holder(|_| true).await;
        leaving.say(0, reply::Body::Moved(Moved::default()));
        leaving.say(call.id, reply::Body::Moved(Moved::default()));
        other.until("the repeated call", |calls| !calls.is_empty()).await;
        other.cut();
        assert_eq!(soon("an answer", sending).await.unwrap().reason(), "OUTCOME_UNKNOWN");
        assert_eq!((leaving.calls().len(), other.calls().len()), (1, 1), "{method}");

        // The coordinator may have stored the answer before it left.
        let pair = Pair::start().await;
        let mut client = pair.client().await;
        let mut answer = message("hang");
        answer["message"]["taskId"] = json!("t-1");
        let sending = tokio::spawn(async move { client.rpc(method, answer).await });
        let (leaving, call, other) = pair.holder(|_| true).await;
        leaving.say(0, reply::Body::Moved(Moved::default()));
        leaving.say(call.id, reply::Body::Moved(Moved::default()));
        assert_eq!(soon("an answer", sending).await.unwrap().reason(), "OUTCOME_UNKNOWN");
        assert_eq!(other.calls().len(), 0, "{method}");
    }
}

#[tokio::test]
async fn stream_without_events_follows_its_task_after_handover() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let mut events = client.events(&[], STREAM, message("hang")).await;
    let (leaving, call, other) = pair.holder(is_stream).await;
    leaving.say(0, reply::Body::Moved(Moved::default()));
    leaving.say(call.id, reply::Body::Moved(Moved { task_id: "t-1".into() }));
    assert_eq!(events.numbers().await, [1, 2, 3]);
    let resumed = other.calls().pop().unwrap();
    let Some(call::Body::Subscribe(subscribe)) = resumed.body else { panic!("{resumed:?}") };
    assert_eq!((subscribe.request.unwrap().id.as_str(), subscribe.after), ("t-1", None));
}

#[tokio::test]
async fn disconnected_client_cancels_its_wait_at_another_coordinator() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let sending = tokio::spawn(async move { client.rpc("SendMessage", message("hang")).await });
    let (leaving, call, other) = pair.holder(is_send).await;
    leaving.say(0, reply::Body::Moved(Moved::default()));
    leaving.say(call.id, reply::Body::Moved(Moved { task_id: "hang".into() }));
    other.until("a wait", |calls| !calls.is_empty()).await;
    sending.abort();
    other.until("a drop", |calls| drops(calls) == 1).await;
}

#[tokio::test]
async fn coordinator_without_a_store_is_ejected_for_a_while() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let sick = &pair.fakes[0];
    let refused = || {
        let failure = faultline_proto::Failure::new(&faultline_proto::reason::STORE_UNAVAILABLE);
        crate::fake::failure(failure)
    };
    for _ in 0..5 {
        sick.say(4711, refused());
    }
    let state = "faultline_links{state=\"ejected\"}";
    let waiting = async {
        while pair.metric(state).await < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the ejection", waiting).await;
    let before = sick.calls().len();
    for _ in 0..20 {
        client.rpc("SendMessage", message("x")).await;
    }
    assert_eq!(sick.calls().len(), before);
}

/// A resolver that the test controls.
fn resolver(addresses: &Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>) -> Resolver {
    let addresses = Arc::clone(addresses);
    Resolver::new(move |name, _| {
        let found = addresses.lock().unwrap().get(name).cloned();
        async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) }
    })
}

#[tokio::test]
async fn coordinators_behind_a_name_are_added_and_removed() {
    let [one, other] = [Fake::start().await, Fake::start().await];
    let addresses = HashMap::from([("hub.mesh".to_owned(), vec![one.address()])]);
    let addresses = Arc::new(Mutex::new(addresses));
    let mut config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        coordinator: "http://hub.mesh:1".to_owned(),
        ..Config::default()
    };
    config.mesh.resolver = Some(resolver(&addresses));
    let service = config.bind().await.unwrap();
    let address = service.addr();
    tokio::spawn(service.run(Drain::new()));
    let mut client = Client::connect(address).await;
    let mut watcher = Client::connect(address).await;
    client.until_healthy().await;
    let mut events = watcher.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));

    addresses.lock().unwrap().insert("hub.mesh".to_owned(), vec![other.address()]);
    other.until_connected().await;
    // The removed coordinator keeps its stream, but gets no new calls.
    let before = one.calls().len();
    for _ in 0..20 {
        client.rpc("SendMessage", message("x")).await;
    }
    assert_eq!((one.calls().len(), other.calls().len()), (before, 20));
    one.say(one.calls()[0].id, crate::fake::frame(2));
    assert_eq!(events.next_data().await.0, Some(2));
    drop((events, watcher));
    one.until("a drop", |calls| drops(calls) == 1).await;
    soon("the end of its link", one.until_alone()).await;
}

#[tokio::test(start_paused = true)]
async fn draining_gateway_reports_it_before_it_closes_its_port() {
    let pair = Pair::start_with(|config| config.drain_delay_ms = 5000).await;
    let mut client = pair.client().await;
    let mut events = client.events(&[], STREAM, message("open")).await;
    assert_eq!(events.next_data().await.0, Some(1));
    let mut asker = pair.client().await;
    let started = tokio::time::Instant::now();
    pair.drain.start();
    let health = asker.ask("GET", "/healthz", &[], "").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(health.body["status"], "leaving");
    // During the delay requests are served, also on new connections.
    let answer = pair.client().await.rpc("SendMessage", message("x")).await;
    assert!(answer.body["result"].is_object(), "{answer:?}");
    let last = loop {
        match events.next().await {
            Some(Event::Data { data, .. }) => break data,
            Some(Event::Comment) => {}
            other => panic!("no final event: {other:?}"),
        }
    };
    assert!(last["error"]["message"].as_str().unwrap().contains("resume with Last-Event-ID"));
    assert!(started.elapsed() >= Duration::from_secs(5 + 8), "{:?}", started.elapsed());
    assert!(tokio::net::TcpStream::connect(pair.address).await.is_err());
}
