//! The error texts of the JSON parser, and its robustness: no input makes it panic.

#![allow(clippy::unwrap_used)]

use faultline_proto::{
    a2a::{AgentCard, ListTasksRequest, Part, SendMessageRequest, Task},
    json::{self, Error, Kind, ProtoJson, from_slice, from_str, sample::sample_task},
    v1::Failure,
};
use proptest::prelude::*;

fn fails<T: ProtoJson>(json: &str) -> Error {
    from_str::<T>(json).map(|_| ()).expect_err(json)
}

#[track_caller]
fn refuses<T: ProtoJson>(json: &str, path: &str, description: &str) {
    let error = fails::<T>(json);
    assert_eq!((error.path(), error.description()), (path, description));
    assert_eq!(error.kind(), Kind::Shape);
}

#[test]
fn json_type_error_names_the_field_and_both_types() {
    let text = r#"{"message":{"parts":[{"text":"a"},{"text":5}]}}"#;
    refuses::<SendMessageRequest>(
        text,
        "message.parts[1].text",
        "expected a string, found a number",
    );
    assert_eq!(
        fails::<SendMessageRequest>(text).to_string(),
        "message.parts[1].text: expected a string, found a number"
    );
    refuses::<Task>(r#"{"id":{}}"#, "id", "expected a string, found an object");
    refuses::<Task>(r#"{"id":[]}"#, "id", "expected a string, found a list");
    refuses::<Task>(r#"{"id":false}"#, "id", "expected a string, found a boolean");
    refuses::<Task>(r#"{"status":"x"}"#, "status", "expected an object, found a string");
    refuses::<Task>(r#"{"status":[]}"#, "status", "expected an object, found a list");
    refuses::<Task>(r#"{"history":{}}"#, "history", "expected a list, found an object");
    refuses::<Task>(r#"{"history":[null]}"#, "history[0]", "expected an object, found null");
    refuses::<Task>(r#"{"metadata":1.5}"#, "metadata", "expected an object, found a number");
    refuses::<Task>("[]", "", "expected an object, found a list");
    refuses::<Task>("null", "", "expected an object, found null");
    assert_eq!(fails::<Task>("7").to_string(), "expected an object, found a number");
}

#[test]
fn error_path_uses_json_names_and_map_keys() {
    refuses::<Task>(r#"{"context_id":1}"#, "contextId", "expected a string, found a number");
    let card = r#"{"securitySchemes":{"o auth":{"oauth2SecurityScheme":{"flows":
        {"clientCredentials":{"scopes":{"read":1}}}}}}}"#;
    let path =
        r#"securitySchemes["o auth"].oauth2SecurityScheme.flows.clientCredentials.scopes.read"#;
    refuses::<AgentCard>(card, path, "expected a string, found a number");
    let long = format!(r#"{{"scopes":{{"{}":1}}}}"#, "ß".repeat(10_000));
    assert!(fails::<faultline_proto::a2a::ImplicitOAuthFlow>(&long).path().len() < 200);
}

#[test]
fn duplicate_key_is_refused_and_named() {
    let twice = "given twice: a key stands once in an object";
    refuses::<Task>(r#"{"id":"a","kind":"task","id":"a"}"#, "id", twice);
    refuses::<Task>(r#"{"contextId":"a","context_id":"b"}"#, "contextId", twice);
    refuses::<Part>(r#"{"text":"b","text":null}"#, "text", twice);
    let parts = r#"{"message":{"parts":[{"text":"a"},{"text":"a","text":"b"}]}}"#;
    refuses::<SendMessageRequest>(parts, "message.parts[1].text", twice);
    let list = r#"{"history":[],"history":[]}"#;
    refuses::<Task>(list, "history", twice);
    refuses::<Task>(r#"{"metadata":{"a":1,"b":2,"a":3}}"#, "metadata", r#"key "a" is given twice"#);
    let deep = r#"{"data":{"x":[{"y":1,"y":2}]}}"#;
    refuses::<Part>(deep, "data.x[0]", r#"key "y" is given twice"#);
    let scopes = r#"{"scopes":{"read":"","read":""}}"#;
    let named = r#"key "read" is given twice"#;
    refuses::<faultline_proto::a2a::ImplicitOAuthFlow>(scopes, "scopes", named);
}

#[test]
fn duplicate_unknown_key_is_refused_too() {
    let named = r#"key "pay" is given twice"#;
    refuses::<Task>(r#"{"pay":1,"id":"a","pay":1000}"#, "", named);
    let inside = r#"{"message":{"parts":[{"text":"a","pay":1,"pay":2}]}}"#;
    refuses::<SendMessageRequest>(inside, "message.parts[0]", named);
    refuses::<Task>(r#"{"x":[{"pay":1,"pay":2}]}"#, r#"x"#, named);
    refuses::<()>(r#"{"pay":1,"pay":2}"#, "", named);
    let fine = r#"{"x":{"pay":1},"y":[{"pay":1.5},{"pay":null}],"z":"pay","id":"a"}"#;
    assert!(faultline_proto::json::from_str::<Task>(fine).is_ok());
}

#[test]
fn unknown_enum_name_is_refused_with_the_known_ones() {
    let error = fails::<SendMessageRequest>(r#"{"message":{"role":"user"}}"#);
    assert_eq!(error.path(), "message.role");
    let legal = "expected one of ROLE_UNSPECIFIED, ROLE_USER, ROLE_AGENT";
    assert_eq!(error.description(), format!("unknown name \"user\", {legal}"));
    refuses::<ListTasksRequest>(
        r#"{"status":true}"#,
        "status",
        "expected the name of an enum value, found a boolean",
    );
    let long = fails::<ListTasksRequest>(&format!(r#"{{"status":"{}"}}"#, "x".repeat(5_000)));
    assert!(long.to_string().len() < 500);
}

#[test]
fn errors_of_numbers_texts_and_oneofs_state_the_problem() {
    refuses::<Failure>(r#"{"code":1.5}"#, "code", "expected an integer, found a fraction");
    let range = "expected an integer from 0 to 4294967295";
    refuses::<Failure>(r#"{"hop":-1}"#, "hop", range);
    refuses::<Failure>(
        r#"{"code":"x"}"#,
        "code",
        "expected an integer, found a string that is no number",
    );
    refuses::<Failure>(
        r#"{"retryAfter":"1m"}"#,
        "retryAfter",
        "expected a duration in seconds like 1.5s",
    );
    refuses::<Failure>(
        r#"{"causes":[{"time":"yesterday"}]}"#,
        "causes[0].time",
        "expected an RFC 3339 timestamp like 2025-01-31T10:00:00.250Z",
    );
    refuses::<Part>(
        r#"{"text":"a","url":"b"}"#,
        "url",
        "only one of text, raw, url, data may be given",
    );
    let base64 = fails::<Part>(r#"{"raw":"%"}"#);
    assert!(base64.description().starts_with("not base64: "), "{base64}");
}

#[test]
fn malformed_json_is_a_syntax_error_with_its_position() {
    for json in ["", "{", "{\"id\":}", "{\"id\":\"a\",}", "{} x", "{'id':1}", "nul", "{\"id\":01}"]
    {
        assert_eq!(fails::<Task>(json).kind(), Kind::Syntax, "{json}");
    }
    let error = fails::<Task>(r#"{"history":[{"parts":[{"text":"a"#);
    assert_eq!(error.path(), "history[0].parts[0].text");
    assert!(error.description().ends_with("at line 1 column 32"), "{error}");
    // Also inside skipped values.
    assert_eq!(fails::<Task>(r#"{"x":[1,}"#).kind(), Kind::Syntax);
    let error = from_slice::<Task>(b"{\"id\":\"\xff\"}").unwrap_err();
    assert_eq!((error.kind(), error.description()), (Kind::Syntax, "invalid UTF-8 after byte 7"));
}

#[test]
fn depth_is_bounded() {
    let nest = |open: &str, close: &str, depth| open.repeat(depth) + &close.repeat(depth);
    let data = |value: String| format!(r#"{{"data":{value}}}"#);
    assert!(from_str::<Part>(&data(nest("[", "]", 24))).is_ok());
    let error = fails::<Part>(&data(nest("[", "]", 25)));
    assert_eq!(error.description(), "nested deeper than 24 levels");
    assert_eq!(error.path(), format!("data{}", "[0]".repeat(24)));
    for depth in [1_000, 1_000_000] {
        assert!(from_str::<Part>(&data(nest("[", "]", depth))).is_err());
        assert!(from_str::<Part>(&data("{\"a\":".repeat(depth))).is_err());
    }
    // Siblings do not add to the depth.
    let wide = vec!["[[]]"; 1_000].join(",");
    assert!(from_str::<Part>(&data(format!("[{wide}]"))).is_ok());
    // Skipped values are searched for duplicate keys, so they have the depth limit of serde_json:
    // 128.
    let unknown = |depth| format!(r#"{{"x":{}}}"#, nest("[", "]", depth));
    assert!(from_str::<Part>(&unknown(100)).is_ok());
    for depth in [1_000, 1_000_000] {
        assert_eq!(fails::<Part>(&unknown(depth)).kind(), Kind::Syntax);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for entry in json::registry() {
            let _ = (entry.proto_of_json)(&bytes);
        }
    }

    #[test]
    fn mutated_json_never_panics(edits in proptest::collection::vec(edit(), 1..6)) {
        let mut json = json::to_vec(&sample_task());
        for (place, kind, byte) in edits {
            // The text was cut to one byte, and that one removed: there is nothing left to edit.
            if json.is_empty() {
                break;
            }
            let at = place.index(json.len());
            match kind {
                0 => json[at] = byte,
                1 => json.insert(at, byte),
                2 => drop(json.remove(at)),
                3 => json.truncate(at.max(1)),
                _ => {
                    let end = (at + usize::from(byte)).min(json.len());
                    json.extend_from_within(at..end);
                }
            }
        }
        if let Ok(task) = from_slice::<Task>(&json) {
            // The parsed message can be printed and parsed again.
            prop_assert_eq!(from_slice::<Task>(&json::to_vec(&task)).unwrap(), task);
        }
    }
}

/// A position, an edit, and a byte that is usually significant in JSON.
fn edit() -> impl Strategy<Value = (prop::sample::Index, u8, u8)> {
    let meaningful = prop::sample::select(b"{}[]:,\"\\0123456789.-eEtfnu \n".to_vec());
    (any::<prop::sample::Index>(), 0..5_u8, prop_oneof![meaningful, any::<u8>()])
}
