//! The id of a JSON-RPC request, which its response echoes.

use std::{borrow::Cow, fmt};

use serde_json::value::RawValue;

/// The longest id. A stream repeats it in every event.
const ID_BYTES_MAX: usize = 256;

/// The id of a request as JSON text, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(Cow<'static, str>);

impl RequestId {
    pub(crate) const NULL: RequestId = RequestId(Cow::Borrowed("null"));

    /// A string, an integer or null; nothing else is an id.
    pub(crate) fn read(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let legal = match text.as_bytes() {
            b"null" => return Some(RequestId::NULL),
            [b'"', ..] => true,
            [b'-' | b'0'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
            _ => false,
        };
        (legal && text.len() <= ID_BYTES_MAX).then(|| RequestId(Cow::Owned(text.to_owned())))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_is_a_string_an_integer_or_null() {
        let read = |text: &str| RequestId::read(&RawValue::from_string(text.to_owned()).unwrap());
        for good in ["null", "0", "-7", "12345678901234567890", r#""""#, r#""a\u0000""#] {
            assert_eq!(read(good).unwrap().to_string(), good);
        }
        for bad in ["true", "1.0", "1e3", "{}", "[]", &format!("{:?}", "x".repeat(256))] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
