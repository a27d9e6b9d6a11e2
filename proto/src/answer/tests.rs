//! Messages that are answers, and messages that are not.

use serde_json::json;

use super::*;
use crate::json as proto_json;

fn message(value: serde_json::Value) -> Message {
    proto_json::from_str(&value.to_string()).expect("a message")
}

fn read(value: serde_json::Value) -> Result<Reply, String> {
    Reply::read(&message(value)).map_err(|wrong| wrong.field)
}

fn question(schema: serde_json::Value) -> Interrupt {
    let schema = match proto_json::value_from_json(schema).kind {
        Some(value::Kind::StructValue(schema)) => Some(schema),
        _ => None,
    };
    Interrupt { schema, ..Interrupt::default() }
}

fn fitted(reply: Reply, question: &Interrupt) -> Result<serde_json::Value, Vec<String>> {
    match reply.fit(question) {
        Ok(None) => Ok(json!(null)),
        Ok(Some(fields)) => {
            let kind = Some(value::Kind::StructValue(fields));
            Ok(proto_json::value_to_json(&Value { kind }))
        }
        Err(wrong) => Err(wrong.into_iter().map(|v| format!("{}: {}", v.field, v.what)).collect()),
    }
}

#[test]
fn plain_text_accepts_the_oldest_question() {
    let reply = read(json!({"parts": [{"text": "a"}, {"text": "b"}]})).unwrap();
    assert_eq!((reply.interrupt_id.as_str(), reply.action), ("", AnswerAction::Accept));
    assert_eq!((reply.text.as_str(), reply.content), ("a\nb", None));
}

#[test]
fn answer_record_in_metadata_or_in_a_part_names_question_and_action() {
    let record = json!({ANSWER_KEY: {"interruptId": "k", "action": "decline"}});
    let written = [
        json!({"parts": [{"text": "no"}], "metadata": record}),
        json!({"parts": [{"text": "no"}, {"data": record}]}),
    ];
    for message in written {
        let reply = read(message).unwrap();
        assert_eq!((reply.interrupt_id.as_str(), reply.action), ("k", AnswerAction::Decline));
        assert_eq!((reply.text.as_str(), reply.content), ("no", None));
    }
    let by_us = super::record("k", AnswerAction::Dismiss);
    let reply = Reply::read(&Message { metadata: Some(by_us), ..Message::default() }).unwrap();
    assert_eq!((reply.interrupt_id.as_str(), reply.action), ("k", AnswerAction::Dismiss));
}

#[test]
fn invalid_answer_record_is_refused_with_its_field() {
    let metadata = |record| json!({"parts": [], "metadata": {ANSWER_KEY: record}});
    let at = |field: &str| format!("message.metadata.{ANSWER_KEY}{field}");
    assert_eq!(read(metadata(json!("yes"))).unwrap_err(), at(""));
    assert_eq!(read(metadata(json!({"action": "expire"}))).unwrap_err(), at(".action"));
    assert_eq!(read(metadata(json!({"action": 1}))).unwrap_err(), at(".action"));
    assert_eq!(read(metadata(json!({"interruptId": 7}))).unwrap_err(), at(".interruptId"));
    assert_eq!(read(metadata(json!({"id": "x"}))).unwrap_err(), at(".id"));
    let part = json!({"parts": [{"text": "x"}, {"data": {ANSWER_KEY: 1}}]});
    assert_eq!(read(part).unwrap_err(), format!("message.parts[1].data.{ANSWER_KEY}"));
    assert!(read(metadata(json!({"action": null, "interruptId": null}))).is_ok());
}

#[test]
fn answer_that_does_not_fit_its_question_is_refused_with_its_fields() {
    let port = question(json!({"type": "object", "required": ["port"], "properties": {
        "port": {"type": "integer", "maximum": 65535},
    }}));
    let text = |text: &str| read(json!({"parts": [{"text": text}]})).unwrap();
    let data = |data: serde_json::Value| read(json!({"parts": [{"data": data}]})).unwrap();
    assert_eq!(fitted(text("8080"), &port), Ok(json!({"port": 8080})));
    assert_eq!(fitted(data(json!({"port": 1})), &port), Ok(json!({"port": 1})));
    let high = vec!["answer.port: must be at most 65535".to_owned()];
    assert_eq!(fitted(text("70000"), &port), Err(high.clone()));
    assert_eq!(fitted(data(json!({"port": 70000})), &port), Err(high));
    let none = read(json!({"parts": []})).unwrap();
    assert_eq!(fitted(none, &port), Err(vec!["answer.port: is required".to_owned()]));
}

#[test]
fn refusal_needs_no_fields_and_a_question_without_a_schema_accepts_any() {
    let strict = question(json!({"type": "object", "required": ["x"], "properties": {
        "x": {"type": "boolean"},
    }}));
    for action in ["decline", "dismiss"] {
        let message = json!({"parts": [], "metadata": {ANSWER_KEY: {"action": action}}});
        assert_eq!(fitted(read(message).unwrap(), &strict), Ok(json!(null)));
    }
    let free = question(json!(null));
    let reply = read(json!({"parts": [{"data": {"any": "thing"}}]})).unwrap();
    assert_eq!(fitted(reply, &free), Ok(json!({"any": "thing"})));
    let unreadable = question(json!({"type": "object", "properties": {"x": {"type": "object"}}}));
    let reply = read(json!({"parts": [{"text": "words"}]})).unwrap();
    assert_eq!(fitted(reply, &unreadable), Ok(json!(null)));
}

#[test]
fn refusal_is_recognised_in_fields_text_and_action() {
    let approval =
        question(json!({"type": "object", "properties": {"approved": {"type": "boolean"}},
        "required": ["approved"]}));
    let free = Interrupt::default();
    let fields = |approved: bool| message(json!({"parts": [{"data": {"approved": approved}}]}));
    let words = |text: &str| message(json!({"parts": [{"text": text}]}));
    let accept = AnswerAction::Accept;
    assert!(is_no(&approval, &fields(false), accept) && !is_no(&approval, &fields(true), accept));
    assert!(is_no(&approval, &words("no"), accept) && !is_no(&approval, &words("yes"), accept));
    assert!(is_no(&approval, &words(" No\n"), accept) && is_no(&approval, &words("n"), accept));
    // A text answer to a question without an approval is no refusal.
    assert!(!is_no(&free, &words("no"), accept) && !is_no(&free, &words("false"), accept));
    let order = question(json!({"type": "object", "properties": {
        "city": {"type": "string"}, "express": {"type": "boolean"}}}));
    let no_express = message(json!({"parts": [{"data": {"city": "Bern", "express": false}}]}));
    assert!(!is_no(&order, &no_express, accept));
    let kind = interrupt::Kind::Approval as i32;
    let bare = Interrupt { kind, ..Interrupt::default() };
    assert!(is_no(&bare, &words("no"), accept) && !is_no(&bare, &words("nobody"), accept));
    let renamed = question(json!({"type": "object", "properties": {"ok": {"type": "boolean"}}}));
    let ok = |ok: bool| message(json!({"parts": [{"data": {"ok": ok}}]}));
    assert!(is_no(&renamed, &ok(false), accept) && !is_no(&renamed, &ok(true), accept));
    assert!(is_no(&free, &words("later"), AnswerAction::Decline));
    assert!(!is_no(&approval, &Message::default(), AnswerAction::Dismiss));
}
