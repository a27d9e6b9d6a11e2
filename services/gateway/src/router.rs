//! The router: authenticates each request, opens its span, and dispatches it by its route. It names
//! all folders; the operations themselves are in them.

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
        context::{Gateway, RequestContext},
        failure::{Rejection, no_such_path},
        metrics::RequestRecord,
        response::json_answer,
        route::Route,
    },
    operators::{console, mesh},
    protocol::{operation::Operation, request_id::RequestId, version::Version},
};

const ROLE: &str = "gateway";
/// HTTP Strict Transport Security for a year (RFC 6797).
const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");

pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    Router::new().fallback(handle).with_state(gateway)
}

async fn handle(State(gateway): State<Arc<Gateway>>, request: Request) -> Response<Body> {
    let since = Instant::now();
    let (head, mut body) = request.into_parts();
    let uri = head.uri.clone();
    let route = Route::parse(uri.path(), &head.headers);
    let authenticated = match gateway.check_host_and_origin(&head, &route) {
        Err(refused) => Err(refused),
        Ok(()) if route.is_public() => Ok(None),
        Ok(()) => {
            gateway.authenticator.authenticate(&head.headers).map(Some).map_err(Rejection::from)
        }
    };
    let (principal, rejected) = match authenticated {
        Ok(principal) => (principal, None),
        Err(refused) => (None, Some(refused)),
    };
    let parent = TraceContext::at_edge(&head.headers, principal.is_some());
    let (span, trace) = match span(&gateway, &head, &route, &parent) {
        Some(span) => (SharedSpan::from(span.1), span.0),
        None => (SharedSpan::default(), parent.child()),
    };
    let record = RequestRecord::new(&gateway.http_metrics);
    let context = RequestContext { gateway, span: span.clone(), trace, head, principal, record };
    let mut response = match rejected {
        Some(refused) => refuse(&context, &route, refused),
        None => {
            // Pinned here, because the future is large and the wrapper below would move it.
            let answering = pin!(dispatch(&context, &route, &mut body));
            // A panic fails its own request only; the answer has the form of the binding.
            let answered = AssertUnwindSafe(answering).catch_unwind();
            let failure = || Failure::new(&reason::INTERNAL_ERROR).into();
            let panicked = |_| refuse(&context, &route, failure());
            answered.await.unwrap_or_else(panicked)
        }
    };
    if !body::finish(&context.head, &mut body).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if context.gateway.is_tls {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HSTS);
    }
    if context.principal.is_none() {
        response = server::charge_until_read(response);
    }
    span.with(|span| set_status(span, &route, response.status()));
    let verb = verb(&context.head.method);
    let status = response.status();
    context.record.record_response(verb, &route, status, since.elapsed());
    response
}

/// The span of a request and the trace context for its calls. Probes have no span: they would
/// outnumber all others.
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
            let verb = verb(&head.method);
            let template = route.template();
            Span::begin(SpanKind::Server, parent, format_args!("{verb} {template}"))
        }
    };
    span.http(ROLE, verb(&head.method), route.template());
    let scheme = if gateway.is_tls { "https" } else { "http" };
    span.set("url.path", path).set("url.scheme", scheme);
    Some((span.context().clone(), span))
}

/// Sets the HTTP status on the span. A server error without a failure marks the span by its status.
fn set_status(span: &mut Span, route: &Route<'_>, status: StatusCode) {
    if !matches!(route, Route::Grpc) {
        span.set("http.response.status_code", status.as_u16());
    }
    if status.is_server_error() {
        span.error(status.as_str(), status.canonical_reason().unwrap_or_default());
    }
}

/// The method for spans and metrics: an unknown method is `other`, so that clients cannot add
/// series.
fn verb(method: &Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "DELETE") => known,
        _ => "other",
    }
}

async fn dispatch(context: &RequestContext, route: &Route<'_>, body: &mut Body) -> Response<Body> {
    let refused = route.binding().filter(|binding| !context.serves(*binding));
    if let Some(binding) = refused {
        let failure = Rejection::new(StatusCode::NOT_FOUND, binding.not_served());
        return refuse(context, route, failure);
    }
    let answered = match route {
        Route::Unknown => Err(no_such_path().into()),
        Route::LegacyCard(_) if !context.serves_v03() => Err(no_such_path().into()),
        Route::Console(_) if !context.gateway.console => Err(no_such_path().into()),
        Route::Grpc => Ok(grpc::handle(context, false, body).await),
        Route::GrpcHealth => Ok(grpc::handle(context, true, body).await),
        Route::Rest(rest) => match rest.resource.operation(&context.head.method) {
            Some(operation) => rest::handle(context, rest, operation, body).await,
            None => return not_allowed(context, route),
        },
        _ if !route.allows(&context.head.method) => return not_allowed(context, route),
        Route::Rpc(agent) => match body::read_json(&context.head, body).await {
            Ok(body) => Ok(jsonrpc::handle(context, *agent, body).await),
            Err(refused) => Err(refused),
        },
        Route::Card(agent) | Route::LegacyCard(agent) => {
            card_endpoint::handle(context, *agent).await
        }
        Route::Mesh(method) => mesh::handle(context, method, body).await,
        Route::Metrics => {
            let metrics = context.require_scope(Scope::Operate).map(|()| &context.gateway.metrics);
            metrics.map(metrics_response).map_err(Rejection::from)
        }
        Route::Console(file) => console::handle(context, *file),
        Route::Health => Ok(health(&context.gateway)),
    };
    answered.unwrap_or_else(|refused| refuse(context, route, refused))
}

/// A rejection in the form of the binding, before the operation is known.
fn refuse(context: &RequestContext, route: &Route<'_>, refused: Rejection) -> Response<Body> {
    let report = context.reporter();
    match route {
        Route::Rpc(_) => report.rpc(refused, &RequestId::NULL),
        Route::Rest(rest) if rest.is_v03 => report.plain(refused, Version::V03),
        Route::Grpc | Route::GrpcHealth => report.status(refused.failure).into_http(),
        _ => report.plain(refused, Version::V1),
    }
}

fn not_allowed(context: &RequestContext, route: &Route<'_>) -> Response<Body> {
    let text = match route {
        Route::Rpc(_) => "this path takes JSON-RPC 2.0 requests by POST".to_owned(),
        _ => format!("this path takes {} only", route.allow()),
    };
    let failure = Failure::new(&reason::INVALID_REQUEST).because(text);
    let refused = Rejection::new(StatusCode::METHOD_NOT_ALLOWED, failure);
    let mut response = refuse(context, route, refused);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(route.allow()));
    response
}

fn health(gateway: &Gateway) -> Response<Body> {
    let (status, text) = if gateway.drain.is_signalled() {
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"leaving"}"#)
    } else if gateway.pool.is_up() {
        (StatusCode::OK, r#"{"status":"ok"}"#)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"status":"no coordinator"}"#)
    };
    let mut response = json_answer(text.into());
    *response.status_mut() = status;
    response
}
