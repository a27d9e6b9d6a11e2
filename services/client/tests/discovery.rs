//! Discovery of an agent by its card, and errors of unusable cards before any call.

mod script;

use faultline_client::{Binding, CardProblem, Client, Error, Retry};
use faultline_proto::{Failure, reason};
use script::{Server, answer, plain, result};

const TOOLS: &str = "urn:ag2:client-tools:v1";

/// A card with fields of A2A 0.3 beside the new ones, as many cards have them.
fn card(interfaces: &str, capabilities: &str) -> String {
    let old = r#""protocolVersion":"0.3.0","url":"http://x/old""#;
    let body = format!(
        r#"{{"name":"x","supportedInterfaces":[{interfaces}],"capabilities":{capabilities},{old}}}"#
    );
    plain("200 OK", &body)
}

fn interface(url: &str, binding: &str, tenant: &str) -> String {
    format!(
        r#"{{"url":"{url}","protocolBinding":"{binding}","protocolVersion":"1.0.1",
            "tenant":"{tenant}"}}"#
    )
}

#[tokio::test]
async fn card_selects_url_binding_and_tenant() {
    let agent = Server::start([
        result(r#"{"id":"t-1"}"#),
        plain("200 OK", r#"{"id":"t-1"}"#),
        plain("200 OK", r#"{"id":"t-1"}"#),
    ])
    .await;
    let url = |path: &str| format!("{}{path}", agent.url);
    let interfaces = [
        interface("carrier.example.org", "urn:pigeon", ""),
        interface(&url("/rpc"), "JSONRPC", "acme"),
        interface(&url("/rest/"), "HTTP+JSON", "acme"),
    ]
    .join(",");
    let host = Server::start((0..3).map(|_| card(&interfaces, "{}"))).await;

    let client = Client::connect(&format!("{}/agents/x/", host.url)).await.unwrap();
    assert_eq!((client.binding(), client.card().unwrap().name.as_str()), (Binding::JsonRpc, "x"));
    client.task("t-1").await.unwrap();
    let rest = |path: &str| {
        let builder = Client::builder(&format!("{}{path}", host.url));
        builder.bearer("s3cret").allow_origin(&agent.url).binding(Binding::HttpJson)
    };
    rest("").connect().await.unwrap().task("t-1").await.unwrap();
    rest("/cards/x.json").connect().await.unwrap().cancel("t-1").await.unwrap();
    assert_eq!(
        host.lines(),
        [
            "GET /agents/x/.well-known/agent-card.json",
            "GET /.well-known/agent-card.json",
            "GET /cards/x.json",
        ]
    );
    assert!(host.seen()[1].contains("authorization: Bearer s3cret\r\n"));
    assert_eq!(
        agent.lines(),
        ["POST /rpc", "GET /rest/acme/tasks/t-1", "POST /rest/acme/tasks/t-1:cancel"]
    );
    assert!(agent.seen()[0].contains(r#""params":{"tenant":"acme","id":"t-1"}"#));
    assert!(agent.seen().iter().all(|request| request.contains("a2a-version: 1.0\r\n")));
}

#[tokio::test]
async fn unusable_card_is_rejected_before_any_call() {
    let cases = [
        (plain("200 OK", r#"{"name":"x"}"#), "it lists no supportedInterfaces"),
        (card(&interface("http://x", "urn:pigeon", ""), "{}"), "it lists 'urn:pigeon'"),
        (card(&interface("not a url", "JSONRPC", ""), "{}"), "'not a url' (it is not a URL)"),
        (card(&interface("/rpc", "HTTP+JSON", ""), "{}"), "it names no host"),
        (plain("200 OK", "<html>"), "it is not an agent card"),
        (plain("200 OK", r#"{"supportedInterfaces":7}"#), "it is not an agent card"),
    ];
    for (script, expected) in cases {
        let server = Server::start([script]).await;
        let error = Client::connect(&server.url).await.unwrap_err();
        assert!(matches!(error, Error::InvalidCard { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.to_string().contains("/.well-known/agent-card.json"), "{error}");
        assert!(error.failure().is_none());
        assert_eq!(Failure::from(error).row(), &reason::INVALID_ARGUMENT);
        assert_eq!(server.seen().len(), 1);
    }
    let server = Server::start([card(&interface("http://x", "JSONRPC", ""), "{}")]).await;
    let asked = Client::builder(&server.url).binding(Binding::Grpc).connect().await.unwrap_err();
    let Error::InvalidCard { problem: CardProblem::NoBinding { wanted, .. }, .. } = asked else {
        panic!("{asked:?}");
    };
    assert_eq!(wanted, "GRPC");
}

#[tokio::test]
async fn credentials_stay_at_the_origin_of_the_card_unless_allowed() {
    let stranger = Server::start([result(r#"{"id":"t-1"}"#)]).await;
    let away = card(&interface(&stranger.url, "JSONRPC", ""), "{}");
    let host = Server::start(std::iter::repeat_n(away, 5)).await;
    let builder = || Client::builder(&host.url);
    let had = builder().bearer_from(|| async { Ok("s3cret".to_owned()) });
    let header = builder().header("x-api-key", "s3cret");
    for credential in [builder().bearer("s3cret"), header, had] {
        let error = credential.connect().await.unwrap_err();
        let Error::InvalidCard { problem: CardProblem::OtherOrigin { card, called }, .. } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!((card, called), (&host.url, &stranger.url));
        assert!(error.to_string().contains("Builder::allow_origin"), "{error}");
    }
    builder().connect().await.expect("without credentials there is nothing to keep");
    let allowed = builder().bearer("s3cret").allow_origin(&format!("{}/", stranger.url));
    allowed.connect().await.unwrap().task("t-1").await.unwrap();
    assert_eq!(stranger.seen().len(), 1);
    assert!(stranger.seen()[0].contains("authorization: Bearer s3cret\r\n"));

    // An interface at the card's origin comes first, whatever the order.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let home = format!("http://{}", listener.local_addr().unwrap());
    let both = [interface(&stranger.url, "JSONRPC", ""), interface(&home, "HTTP+JSON", "")];
    let read = faultline_proto::json::from_str(&format!(
        r#"{{"name":"x","supportedInterfaces":[{}]}}"#,
        both.join(",")
    ));
    let client = Client::builder(&home).bearer("s3cret").connect_by(read.unwrap()).unwrap();
    assert_eq!(client.binding(), Binding::HttpJson);
}

#[tokio::test]
async fn card_leads_beyond_its_origin_to_public_addresses_only() {
    let inside = Server::start([]).await;
    let local = inside.url.replace("127.0.0.1", "localhost");
    for target in [&*inside.url, &*local, "http://10.0.0.1", "http://[::1]:1"] {
        for (binding, name) in [(Binding::JsonRpc, "JSONRPC"), (Binding::Grpc, "GRPC")] {
            let host = Server::start([card(&interface(target, name, ""), "{}")]).await;
            let builder = Client::builder(&host.url).public_only().binding(binding);
            let error = builder.connect().await.unwrap_err();
            let Error::InvalidCard { problem: CardProblem::NotPublic { card, called }, .. } =
                &error
            else {
                panic!("{target}: {error:?}");
            };
            assert_eq!((&**card, &**called), (&*host.url, target));
            assert!(error.to_string().contains("Builder::allow_origin"), "{error}");
        }
    }
    // A card at hand is not checked for public addresses; the dial is rejected instead.
    let read =
        format!(r#"{{"name":"x","supportedInterfaces":[{}]}}"#, interface(&local, "JSONRPC", ""));
    let read = faultline_proto::json::from_str(&read).unwrap();
    let builder = Client::builder("http://agents.example").public_only().retry(Retry::never());
    let error = builder.connect_by(read).unwrap().task("t").await.unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!(failure.row(), &reason::INVALID_AGENT_RESPONSE);
    assert!(failure.public_message.contains("allow_origin"), "{failure}");
    assert_eq!(inside.seen(), Vec::<String>::new(), "nothing was sent");
}

#[tokio::test]
async fn interface_at_the_origin_of_the_card_precedes_others() {
    let agent = Server::start([]).await;
    let both =
        [interface("http://10.0.0.1", "JSONRPC", ""), interface(&agent.url, "HTTP+JSON", "")];
    let read = format!(r#"{{"name":"x","supportedInterfaces":[{}]}}"#, both.join(","));
    let read: faultline_client::a2a::AgentCard = faultline_proto::json::from_str(&read).unwrap();
    let guarded = Client::builder(&agent.url).public_only();
    assert_eq!(guarded.connect_by(read.clone()).unwrap().binding(), Binding::HttpJson);
    let open = Client::builder(&agent.url);
    assert_eq!(open.connect_by(read).unwrap().binding(), Binding::JsonRpc);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let inside = Server::start([]).await;
    let moved = format!("location: {}\r\n", inside.url);
    let moved = || answer("307 Temporary Redirect", &moved, "");
    let host = Server::start([moved()]).await;
    let error = Client::builder(&host.url).retry(Retry::never()).connect().await.unwrap_err();
    assert!(error.to_string().contains("307"), "{error}");
    let agent = Server::start([moved()]).await;
    let client = Client::builder(&agent.url).retry(Retry::never()).direct().unwrap();
    let error = client.task("t").await.unwrap_err();
    assert!(error.to_string().contains("307"), "{error}");
    assert_eq!(inside.seen(), Vec::<String>::new());
}

#[tokio::test]
async fn missing_card_is_a_failed_call() {
    let busy = answer("503 Service Unavailable", "retry-after: 0\r\n", "");
    let good = card(&interface("http://x", "JSONRPC", ""), "{}");
    let server = Server::start([plain("404 Not Found", ""), busy, good]).await;
    let error = Client::connect(&server.url).await.unwrap_err();
    assert_eq!(error.failure().unwrap().row(), &reason::NOT_FOUND);
    Client::connect(&server.url).await.unwrap();
    assert_eq!(server.seen().len(), 3);
    let refused = Client::builder("http://127.0.0.1:1").retry(Retry::never()).connect().await;
    assert_eq!(refused.unwrap_err().failure().unwrap().row(), &reason::UNAVAILABLE);
}

#[tokio::test]
async fn required_extension_must_be_on_the_card() {
    let agent = Server::start([result(r#"{"id":"t-1"}"#)]).await;
    let interface = interface(&agent.url, "JSONRPC", "");
    let with = format!(r#"{{"extensions":[{{"uri":"{TOOLS}"}}]}}"#);
    let host = Server::start([card(&interface, "{}"), card(&interface, &with)]).await;
    let without = Client::connect(&host.url).await.unwrap().require_extension(TOOLS);
    let error = without.unwrap_err();
    assert!(matches!(&error, Error::ExtensionUnsupported { uri } if uri == TOOLS), "{error:?}");
    let client = Client::connect(&host.url).await.unwrap().require_extension(TOOLS).unwrap();
    assert_eq!(agent.seen().len(), 0);
    client.task("t-1").await.unwrap();
    assert!(agent.seen()[0].contains(&format!("a2a-extensions: {TOOLS}\r\n")));
}

#[tokio::test]
async fn agent_without_streaming_is_polled() {
    let task = |state: &str, text: &str| {
        format!(
            r#"{{"id":"t-1","status":{{"state":"TASK_STATE_{state}"}},
                "artifacts":[{{"artifactId":"a","parts":[{{"text":"{text}"}}]}}]}}"#
        )
    };
    let agent = Server::start([
        result(&format!(r#"{{"task":{}}}"#, task("WORKING", "one"))),
        result(&task("WORKING", "one two")),
        result(&task("COMPLETED", "one two three")),
    ])
    .await;
    let host = Server::start([card(&interface(&agent.url, "JSONRPC", ""), "{}")]).await;
    let client = Client::connect(&host.url).await.unwrap();
    let mut follow = client.follow("hi").await.unwrap();
    let mut shown = String::new();
    while let Some(event) = follow.next().await {
        shown.push_str(&event.unwrap().text());
    }
    assert_eq!(shown, "one two three");
    assert!(agent.seen()[0].contains(r#""returnImmediately":true"#));
}
