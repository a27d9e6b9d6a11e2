//! Translation in both directions against JSON that the SDKs of 0.3 send and read, captured from
//! the Python SDK (0.3.26) and the JavaScript SDK (0.3.14).

use faultline_proto::{
    Failure,
    a2a::{SendMessageRequest, Task, TaskPushNotificationConfig},
    json as proto_json, reason,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

const METHODS: [(&str, &str); 10] = [
    ("message/send", "SendMessage"),
    ("message/stream", "SendStreamingMessage"),
    ("tasks/get", "GetTask"),
    ("tasks/cancel", "CancelTask"),
    ("tasks/resubscribe", "SubscribeToTask"),
    ("tasks/pushNotificationConfig/set", "CreateTaskPushNotificationConfig"),
    ("tasks/pushNotificationConfig/get", "GetTaskPushNotificationConfig"),
    ("tasks/pushNotificationConfig/list", "ListTaskPushNotificationConfigs"),
    ("tasks/pushNotificationConfig/delete", "DeleteTaskPushNotificationConfig"),
    ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard"),
];

fn named(method: &str) -> Operation {
    Operation::named(method).unwrap()
}

fn rpc_request(method: &str, old: Value) -> Result<Value, Failure> {
    request(named(method), Dialect::Rpc, old)
}

fn rest_request(method: &str, old: Value) -> Result<Value, Failure> {
    request(named(method), Dialect::Rest, old)
}

fn rpc_answer(method: &str, new: Value) -> Value {
    response(named(method), Dialect::Rpc, new)
}

fn rest_answer(method: &str, new: Value) -> Value {
    response(named(method), Dialect::Rest, new)
}

fn rpc_event(method: &str, new: Value) -> Value {
    event(named(method), Dialect::Rpc, new)
}

fn rest_event(method: &str, new: Value) -> Value {
    event(named(method), Dialect::Rest, new)
}

fn message_rpc() -> Value {
    json!({
        "kind": "message", "messageId": "m", "role": "user", "contextId": "c", "taskId": "t",
        "metadata": {"k": {"n": [1]}}, "extensions": ["urn:e"], "referenceTaskIds": ["r"],
        "parts": [
            {"kind": "text", "text": "hi", "metadata": {"a": 1}},
            {"kind": "file", "file": {"bytes": "AP94", "mimeType": "image/png", "name": "x.png"}},
            {"kind": "file", "file": {"uri": "https://x/y", "mimeType": "text/plain"}},
            {"kind": "data", "data": {"x": [1, {"y": null}]}},
        ],
    })
}

/// The same message on REST, which has no references to tasks.
fn message_rest() -> Value {
    json!({
        "messageId": "m", "role": "ROLE_USER", "contextId": "c", "taskId": "t",
        "metadata": {"k": {"n": [1]}}, "extensions": ["urn:e"],
        "content": [
            {"text": "hi", "metadata": {"a": 1}},
            {"file": {"fileWithBytes": "AP94", "mimeType": "image/png", "name": "x.png"}},
            {"file": {"fileWithUri": "https://x/y", "mimeType": "text/plain"}},
            {"data": {"data": {"x": [1, {"y": null}]}}},
        ],
    })
}

fn message_new() -> Value {
    json!({
        "messageId": "m", "role": "ROLE_USER", "contextId": "c", "taskId": "t",
        "metadata": {"k": {"n": [1]}}, "extensions": ["urn:e"], "referenceTaskIds": ["r"],
        "parts": [
            {"text": "hi", "metadata": {"a": 1}},
            {"raw": "AP94", "mediaType": "image/png", "filename": "x.png"},
            {"url": "https://x/y", "mediaType": "text/plain"},
            {"data": {"x": [1, {"y": null}]}},
        ],
    })
}

fn without(mut value: Value, field: &str) -> Value {
    value.as_object_mut().unwrap().remove(field);
    value
}

fn push_old() -> Value {
    json!({"id": "p", "url": "https://hook", "token": "tok",
           "authentication": {"schemes": ["Bearer"], "credentials": "secret"}})
}

fn push_new(task: &str) -> Value {
    let mut new = json!({"id": "p", "url": "https://hook", "token": "tok",
                         "authentication": {"scheme": "Bearer", "credentials": "secret"}});
    if !task.is_empty() {
        new["taskId"] = json!(task);
    }
    new
}

#[test]
fn every_v03_method_has_an_operation() {
    for (old, new) in METHODS {
        assert_eq!(method(old), Some(named(new)));
        assert_eq!(method(new), None, "{new}");
    }
    assert_eq!(method("tasks/list"), None);
}

#[test]
fn message_survives_translation_in_both_directions() {
    let new = rpc_request("SendMessage", json!({"message": message_rpc(), "metadata": {"m": 1}}));
    assert_eq!(new.unwrap(), json!({"message": message_new(), "metadata": {"m": 1}}));
    assert_eq!(rpc_answer("SendMessage", json!({"message": message_new()})), message_rpc());

    let unreferred = without(message_new(), "referenceTaskIds");
    for name in ["message", "request"] {
        let new = rest_request("SendStreamingMessage", json!({name: message_rest()}));
        assert_eq!(new.unwrap(), json!({"message": unreferred}));
    }
    let old = rest_answer("SendMessage", json!({"message": message_new()}));
    assert_eq!(old, json!({"message": message_rest()}));
}

#[test]
fn translated_requests_parse_as_1_0() {
    let rpc = json!({"message": message_rpc(),
        "configuration": {"pushNotificationConfig": push_old(), "blocking": false}});
    let rest = json!({"message": message_rest(), "configuration": {"historyLength": 3}});
    for new in
        [rpc_request("SendMessage", rpc).unwrap(), rest_request("SendMessage", rest).unwrap()]
    {
        let request: SendMessageRequest = proto_json::from_str(&new.to_string()).unwrap();
        assert_eq!(request.message.unwrap().parts.len(), 4);
        assert!(request.configuration.unwrap().return_immediately);
    }
    let set = json!({"taskId": "t", "pushNotificationConfig": push_old()});
    let new = rpc_request("CreateTaskPushNotificationConfig", set).unwrap();
    let config: TaskPushNotificationConfig = proto_json::from_str(&new.to_string()).unwrap();
    assert_eq!(config.authentication.unwrap().scheme, "Bearer");
}

#[test]
fn sends_block_by_default_on_json_rpc_and_by_request_on_rest() {
    let cases = [
        (json!({}), Some(false), Some(true)),
        (json!({"blocking": true}), Some(false), Some(false)),
        (json!({"blocking": false}), Some(true), Some(true)),
        (json!({"blocking": null}), Some(false), Some(true)),
        (Value::Null, None, None),
    ];
    for (settings, rpc, rest) in cases {
        let said = |new: Result<Value, Failure>| {
            new.unwrap().pointer("/configuration/returnImmediately").and_then(Value::as_bool)
        };
        let old = json!({"message": message_rpc(), "configuration": settings});
        assert_eq!(said(rpc_request("SendMessage", old)), rpc, "{settings}");
        let old = json!({"message": message_rest(), "configuration": settings});
        assert_eq!(said(rest_request("SendMessage", old)), rest, "{settings}");
    }
}

#[test]
fn send_configuration_is_translated_completely() {
    let new = json!({"returnImmediately": false, "acceptedOutputModes": ["text/plain"],
                     "historyLength": 3, "taskPushNotificationConfig": push_new("")});
    let mut old = json!({"blocking": true, "acceptedOutputModes": ["text/plain"],
                         "historyLength": 3, "pushNotificationConfig": push_old()});
    let sent = rpc_request("SendMessage", json!({"configuration": old})).unwrap();
    assert_eq!(sent["configuration"], new);
    old["push_notification"] = old["pushNotificationConfig"].take();
    let sent = rest_request("SendMessage", json!({"configuration": old})).unwrap();
    assert_eq!(sent["configuration"], new);
}

#[test]
fn ids_of_v03_get_their_names_of_1_0() {
    let cases = [
        ("GetTask", json!({"id": "t", "historyLength": 2}), json!({"id": "t", "historyLength": 2})),
        ("GetTask", json!({"id": "t", "historyLength": 0}), json!({"id": "t"})),
        ("CancelTask", json!({"id": "t", "metadata": {}}), json!({"id": "t", "metadata": {}})),
        ("SubscribeToTask", json!({"id": "t"}), json!({"id": "t"})),
        (
            "GetTaskPushNotificationConfig",
            json!({"id": "t", "pushNotificationConfigId": "p"}),
            json!({"taskId": "t", "id": "p"}),
        ),
        (
            "DeleteTaskPushNotificationConfig",
            json!({"id": "t", "pushNotificationConfigId": "p"}),
            json!({"taskId": "t", "id": "p"}),
        ),
        ("ListTaskPushNotificationConfigs", json!({"id": "t"}), json!({"taskId": "t"})),
        (
            "CreateTaskPushNotificationConfig",
            json!({"taskId": "t", "pushNotificationConfig": push_old()}),
            push_new("t"),
        ),
        ("GetExtendedAgentCard", Value::Null, json!({})),
    ];
    for (method, old, new) in cases {
        assert_eq!(rpc_request(method, old).unwrap(), new, "{method}");
    }
    let whole = json!({"parent": "tasks/t", "configId": "p", "config": {
        "name": "tasks/t/pushNotificationConfigs/p", "pushNotificationConfig": push_old()}});
    let bodies = [
        ("GetTask", json!({"historyLength": "2"}), json!({"historyLength": "2"})),
        ("GetTask", json!({"historyLength": "0"}), json!({})),
        ("CancelTask", json!({"name": "tasks/t"}), json!({})),
        ("CancelTask", Value::Null, json!({})),
        ("CreateTaskPushNotificationConfig", whole["config"].clone(), push_new("")),
        ("CreateTaskPushNotificationConfig", whole, push_new("")),
    ];
    for (method, old, new) in bodies {
        assert_eq!(rest_request(method, old).unwrap(), new, "{method}");
    }
}

#[test]
fn violation_names_the_field_of_v03() {
    let file = |file: Value| json!({"message": {"role": "user", "parts": [{"file": file}]}});
    let part = |part: Value| json!({"message": {"role": "user", "parts": [part]}});
    let of_rpc = [
        ("SendMessage", json!([]), "params"),
        ("SendMessage", json!({"message": 1}), "message"),
        ("SendMessage", json!({"message": {"parts": []}}), "message.role"),
        ("SendMessage", json!({"message": {"role": "ROLE_USER"}}), "message.role"),
        ("SendMessage", json!({"message": {"role": "user"}}), "message.parts"),
        ("SendMessage", json!({"message": {"role": "user", "parts": {}}}), "message.parts"),
        ("SendMessage", part(json!(7)), "message.parts[0]"),
        ("SendMessage", part(json!({})), "message.parts[0]"),
        ("SendMessage", part(json!({"kind": "video"})), "message.parts[0].kind"),
        ("SendMessage", part(json!({"kind": "text"})), "message.parts[0].text"),
        ("SendMessage", part(json!({"kind": "data", "data": 1})), "message.parts[0].data"),
        ("SendMessage", file(json!({})), "message.parts[0].file"),
        ("SendMessage", file(json!({"uri": 1})), "message.parts[0].file.uri"),
        ("SendMessage", file(json!({"bytes": "a b"})), "message.parts[0].file.bytes"),
        ("SendMessage", file(json!({"uri": "x", "name": 1})), "message.parts[0].file.name"),
        ("SendMessage", json!({"configuration": {"blocking": 1}}), "configuration.blocking"),
        ("GetTaskPushNotificationConfig", json!({}), "id"),
        ("DeleteTaskPushNotificationConfig", json!({"id": "t"}), "pushNotificationConfigId"),
        ("CreateTaskPushNotificationConfig", json!({"taskId": "t"}), "pushNotificationConfig"),
    ];
    for (method, old, field) in of_rpc {
        let failure = rpc_request(method, old).unwrap_err();
        assert_eq!((failure.row().jsonrpc, &*failure.violations[0].field), (-32602, field));
    }
    let of_rest = [
        (json!({"message": {"role": "user"}}), "message.role"),
        (json!({"message": {"role": "ROLE_USER"}}), "message.content"),
        (
            json!({"message": {"role": "ROLE_AGENT", "content": [{"data": {}}]}}),
            "message.content[0].data.data",
        ),
    ];
    for (old, field) in of_rest {
        let failure = rest_request("SendMessage", old).unwrap_err();
        assert_eq!(failure.violations[0].field, field);
    }
}

fn task_new(state: &str) -> Value {
    json!({
        "id": "t", "contextId": "c", "metadata": {"k": 1},
        "status": {"state": state, "timestamp": "2026-11-16T07:00:00.000Z",
                   "message": {"messageId": "s", "role": "ROLE_AGENT", "parts": [{"text": "?"}]}},
        "artifacts": [{"artifactId": "a", "name": "n", "parts": [{"text": "x"}]}],
        "history": [message_new()],
    })
}

#[test]
fn task_of_json_rpc_is_bare_with_its_kind() {
    let old = json!({
        "kind": "task", "id": "t", "contextId": "c", "metadata": {"k": 1},
        "status": {"state": "canceled", "timestamp": "2026-11-16T07:00:00.000Z",
                   "message": {"kind": "message", "messageId": "s", "role": "agent",
                               "parts": [{"kind": "text", "text": "?"}]}},
        "artifacts": [{"artifactId": "a", "name": "n", "parts": [{"kind": "text", "text": "x"}]}],
        "history": [message_rpc()],
    });
    let new = task_new("TASK_STATE_CANCELED");
    assert_eq!(rpc_answer("GetTask", new.clone()), old);
    assert_eq!(rpc_answer("CancelTask", new.clone()), old);
    assert_eq!(rpc_answer("SendMessage", json!({ "task": new })), old);
    assert_eq!(rpc_event("SubscribeToTask", json!({ "task": new })), old);
    let bare = proto_json::to_vec(&Task::default());
    let bare: Value = serde_json::from_slice(&bare).unwrap();
    let unknown =
        json!({"kind": "task", "id": "", "contextId": "", "status": {"state": "unknown"}});
    assert_eq!(rpc_answer("GetTask", bare), unknown);
}

#[test]
fn task_of_rest_is_wrapped_with_the_states_of_v03() {
    let old = json!({
        "id": "t", "contextId": "c", "metadata": {"k": 1},
        "status": {"state": "TASK_STATE_CANCELLED", "timestamp": "2026-11-16T07:00:00.000Z",
                   "message": {"messageId": "s", "role": "ROLE_AGENT", "content": [{"text": "?"}]}},
        "artifacts": [{"artifactId": "a", "name": "n", "parts": [{"text": "x"}]}],
        "history": [message_rest()],
    });
    let new = task_new("TASK_STATE_CANCELED");
    assert_eq!(rest_answer("GetTask", new.clone()), old);
    assert_eq!(rest_answer("SendMessage", json!({ "task": new })), json!({ "task": old }));
    assert_eq!(rest_event("SubscribeToTask", json!({ "task": new })), json!({ "task": old }));
}

#[test]
fn every_state_has_its_v03_name_and_last_states_are_final() {
    let states = [
        ("TASK_STATE_UNSPECIFIED", "unknown", false),
        ("TASK_STATE_SUBMITTED", "submitted", false),
        ("TASK_STATE_WORKING", "working", false),
        ("TASK_STATE_COMPLETED", "completed", true),
        ("TASK_STATE_FAILED", "failed", true),
        ("TASK_STATE_CANCELED", "canceled", true),
        ("TASK_STATE_INPUT_REQUIRED", "input-required", true),
        ("TASK_STATE_REJECTED", "rejected", true),
        ("TASK_STATE_AUTH_REQUIRED", "auth-required", false),
    ];
    for (new, old, is_last) in states {
        let update = json!({"statusUpdate": {
            "taskId": "t", "contextId": "c", "status": {"state": new}, "metadata": {"k": 1}}});
        let sent = rpc_event("SendStreamingMessage", update.clone());
        let expected = json!({"kind": "status-update", "taskId": "t", "contextId": "c",
            "status": {"state": old}, "final": is_last, "metadata": {"k": 1}});
        assert_eq!(sent, expected);
        let watched = rpc_event("SubscribeToTask", update.clone());
        let waits = new == "TASK_STATE_INPUT_REQUIRED";
        assert_eq!(watched["final"], json!(is_last && !waits), "{new}");
        let rest = rest_event("SendStreamingMessage", update);
        assert_eq!(rest["statusUpdate"]["final"], json!(is_last));
        let name = rest["statusUpdate"]["status"]["state"].as_str().unwrap();
        assert_eq!(name.replace("CANCELLED", "CANCELED"), new);
    }
}

#[test]
fn artifact_update_keeps_append_and_gets_last_chunk() {
    let new = json!({"artifactUpdate": {"taskId": "t", "contextId": "c", "append": true,
        "artifact": {"artifactId": "a", "extensions": ["urn:e"], "parts": [{"raw": "AP94"}]}}});
    let rpc = json!({"kind": "artifact-update", "taskId": "t", "contextId": "c",
        "append": true, "lastChunk": false,
        "artifact": {"artifactId": "a", "extensions": ["urn:e"],
                     "parts": [{"kind": "file", "file": {"bytes": "AP94"}}]}});
    assert_eq!(rpc_event("SendStreamingMessage", new.clone()), rpc);
    let rest = json!({"artifactUpdate": {"taskId": "t", "contextId": "c",
        "append": true, "lastChunk": false,
        "artifact": {"artifactId": "a", "extensions": ["urn:e"],
                     "parts": [{"file": {"fileWithBytes": "AP94"}}]}}});
    assert_eq!(rest_event("SendStreamingMessage", new), rest);
}

#[test]
fn data_that_is_not_an_object_is_wrapped_and_unwrapped() {
    for data in [json!(7), json!("x"), json!([1, 2]), json!(null)] {
        let part = json!({"data": data, "metadata": {"k": 1}});
        let new = json!({"messageId": "m", "role": "ROLE_AGENT", "parts": [part, {"data": data}]});
        let old = rpc_answer("SendMessage", json!({ "message": new }));
        assert_eq!(old["parts"][1]["data"], json!({ "value": data }));
        assert_eq!(rpc_request("SendMessage", json!({ "message": old })).unwrap()["message"], new);
        let old = rest_answer("SendMessage", json!({ "message": new }));
        assert_eq!(rest_request("SendMessage", old).unwrap()["message"], new);
    }
}

#[test]
fn push_configs_are_bare_on_json_rpc_and_named_on_rest() {
    let rpc = json!({"taskId": "t", "pushNotificationConfig": push_old()});
    let rest = json!({"name": "tasks/t/pushNotificationConfigs/p",
                      "pushNotificationConfig": push_old()});
    for method in ["CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig"] {
        assert_eq!(rpc_answer(method, push_new("t")), rpc);
        assert_eq!(rest_answer(method, push_new("t")), rest);
    }
    let list = "ListTaskPushNotificationConfigs";
    let delete = "DeleteTaskPushNotificationConfig";
    assert_eq!(rpc_answer(list, json!({"configs": [push_new("t")]})), json!([rpc]));
    assert_eq!(rpc_answer(list, json!({})), json!([]));
    let page = json!({"configs": [push_new("t")], "nextPageToken": "n"});
    assert_eq!(rest_answer(list, page), json!({"configs": [rest], "nextPageToken": "n"}));
    assert_eq!(rpc_answer(delete, json!({})), Value::Null);
    assert_eq!(rest_answer(delete, json!({})), json!({}));
}

#[test]
fn error_on_rest_has_its_number_and_its_class_at_the_top() {
    let new = json!({"error": {"code": 404, "status": "NOT_FOUND", "message": "no such task"}});
    for (row, class) in [
        (&reason::TASK_NOT_FOUND, json!("TaskNotFoundError")),
        (&reason::JSON_PARSE, json!("JSONParseError")),
        (&reason::INTERNAL_ERROR, json!("InternalError")),
        (&reason::VERSION_NOT_SUPPORTED, json!("VersionNotSupportedError")),
        (&reason::OVERLOADED, Value::Null),
    ] {
        let old = error(&Failure::new(row).because("no such task"), new.clone());
        assert_eq!((&old["code"], &old["type"]), (&json!(row.jsonrpc), &class));
        assert_eq!((&old["message"], &old["error"]), (&json!("no such task"), &new["error"]));
    }
}

/// Arbitrary JSON, mostly with field names that the translation knows.
fn any_json() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        prop::sample::select(vec![
            "message",
            "parts",
            "content",
            "kind",
            "text",
            "file",
            "data",
            "role",
            "status",
            "configuration",
            "metadata",
            "state",
            "task",
            "statusUpdate",
            "artifactUpdate",
            "artifact",
            "configs",
            "config",
            "pushNotificationConfig",
            "authentication",
            "schemes",
            "supportedInterfaces",
            "protocolVersion",
            "skills",
            "securitySchemes",
            "capabilities",
            "securityRequirements",
            "httpAuthSecurityScheme",
            "flows",
            "raw",
            "url",
            "value",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    let word = prop::sample::select(vec!["user", "text", "file", "data", "0.3", "ROLE_USER", ""]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..6)
                .prop_map(|fields| Value::Object(Map::from_iter(fields))),
        ]
    })
}

proptest! {
    #[test]
    fn translation_never_panics(value in any_json()) {
        for (_, method) in METHODS {
            let _ = rpc_request(method, value.clone());
            let _ = rest_request(method, value.clone());
            let _ = (rpc_answer(method, value.clone()), rest_answer(method, value.clone()));
            let _ = (rpc_event(method, value.clone()), rest_event(method, value.clone()));
        }
        let _ = (card(value.clone()), error(&Failure::new(&reason::INTERNAL), value));
    }
}
