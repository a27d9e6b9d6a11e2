//! Timeouts, disconnect policies and cancel reasons of requests.

use prost_types::Value;

use super::*;
use crate::a2a::Message;

const SECOND: Duration = Duration::from_secs(1);

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

fn metadata(key: &str, kind: Option<Kind>) -> Option<Struct> {
    let fields = kind.map(|kind| (key.to_owned(), Value { kind: Some(kind) }));
    Some(Struct { fields: fields.into_iter().collect() })
}

fn request(key: &str, message: Option<Kind>, request: Option<Kind>) -> SendMessageRequest {
    let message = Message { metadata: metadata(key, message), ..Message::default() };
    let metadata = metadata(key, request);
    SendMessageRequest { message: Some(message), metadata, ..SendMessageRequest::default() }
}

fn field(refused: Failure) -> String {
    assert_eq!(refused.row(), &reason::INVALID_PARAMS);
    refused.violations[0].field.clone()
}

#[test]
fn smallest_timeout_wins_wherever_it_is_set() {
    let parsed = |header: Option<&str>, message, asked| {
        task_timeout(header.into_iter(), &request(TIMEOUT, message, asked)).unwrap()
    };
    assert_eq!(parsed(None, None, None), None);
    assert_eq!(parsed(Some(" 1000 "), None, None), Some(SECOND));
    assert_eq!(parsed(Some("1001"), Some(Kind::NumberValue(1000.0)), None), Some(SECOND));
    assert_eq!(parsed(Some("1001"), Some(text("1002")), Some(text("1000"))), Some(SECOND));
}

#[test]
fn invalid_timeout_is_refused_with_its_field() {
    let nothing = SendMessageRequest::default();
    let year_and_more = "31536000001";
    for bad in ["", "0", "-1", "+1", "1.5", "soon", "99999999999999999999", year_and_more] {
        let refused = task_timeout(std::iter::once(bad), &nothing).unwrap_err();
        assert_eq!(field(refused), "Faultline-Timeout-Ms", "{bad}");
    }
    let numbers = [0.0, -1.0, 1.5, 1e300, f64::NAN].map(Kind::NumberValue);
    for bad in numbers.into_iter().chain([text("0"), text("1s"), Kind::BoolValue(true)]) {
        let none = || std::iter::empty();
        let refused = task_timeout(none(), &request(TIMEOUT, Some(bad.clone()), None));
        let expected = "message.metadata[\"faultline.dev/timeoutMs\"]";
        assert_eq!(field(refused.unwrap_err()), expected, "{bad:?}");
        let refused = task_timeout(none(), &request(TIMEOUT, None, Some(bad)));
        assert_eq!(field(refused.unwrap_err()), "metadata[\"faultline.dev/timeoutMs\"]");
    }
}

#[test]
fn disconnect_policy_is_one_of_three_and_consistent() {
    let parsed = |policy: &str| on_disconnect(&request(ON_DISCONNECT, Some(text(policy)), None));
    for (policy, grace) in [
        ("detach", None),
        ("cancel", Some(Duration::ZERO)),
        ("grace=500ms", Some(SECOND / 2)),
        ("grace=5s", Some(5 * SECOND)),
        ("grace=1m", Some(60 * SECOND)),
        ("grace=24h", Some(GRACE_MAX)),
    ] {
        assert_eq!(parsed(policy).unwrap(), grace, "{policy}");
    }
    for bad in ["", "stop", "grace", "grace=", "grace=5", "grace=-5s", "grace=25h", "Cancel"] {
        let expected = "message.metadata[\"faultline.dev/onDisconnect\"]";
        assert_eq!(field(parsed(bad).unwrap_err()), expected, "{bad}");
    }
    let both = |one, other| request(ON_DISCONNECT, Some(text(one)), Some(text(other)));
    assert_eq!(on_disconnect(&both("cancel", "grace=0s")).unwrap(), Some(Duration::ZERO));
    let refused = on_disconnect(&both("cancel", "detach")).unwrap_err();
    assert_eq!(field(refused), "metadata[\"faultline.dev/onDisconnect\"]");
    assert_eq!(on_disconnect(&SendMessageRequest::default()).unwrap(), None);
}

#[test]
fn cancel_reason_is_trimmed_and_truncated() {
    let parsed = |kind: Kind| {
        let parsed = metadata("reason", Some(kind)).map(Kind::StructValue);
        let metadata = metadata(CANCEL, parsed);
        cancel_reason(&CancelTaskRequest { metadata, ..CancelTaskRequest::default() })
    };
    assert_eq!(parsed(text(" too dear ")).unwrap().as_deref(), Some("too dear"));
    assert_eq!(parsed(text(" ")).unwrap(), None);
    assert_eq!(parsed(text(&"ä".repeat(1000))).unwrap().unwrap().len(), 1024);
    let refused = parsed(Kind::NumberValue(1.0)).unwrap_err();
    assert_eq!(field(refused), "metadata[\"faultline.dev/cancel\"].reason");
    assert_eq!(cancel_reason(&CancelTaskRequest::default()).unwrap(), None);
    let metadata = metadata(CANCEL, Some(text("too dear")));
    let bare = CancelTaskRequest { metadata, ..CancelTaskRequest::default() };
    assert_eq!(
        field(cancel_reason(&bare).unwrap_err()),
        "metadata[\"faultline.dev/cancel\"].reason"
    );
}

#[test]
fn hop_reserves_a_twentieth_within_bounds() {
    let ms = Duration::from_millis;
    for (left, kept) in [(0, 20), (100, 20), (1000, 50), (10_000, 500), (1_000_000, 500)] {
        assert_eq!(reserve(ms(left)), ms(kept), "{left}");
    }
}
