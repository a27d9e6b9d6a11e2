//! HTTP transport: one request with one response or one event stream, over pooled connections.
//! Knows the JSON of A2A with or without the JSON-RPC envelope, and no operation.

use std::{
    error::Error as StdError,
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use faultline_chassis::{Stalled, dial::Connector, limits};
use faultline_proto::{
    Failure,
    json::{self, ProtoJson},
    reason,
};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::sleep;

use crate::{
    protocol::{
        dialect::Dialect,
        wire_error::{self, WireError, timeout_failure},
    },
    transport::{
        a2a_v03::{self, V03Shape},
        events::Events,
        request_body::RequestBody,
        retry::Fault,
        timeouts::{Layer, Timeouts},
    },
};

/// Limit of one response or one event: a whole task as JSON, where base64 and escapes exceed the
/// size that the mesh counted.
pub(crate) const ANSWER_BYTES_MAX: usize = 2 * limits::TASK_ARTIFACT_BYTES_MAX;
/// Idle connections that are kept.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Lifetime of an idle connection; well below the limits of servers and proxies.
const CONNECTION_IDLE: Duration = Duration::from_secs(30);

/// The format of request and response bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Enveloped,
    Bare,
    /// The format of A2A 0.3.
    V03(V03Shape),
}

impl BodyFormat {
    /// The specific media type of bare messages is new; some servers know `application/json` alone.
    fn accept(self) -> &'static str {
        match self {
            BodyFormat::Enveloped | BodyFormat::V03(_) => "application/json",
            BodyFormat::Bare => "application/a2a+json, application/json",
        }
    }

    fn is_enveloped(self) -> bool {
        match self {
            BodyFormat::Enveloped => true,
            BodyFormat::Bare => false,
            BodyFormat::V03(old) => old.is_enveloped(),
        }
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            BodyFormat::Enveloped | BodyFormat::V03(_) => "application/json",
            BodyFormat::Bare => "application/a2a+json",
        })
    }
}

/// The connections of one client. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: legacy::Client<Connector, RequestBody>,
    timeouts: Timeouts,
    dialect: Dialect,
}

/// One request.
pub(crate) struct HttpRequest {
    pub(crate) verb: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    /// `None` for a request without a body.
    pub(crate) body: Option<Bytes>,
    pub(crate) form: BodyFormat,
}

/// One complete response.
pub(crate) struct HttpResponse {
    status: StatusCode,
    retry_after: Option<Duration>,
    body: Bytes,
    dialect: Dialect,
}

impl Http {
    pub(crate) fn new(connector: Connector, timeouts: Timeouts, dialect: Dialect) -> Self {
        let connector = connector.within(timeouts.connect, timeouts.write);
        let client = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(CONNECTION_IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Self { client, timeouts, dialect }
    }

    pub(crate) async fn call(&self, exchange: HttpRequest) -> Result<HttpResponse, Fault> {
        let accept = exchange.form.accept();
        let call = async { self.answered(self.request(exchange, accept).await?).await };
        Layer::Total.bound(self.timeouts.total, call).await?
    }

    pub(crate) async fn stream(&self, exchange: HttpRequest) -> Result<Events, Fault> {
        let form = exchange.form;
        let response = self.request(exchange, "text/event-stream").await?;
        let kind = response.headers().get(CONTENT_TYPE);
        if kind.is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream")) {
            let read = self.timeouts.read;
            return Ok(Events::sse(response.into_body(), form, self.dialect, read));
        }
        // A failure before the first event is a plain response.
        let answered = Layer::Total.bound(self.timeouts.total, self.answered(response)).await??;
        match answered.read::<()>(form, true) {
            Err(fault) => Err(fault),
            Ok(()) => Err(Fault::lost(wire_error::invalid_response(
                "the server answered a stream with one object",
            ))),
        }
    }

    async fn request(
        &self,
        exchange: HttpRequest,
        accept: &'static str,
    ) -> Result<Response<Incoming>, Fault> {
        let (body, taken) = RequestBody::new(exchange.body.clone().unwrap_or_default());
        let mut request = Request::new(body);
        *request.method_mut() = exchange.verb;
        *request.headers_mut() = exchange.headers;
        *request.uri_mut() = exchange.url.parse().map_err(|_| {
            let message = format!("not a URL: '{}'", exchange.url);
            Fault::unsent(Failure::new(&reason::INVALID_ARGUMENT).because(message))
        })?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        if exchange.body.is_some() {
            request.headers_mut().insert(CONTENT_TYPE, exchange.form.content_type());
        }
        let silent = async {
            taken.wait().await;
            match self.timeouts.read {
                Some(patience) => sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            response = self.client.request(request) => {
                response.map_err(|error| no_response(&error))
            }
            () = silent => Err(Layer::Read.ran_out(self.timeouts.read.unwrap_or_default())),
        }
    }

    async fn answered(&self, response: Response<Incoming>) -> Result<HttpResponse, Fault> {
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(retry_after);
        let mut body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let mut read = BytesMut::new();
        while let Some(frame) = Layer::Read.bound(self.timeouts.read, body.frame()).await? {
            let frame = frame.map_err(|error| {
                let error: &(dyn StdError + 'static) = error.as_ref();
                Fault::lost(wire_error::connection_lost("the answer broke off", error))
            })?;
            read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
        Ok(HttpResponse { status, retry_after, body: read.freeze(), dialect: self.dialect })
    }
}

/// The fault of a request without a response.
fn no_response(error: &legacy::Error) -> Fault {
    if error.is_connect() {
        return Fault::unsent(wire_error::connect_failure(error));
    }
    if let Some(stalled) = Stalled::find_in(error) {
        return Fault::lost(timeout_failure(&reason::WRITE_TIMEOUT, stalled));
    }
    Fault::lost(wire_error::connection_lost("the connection to the server was lost", error))
}

impl HttpResponse {
    /// The message, or the failure. The body may be absent if `empty_response` is set.
    pub(crate) fn read<A: ProtoJson>(
        &self,
        form: BodyFormat,
        empty_response: bool,
    ) -> Result<A, Fault> {
        let error = envelope(&self.body).ok().and_then(|envelope| envelope.error);
        match error {
            Some(error) => Err(self.fault(error.into_failure(self.dialect))),
            None if !self.status.is_success() => Err(match form {
                BodyFormat::V03(_) => match a2a_v03::rest_failure(self.status, &self.body) {
                    Some(failure) => self.fault(failure),
                    None => self.bare_fault(),
                },
                BodyFormat::Enveloped | BodyFormat::Bare => self.bare_fault(),
            }),
            None => self.message(form, empty_response).map_err(Fault::lost),
        }
    }

    /// The body of a successful response.
    pub(crate) fn success_body(self) -> Result<Bytes, Fault> {
        if self.status.is_success() { Ok(self.body) } else { Err(self.bare_fault()) }
    }

    /// A status without an A2A error: a proxy may have sent it instead of the agent.
    fn bare_fault(&self) -> Fault {
        Fault { from_transport: true, ..self.fault(wire_error::failure_of_status(self.status)) }
    }

    fn message<A: ProtoJson>(&self, form: BodyFormat, empty_response: bool) -> Result<A, Failure> {
        match form {
            _ if empty_response => {
                json::from_str("{}").map_err(|e| wire_error::invalid_response(e.to_string()))
            }
            BodyFormat::Enveloped | BodyFormat::V03(_) => {
                read_frame(&self.body, form, self.dialect)
            }
            BodyFormat::Bare => read_bare(&self.body),
        }
    }

    /// Adds the delay of the header if the details have none. A call that is rejected because the
    /// server is too busy was not executed.
    fn fault(&self, failure: Failure) -> Fault {
        let too_busy = match self.status {
            StatusCode::TOO_MANY_REQUESTS => true,
            StatusCode::SERVICE_UNAVAILABLE => self.retry_after.is_some(),
            _ => false,
        };
        let failure = match (failure.retry_after(), self.retry_after) {
            (None, Some(delay)) => failure.with_retry_after(delay),
            _ => failure,
        };
        let fault = Fault::from(failure);
        Fault { not_executed: fault.not_executed || too_busy, ..fault }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<WireError<'a>>,
}

fn envelope(json: &[u8]) -> Result<Envelope<'_>, serde_json::Error> {
    serde_json::from_slice(json)
}

/// One event of a stream, or one response: the message or the failure.
pub(crate) fn read_frame<A: ProtoJson>(
    json: &[u8],
    form: BodyFormat,
    dialect: Dialect,
) -> Result<A, Failure> {
    let envelope = match envelope(json) {
        Ok(envelope) => envelope,
        Err(error) => {
            return Err(wire_error::invalid_response(format!("the response is not A2A: {error}")));
        }
    };
    match (envelope.error, envelope.result) {
        (Some(error), _) => Err(error.into_failure(dialect)),
        (None, _) if !form.is_enveloped() => read_content(json, form),
        (None, Some(result)) => read_content(result.get().as_bytes(), form),
        (None, None) => {
            Err(wire_error::invalid_response("the server answered neither result nor error"))
        }
    }
}

fn read_content<A: ProtoJson>(json: &[u8], form: BodyFormat) -> Result<A, Failure> {
    match form {
        BodyFormat::V03(old) => read_bare(&old.upgraded(json)?),
        BodyFormat::Enveloped | BodyFormat::Bare => read_bare(json),
    }
}

fn read_bare<A: ProtoJson>(json: &[u8]) -> Result<A, Failure> {
    json::from_server(json).map_err(|e| {
        wire_error::invalid_response(format!("the server sent an invalid response: {e}"))
    })
}

/// `Retry-After`: seconds, or a date.
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_header_is_seconds_or_a_date() {
        let read = |text: &'static str| retry_after(&HeaderValue::from_static(text));
        assert_eq!(read(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert!(read("Fri, 31 Dec 9999 23:59:59 GMT") > Some(Duration::from_secs(1 << 30)));
        assert_eq!((read("soon"), read("-1")), (None, None));
    }
}
