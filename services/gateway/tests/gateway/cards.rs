//! Agent cards, their caching and signatures; the operators' view and health.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL};
use faultline_gateway::{Auth, Binding, Config, Error, Token};
use faultline_proto::{a2a::AgentCardSignature, v1::Agent};
use http::{HeaderMap, StatusCode};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
        UnparsedPublicKey,
    },
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    Mesh,
    client::{Answer, Client},
    fake::agent,
    soon,
};

const CARD: &str = "/.well-known/agent-card.json";
/// `printf %s secret | sha256sum`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

fn interface(url: &str, binding: &str, version: &str) -> Value {
    json!({"url": url, "protocolBinding": binding, "protocolVersion": version})
}

fn auth() -> Auth {
    let token = json!({"token": [{"sha256": SECRET, "principal": "acme"}]});
    serde_json::from_value(token).unwrap()
}

#[tokio::test]
async fn card_lists_the_interfaces_of_its_agent() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let public = format!("http://{}", mesh.address);
    let plan = format!("{public}/agents/plan");
    for (path, name, rpc, rest) in [
        (CARD.to_owned(), "echo", format!("{public}/"), public.clone()),
        (format!("/agents/plan{CARD}"), "plan", plan.clone(), plan),
    ] {
        let card = client.ask("GET", &path, &[], "").await;
        assert_eq!(card.status, StatusCode::OK);
        assert_eq!(card.body["name"], name);
        let interfaces = json!([
            interface(&rpc, "JSONRPC", "1.0"),
            interface(&rest, "HTTP+JSON", "1.0"),
            interface(&rpc, "JSONRPC", "0.3"),
            interface(&rest, "HTTP+JSON", "0.3"),
        ]);
        assert_eq!(card.body["supportedInterfaces"], interfaces);
        assert_eq!(card.body["url"], rpc, "for clients of 0.3");
    }
}

#[tokio::test]
async fn card_lists_grpc_if_configured_and_v03_if_served() {
    let mesh = Mesh::start_with(|config| {
        config.public_url = Some("https://agents.example.org/".to_owned());
        config.public_grpc = Some("agents.example.org:443".to_owned());
        config.serve_v03 = false;
    })
    .await;
    let card = mesh.client().await.ask("GET", &format!("/agents/plan{CARD}"), &[], "").await.body;
    let url = "https://agents.example.org/agents/plan";
    let mut grpc = interface("agents.example.org:443", "GRPC", "1.0");
    grpc["tenant"] = json!("plan");
    let interfaces =
        json!([interface(url, "JSONRPC", "1.0"), interface(url, "HTTP+JSON", "1.0"), grpc]);
    assert_eq!(card["supportedInterfaces"], interfaces);
    assert_eq!(card.get("url"), None);
}

#[tokio::test]
async fn disabled_binding_is_on_no_card_and_answers_with_advice() {
    let mesh = Mesh::start_with(|config| {
        config.bindings = vec![Binding::Rest];
        config.public_grpc = Some("agents.example.org:443".to_owned());
        config.serve_v03 = false;
    })
    .await;
    let mut client = mesh.client().await;
    let card = client.ask("GET", CARD, &[], "").await.body;
    let url = format!("http://{}", mesh.address);
    assert_eq!(card["supportedInterfaces"], json!([interface(&url, "HTTP+JSON", "1.0")]));
    let refused = client.rpc("GetTask", json!({"id": "t-7"})).await;
    assert_eq!((refused.status, refused.code()), (StatusCode::NOT_FOUND, -32601));
    assert!(refused.message().contains("card"), "the text points to the card: {refused:?}");
    let served = client.ask("GET", "/tasks/t-7", &[], "").await;
    assert_eq!(served.status, StatusCode::OK);
}

#[tokio::test]
async fn gateway_without_bindings_does_not_start() {
    let config = Config { bindings: Vec::new(), ..Config::default() };
    let error = config.bind().await.err().unwrap().to_string();
    assert!(error.contains("gateway.bindings"), "{error}");
}

#[tokio::test]
async fn required_card_fields_are_never_empty() {
    let mesh = Mesh::start().await;
    let card = mesh.client().await.ask("GET", CARD, &[], "").await.body;
    assert_eq!(card["description"], "echo");
    assert_eq!(card["version"], "1.0.0");
    assert_eq!(card["capabilities"], json!({"streaming": false}));
    assert_eq!(card["defaultInputModes"], json!(["*/*"]));
    let skill = json!({
        "id": "echo", "name": "echo", "description": "echo", "tags": ["echo"],
        "inputModes": ["*/*"], "outputModes": ["*/*"],
    });
    assert_eq!(card["skills"], json!([skill]));
}

async fn get(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap) {
    let response = client.send("GET", path, headers, "").await;
    (response.status().as_u16(), response.headers().clone())
}

/// Waits until the cached card has expired and the gateway has called the coordinator again.
async fn until_refetched(mesh: &Mesh, client: &mut Client) {
    let before = mesh.fake.calls().len();
    let asking = async {
        while mesh.fake.calls().len() == before {
            get(client, CARD, &[]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("a new fetch of the card", asking).await;
}

fn changed_at(seconds: u64) -> Agent {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    Agent { card_changed: Some(time.into()), ..agent("echo", true) }
}

#[tokio::test]
async fn current_card_is_answered_with_304() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    // Later than the start of the gateway, which is the earliest date of a card.
    mesh.fake.offer(vec![changed_at(4_000_000_000)]);
    let (status, first) = get(&mut client, CARD, &[]).await;
    assert_eq!((status, &first["cache-control"]), (200, &"public, max-age=60".parse().unwrap()));
    assert_eq!(first["last-modified"], "Tue, 02 Oct 2096 07:06:40 GMT");
    assert!(!first.contains_key("vary"), "the address is fixed");
    let tag = first["etag"].to_str().unwrap();
    let date = first["last-modified"].to_str().unwrap();
    for condition in [("if-none-match", tag), ("if-modified-since", date)] {
        let (status, headers) = get(&mut client, CARD, &[condition]).await;
        assert_eq!(status, 304, "{condition:?}");
        for name in ["etag", "last-modified", "cache-control"] {
            assert_eq!(headers[name], first[name], "{condition:?}");
        }
    }
    let mut other = changed_at(4_000_000_001);
    other.card.as_mut().unwrap().description = "another".to_owned();
    mesh.fake.offer(vec![other]);
    until_refetched(&mesh, &mut client).await;
    for condition in [("if-none-match", tag), ("if-modified-since", date)] {
        let (status, headers) = get(&mut client, CARD, &[condition]).await;
        assert_eq!(status, 200, "{condition:?}");
        assert_ne!(headers["etag"], first["etag"]);
    }
}

#[tokio::test]
async fn card_is_never_older_than_its_gateway() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    mesh.fake.offer(vec![changed_at(1_000_000_000)]);
    // The part of the gateway may be newer than the card of the worker.
    let known = [("if-modified-since", "Sun, 09 Sep 2001 01:46:40 GMT")];
    assert_eq!(get(&mut client, CARD, &known).await.0, 200);
    mesh.fake.offer(vec![agent("echo", true)]);
    until_refetched(&mesh, &mut client).await;
    let (_, headers) = get(&mut client, CARD, &known).await;
    assert!(!headers.contains_key("last-modified"), "the time of the change is unknown");
}

#[tokio::test]
async fn card_on_a_wildcard_address_names_the_requested_host() {
    let mesh = Mesh::start_with(|config| {
        config.listen = SocketAddr::from(([0, 0, 0, 0], 0));
        config.insecure = true;
    })
    .await;
    let mut client = mesh.client().await;
    let card = client.ask("GET", CARD, &[("host", "test")], "").await;
    assert_eq!(card.body["supportedInterfaces"][0]["url"], "http://test/");
    assert_eq!(card.headers["vary"], "host");
}

#[tokio::test]
async fn public_card_names_the_bearer_scheme_and_needs_no_token() {
    let mesh = Mesh::start_with(|config| config.auth = auth()).await;
    let card = mesh.client().await.ask("GET", CARD, &[], "").await.body;
    assert_eq!(card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"], "Bearer");
    let required = json!([{"schemes": {"bearer": {"list": ["send", "read"]}}}]);
    assert_eq!(card["securityRequirements"], required);
}

/// A key file, and its public half.
fn key() -> (NamedTempFile, Vec<u8>) {
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let random = SystemRandom::new();
    let der = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, der.as_ref(), &random).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(&der);
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), pem).unwrap();
    (file, pair.public_key().as_ref().to_vec())
}

#[tokio::test]
async fn signed_card_verifies_and_keeps_its_bytes() {
    let (file, public) = key();
    let mesh = Mesh::start_with(|config| {
        config.card_key = Some(file.path().to_owned());
        config.card_key_id = Some("k-1".to_owned());
        config.auth = auth();
        config.serve_v03 = false;
    })
    .await;
    let mut client = mesh.client().await;
    let mut signed_before = agent("echo", true);
    signed_before.card.as_mut().unwrap().signatures.push(AgentCardSignature::default());
    mesh.fake.offer(vec![signed_before]);
    let first = client.ask("GET", CARD, &[], "").await;
    let again = client.ask("GET", CARD, &[], "").await;
    assert_eq!(first.headers["etag"], again.headers["etag"]);
    let mut card = first.body;
    let signatures = card.as_object_mut().unwrap().remove("signatures").unwrap();
    assert_eq!(
        signatures.as_array().unwrap().len(),
        1,
        "no field is empty, so both forms are the same"
    );
    let protected = signatures[0]["protected"].as_str().unwrap();
    let header = BASE64URL.decode(protected).unwrap();
    assert_eq!(header, br#"{"alg":"ES256","kid":"k-1","typ":"JOSE"}"#);
    // Sorted without whitespace: canonical for a card of plain ASCII.
    let input = format!("{protected}.{}", BASE64URL.encode(card.to_string()));
    let signature = BASE64URL.decode(signatures[0]["signature"].as_str().unwrap()).unwrap();
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public);
    assert!(key.verify(input.as_bytes(), &signature).is_ok());
}

#[tokio::test]
async fn replicas_give_a_signed_card_the_same_tag() {
    let (file, _) = key();
    let replica = |id: &'static str| {
        let file = file.path().to_owned();
        Mesh::start_with(move |config| {
            config.card_key = Some(file);
            config.card_key_id = Some(id.to_owned());
            config.public_url = Some("https://agents.example".to_owned());
        })
    };
    let (one, other, new) = tokio::join!(replica("k-1"), replica("k-1"), replica("k-2"));
    let card = async |mesh: &Mesh| mesh.client().await.ask("GET", CARD, &[], "").await;
    let one = card(&one).await;
    let twin = card(&other).await;
    let new = card(&new).await;
    let signature = |card: &Answer| card.body["signatures"][0]["signature"].clone();
    assert_ne!(signature(&one), signature(&twin), "ECDSA signatures differ");
    assert_eq!(one.headers["etag"], twin.headers["etag"]);
    let tag = one.headers["etag"].to_str().unwrap();
    assert!(tag.starts_with("W/\""), "the bytes are not: {tag}");
    assert_ne!(one.headers["etag"], new.headers["etag"], "another key gives another tag");
    let known = [("if-none-match", tag)];
    assert_eq!(get(&mut other.client().await, CARD, &known).await.0, 304);
    let mut changed = agent("echo", true);
    changed.card.as_mut().unwrap().description = "another".to_owned();
    other.fake.offer(vec![changed]);
    until_refetched(&other, &mut other.client().await).await;
    assert_eq!(get(&mut other.client().await, CARD, &known).await.0, 200);
}

const BEARER: (&str, &str) = ("authorization", "Bearer secret");

#[tokio::test]
async fn extended_card_is_complete_and_private() {
    let mesh = Mesh::start_with(|config| config.auth = auth()).await;
    let mut client = mesh.client().await;
    let version = ("a2a-version", "1.0");
    let path = "/agents/plan/extendedAgentCard";
    let public = format!("http://{}", mesh.address);
    let card = client.ask("GET", path, &[version, BEARER], "").await;
    assert_eq!(card.status, StatusCode::OK, "{card:?}");
    assert_eq!(card.body["supportedInterfaces"][0]["url"], format!("{public}/agents/plan"));
    assert!(card.body["securitySchemes"]["bearer"].is_object());
    assert_eq!(card.headers["cache-control"], "private, max-age=60");
    assert_eq!(card.headers["vary"], "authorization");
    let tag = ("if-none-match", card.headers["etag"].to_str().unwrap());
    assert_eq!(get(&mut client, path, &[version, BEARER, tag]).await.0, 304);
    assert_eq!(
        get(&mut client, path, &[version, tag]).await.0,
        401,
        "a tag does not replace a token"
    );
}

#[tokio::test]
async fn invalid_card_settings_prevent_the_start() {
    let refused = async |change: fn(&mut Config)| {
        let mut config = Config { listen: ([127, 0, 0, 1], 0).into(), ..Config::default() };
        change(&mut config);
        config.bind().await.err().unwrap()
    };
    let grpc = refused(|c| c.public_grpc = Some("https://x:1".to_owned())).await;
    assert!(matches!(grpc, Error::PublicGrpc(text) if text == "https://x:1"));
    let key = refused(|c| {
        c.card_key = Some("/no/such.pem".into());
        c.card_key_id = Some("k".to_owned());
    });
    assert!(key.await.to_string().contains("/no/such.pem"));
    let token = refused(|c| {
        let sha256 = "secret".to_owned();
        let principal = "acme".to_owned();
        c.auth.token = vec![Token { sha256, principal, agents: Vec::new(), scopes: Vec::new() }];
    });
    let token = token.await.to_string();
    assert!(token.contains("auth.token[0]") && !token.contains("secret"), "{token}");
}

#[tokio::test]
async fn missing_card_is_404_with_advice() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    mesh.fake.offer(vec![agent("plan", false)]);
    for (path, advice) in [(CARD.to_owned(), "start a worker"), (format!("/agents/x{CARD}"), "'x'")]
    {
        let answer = client.ask("GET", &path, &[], "").await;
        assert_eq!((answer.status, answer.code()), (StatusCode::NOT_FOUND, 404));
        let error = &answer.body["error"];
        assert_eq!(error["status"], "NOT_FOUND");
        assert_eq!(error["details"][0]["reason"], "AGENT_NOT_FOUND");
        assert!(answer.message().contains(advice), "{answer:?}");
    }
    let posted = client.ask("POST", CARD, &[], "{}").await;
    assert_eq!(posted.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(posted.headers["allow"], "GET, HEAD");
}

#[tokio::test]
async fn operators_see_agents_workers_and_tasks() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let agents = client.post("/mesh/Agents", "").await;
    assert_eq!(agents.body["agents"][0]["name"], "echo");
    assert_eq!(agents.body["agents"][0]["isDefault"], true);
    let one = client.post("/mesh/Agents", r#"{"name":"plan"}"#).await;
    assert_eq!(one.body["agents"].as_array().unwrap().len(), 1);
    let workers = client.post("/mesh/Workers", "{}").await;
    assert_eq!(workers.body["workers"][0]["name"], "w-1");
    let inspect = client.post("/mesh/Inspect", r#"{"taskId":"t-9"}"#).await;
    assert_eq!(inspect.body["task"]["id"], "t-9");
}

#[tokio::test]
async fn mesh_errors_have_the_status_of_their_reason() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for (method, body, status, name) in [
        ("Inspect", "{}", 404, "TASK_NOT_FOUND"),
        ("Inspect", r#"{"taskId":7}"#, 400, "INVALID_PARAMS"),
        ("Inspect", "{", 400, "JSON_PARSE"),
        ("Forget", "{}", 404, "NOT_FOUND"),
    ] {
        let answer = client.post(&format!("/mesh/{method}"), body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {body}");
        assert_eq!(answer.code(), i64::from(status));
        assert_eq!(answer.body["error"]["details"][0]["reason"], name);
    }
}

#[tokio::test]
async fn health_follows_the_link() {
    let mesh = Mesh::start().await;
    let health = mesh.client().await.ask("GET", "/healthz", &[], "").await;
    assert_eq!((health.status, health.body), (StatusCode::OK, json!({"status": "ok"})));
}

/// Any number of anonymous requests for a card causes one call per second.
#[tokio::test]
async fn cards_are_cached_and_requests_for_the_same_one_share_a_call() {
    let mesh = Mesh::start().await;
    let start = std::time::Instant::now();
    let readers = (0..20).map(|_| async {
        let mut client = mesh.client().await;
        for _ in 0..20 {
            assert_eq!(get(&mut client, CARD, &[]).await.0, 200);
        }
    });
    futures::future::join_all(readers).await;
    let asked = mesh.fake.calls().len();
    let most = 1 + start.elapsed().as_secs() as usize;
    assert!((1..=most).contains(&asked), "{asked} calls for 400 requests");
    // An invalid name causes no call.
    let missing = format!("/agents/{}/.well-known/agent-card.json", "X".repeat(300));
    assert_eq!(get(&mut mesh.client().await, &missing, &[]).await.0, 404);
    assert_eq!(mesh.fake.calls().len(), asked);
}

#[tokio::test]
async fn card_of_a_new_agent_is_found_soon() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let path = "/agents/late/.well-known/agent-card.json";
    assert_eq!(get(&mut client, path, &[]).await.0, 404);
    mesh.fake.offer(vec![agent("late", false)]);
    let found = async {
        while get(&mut client, path, &[]).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the card of the new agent", found).await;
}

#[tokio::test]
async fn cards_are_not_signed_for_any_requested_host() {
    let (file, _) = key();
    let bind = async |listen: &str, public_url: Option<&str>, signs: bool| {
        let config = Config {
            listen: listen.parse().unwrap(),
            public_url: public_url.map(str::to_owned),
            card_key: signs.then(|| file.path().to_owned()),
            card_key_id: signs.then(|| "k-1".to_owned()),
            insecure: true,
            ..Config::default()
        };
        config.bind().await.map(drop)
    };
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = bind(listen, None, true).await.unwrap_err();
        assert!(matches!(refused, Error::SignsAnyHost(_)), "{refused}");
        assert!(refused.to_string().contains("set public_url"), "{refused}");
    }
    bind("0.0.0.0:0", Some("https://mesh.example"), true).await.unwrap();
    bind("0.0.0.0:0", None, false).await.unwrap();
    bind("127.0.0.1:0", None, true).await.unwrap();
    // A card on one address names that address for every Host. No machine has this address.
    let refused = bind("192.0.2.1:0", None, true).await.unwrap_err();
    assert!(matches!(refused, Error::Listen(_)), "{refused}");
}
