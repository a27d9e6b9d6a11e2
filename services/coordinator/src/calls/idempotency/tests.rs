//! Tests of idempotency keys: equal digests, and claims that are waited for and released.

use faultline_proto::a2a;
use prost_types::{Value, value::Kind};

use super::*;

fn name(key: &str) -> KeyName {
    KeyName { principal: "p".into(), agent: "a".into(), key: key.into() }
}

fn request(text: &str, metadata: &[(&str, &str)]) -> SendMessageRequest {
    let content = Some(a2a::part::Content::Text(text.into()));
    let parts = vec![a2a::Part { content, ..a2a::Part::default() }];
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.into())) };
    let fields = metadata.iter().map(|(name, text)| ((*name).to_owned(), value(text)));
    let metadata = Some(Struct { fields: fields.collect() });
    let message = a2a::Message { parts, metadata: metadata.clone(), ..a2a::Message::default() };
    SendMessageRequest { message: Some(message), metadata, ..SendMessageRequest::default() }
}

#[test]
fn repeated_send_may_differ_in_call_metadata() {
    let first = digest_of(&request("x", &[("a", "1"), ("b", "2")]));
    let traced = [("b", "2"), ("faultline.dev/traceparent", "00-1-2-01"), ("a", "1")];
    assert_eq!(first, digest_of(&request("x", &traced)));
    let mut elsewhere = request("x", &[("a", "1"), ("b", "2")]);
    elsewhere.tenant = "a".into();
    assert_eq!(first, digest_of(&elsewhere), "the same agent under another address");
    assert_ne!(first, digest_of(&request("y", &[("a", "1"), ("b", "2")])));
    assert_ne!(first, digest_of(&request("x", &[("a", "1"), ("b", "3")])));
}

#[test]
fn call_metadata_alone_does_not_change_the_digest() {
    let mut bare = request("x", &[]);
    bare.metadata = None;
    bare.message.as_mut().unwrap().metadata = None;
    let traced = request("x", &[("traceparent", "00-1-2-01")]);
    assert_eq!(digest_of(&bare), digest_of(&traced));
}

#[test]
fn repeat_may_ask_for_another_delivery_but_not_for_another_output() {
    let with = |configuration| SendMessageRequest {
        configuration: Some(configuration),
        ..request("x", &[])
    };
    let first = digest_of(&request("x", &[]));
    let plain = SendMessageConfiguration::default;
    let immediate = SendMessageConfiguration { return_immediately: true, ..plain() };
    let short = SendMessageConfiguration { history_length: Some(1), ..plain() };
    for delivery in [plain(), immediate, short] {
        assert_eq!(first, digest_of(&with(delivery)));
    }
    let modes = vec!["image/png".to_owned()];
    let webhook = a2a::TaskPushNotificationConfig { url: "u".into(), ..Default::default() };
    let image = SendMessageConfiguration { accepted_output_modes: modes, ..plain() };
    let pushed =
        SendMessageConfiguration { task_push_notification_config: Some(webhook), ..plain() };
    for other in [image, pushed] {
        assert_ne!(first, digest_of(&with(other)));
    }
}

#[tokio::test]
async fn idempotency_key_claim_is_exclusive_and_passes_on() {
    let claims = KeyClaims::default();
    let first = claims.claim(name("k"), [1; 32]).await.unwrap();
    let other = claims.claim(name("other"), [2; 32]).await;
    assert!(other.is_ok(), "another key is another's");
    let reused = claims.claim(name("k"), [2; 32]).await;
    assert!(matches!(reused, Err(Error::KeyReused(key)) if key == "k"));
    let second = claims.claim(name("k"), [1; 32]);
    tokio::pin!(second);
    assert!(futures::poll!(&mut second).is_pending(), "it is taken");
    drop(first);
    let second = second.await.unwrap();
    drop(second);
    assert!(claims.claim(name("k"), [2; 32]).await.is_ok(), "nobody has it now");
}
