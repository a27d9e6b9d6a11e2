//! The REST binding of 0.3, below `/v1`. Its JSON is that of an earlier contract, and its clients
//! refuse fields that contract did not have.

use faultline_proto::Failure;
use serde_json::{Value, json};

use super::{Form, answers, requests};

/// The request of the 1.0 method `method`, from an old body or, where there is none, from the
/// query. What the path says is not in here: it is the same in both versions, and wins.
pub(crate) fn params(method: &str, old: Value) -> Result<Value, Failure> {
    requests::rest(method, old)
}

/// The old answer of the 1.0 method `method`, from the new one.
pub(crate) fn result(method: &str, new: Value) -> Value {
    answers::rest(method, new)
}

/// One event of a stream that the 1.0 method `method` opened, from a `StreamResponse`.
pub(crate) fn event(method: &str, new: Value) -> Value {
    answers::event(method, new, Form::Rest)
}

/// An error body, from a new one and the JSON-RPC number of the error. Old clients look for that
/// number and the message at the top, and tell errors apart by it.
pub(crate) fn error(number: i32, mut new: Value) -> Value {
    let message = new.pointer("/error/message").cloned().unwrap_or_else(|| json!(""));
    if let Value::Object(fields) = &mut new {
        fields.insert("code".to_owned(), json!(number));
        fields.insert("message".to_owned(), message);
    }
    new
}
