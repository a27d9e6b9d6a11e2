//! Extensions of A2A: reads the ones that a request declares, and names the active ones in the
//! answer. Their meaning is between clients and agents.

use faultline_proto::Failure;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::protocol::validate;

const HEADER: HeaderName = HeaderName::from_static("a2a-extensions");
/// The header of A2A 0.3.
const OLD_HEADER: HeaderName = HeaderName::from_static("x-a2a-extensions");
/// Extensions that one request may declare. Every call carries them.
const DECLARED_MAX: usize = 64;

/// The declared URIs, separated by commas, in one header or several.
pub(crate) fn declared(request: &HeaderMap) -> Result<Vec<String>, Failure> {
    let mut declared: Vec<String> = Vec::new();
    let headers = request.get_all(HEADER).into_iter().chain(request.get_all(OLD_HEADER));
    let uris = headers.flat_map(|header| header.to_str().unwrap_or("").split(','));
    for uri in uris.map(str::trim).filter(|uri| !uri.is_empty()) {
        if declared.iter().any(|known| known == uri) {
            continue;
        }
        if declared.len() == DECLARED_MAX {
            let text = format!("must name at most {DECLARED_MAX} extensions");
            return Err(validate::violation("A2A-Extensions", &text));
        }
        declared.push(uri.to_owned());
    }
    Ok(declared)
}

/// Names the active extensions in the answer, in the header that the request used.
pub(crate) fn set_header(active: &[String], request: &HeaderMap, response: &mut HeaderMap) {
    if active.is_empty() {
        return;
    }
    let is_old = !request.contains_key(HEADER) && request.contains_key(OLD_HEADER);
    if let Ok(value) = HeaderValue::from_str(&active.join(", ")) {
        response.insert(if is_old { OLD_HEADER } else { HEADER }, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[(HeaderName, &str)]) -> HeaderMap {
        values.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn declared_extensions_are_deduplicated_and_bounded() {
        let read = |text: &str| declared(&headers(&[(HEADER, text)]));
        assert_eq!(read(" urn:a ,,urn:b,urn:a").unwrap(), ["urn:a", "urn:b"]);
        let many = |n: usize| (0..n).map(|n| format!("urn:{n},")).collect::<String>();
        assert_eq!(read(&many(64)).unwrap().len(), 64);
        assert_eq!(read(&many(64).repeat(2)).unwrap().len(), 64);
        assert_eq!(read(&many(65)).unwrap_err().violations[0].field, "A2A-Extensions");
    }

    #[test]
    fn answer_uses_the_header_name_of_the_request() {
        let new = headers(&[(HEADER, "urn:a")]);
        let old = headers(&[(OLD_HEADER, "urn:a")]);
        let both = headers(&[(OLD_HEADER, "urn:b"), (HEADER, "urn:a")]);
        for (request, name, said) in
            [(new, HEADER, "urn:a"), (old, OLD_HEADER, "urn:a"), (both, HEADER, "urn:a, urn:b")]
        {
            let mut response = HeaderMap::new();
            set_header(&[], &request, &mut response);
            assert!(response.is_empty());
            set_header(&declared(&request).unwrap(), &request, &mut response);
            assert_eq!((response.len(), response[name].to_str().unwrap()), (1, said));
        }
    }
}
