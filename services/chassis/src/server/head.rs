//! The memory of request heads. With header compression (HPACK) a header of one byte on the wire
//! takes more than a hundred bytes of memory, so a large head is charged to the budget for buffered
//! bytes until its request is answered.

use faultline_proto::Failure;
use http::Request;

use super::ReservedBytes;
use crate::limits;

/// Charges a head that is larger than that of an ordinary request.
pub(super) fn charge<B>(request: &Request<B>) -> Result<ReservedBytes, Failure> {
    match bytes(request) {
        bytes if bytes > limits::HEAD_FREE_BYTES => ReservedBytes::new(bytes),
        _ => Ok(ReservedBytes::default()),
    }
}

/// The approximate memory of a head.
fn bytes<B>(request: &Request<B>) -> usize {
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + limits::HEADER_OVERHEAD_BYTES
    };
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    target + request.headers().iter().map(header).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_of_one_byte_is_charged_with_its_memory() {
        let mut request = Request::get("/agents/echo?x=1");
        for _ in 0..400 {
            request = request.header("a", "");
        }
        let request = request.body(()).unwrap();
        assert_eq!(bytes(&request), 16 + 400 * (1 + limits::HEADER_OVERHEAD_BYTES));
    }

    #[test]
    fn head_of_an_ordinary_request_is_free() {
        let token = "x".repeat(4096);
        let request = Request::post("/").header("authorization", token).header("accept", "*/*");
        assert!(bytes(&request.body(()).unwrap()) < limits::HEAD_FREE_BYTES);
    }
}
