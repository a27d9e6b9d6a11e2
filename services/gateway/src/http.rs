//! The HTTP surface: which path is what, how a body is read and within which bounds, and the span
//! around each request. What the bodies mean is known to jsonrpc, card and mesh.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{Request, State},
};
use bytes::{Bytes, BytesMut};
use faultline_chassis::{TraceContext, limits, telemetry::HOP, trace::TRACEPARENT};
use faultline_proto::{Failure, reason, v1::Caller};
use futures::FutureExt;
use http::{
    HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, EXPECT},
    request::Parts,
};
use http_body_util::BodyExt;
use tokio::time::timeout;
use tracing::{Instrument, Span, field::Empty};

use crate::{
    Gateway, card,
    error::{self, JSON, Refused},
    jsonrpc::{self, Id},
    mesh,
};

const CARD: &str = ".well-known/agent-card.json";
/// How much of a body that is too large is read and thrown away. A client that is still sending
/// when the connection closes never sees the answer.
const DISCARD_BYTES_MAX: usize = 8 * limits::BODY_BYTES_MAX;

/// Every path, in one list. Not axum's router: the paths of A2A's REST binding, `{id}:cancel`,
/// are none it can match, and every refusal has to be JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route<'a> {
    /// JSON-RPC, at the root or for one agent.
    Rpc(Option<&'a str>),
    Card(Option<&'a str>),
    Mesh(&'a str),
    Health,
    Nothing,
}

impl<'a> Route<'a> {
    fn of(path: &'a str) -> Self {
        match path {
            "/" => return Route::Rpc(None),
            "/healthz" => return Route::Health,
            _ => {}
        }
        let segments = path.strip_prefix('/').unwrap_or(path);
        if segments == CARD {
            return Route::Card(None);
        }
        match segments.split_once('/') {
            Some(("mesh", method)) => Route::Mesh(method),
            Some(("agents", rest)) => match rest.split_once('/') {
                _ if rest.is_empty() || rest.starts_with('/') => Route::Nothing,
                None => Route::Rpc(Some(rest)),
                Some((agent, "")) => Route::Rpc(Some(agent)),
                Some((agent, CARD)) => Route::Card(Some(agent)),
                Some(_) => Route::Nothing,
            },
            _ => Route::Nothing,
        }
    }

    fn method(self) -> Method {
        match self {
            Route::Rpc(_) | Route::Mesh(_) => Method::POST,
            Route::Card(_) | Route::Health | Route::Nothing => Method::GET,
        }
    }

    /// The name of the span: few, whatever clients ask for.
    fn span_name(self) -> &'static str {
        match self {
            Route::Rpc(None) => "POST /",
            Route::Rpc(Some(_)) => "POST /agents/{agent}",
            Route::Card(None) => "GET /.well-known/agent-card.json",
            Route::Card(Some(_)) => "GET /agents/{agent}/.well-known/agent-card.json",
            Route::Mesh(_) => "POST /mesh/{method}",
            Route::Health => "GET /healthz",
            Route::Nothing => "unknown path",
        }
    }
}

/// One request, as far as all handlers need it.
pub(crate) struct Exchange {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) head: Parts,
    pub(crate) span: Span,
    /// What is handed on: a child of what the client sent.
    pub(crate) trace: TraceContext,
}

impl Exchange {
    pub(crate) fn caller(&self, wait: Duration) -> Caller {
        let timeout_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        Caller { traceparent: self.trace.to_string(), timeout_ms, ..Caller::default() }
    }

    /// A header that is text. What is not text is as good as absent, except that it is not empty.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap_or("?"))
    }
}

pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    Router::new().fallback(handle).with_state(gateway)
}

async fn handle(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let route = Route::of(head.uri.path());
    let span = tracing::info_span!(
        target: HOP,
        parent: None,
        "request",
        "otel.name" = route.span_name(),
        "otel.kind" = "server",
        "http.request.method" = head.method.as_str(),
        "http.response.status_code" = Empty,
        "a2a.method.name" = Empty,
        "error.type" = Empty,
        "otel.status_code" = Empty,
    );
    let parent = head.headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let trace = TraceContext::from_header(parent).enter(&span);
    let exchange = Exchange { gateway, span: span.clone(), trace, head };
    // Pinned here, so that what is put around it does not move it: it is large.
    let answering = pin!(answer(&exchange, body));
    // A panic costs the request that met it, and the client hears of it in JSON.
    let answered = AssertUnwindSafe(answering).catch_unwind().instrument(span.clone()).await;
    let response = answered.unwrap_or_else(|_| span.in_scope(|| panicked(&exchange)));
    span.record("http.response.status_code", response.status().as_u16());
    response
}

fn panicked(exchange: &Exchange) -> Response<Body> {
    let failure = Failure::new(&reason::INTERNAL_ERROR);
    match Route::of(exchange.head.uri.path()) {
        Route::Rpc(_) => error::rpc(failure.into(), &Id::NULL, &exchange.trace),
        _ => error::plain(failure.into(), &exchange.trace),
    }
}

async fn answer(exchange: &Exchange, body: Body) -> Response<Body> {
    let route = Route::of(exchange.head.uri.path());
    let answered = match route {
        Route::Nothing => Err(no_such_path().into()),
        _ if !allows(route, &exchange.head.method) => Err(not_allowed(route)),
        Route::Rpc(agent) => match read(&exchange.head, body).await {
            Ok(body) => Ok(jsonrpc::answer(exchange, agent, body).await),
            Err(refused) => Err(refused),
        },
        Route::Card(agent) => card::answer(exchange, agent).await,
        Route::Mesh(method) => match read(&exchange.head, body).await {
            Ok(body) => mesh::answer(exchange, method, &body).await,
            Err(refused) => Err(refused),
        },
        Route::Health => Ok(health(&exchange.gateway)),
    };
    let refused_method = answered
        .as_ref()
        .is_err_and(|refused: &Refused| refused.status == Some(StatusCode::METHOD_NOT_ALLOWED));
    let mut response = match (answered, route) {
        (Ok(response), _) => response,
        (Err(refused), Route::Rpc(_)) => error::rpc(refused, &Id::NULL, &exchange.trace),
        (Err(refused), _) => error::plain(refused, &exchange.trace),
    };
    if refused_method && let Ok(method) = HeaderValue::from_str(route.method().as_str()) {
        response.headers_mut().insert(ALLOW, method);
    }
    response
}

fn allows(route: Route<'_>, method: &Method) -> bool {
    *method == route.method() || (*method == Method::HEAD && route.method() == Method::GET)
}

fn not_allowed(route: Route<'_>) -> Refused {
    let text = match route {
        Route::Rpc(_) => "this path takes JSON-RPC 2.0 requests by POST".to_owned(),
        _ => format!("this path takes {} only", route.method()),
    };
    let failure = Failure::new(&reason::INVALID_REQUEST).because(text);
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, failure)
}

fn no_such_path() -> Failure {
    Failure::new(&reason::NOT_FOUND).because(
        "nothing is at this path: JSON-RPC is at / and /agents/{agent}, the card at \
         /.well-known/agent-card.json, the operators' view at /mesh/{method}",
    )
}

fn health(gateway: &Gateway) -> Response<Body> {
    let (status, text) = match gateway.link.is_up() {
        true => (StatusCode::OK, r#"{"status":"ok"}"#),
        false => (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"no coordinator"}"#),
    };
    let mut response = json(text.into());
    *response.status_mut() = status;
    response
}

pub(crate) fn json(body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// The whole body, if it comes in time, is of a type we read and is not too large.
async fn read(head: &Parts, mut body: Body) -> Result<Bytes, Refused> {
    if let Some(refused) = wrong_type(head) {
        return Err(refused);
    }
    let number = |name: HeaderName| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let declared = number(CONTENT_LENGTH).unwrap_or(0);
    let reading = async {
        if declared > limits::BODY_BYTES_MAX as u64 {
            // One who asks first hears it before sending; one who does not is still sending.
            if !head.headers.contains_key(EXPECT) {
                discard(&mut body, declared).await;
            }
            return Err(too_large());
        }
        collect(&mut body, declared as usize).await
    };
    match timeout(limits::BODY_READ_TIMEOUT, reading).await {
        Ok(read) => read,
        Err(_) => Err(Refused::new(StatusCode::REQUEST_TIMEOUT, too_slow())),
    }
}

async fn collect(body: &mut Body, declared: usize) -> Result<Bytes, Refused> {
    let Some(first) = next(body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(declared.max(first.len() * 2));
    all.extend_from_slice(&first);
    while let Some(more) = next(body).await? {
        if all.len() + more.len() > limits::BODY_BYTES_MAX {
            discard(body, 0).await;
            return Err(too_large());
        }
        all.extend_from_slice(&more);
    }
    Ok(all.freeze())
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, Refused> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => {
                let failure = Failure::new(&reason::INVALID_REQUEST)
                    .because("the body broke off before its end")
                    .privately(error.to_string());
                return Err(Refused::new(StatusCode::BAD_REQUEST, failure));
            }
            // Trailers say nothing we know; the body ends after them.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads on without keeping anything, within reason.
async fn discard(body: &mut Body, declared: u64) {
    let mut left = DISCARD_BYTES_MAX;
    while declared <= DISCARD_BYTES_MAX as u64
        && let Ok(Some(data)) = next(body).await
    {
        match left.checked_sub(data.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

fn wrong_type(head: &Parts) -> Option<Refused> {
    let given = head.headers.get(CONTENT_TYPE)?;
    let essence = given.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    if ["application/json", "application/a2a+json"].iter().any(|t| essence.eq_ignore_ascii_case(t))
    {
        return None;
    }
    let failure = Failure::new(&reason::CONTENT_TYPE_NOT_SUPPORTED)
        .because("the body must be application/json or application/a2a+json");
    Some(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, failure))
}

fn too_large() -> Refused {
    let text = format!(
        "the body is over {} bytes; send a URL instead of the content",
        limits::BODY_BYTES_MAX
    );
    Failure::new(&reason::CONTENT_TOO_LARGE).because(text).into()
}

fn too_slow() -> Failure {
    let seconds = limits::BODY_READ_TIMEOUT.as_secs();
    Failure::new(&reason::DEADLINE_EXCEEDED)
        .because(format!("the body did not arrive within {seconds} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_one_meaning() {
        for (path, route) in [
            ("/", Route::Rpc(None)),
            ("/agents/echo", Route::Rpc(Some("echo"))),
            ("/agents/echo/", Route::Rpc(Some("echo"))),
            ("/agents/", Route::Nothing),
            ("/agents", Route::Nothing),
            ("/agents//", Route::Nothing),
            ("/agents/echo//", Route::Nothing),
            ("/.well-known/agent-card.json", Route::Card(None)),
            ("/agents/echo/.well-known/agent-card.json", Route::Card(Some("echo"))),
            ("/mesh/Agents", Route::Mesh("Agents")),
            ("/mesh", Route::Nothing),
            ("/healthz", Route::Health),
            ("/healthz/", Route::Nothing),
            ("//", Route::Nothing),
            ("", Route::Nothing),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }
}
