//! Serves the console: static files inside of this binary, so that it needs no build, no other host
//! and no network. Its data comes from `/mesh`. A content security policy excludes foreign scripts.

use std::sync::LazyLock;

use axum::body::Body;
use bytes::Bytes;
use faultline_proto::reason::{self, Reason};
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS,
    },
};
use serde_json::{Value, json};

use crate::http::{
    auth::Scope,
    conditional::{self, CachePolicy, TaggedBody},
    context::RequestContext,
    failure::{JSON, Rejection, no_such_path},
    response::json_answer,
    route::CONSOLE_CONFIG,
};

/// The table of reasons as a file, so that the scripts need no copy of it.
const REASONS: &str = "reasons.json";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const ICON: &str = "image/svg+xml";

/// Revalidated on each use: the next version has other files under the same names.
const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");

/// Only files and calls of this gateway; and trusted types forbid turning text into markup.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'",
);

macro_rules! files {
    ($($name:literal $kind:ident),* $(,)?) => {
        &[$(($name, $kind, include_bytes!(concat!("console/", $name)).as_slice())),*]
    };
}

/// The static files.
const FILES: &[(&str, &str, &[u8])] = files![
    "index.html" HTML,
    "base.css" CSS,
    "pages.css" CSS,
    "icon.svg" ICON,
    "api.js" SCRIPT,
    "app.js" SCRIPT,
    "chain.js" SCRIPT,
    "dialogs.js" SCRIPT,
    "dom.js" SCRIPT,
    "failures.js" SCRIPT,
    "filters.js" SCRIPT,
    "format.js" SCRIPT,
    "grid.js" SCRIPT,
    "keys.js" SCRIPT,
    "overview.js" SCRIPT,
    "parts.js" SCRIPT,
    "question.js" SCRIPT,
    "reasons.js" SCRIPT,
    "rows.js" SCRIPT,
    "spark.js" SCRIPT,
    "task.js" SCRIPT,
    "tasks.js" SCRIPT,
    "theme.js" SCRIPT,
    "timeline.js" SCRIPT,
    "tree.js" SCRIPT,
];

/// The table of reasons as JSON, made at its first request.
static REASON_TABLE: LazyLock<Bytes> = LazyLock::new(|| {
    let rows: Vec<_> = reason::TABLE.iter().map(|row| row_json(row)).collect();
    Value::from(rows).to_string().into()
});

/// A row of the table of reasons as JSON.
fn row_json(row: &Reason) -> Value {
    json!({
        "name": row.name,
        "domain": row.domain,
        "grpc": row.code as i32,
        "code": reason::code_name(row.code),
        "http": row.http,
        "jsonrpc": row.jsonrpc,
        "title": row.title,
        "help": row.help,
        "mayRetry": row.retry.may_retry(),
    })
}

/// One file. `None` is the path without a slash, which redirects: relative links need the slash.
pub(crate) fn handle(
    context: &RequestContext,
    file: Option<&str>,
) -> Result<Response<Body>, Rejection> {
    let mut response = match file {
        None => redirect_to_slash(),
        Some(CONSOLE_CONFIG) => config(context)?,
        Some(REASONS) => cacheable(context, REASON_TABLE.clone(), JSON),
        Some(name) => {
            let name = if name.is_empty() { "index.html" } else { name };
            let Some((_, kind, bytes)) = FILES.iter().find(|(known, ..)| *known == name) else {
                return Err(no_such_path().into());
            };
            cacheable(context, Bytes::from_static(bytes), HeaderValue::from_static(kind))
        }
    };
    set_security_headers(&mut response);
    Ok(response)
}

fn cacheable(context: &RequestContext, body: Bytes, kind: HeaderValue) -> Response<Body> {
    let policy = CachePolicy { control: REVALIDATE, vary: None, last_modified: None };
    conditional::respond(&context.head, TaggedBody::by_bytes(body), kind, policy)
}

/// A relative redirect, so that it works behind a proxy that adds a path prefix.
fn redirect_to_slash() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("console/"));
    response
}

fn config(context: &RequestContext) -> Result<Response<Body>, Rejection> {
    context.require_scope(Scope::Operate)?;
    let config = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "acts": context.gateway.operators_act,
    });
    let mut response = json_answer(config.to_string().into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn set_security_headers(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(opener, HeaderValue::from_static("same-origin"));
}
