//! Conditional requests (RFC 9110, section 13): answers with `ETag` and `Last-Modified`, and 304
//! for a client that has the current one.

use std::time::SystemTime;

use axum::body::Body;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH,
        LAST_MODIFIED, VARY,
    },
    request::Parts,
};
use ring::digest::{SHA256, digest};

/// The caching headers of an answer.
pub(crate) struct CachePolicy {
    pub(crate) control: HeaderValue,
    /// The request headers on which the answer depends, if any.
    pub(crate) vary: Option<HeaderValue>,
    /// When the content changed last, where that is known.
    pub(crate) last_modified: Option<SystemTime>,
}

/// A body and its entity tag.
pub(crate) struct TaggedBody {
    body: Bytes,
    tag: String,
}

impl TaggedBody {
    /// A strong tag of the bytes.
    pub(crate) fn by_bytes(body: Bytes) -> Self {
        let tag = tag(&body);
        Self { body, tag }
    }

    /// A weak tag of the meaning, for content whose bytes may differ.
    pub(crate) fn by_meaning(body: Bytes, meaning: &[u8]) -> Self {
        Self { body, tag: format!("W/{}", tag(meaning)) }
    }
}

/// The whole answer, or 304.
pub(crate) fn respond(
    request: &Parts,
    TaggedBody { body, tag }: TaggedBody,
    kind: HeaderValue,
    policy: CachePolicy,
) -> Response<Body> {
    let mut response = if is_current(&request.headers, &tag, policy.last_modified) {
        not_modified()
    } else {
        whole(body, kind, request.method == Method::HEAD)
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(CACHE_CONTROL, policy.control);
    if let Some(vary) = policy.vary {
        headers.insert(VARY, vary);
    }
    let changed = policy.last_modified.map(httpdate::fmt_http_date);
    if let Some(Ok(changed)) = changed.map(|date| HeaderValue::from_str(&date)) {
        headers.insert(LAST_MODIFIED, changed);
    }
    response
}

fn not_modified() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

fn whole(body: Bytes, kind: HeaderValue, only_head: bool) -> Response<Body> {
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(if only_head { Body::empty() } else { body.into() });
    response.headers_mut().insert(CONTENT_LENGTH, length);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// An entity tag from the first half of the digest.
fn tag(body: &[u8]) -> String {
    let digest = digest(&SHA256, body);
    format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest.as_ref()[..16]))
}

fn is_current(headers: &HeaderMap, tag: &str, changed: Option<SystemTime>) -> bool {
    // `If-None-Match` takes precedence over the date.
    if headers.contains_key(IF_NONE_MATCH) {
        let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
        let lists = headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
        // The tags here contain no comma, so splitting a foreign tag at a comma does no harm.
        return lists.flat_map(|list| list.split(',')).any(|one| {
            let one = one.trim();
            one == "*" || opaque(one) == opaque(tag)
        });
    }
    let since = || headers.get(IF_MODIFIED_SINCE)?.to_str().ok();
    let since = since().and_then(|date| httpdate::parse_http_date(date).ok());
    // HTTP dates have whole seconds, so the comparison rounds to seconds too.
    let sent = changed.map(httpdate::HttpDate::from);
    matches!((since, sent), (Some(since), Some(sent)) if sent <= since.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderName;
    use http_body_util::BodyExt;

    use super::*;
    use crate::http::failure::JSON;

    /// Not a whole second, unlike a date in a header.
    fn changed() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_700)
    }

    fn ask(method: Method, headers: &[(HeaderName, &str)]) -> Response<Body> {
        let mut request = http::Request::builder().method(method).uri("/");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let policy = CachePolicy {
            control: HeaderValue::from_static("public, max-age=60"),
            vary: Some(HeaderValue::from_static("host")),
            last_modified: Some(changed()),
        };
        let body = TaggedBody::by_bytes(Bytes::from_static(b"{}"));
        respond(&request.body(()).unwrap().into_parts().0, body, JSON, policy)
    }

    #[test]
    fn current_tag_or_date_is_answered_with_304() {
        let first = ask(Method::GET, &[]);
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[ETAG].to_str().unwrap().to_owned();
        let date = first.headers()[LAST_MODIFIED].to_str().unwrap().to_owned();
        let earlier = httpdate::fmt_http_date(changed() - Duration::from_secs(1));
        let later = httpdate::fmt_http_date(changed() + Duration::from_secs(1));
        let weak = format!("W/{tag}");
        let among = format!("\"x\", W/\"y,z\" ,{tag}");
        for (headers, status) in [
            (vec![(IF_NONE_MATCH, &*tag)], 304),
            (vec![(IF_NONE_MATCH, &*weak)], 304),
            (vec![(IF_NONE_MATCH, &*among)], 304),
            (vec![(IF_NONE_MATCH, "\"x\""), (IF_NONE_MATCH, &*tag)], 304),
            (vec![(IF_NONE_MATCH, "*")], 304),
            (vec![(IF_NONE_MATCH, "\"x\"")], 200),
            (vec![(IF_NONE_MATCH, "")], 200),
            (vec![(IF_NONE_MATCH, tag.trim_matches('"'))], 200),
            (vec![(IF_MODIFIED_SINCE, &*date)], 304),
            (vec![(IF_MODIFIED_SINCE, &*later)], 304),
            (vec![(IF_MODIFIED_SINCE, &*earlier)], 200),
            (vec![(IF_MODIFIED_SINCE, "yesterday")], 200),
            (vec![(IF_NONE_MATCH, "\"x\""), (IF_MODIFIED_SINCE, &*date)], 200),
            (vec![(IF_NONE_MATCH, &*tag), (IF_MODIFIED_SINCE, &*earlier)], 304),
        ] {
            let response = ask(Method::GET, &headers);
            assert_eq!(response.status().as_u16(), status, "{headers:?}");
            for name in [ETAG, CACHE_CONTROL, LAST_MODIFIED, VARY] {
                assert_eq!(response.headers()[&name], first.headers()[&name], "{headers:?}");
            }
        }
    }

    #[tokio::test]
    async fn head_request_has_the_headers_of_get_and_no_body() {
        let get = ask(Method::GET, &[]);
        let head = ask(Method::HEAD, &[]);
        assert_eq!(get.headers(), head.headers());
        assert_eq!(head.headers()[CONTENT_LENGTH], "2");
        assert_eq!(get.into_body().collect().await.unwrap().to_bytes(), "{}");
        assert_eq!(head.into_body().collect().await.unwrap().to_bytes(), "");
        let unchanged = ask(Method::GET, &[(IF_NONE_MATCH, "*")]);
        assert_eq!(unchanged.into_body().collect().await.unwrap().to_bytes(), "");
    }
}
