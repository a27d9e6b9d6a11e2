//! The JSON-RPC 2.0 binding: the request object and the operation of each method. Every rejection
//! is a JSON-RPC error.

use std::borrow::Cow;

use axum::body::Body;
use bytes::Bytes;
use faultline_proto::{Failure, reason, v1::call};
use http::Response;
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{error::Category, value::RawValue};

use crate::{
    http::{
        context::RequestContext,
        negotiation,
        response::{Envelope, ResponseFormat},
    },
    protocol::{operation::Operation, request_id::RequestId, v03, validate, version::Version},
};

pub(crate) async fn handle(
    context: &RequestContext,
    agent: Option<&str>,
    body: Bytes,
) -> Response<Body> {
    let (format, call) = match read(context, &body) {
        Ok(read) => read,
        Err((id, failure)) => return context.reporter().rpc(failure.into(), &id),
    };
    // A blocking call may wait for hours: its body is freed before.
    drop(body);
    format.respond(context, agent, call).await
}

/// The request object, with its fields as raw JSON.
#[derive(Deserialize)]
struct RawRequest<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

/// An explicit null is present; only a missing field is `None`.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(input: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// The call in a body and the format of its answer; or a failure and the id for it, which is null
/// until one is found.
fn read(
    context: &RequestContext,
    body: &[u8],
) -> Result<(ResponseFormat, Result<call::Body, Failure>), (RequestId, Failure)> {
    let raw = read_envelope(body).map_err(|failure| (RequestId::NULL, failure))?;
    let Some(id) = raw.id.and_then(RequestId::read) else {
        let text = "id must be a string, an integer or null, and not longer than 256";
        return Err((RequestId::NULL, invalid(text)));
    };
    let resolved = method(&raw).and_then(|name| resolve(context, &name));
    let (operation, version) = match resolved {
        Ok(resolved) => resolved,
        Err(failure) => return Err((id, failure)),
    };
    context.set_operation(operation);
    let format = ResponseFormat { envelope: Envelope::JsonRpc(id), version, operation };
    let params = raw.params.map(RawValue::get).filter(|params| *params != "null");
    let call = format.read(params.unwrap_or("{}"));
    Ok((format, call))
}

/// The operation and the version of a method name.
fn resolve(context: &RequestContext, name: &str) -> Result<(Operation, Version), Failure> {
    let version = negotiation::version(context)?;
    if let Some(operation) = Operation::named(name) {
        negotiation::require_v1(context, version, operation)?;
        return Ok((operation, Version::V1));
    }
    match v03::method(name) {
        None => Err(no_such_method(name)),
        Some(operation) if version == Version::V1 => Err(not_any_more(name, operation)),
        Some(operation) => {
            negotiation::require_v03_served(context)?;
            Ok((operation, Version::V03))
        }
    }
}

fn read_envelope(body: &[u8]) -> Result<RawRequest<'_>, Failure> {
    let text = std::str::from_utf8(body).map_err(|e| {
        validate::not_json(&format!("invalid UTF-8 after byte {}", e.valid_up_to()))
    })?;
    validate::depth(body)?;
    let first = text.trim_ascii_start().as_bytes().first();
    if first != Some(&b'{') {
        // Malformed JSON and a request that is no object are different errors.
        serde_json::from_str::<IgnoredAny>(text).map_err(|e| validate::not_json(&e.to_string()))?;
        return Err(match first {
            Some(b'[') => invalid("batches are not part of A2A: send one request"),
            _ => invalid("a request is an object with jsonrpc, id, method and params"),
        });
    }
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => invalid(&error.to_string()),
        Category::Io | Category::Syntax | Category::Eof => validate::not_json(&error.to_string()),
    })
}

fn method<'a>(raw: &RawRequest<'a>) -> Result<Cow<'a, str>, Failure> {
    if raw.jsonrpc.is_none_or(|version| version.get() != r#""2.0""#) {
        return Err(invalid(r#"jsonrpc must be "2.0""#));
    }
    let Some(method) = raw.method else { return Err(invalid("method is missing")) };
    // Borrowed, unless the name contains escapes.
    serde_json::from_str::<&str>(method.get())
        .map(Cow::Borrowed)
        .or_else(|_| serde_json::from_str::<String>(method.get()).map(Cow::Owned))
        .map_err(|_| invalid("method must be a string"))
}

fn invalid(text: &str) -> Failure {
    Failure::new(&reason::INVALID_REQUEST).because(format!("no JSON-RPC 2.0 request: {text}"))
}

fn no_such_method(name: &str) -> Failure {
    let name: String = name.chars().take(64).collect();
    let known = Operation::ALL.map(Operation::name).join(", ");
    Failure::new(&reason::METHOD_NOT_FOUND)
        .because(format!("no such method: '{name}'; there are {known}"))
}

fn not_any_more(name: &str, operation: Operation) -> Failure {
    let text = format!(
        "'{name}' is A2A 0.3: in 1.0, which A2A-Version asks for, it is {}",
        operation.name()
    );
    Failure::new(&reason::METHOD_NOT_FOUND).because(text)
}
