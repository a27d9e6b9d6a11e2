//! The wire: one POST per call over kept-alive connections, and the envelope around what it
//! carries. Nothing is sent twice: a call whose fate is unknown is a failure that says so.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use faultline_chassis::{TraceContext, limits, trace::TRACEPARENT};
use faultline_proto::{
    Failure,
    json::{self, ProtoJson},
    reason,
};
use http::{
    Request, Response, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
    uri::Scheme,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use prost_types::Struct;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use crate::{
    error::{self, WireError},
    events::Events,
};

/// One answer, or one event of a stream: a whole task as JSON, where base64 and escapes make the
/// bytes longer than the mesh counted them.
pub(crate) const ANSWER_BYTES_MAX: usize = 2 * limits::TASK_ARTIFACT_BYTES_MAX;
/// Connections that wait for the next call.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// How long they wait; well below what servers and proxies allow.
const CONNECTION_IDLE: Duration = Duration::from_secs(30);
/// A host that is gone without a word is found by the kernel after three of these.
const TCP_KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub(crate) struct Transport {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    base: String,
}

impl Transport {
    pub(crate) fn new(url: &str) -> Result<Self, Failure> {
        let base = url.trim_end_matches('/').to_owned();
        let bad = |why: &str| {
            let message = format!("not an address to call: '{url}' ({why})");
            Failure::new(&reason::INVALID_ARGUMENT).because(message)
        };
        let uri: Uri = base.parse().map_err(|_| bad("say http://HOST:PORT"))?;
        match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => {}
            Some(scheme) if *scheme == Scheme::HTTPS => {
                return Err(bad("this client speaks plain HTTP; end TLS in a proxy"));
            }
            _ => return Err(bad("say http://HOST:PORT")),
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(limits::CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(TCP_KEEP_ALIVE));
        connector.set_keepalive_interval(Some(TCP_KEEP_ALIVE));
        connector.set_keepalive_retries(Some(3));
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(CONNECTION_IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Ok(Self { http, base })
    }

    pub(crate) async fn call<A: ProtoJson>(&self, call: Call) -> Result<A, Failure> {
        let enveloped = call.enveloped;
        let (status, body) = call
            .bounded(async {
                let response = self.post(&call, "application/json").await?;
                let status = response.status();
                Ok((status, whole(response.into_body()).await?))
            })
            .await?;
        read_answer(status, &body, enveloped)
    }

    pub(crate) async fn stream(&self, call: Call) -> Result<Events, Failure> {
        call.bounded(async {
            let response = self.post(&call, "text/event-stream").await?;
            let status = response.status();
            let kind = response.headers().get(CONTENT_TYPE);
            if kind.is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream")) {
                return Ok(Events::new(response.into_body()));
            }
            // A failure before the first event is no stream but a plain answer.
            let body = whole(response.into_body()).await?;
            match read_answer::<Struct>(status, &body, true) {
                Err(failure) => Err(failure),
                Ok(_) => Err(error::nonsense("the server answered a stream with one object")),
            }
        })
        .await
    }

    async fn post(&self, call: &Call, accept: &str) -> Result<Response<Incoming>, Failure> {
        let trace = call.trace.unwrap_or_else(TraceContext::root);
        let mut request = Request::post(format!("{}{}", self.base, call.path))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, accept)
            .header("a2a-version", "1.0")
            .header(TRACEPARENT, trace.to_string());
        if let Some(seq) = call.after {
            request = request.header("last-event-id", seq);
        }
        let request = request.body(Full::new(call.body.clone())).map_err(|error| {
            Failure::new(&reason::INVALID_ARGUMENT)
                .because("not a path")
                .privately(error.to_string())
        })?;
        self.http.request(request).await.map_err(|error| {
            let message = match error.is_connect() {
                true => "the server cannot be reached",
                false => "the connection to the server was lost",
            };
            error::transport(message, &error)
        })
    }
}

/// One request, ready to send.
pub(crate) struct Call {
    path: String,
    body: Bytes,
    /// In the envelope of JSON-RPC, and so is the answer.
    enveloped: bool,
    trace: Option<TraceContext>,
    patience: Option<Duration>,
    after: Option<u64>,
}

impl Call {
    pub(crate) fn rpc(
        path: String,
        method: &str,
        params: &impl ProtoJson,
        trace: Option<TraceContext>,
    ) -> Self {
        // One exchange carries one call, so its id has nothing to tell apart.
        let mut body = br#"{"jsonrpc":"2.0","id":1,"method":""#.to_vec();
        body.extend_from_slice(method.as_bytes());
        body.extend_from_slice(br#"","params":"#);
        json::write(params, &mut body);
        body.push(b'}');
        let body = body.into();
        Self { path, body, enveloped: true, trace, patience: None, after: None }
    }

    pub(crate) fn plain(
        path: String,
        request: &impl ProtoJson,
        trace: Option<TraceContext>,
    ) -> Self {
        let body = json::to_vec(request).into();
        Self { path, body, enveloped: false, trace, patience: None, after: None }
    }

    pub(crate) fn within(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    pub(crate) fn after(self, seq: Option<u64>) -> Self {
        Self { after: seq, ..self }
    }

    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let Some(patience) = self.patience else { return work.await };
        let silent = || error::lost(format!("the server was silent for {} s", patience.as_secs()));
        timeout(patience, work).await.unwrap_or_else(|_| Err(silent()))
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<WireError<'a>>,
}

/// What stands in the envelope: the result or the failure.
pub(crate) fn read_envelope<A: ProtoJson>(json: &[u8]) -> Result<A, Failure> {
    let envelope: Envelope<'_> = serde_json::from_slice(json)
        .map_err(|e| error::nonsense(format!("what answers there is no gateway: {e}")))?;
    match (envelope.error, envelope.result) {
        (Some(error), _) => Err(error.into_failure()),
        (None, Some(result)) => json::from_str(result.get())
            .map_err(|e| error::nonsense(format!("the server answered nonsense: {e}"))),
        (None, None) => Err(error::nonsense("the server answered neither result nor error")),
    }
}

fn read_answer<A: ProtoJson>(
    status: StatusCode,
    body: &[u8],
    enveloped: bool,
) -> Result<A, Failure> {
    let error = serde_json::from_slice::<Envelope<'_>>(body).ok().and_then(|e| e.error);
    match error {
        Some(error) => Err(error.into_failure()),
        None if !status.is_success() => Err(error::from_http(status)),
        None if enveloped => read_envelope(body),
        None => json::from_slice(body)
            .map_err(|e| error::nonsense(format!("the server answered nonsense: {e}"))),
    }
}

async fn whole(body: Incoming) -> Result<Bytes, Failure> {
    let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    collected.map(|body| body.to_bytes()).map_err(|error| {
        let error: &(dyn Error + 'static) = error.as_ref();
        error::transport("the answer broke off", error)
    })
}

/// A name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(byte.into()),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
