//! A2A 0.3 binding for servers without a newer version: converts requests and responses.
//! `faultline_proto::v03` converts the objects; this module maps the operations. Operations that no
//! remote agent needs are rejected before anything is sent.

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

/// The name of `A2A-Extensions` in 0.3.
const V03_EXTENSIONS_HEADER: HeaderName = HeaderName::from_static("x-a2a-extensions");

/// The shape of a response of 0.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V03Shape {
    dialect: Dialect,
    /// The result is a bare task, instead of an event or the result of a send.
    is_task: bool,
}

impl V03Shape {
    pub(crate) fn is_enveloped(self) -> bool {
        self.dialect == Dialect::Rpc
    }

    /// The response converted to the JSON of 1.0.
    pub(crate) fn upgraded(self, json: &[u8]) -> Result<Vec<u8>, Failure> {
        let invalid = |why: String| {
            wire_error::invalid_response(format!("the server sent an invalid response: {why}"))
        };
        let old: Value =
            serde_json::from_slice(json).map_err(|error| invalid(error.to_string()))?;
        let renew = if self.is_task { new::task } else { new::event };
        let renewed = new::Object::read(old, "result").and_then(|old| renew(old, self.dialect));
        let renewed =
            renewed.map_err(|misfit| invalid(format!("{} {}", misfit.path, misfit.description)))?;
        Ok(renewed.to_string().into_bytes())
    }
}

/// The request on JSON-RPC.
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

/// The request on HTTP+JSON, whose routes are below `/v1`.
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

/// The method and the request of 0.3, and the shape of the response.
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
            let text =
                format!("the agent supports A2A 0.3 only, and this client has no {other} there");
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

/// The failure of a REST response: text from the body, reason from the number or the status.
pub(crate) fn rest_failure(status: StatusCode, body: &[u8]) -> Option<Failure> {
    #[derive(Deserialize)]
    struct RestError {
        message: String,
        code: Option<i64>,
    }
    let error: RestError = serde_json::from_slice(body).ok()?;
    let by_status: Option<&'static Reason> = match status.as_u16() {
        400 | 422 => Some(&reason::INVALID_PARAMS),
        404 => Some(&reason::TASK_NOT_FOUND),
        409 => Some(&reason::TASK_NOT_CANCELABLE),
        415 => Some(&reason::CONTENT_TYPE_NOT_SUPPORTED),
        500 => Some(&reason::INTERNAL_ERROR),
        501 => Some(&reason::UNSUPPORTED_OPERATION),
        _ => None,
    };
    let row = error.code.and_then(wire_error::reason_of_number).or(by_status)?;
    Some(wire_error::mark_foreign(Failure::new(row).because(error.message)))
}
