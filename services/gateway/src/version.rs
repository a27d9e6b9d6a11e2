//! Which version of A2A a request speaks: what `A2A-Version` says as a header, as gRPC metadata or
//! as a parameter of the query. Nothing said means 0.3.

use std::borrow::Cow;

use faultline_proto::{Failure, reason};

use crate::{http::Exchange, operation::Operation, route};

pub(crate) const HEADER: &str = "a2a-version";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V03,
}

impl Version {
    pub(crate) fn of(exchange: &Exchange) -> Result<Self, Failure> {
        let said = said(exchange);
        read(&said).ok_or_else(|| not_supported(exchange, &said))
    }
}

/// Refuses an operation in the form of 1.0 that was not said to be 1.0.
pub(crate) fn must_be_1(
    exchange: &Exchange,
    version: Version,
    operation: Operation,
) -> Result<(), Failure> {
    if version == Version::V1 {
        return Ok(());
    }
    let operation = operation.name();
    let text = match &*said(exchange) {
        "" => format!(
            "{operation} as it was sent is A2A 1.0: send the header A2A-Version: 1.0 (without it \
             a request counts as 0.3)"
        ),
        said => format!(
            "{operation} as it was sent is A2A 1.0, but A2A-Version says {said}: send \
             A2A-Version: 1.0"
        ),
    };
    Err(Failure::new(&reason::VERSION_NOT_SUPPORTED).because(text))
}

/// Refuses 0.3 where it is switched off.
pub(crate) fn must_serve_v03(exchange: &Exchange) -> Result<(), Failure> {
    match exchange.serves_v03() {
        true => Ok(()),
        false => Err(not_supported(exchange, "0.3")),
    }
}

fn said(exchange: &Exchange) -> Cow<'_, str> {
    let headers = exchange.head.headers.get_all(HEADER).iter();
    let versions = headers.flat_map(|value| value.to_str().unwrap_or("?").split(','));
    let mut versions = versions.map(str::trim).filter(|version| !version.is_empty());
    let Some(first) = versions.next() else { return in_query(exchange).unwrap_or_default() };
    // Proxies may repeat it. Two that differ are no version, together.
    match versions.find(|other| *other != first) {
        None => Cow::Borrowed(first),
        Some(other) => Cow::Owned(format!("{first}, {other}")),
    }
}

fn in_query(exchange: &Exchange) -> Option<Cow<'_, str>> {
    let mut pairs = form_urlencoded::parse(exchange.head.uri.query()?.as_bytes());
    pairs.find(|(name, _)| name.eq_ignore_ascii_case(HEADER)).map(|(_, value)| value)
}

/// Any 1.x is 1.0 to us, and a patch number never matters.
fn read(said: &str) -> Option<Version> {
    let mut numbers = said.split('.').map(|number| {
        let digits = !number.is_empty() && number.len() < 4;
        number.parse::<u16>().ok().filter(|_| digits && !number.starts_with('+'))
    });
    let (major, minor, patch) = (numbers.next(), numbers.next(), numbers.next());
    let well_formed = minor != Some(None) && patch != Some(None) && numbers.next().is_none();
    match (major.flatten(), minor.flatten()) {
        _ if said.is_empty() => Some(Version::V03),
        _ if !well_formed => None,
        (Some(1), _) => Some(Version::V1),
        (Some(0), Some(3)) => Some(Version::V03),
        _ => None,
    }
}

fn not_supported(exchange: &Exchange, said: &str) -> Failure {
    let said: String = said.chars().take(32).collect();
    // There was no gRPC of 0.3 that is spoken here.
    let is_grpc = route::is_grpc(&exchange.head.headers);
    let served = if exchange.serves_v03() && !is_grpc { "1.0 or 0.3" } else { "1.0" };
    Failure::new(&reason::VERSION_NOT_SUPPORTED).because(format!(
        "A2A {said} is not served here: send the header A2A-Version with {served}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_major_and_minor() {
        for v1 in ["1", "1.0", "1.0.1", "1.1", "1.27.3"] {
            assert_eq!(read(v1), Some(Version::V1), "{v1}");
        }
        for v03 in ["", "0.3", "0.3.0", "0.3.26"] {
            assert_eq!(read(v03), Some(Version::V03), "{v03}");
        }
        for other in
            ["0", "0.2", "2", "2.0", "10", "abc", "1.", ".", "1.x", "1.0.0.0", "+1", "v1", "-1"]
        {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
