//! A2A 0.3, for agents that speak nothing newer: requests on their way out and answers on their
//! way in. The objects are translated by `faultline_proto::v03`; this module knows the operations.
//! Those that no remote agent needs are refused before anything is sent.

use bytes::Bytes;
use faultline_proto::{
    Failure, json,
    reason::{self, Reason},
    v03::{Dialect, new, old},
};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    protocol::{
        operation::{EXTENSIONS_HEADER, Operation, Request},
        wire_error,
    },
    transport::{
        binding::{json_rpc_request, push_query},
        http::{BodyFormat, HttpRequest},
        retry::Fault,
    },
};

/// What `A2A-Extensions` was called.
const V03_EXTENSIONS_HEADER: HeaderName = HeaderName::from_static("x-a2a-extensions");

/// The shape of an answer of 0.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V03Shape {
    dialect: Dialect,
    /// The result is a bare task; otherwise it is an event or the result of a send.
    is_task: bool,
}

impl V03Shape {
    pub(crate) fn is_enveloped(self) -> bool {
        self.dialect == Dialect::Rpc
    }

    /// The same content in the JSON of 1.0.
    pub(crate) fn upgraded(self, json: &[u8]) -> Result<Vec<u8>, Failure> {
        let odd = |why: String| {
            wire_error::invalid_response(format!("the server answered nonsense: {why}"))
        };
        let old: Value = serde_json::from_slice(json).map_err(|error| odd(error.to_string()))?;
        let renew = if self.is_task { new::task } else { new::event };
        let renewed = new::Object::read(old, "result").and_then(|old| renew(old, self.dialect));
        let renewed =
            renewed.map_err(|misfit| odd(format!("{} {}", misfit.path, misfit.description)))?;
        Ok(renewed.to_string().into_bytes())
    }
}

/// By JSON-RPC.
pub(crate) fn enveloped<Q: Request>(
    url: &str,
    operation: &Operation<Q>,
    headers: HeaderMap,
) -> Result<HttpRequest, Fault> {
    let (method, params, form) = translate(operation, Dialect::Rpc)?;
    let body =
        json_rpc_request(method, |body| body.extend_from_slice(params.to_string().as_bytes()));
    let verb = Method::POST;
    let headers = rename_headers(headers);
    Ok(HttpRequest { verb, url: url.to_owned(), headers, body: Some(body), form })
}

/// By HTTP+JSON, whose routes stand below `/v1`.
pub(crate) fn bare<Q: Request>(
    url: &str,
    operation: &Operation<Q>,
    headers: HeaderMap,
) -> Result<HttpRequest, Fault> {
    let (_, body, form) = translate(operation, Dialect::Rest)?;
    let mut url = format!("{url}/v1{}", operation.path);
    push_query(&mut url, &operation.query);
    let verb = operation.verb.clone();
    let body = (verb == Method::POST).then(|| Bytes::from(body.to_string()));
    Ok(HttpRequest { verb, url, headers: rename_headers(headers), body, form })
}

/// The old method, the old request, and the shape of its answer.
fn translate<Q: Request>(
    operation: &Operation<Q>,
    dialect: Dialect,
) -> Result<(&'static str, Value, BodyFormat), Fault> {
    let mut new: Value =
        serde_json::from_slice(&json::to_vec(&operation.request)).unwrap_or_default();
    let form = |is_task| BodyFormat::V03(V03Shape { dialect, is_task });
    Ok(match operation.name {
        "SendMessage" => ("message/send", old::send(new, dialect), form(false)),
        "SendStreamingMessage" => ("message/stream", old::send(new, dialect), form(false)),
        "GetTask" => ("tasks/get", new, form(true)),
        "CancelTask" => {
            let id = new["id"].as_str().unwrap_or_default();
            if dialect == Dialect::Rest {
                new = json!({"name": format!("tasks/{id}")});
            }
            ("tasks/cancel", new, form(true))
        }
        other => {
            let text = format!("the agent speaks A2A 0.3, where this client has no {other}");
            let failure = Failure::new(&reason::UNSUPPORTED_OPERATION).because(text);
            return Err(Fault::unsent(failure));
        }
    })
}

fn rename_headers(mut headers: HeaderMap) -> HeaderMap {
    if let Some(extensions) = headers.remove(EXTENSIONS_HEADER) {
        headers.insert(V03_EXTENSIONS_HEADER, extensions);
    }
    headers
}

/// An error of REST: the words in the body, the kind in the status, and sometimes its number too.
pub(crate) fn rest_failure(status: StatusCode, body: &[u8]) -> Option<Failure> {
    #[derive(Deserialize)]
    struct Said {
        message: String,
        code: Option<i64>,
    }
    let said: Said = serde_json::from_slice(body).ok()?;
    let by_status: Option<&'static Reason> = match status.as_u16() {
        400 | 422 => Some(&reason::INVALID_PARAMS),
        404 => Some(&reason::TASK_NOT_FOUND),
        409 => Some(&reason::TASK_NOT_CANCELABLE),
        415 => Some(&reason::CONTENT_TYPE_NOT_SUPPORTED),
        500 => Some(&reason::INTERNAL_ERROR),
        501 => Some(&reason::UNSUPPORTED_OPERATION),
        _ => None,
    };
    let row = said.code.and_then(wire_error::reason_of_number).or(by_status)?;
    Some(wire_error::mark_foreign(Failure::new(row).because(said.message)))
}
