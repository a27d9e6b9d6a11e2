//! JSON-RPC 2.0: the envelope, and which method is which call. It turns a body into one call to
//! the coordinator and the answer into one body; streams go on in sse. Whatever is wrong with a
//! request, the answer is a JSON-RPC error.

use std::{borrow::Cow, fmt, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use faultline_proto::{
    Failure,
    a2a::{
        CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest,
        SubscribeToTaskRequest,
    },
    json::{self, ProtoJson},
    reason,
    v1::{Subscribe, call, reply},
};
use http::Response;
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{error::Category, value::RawValue};

use crate::{
    error,
    http::{self as surface, Exchange},
    sse, validate,
};

const LAST_EVENT_ID: &str = "last-event-id";
/// Longest id that is echoed. A stream repeats it in every frame.
const ID_BYTES_MAX: usize = 256;
/// How deep a body may nest. Readers of ours and others stop at 128, some by crashing.
const NESTING_MAX: usize = 128;
/// The longest wait a caller may ask for.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The id of a request as JSON, to be echoed as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id(Cow<'static, str>);

impl Id {
    pub(crate) const NULL: Id = Id(Cow::Borrowed("null"));

    /// A string, an integer or null; nothing else is an id.
    fn read(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let legal = match text.as_bytes() {
            b"null" => return Some(Id::NULL),
            [b'"', ..] => true,
            [b'-' | b'0'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
            _ => false,
        };
        (legal && text.len() <= ID_BYTES_MAX).then(|| Id(Cow::Owned(text.to_owned())))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    SendMessage,
    SendStreamingMessage,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
}

impl Method {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "SendMessage" => Method::SendMessage,
            "SendStreamingMessage" => Method::SendStreamingMessage,
            "GetTask" => Method::GetTask,
            "ListTasks" => Method::ListTasks,
            "CancelTask" => Method::CancelTask,
            "SubscribeToTask" => Method::SubscribeToTask,
            _ => return None,
        })
    }
}

pub(crate) async fn answer(
    exchange: &Exchange,
    agent: Option<&str>,
    body: Bytes,
) -> Response<Body> {
    let (id, read) = read(exchange, agent, &body);
    // A blocking call may wait for hours; its body need not.
    drop(body);
    let (method, call) = match read {
        Ok(read) => read,
        Err(failure) => return error::rpc(failure.into(), &id, &exchange.trace),
    };
    let answered = match method {
        Method::SendStreamingMessage | Method::SubscribeToTask => {
            sse::answer(exchange, call, id.clone()).await
        }
        _ => once(exchange, call, &id).await,
    };
    answered.unwrap_or_else(|failure| error::rpc(failure.into(), &id, &exchange.trace))
}

async fn once(exchange: &Exchange, call: call::Body, id: &Id) -> Result<Response<Body>, Failure> {
    let caller = exchange.caller(wait(exchange, &call));
    let body = match exchange.gateway.link.call(caller, call).await? {
        reply::Body::Sent(sent) => result(id, &sent),
        reply::Body::Task(task) => result(id, &task),
        reply::Body::List(list) => result(id, &list),
        _ => return Err(validate::wrong_answer()),
    };
    Ok(surface::json(body.into()))
}

fn result(id: &Id, message: &impl ProtoJson) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    write_result(id, message, &mut out);
    out
}

pub(crate) fn write_result(id: &Id, message: &impl ProtoJson, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.0.as_bytes());
    out.extend_from_slice(br#","result":"#);
    json::write(message, out);
    out.push(b'}');
}

/// How long the caller is willing to wait for a task to end: `Prefer: wait=SECONDS`. Zero is for
/// as long as it takes. A preference that cannot be read is no preference (RFC 7240).
fn wait(exchange: &Exchange, call: &call::Body) -> Duration {
    let call::Body::Send(request) = call else { return Duration::ZERO };
    let blocking = request.configuration.as_ref().is_none_or(|c| !c.return_immediately);
    let Some(header) = exchange.header("prefer").filter(|_| blocking) else {
        return Duration::ZERO;
    };
    let seconds = header.split(',').find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| value.trim().trim_matches('"').parse::<u64>().ok())?
    });
    match seconds {
        // Not zero, which would mean for ever.
        Some(0) => Duration::from_millis(1),
        Some(seconds) => Duration::from_secs(seconds).min(WAIT_MAX),
        None => Duration::ZERO,
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

/// An explicit null is there; only a missing field is absent.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(input: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// The call in a body, and the id to answer with, which is null until one was found.
fn read(
    exchange: &Exchange,
    agent: Option<&str>,
    body: &[u8],
) -> (Id, Result<(Method, call::Body), Failure>) {
    let envelope = match envelope(body) {
        Ok(envelope) => envelope,
        Err(failure) => return (Id::NULL, Err(failure)),
    };
    let id = envelope.id.and_then(Id::read);
    let call = match &id {
        None => Err(invalid("id must be a string, an integer or null, and not longer than 256")),
        Some(_) => method(&envelope).and_then(|name| {
            let method = Method::named(&name).ok_or_else(|| no_such_method(&name))?;
            exchange.span.record("a2a.method.name", &*name);
            check_version(exchange)?;
            let params = envelope.params.map_or("{}", RawValue::get);
            Ok((method, to_call(exchange, method, agent, params)?))
        }),
    };
    (id.unwrap_or(Id::NULL), call)
}

fn envelope(body: &[u8]) -> Result<Envelope<'_>, Failure> {
    let text = std::str::from_utf8(body)
        .map_err(|e| not_json(format!("invalid UTF-8 after byte {}", e.valid_up_to())))?;
    if nests_too_deep(body) {
        return Err(not_json(format!("nested deeper than {NESTING_MAX} levels")));
    }
    let first = text.trim_ascii_start().as_bytes().first();
    if first != Some(&b'{') {
        // Valid or not decides which of the two errors it is.
        serde_json::from_str::<IgnoredAny>(text).map_err(|e| not_json(e.to_string()))?;
        return Err(match first {
            Some(b'[') => invalid("batches are not part of A2A: send one request"),
            _ => invalid("a request is an object with jsonrpc, id, method and params"),
        });
    }
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => invalid(&error.to_string()),
        Category::Io | Category::Syntax | Category::Eof => not_json(error.to_string()),
    })
}

/// Counted before anything is parsed, as fields that are skipped are not counted by the parser.
fn nests_too_deep(body: &[u8]) -> bool {
    let opens = |byte: &u8| matches!(byte, b'{' | b'[');
    // Nearly always there are not even so many brackets, and that is quick to see.
    if body.iter().filter(|byte| opens(byte)).count() <= NESTING_MAX {
        return false;
    }
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return true;
        }
    }
    false
}

fn method<'a>(envelope: &Envelope<'a>) -> Result<Cow<'a, str>, Failure> {
    if envelope.jsonrpc.is_none_or(|version| version.get() != r#""2.0""#) {
        return Err(invalid(r#"jsonrpc must be "2.0""#));
    }
    let Some(method) = envelope.method else { return Err(invalid("method is missing")) };
    // Borrowed as it stands, unless somebody took the trouble to escape it.
    serde_json::from_str::<&str>(method.get())
        .map(Cow::Borrowed)
        .or_else(|_| serde_json::from_str::<String>(method.get()).map(Cow::Owned))
        .map_err(|_| invalid("method must be a string"))
}

/// Which versions are spoken. Without the header the request counts as one of them.
fn check_version(exchange: &Exchange) -> Result<(), Failure> {
    match exchange.header("a2a-version").map(str::trim) {
        None => Ok(()),
        Some(version) if version == "1" || version.starts_with("1.") => Ok(()),
        Some(_) => Err(Failure::new(&reason::VERSION_NOT_SUPPORTED)
            .because("this server speaks A2A 1.0: send A2A-Version: 1.0")),
    }
}

fn to_call(
    exchange: &Exchange,
    method: Method,
    agent: Option<&str>,
    params: &str,
) -> Result<call::Body, Failure> {
    match method {
        Method::SendMessage => send(exchange, agent, params).map(call::Body::Send),
        Method::SendStreamingMessage => send(exchange, agent, params).map(call::Body::Stream),
        Method::GetTask => {
            let mut request: GetTaskRequest = parse(params)?;
            validate::task(&request.id, request.history_length)?;
            address(&mut request.tenant, agent)?;
            Ok(call::Body::Get(request))
        }
        Method::ListTasks => {
            let mut request: ListTasksRequest = parse(params)?;
            validate::list(&request)?;
            address(&mut request.tenant, agent)?;
            Ok(call::Body::List(request))
        }
        Method::CancelTask => {
            let mut request: CancelTaskRequest = parse(params)?;
            validate::task(&request.id, None)?;
            address(&mut request.tenant, agent)?;
            Ok(call::Body::Cancel(request))
        }
        Method::SubscribeToTask => {
            let after = exchange.header(LAST_EVENT_ID).map(event_number).transpose()?;
            let mut request: SubscribeToTaskRequest = parse(params)?;
            validate::task(&request.id, None)?;
            address(&mut request.tenant, agent)?;
            Ok(call::Body::Subscribe(Subscribe { request: Some(request), after }))
        }
    }
}

fn send(
    exchange: &Exchange,
    agent: Option<&str>,
    params: &str,
) -> Result<SendMessageRequest, Failure> {
    if exchange.header(LAST_EVENT_ID).is_some() {
        let text = "does not go with a send: use SubscribeToTask to resume a stream";
        return Err(validate::violation("Last-Event-ID", text));
    }
    let mut request: SendMessageRequest = parse(params)?;
    validate::send(&request)?;
    address(&mut request.tenant, agent)?;
    Ok(request)
}

fn event_number(header: &str) -> Result<u64, Failure> {
    header.trim().parse().map_err(|_| {
        let text = "must be the number of the last event seen, as its id: line gave it; leave \
                    the header out to start from a snapshot";
        validate::violation("Last-Event-ID", text)
    })
}

fn parse<T: ProtoJson>(params: &str) -> Result<T, Failure> {
    json::from_str(params).map_err(|error| validate::not_the_message(&error))
}

/// The agent of the path is the tenant; a request that names another is mistaken about one.
fn address(tenant: &mut String, agent: Option<&str>) -> Result<(), Failure> {
    match agent {
        None => Ok(()),
        Some(agent) if tenant.is_empty() || tenant == agent => {
            agent.clone_into(tenant);
            Ok(())
        }
        Some(_) => Err(validate::violation("tenant", "is not the agent of the path")),
    }
}

fn invalid(text: &str) -> Failure {
    Failure::new(&reason::INVALID_REQUEST).because(format!("no JSON-RPC 2.0 request: {text}"))
}

fn not_json(text: String) -> Failure {
    Failure::new(&reason::JSON_PARSE).because(format!("invalid JSON payload: {text}"))
}

fn no_such_method(name: &str) -> Failure {
    let name: String = name.chars().take(64).collect();
    Failure::new(&reason::METHOD_NOT_FOUND).because(format!(
        "no such method: '{name}'; there are SendMessage, SendStreamingMessage, GetTask, \
         ListTasks, CancelTask and SubscribeToTask"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_string_an_integer_or_null() {
        let read = |text: &str| Id::read(&RawValue::from_string(text.to_owned()).unwrap());
        for good in ["null", "0", "-7", "12345678901234567890", r#""""#, r#""a\u0000""#] {
            assert_eq!(read(good).unwrap().to_string(), good);
        }
        for bad in ["true", "1.0", "1e3", "{}", "[]", &format!("{:?}", "x".repeat(256))] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn depth_is_counted_outside_of_strings_only() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(!nests_too_deep(nested(128).as_bytes()));
        assert!(nests_too_deep(nested(129).as_bytes()));
        assert!(nests_too_deep("[".repeat(5000).as_bytes()));
        assert!(!nests_too_deep(format!("\"{}\\\"{{\"", "[".repeat(5000)).as_bytes()));
        assert!(!nests_too_deep("[]".repeat(5000).as_bytes()));
    }

    #[test]
    fn a_tenant_and_a_path_must_agree() {
        let set = |tenant: &str, agent| {
            let mut tenant = tenant.to_owned();
            address(&mut tenant, agent).map(|()| tenant).map_err(|f| f.violations[0].field.clone())
        };
        assert_eq!(set("", Some("echo")).as_deref(), Ok("echo"));
        assert_eq!(set("echo", Some("echo")).as_deref(), Ok("echo"));
        assert_eq!(set("x", None).as_deref(), Ok("x"));
        assert_eq!(set("x", Some("echo")), Err("tenant".to_owned()));
    }
}
