//! Both directions on the same objects: an object of 1.0 round-trips through 0.3.

use serde_json::{Value, json};

use super::{Dialect, Misfit, new, new::Object, old};

const DIALECTS: [Dialect; 2] = [Dialect::Rpc, Dialect::Rest];

fn renewed(dialect: Dialect, old: Value) -> Result<Value, Misfit> {
    new::event(Object::read(old, "result")?, dialect)
}

fn message() -> Value {
    json!({"messageId": "m", "role": "ROLE_AGENT", "contextId": "c", "taskId": "t",
        "metadata": {"k": 1}, "extensions": ["urn:x"], "parts": [
            {"text": "hi", "metadata": {"lang": "en"}},
            {"raw": "AAEC", "mediaType": "image/png", "filename": "a.png"},
            {"url": "https://x.example/f", "mediaType": "text/plain"},
            {"data": {"a": [1]}},
            {"data": [1, 2]}]})
}

fn status(state: &str) -> Value {
    let timestamp = "2026-01-01T00:00:00.000Z";
    json!({"state": state, "timestamp": timestamp, "message": message()})
}

#[test]
fn objects_round_trip_through_0_3() {
    let artifact = json!({"artifactId": "a", "name": "n", "parts": [{"text": "x"}]});
    for state in super::STATES.iter().map(|(_, _, state)| status(state)) {
        for dialect in DIALECTS {
            let task = json!({"id": "t", "contextId": "c", "status": state,
                "artifacts": [artifact], "history": [message()], "metadata": {"k": "v"}});
            let update = json!({"taskId": "t", "contextId": "c", "status": state});
            let made = json!({"taskId": "t", "contextId": "c", "artifact": artifact,
                "append": true, "lastChunk": false});
            let wrap = |name: &str, old: Value| match dialect {
                Dialect::Rpc => old,
                Dialect::Rest => json!({ name: old }),
            };
            for (name, was, old) in [
                ("task", &task, old::task(task.clone(), dialect)),
                ("message", &message(), old::message(message(), dialect)),
                ("statusUpdate", &update, old::status_update(update.clone(), true, dialect)),
                ("artifactUpdate", &made, old::artifact_update(made.clone(), dialect)),
            ] {
                let back = renewed(dialect, wrap(name, old)).unwrap();
                assert_eq!(back, json!({ name: was }), "{dialect:?}");
            }
        }
    }
}

#[test]
fn missing_kind_is_inferred_and_an_unknown_one_is_refused() {
    for (bare, name) in [
        (json!({"id": "t", "status": {"state": "working"}}), "task"),
        (json!({"taskId": "t", "status": {"state": "working"}}), "statusUpdate"),
        (json!({"taskId": "t", "artifact": {"artifactId": "a", "parts": []}}), "artifactUpdate"),
        (json!({"messageId": "m", "role": "agent", "parts": []}), "message"),
    ] {
        let read = renewed(Dialect::Rpc, bare).unwrap();
        assert!(read.get(name).is_some(), "{name}: {read}");
    }
    let part = json!({"kind": "video", "video": "AA"});
    let artifact = json!({"artifactId": "a", "parts": [{"kind": "text", "text": "x"}, part]});
    let task = json!({"kind": "task", "id": "t", "status": {"state": "completed"},
        "artifacts": [artifact]});
    for (odd, path) in [
        (json!({}), "result"),
        (json!([]), "result"),
        (json!({"kind": "poem"}), "result.kind"),
        (json!({"kind": "task", "id": "t", "status": {"state": "odd"}}), "result.status.state"),
        (task, "result.artifacts[0].parts[1].kind"),
    ] {
        assert_eq!(renewed(Dialect::Rpc, odd.clone()).unwrap_err().path, path, "{odd}");
    }
}
