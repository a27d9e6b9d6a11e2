//! The HTTP surface: who asks for what, the span around each request, and which binding answers.
//! What requests mean is known to the bindings, to card and to mesh.

use std::{panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Instant};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
};
use faultline_chassis::{
    TraceContext,
    admin::metrics_response,
    server,
    telemetry::{SharedSpan, Span, SpanKind},
};
use faultline_proto::{Failure, reason};
use futures::FutureExt;
use http::{
    HeaderValue, Method, Response, StatusCode,
    header::{ALLOW, CONNECTION, STRICT_TRANSPORT_SECURITY},
    request::Parts,
};

use crate::{
    bindings::{grpc, jsonrpc, rest},
    http::{
        auth::Scope,
        body, card_endpoint,
        context::{Exchange, Gateway},
        failure::{Refused, no_such_path},
        metrics::Seen,
        response::json_answer,
        route::Route,
    },
    operators::{console, mesh},
    protocol::{operation::Operation, request_id::Id, version::Version},
};

const ROLE: &str = "gateway";
/// Who was served encrypted shall not come unencrypted for a year (RFC 6797).
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");

pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    Router::new().fallback(handle).with_state(gateway)
}

async fn handle(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let since = Instant::now();
    let (head, mut body) = request.into_parts();
    let uri = head.uri.clone();
    let route = Route::of(uri.path(), &head.headers);
    let identified = match gateway.screen(&head, &route) {
        Err(refused) => Err(refused),
        Ok(()) if route.is_public() => Ok(None),
        Ok(()) => gateway.callers.identify(&head.headers).map(Some).map_err(Refused::from),
    };
    let (principal, stranger) = match identified {
        Ok(principal) => (principal, None),
        Err(refused) => (None, Some(refused)),
    };
    let parent = TraceContext::at_edge(&head.headers, principal.is_some());
    let (span, trace) = match span(&gateway, &head, &route, &parent) {
        Some(span) => (SharedSpan::from(span.1), span.0),
        None => (SharedSpan::default(), parent.child()),
    };
    let seen = Seen::new(&gateway.meters);
    let exchange = Exchange { gateway, span: span.clone(), trace, head, principal, seen };
    let mut response = match stranger {
        Some(refused) => refuse(&exchange, &route, refused),
        None => {
            // Pinned here, so that what is put around it does not move it: it is large.
            let answering = pin!(answer(&exchange, &route, &mut body));
            // A panic costs the request that met it, and the client hears of it in its own form.
            let answered = AssertUnwindSafe(answering).catch_unwind();
            let failure = || Failure::new(&reason::INTERNAL_ERROR).into();
            let panicked = |_| refuse(&exchange, &route, failure());
            answered.await.unwrap_or_else(panicked)
        }
    };
    if !body::finish(&exchange.head, &mut body).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if exchange.gateway.is_tls {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HSTS);
    }
    if exchange.principal.is_none() {
        response = server::charge_until_read(response);
    }
    span.with(|span| answered_with(span, &route, response.status()));
    let (verb, status) = (verb(&exchange.head.method), response.status());
    exchange.seen.answered(verb, &route, status, since.elapsed());
    response
}

/// The span of a request, and what is handed on. Probes have none: there would be nothing else.
fn span(
    gateway: &Gateway,
    head: &Parts,
    route: &Route<'_>,
    parent: &TraceContext,
) -> Option<(TraceContext, Span)> {
    let path = head.uri.path();
    let mut span = match route {
        Route::Health | Route::GrpcHealth => return None,
        Route::Grpc => match path.rsplit('/').next().and_then(Operation::named) {
            Some(operation) => {
                let method = operation.name();
                let name = format_args!("lf.a2a.v1.A2AService/{method}");
                let mut span = Span::begin(SpanKind::Server, parent, name);
                span.rpc(ROLE, method);
                return Some((span.context().clone(), span));
            }
            None => {
                Span::begin(SpanKind::Server, parent, format_args!("POST {}", route.template()))
            }
        },
        _ => {
            let (verb, template) = (verb(&head.method), route.template());
            Span::begin(SpanKind::Server, parent, format_args!("{verb} {template}"))
        }
    };
    span.http(ROLE, verb(&head.method), route.template());
    let scheme = if gateway.is_tls { "https" } else { "http" };
    span.set("url.path", path).set("url.scheme", scheme);
    Some((span.context().clone(), span))
}

/// What went wrong on this side and left no failure says so by its status.
fn answered_with(span: &mut Span, route: &Route<'_>, status: StatusCode) {
    if !matches!(route, Route::Grpc) {
        span.set("http.response.status_code", status.as_u16());
    }
    if status.is_server_error() {
        span.error(status.as_str(), status.canonical_reason().unwrap_or_default());
    }
}

/// A method as a span names it: few, whatever clients send.
fn verb(method: &Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "DELETE") => known,
        _ => "other",
    }
}

async fn answer(exchange: &Exchange, route: &Route<'_>, body: &mut Body) -> Response<Body> {
    let refused = route.binding().filter(|binding| !exchange.serves(*binding));
    if let Some(binding) = refused {
        let failure = Refused::new(StatusCode::NOT_FOUND, binding.not_served());
        return refuse(exchange, route, failure);
    }
    let answered = match route {
        Route::Nothing => Err(no_such_path().into()),
        Route::OldCard(_) if !exchange.serves_v03() => Err(no_such_path().into()),
        Route::Console(_) if !exchange.gateway.console => Err(no_such_path().into()),
        Route::Grpc => Ok(grpc::answer(exchange, false, body).await),
        Route::GrpcHealth => Ok(grpc::answer(exchange, true, body).await),
        Route::Rest(rest) => match rest.resource.operation(&exchange.head.method) {
            Some(operation) => rest::answer(exchange, rest, operation, body).await,
            None => return not_allowed(exchange, route),
        },
        _ if !route.allows(&exchange.head.method) => return not_allowed(exchange, route),
        Route::Rpc(agent) => match body::read_json(&exchange.head, body).await {
            Ok(body) => Ok(jsonrpc::answer(exchange, *agent, body).await),
            Err(refused) => Err(refused),
        },
        Route::Card(agent) | Route::OldCard(agent) => card_endpoint::answer(exchange, *agent).await,
        Route::Mesh(method) => mesh::answer(exchange, method, body).await,
        Route::Metrics => {
            let numbers = exchange.may(Scope::Operate).map(|()| &exchange.gateway.metrics);
            numbers.map(scraped).map_err(Refused::from)
        }
        Route::Console(file) => console::answer(exchange, *file),
        Route::Health => Ok(health(&exchange.gateway)),
    };
    answered.unwrap_or_else(|refused| refuse(exchange, route, refused))
}

/// Says no in the form of the binding, before it is known what was asked.
fn refuse(exchange: &Exchange, route: &Route<'_>, refused: Refused) -> Response<Body> {
    let report = exchange.reporter();
    match route {
        Route::Rpc(_) => report.rpc(refused, &Id::NULL),
        Route::Rest(rest) if rest.is_v03 => report.plain(refused, Version::V03),
        Route::Grpc | Route::GrpcHealth => report.status(refused.failure).into_http(),
        _ => report.plain(refused, Version::V1),
    }
}

fn not_allowed(exchange: &Exchange, route: &Route<'_>) -> Response<Body> {
    let text = match route {
        Route::Rpc(_) => "this path takes JSON-RPC 2.0 requests by POST".to_owned(),
        _ => format!("this path takes {} only", route.allow()),
    };
    let failure = Failure::new(&reason::INVALID_REQUEST).because(text);
    let refused = Refused::new(StatusCode::METHOD_NOT_ALLOWED, failure);
    let mut response = refuse(exchange, route, refused);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(route.allow()));
    response
}

fn health(gateway: &Gateway) -> Response<Body> {
    let (status, text) = match gateway.links.is_up() {
        _ if gateway.drain.is_signalled() => {
            (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"leaving"}"#)
        }
        true => (StatusCode::OK, r#"{"status":"ok"}"#),
        false => (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"no coordinator"}"#),
    };
    let mut response = json_answer(text.into());
    *response.status_mut() = status;
    response
}
