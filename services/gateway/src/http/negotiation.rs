//! Version negotiation: `A2A-Version` as a header, as gRPC metadata or as a query parameter. A
//! request without it is A2A 0.3.

use std::borrow::Cow;

use faultline_proto::{Failure, reason};

use crate::{
    http::{context::RequestContext, route},
    protocol::{operation::Operation, version::Version},
};

pub(crate) const HEADER: &str = "a2a-version";

/// The version that a request asks for, if it is served.
pub(crate) fn version(context: &RequestContext) -> Result<Version, Failure> {
    let text = requested(context);
    Version::read(&text).ok_or_else(|| not_supported(context, &text))
}

/// Rejects an operation in the form of 1.0 whose request does not ask for 1.0.
pub(crate) fn require_v1(
    context: &RequestContext,
    version: Version,
    operation: Operation,
) -> Result<(), Failure> {
    if version == Version::V1 {
        return Ok(());
    }
    let operation = operation.name();
    let text = match &*requested(context) {
        "" => format!(
            "{operation} as it was sent is A2A 1.0: send the header A2A-Version: 1.0 (without it \
             a request counts as 0.3)"
        ),
        text => format!(
            "{operation} as it was sent is A2A 1.0, but A2A-Version is {text}: send \
             A2A-Version: 1.0"
        ),
    };
    Err(Failure::new(&reason::VERSION_NOT_SUPPORTED).because(text))
}

/// Rejects 0.3 where it is switched off.
pub(crate) fn require_v03_served(context: &RequestContext) -> Result<(), Failure> {
    if context.serves_v03() { Ok(()) } else { Err(not_supported(context, "0.3")) }
}

fn requested(context: &RequestContext) -> Cow<'_, str> {
    let headers = context.head.headers.get_all(HEADER).iter();
    let versions = headers.flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let mut versions = versions.map(str::trim).filter(|version| !version.is_empty());
    let Some(first) = versions.next() else { return in_query(context).unwrap_or_default() };
    // Proxies may repeat the header. Two different values are an error.
    match versions.find(|other| *other != first) {
        None => Cow::Borrowed(first),
        Some(other) => Cow::Owned(format!("{first}, {other}")),
    }
}

fn in_query(context: &RequestContext) -> Option<Cow<'_, str>> {
    let mut pairs = form_urlencoded::parse(context.head.uri.query()?.as_bytes());
    pairs.find(|(name, _)| name.eq_ignore_ascii_case(HEADER)).map(|(_, value)| value)
}

fn not_supported(context: &RequestContext, text: &str) -> Failure {
    let text: String = text.chars().take(32).collect();
    // gRPC of A2A 0.3 is not supported.
    let is_grpc = route::is_grpc(&context.head.headers);
    let served = if context.serves_v03() && !is_grpc { "1.0 or 0.3" } else { "1.0" };
    Failure::new(&reason::VERSION_NOT_SUPPORTED).because(format!(
        "A2A {text} is not served here: send the header A2A-Version with {served}"
    ))
}
