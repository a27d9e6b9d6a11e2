//! The OTLP exporter of spans and log records, on a thread and a runtime of its own: a slow
//! collector delays no task. gRPC and http/protobuf carry the same bytes.

use std::{collections::BTreeMap, thread, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, TE, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout, timeout_at},
};
use tonic::Code;

use super::{
    export_queue::{Batch, ExportQueue},
    settings::{Protocol, Target},
    wire,
};
use crate::{
    backoff::Backoff,
    error_chain, limits,
    net::{
        dial::Connector,
        tls::{self, Trust},
    },
};

/// The pauses between two attempts to reach an unavailable collector.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const BACKOFF: Backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
/// Bytes read of a response.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The schema of the attribute names.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.42.0";
const USER: &str = concat!("OTel-OTLP-Exporter-faultline/", env!("CARGO_PKG_VERSION"));

/// A queue, and the target to which a thread exports it.
pub(super) struct Flow {
    pub(super) queue: &'static ExportQueue,
    pub(super) target: Target,
}

/// The exporter thread. It ends when its queues are closed and empty, or the flush timeout has
/// passed.
#[derive(Debug)]
pub(super) struct Exporter {
    queues: Vec<&'static ExportQueue>,
    over: oneshot::Receiver<()>,
}

impl Exporter {
    pub(super) fn start(
        flows: Vec<Flow>,
        resource: &BTreeMap<String, String>,
    ) -> Result<Self, tls::Error> {
        let queues = flows.iter().map(|flow| flow.queue).collect();
        let (done, over) = oneshot::channel();
        let couriers = flows.into_iter().map(|flow| BatchSender::new(flow, resource));
        let couriers = couriers.collect::<Result<Vec<_>, _>>()?;
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async {
                    futures::future::join_all(couriers.into_iter().map(BatchSender::run)).await;
                }),
                Err(error) => tracing::error!(%error, "telemetry export is off: no runtime"),
            }
            let _ = done.send(());
        };
        if let Err(error) = thread::Builder::new().name("otlp".to_owned()).spawn(work) {
            tracing::error!(%error, "telemetry export is off: no thread");
        }
        Ok(Self { queues, over })
    }

    /// Exports the waiting records, for a bounded time.
    pub(super) async fn finish(self) {
        self.queues.iter().for_each(|queue| queue.close());
        // The thread enforces its own timeout; this one is for a thread that hangs.
        let _ = timeout(limits::OTLP_FLUSH + Duration::from_secs(1), self.over).await;
    }
}

/// Exports the batches of one queue to one target. Owned by the exporter thread, which runs it
/// until its queue is closed and empty.
struct BatchSender {
    queue: &'static ExportQueue,
    target: Target,
    client: Client<Connector, Full<Bytes>>,
    /// The encoded resource, which precedes the records of every batch.
    resource: Vec<u8>,
    /// The collector is unavailable, and the log has it.
    outage_logged: bool,
    /// The end of the flush.
    end: Option<Instant>,
    lost: u64,
}

/// The result of an export.
enum ExportResult {
    Accepted,
    /// Accepted, except for this many records.
    PartlyAccepted(u64, String),
    /// To be retried, after the delay if the collector asked for one.
    Retry(String, Option<Duration>),
    Refused(String),
}

impl BatchSender {
    fn new(flow: Flow, resource: &BTreeMap<String, String>) -> Result<Self, tls::Error> {
        let Flow { queue, target } = flow;
        let connector = Connector::new(Trust::with_ca(target.ca.as_deref())?);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new());
        let client = match target.protocol {
            Protocol::Grpc => builder.http2_only(true).build(connector.http2_only()),
            Protocol::HttpProtobuf => builder.build(connector.http1_only()),
        };
        let mut head = Vec::new();
        wire::nested(&mut head, 1, |out| {
            for (key, value) in resource {
                wire::attribute(out, 1, key, value.into());
            }
        });
        Ok(Self { queue, target, client, resource: head, outage_logged: false, end: None, lost: 0 })
    }

    async fn run(mut self) {
        loop {
            if !self.queue.has_full() && !self.queue.is_closed() {
                let _ = timeout(self.target.delay, self.queue.ready.notified()).await;
            }
            // Read before the queue is emptied, so that no record from before the end is left
            // behind.
            let is_closed = self.queue.is_closed();
            while let Some(batch) = self.queue.take() {
                self.send_with_retries(batch).await;
                // A partial batch can wait for more records, unless the queue is closed.
                if !self.queue.has_full() && !is_closed {
                    break;
                }
            }
            if is_closed {
                return self.log_losses();
            }
        }
    }

    /// Retries until the batch is accepted or refused, or the flush timeout has passed.
    async fn send_with_retries(&mut self, batch: Batch) {
        let count = batch.count as u64;
        let body = self.wrap(&batch);
        let mut pauses = BACKOFF.start();
        loop {
            match self.post(body.clone()).await {
                ExportResult::Accepted => return self.log_recovery(),
                ExportResult::PartlyAccepted(refused, why) => {
                    self.lost += refused;
                    return self.log_outage(&why);
                }
                ExportResult::Refused(why) => {
                    self.lost += count;
                    return self.log_outage(&why);
                }
                ExportResult::Retry(why, after) => {
                    self.log_outage(&why);
                    if self.end.is_some_and(|end| end <= Instant::now()) {
                        self.lost += count;
                        return;
                    }
                    let asked = after.unwrap_or_default().min(PAUSE_MAX);
                    let wait = pauses.next_pause().max(asked);
                    tokio::select! {
                        () = sleep(wait) => {}
                        () = self.closing(), if self.end.is_none() => {}
                    }
                }
            }
        }
    }

    async fn closing(&self) {
        while !self.queue.is_closed() {
            self.queue.ready.notified().await;
        }
    }

    /// One attempt within the timeout of the target. During the flush all attempts share the
    /// remaining time, which is short for a collector that is known to be unavailable.
    async fn post(&mut self, body: Bytes) -> ExportResult {
        let patience = Instant::now() + self.target.timeout;
        if self.queue.is_closed() {
            let flush = if self.outage_logged { PAUSE_MIN } else { limits::OTLP_FLUSH };
            self.end.get_or_insert_with(|| Instant::now() + flush);
        }
        let until = self.end.map_or(patience, |end| end.min(patience));
        let asked = async {
            match self.client.request(self.request(body)).await {
                Ok(response) => self.read(response).await,
                Err(error) => ExportResult::Retry(error_chain::one_line(&error), None),
            }
        };
        match timeout_at(until, asked).await {
            Ok(answer) => answer,
            Err(_) => ExportResult::Retry("no answer in time".to_owned(), None),
        }
    }

    /// Frames a batch as a complete request. The records are copied once.
    fn wrap(&self, batch: &Batch) -> Bytes {
        let mut scope = Vec::new();
        wire::nested(&mut scope, 1, |out| {
            wire::bytes(out, 1, b"faultline");
            wire::bytes(out, 2, env!("CARGO_PKG_VERSION").as_bytes());
        });
        let mut schema = Vec::new();
        wire::bytes(&mut schema, 3, SCHEMA.as_bytes());
        // The bytes before the records, from the inside out.
        let scoped = scope.len() + batch.bytes.len() + schema.len();
        let list = length_prefix(2, scoped);
        let whole = self.resource.len() + list.len() + scoped + schema.len();
        let message = length_prefix(1, whole);
        let length = message.len() + whole;
        let mut out = BytesMut::with_capacity(length + 5);
        if self.target.protocol == Protocol::Grpc {
            out.put_u8(0);
            out.put_u32(length as u32);
        }
        for part in [&message, &self.resource, &list, &scope, &batch.bytes, &schema, &schema] {
            out.put_slice(part);
        }
        out.freeze()
    }

    fn request(&self, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.url.clone();
        let headers = request.headers_mut();
        headers.clone_from(&self.target.headers);
        headers.insert(USER_AGENT, HeaderValue::from_static(USER));
        let kind = match self.target.protocol {
            Protocol::Grpc => {
                headers.insert(TE, HeaderValue::from_static("trailers"));
                "application/grpc"
            }
            Protocol::HttpProtobuf => "application/x-protobuf",
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        request
    }

    async fn read(&self, response: Response<Incoming>) -> ExportResult {
        let (head, body) = response.into_parts();
        let (body, trailers) = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
            Ok(whole) => {
                let trailers = whole.trailers().cloned().unwrap_or_default();
                (whole.to_bytes(), trailers)
            }
            Err(error) => {
                return ExportResult::Retry(format!("the answer broke off: {error}"), None);
            }
        };
        let after = head.headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
        let after = after.map(Duration::from_secs);
        if head.status != StatusCode::OK {
            let why = format!("the collector answered HTTP {}", head.status);
            return match head.status.as_u16() {
                429 | 502 | 503 | 504 => ExportResult::Retry(why, after),
                _ => ExportResult::Refused(why),
            };
        }
        match self.target.protocol {
            Protocol::HttpProtobuf => accepted(&body),
            Protocol::Grpc => match grpc_status(&head.headers, &trailers) {
                Some((Code::Ok, _)) => accepted(body.get(5..).unwrap_or_default()),
                Some((code, why)) => {
                    let why = format!("the collector answered {code:?}: {why}");
                    if is_retryable(code) {
                        ExportResult::Retry(why, after)
                    } else {
                        ExportResult::Refused(why)
                    }
                }
                None => ExportResult::Refused("the collector does not speak gRPC".to_owned()),
            },
        }
    }

    // One line for each outage, however many records are lost.

    fn log_outage(&mut self, why: &str) {
        if !self.outage_logged {
            self.outage_logged = true;
            let what = self.target.signal.noun();
            let url = &self.target.url;
            let to = format!("{}://{}", url.scheme_str().unwrap_or("http"), host(url));
            tracing::warn!(to, why, "cannot export {what}; tasks are not affected");
        }
    }

    fn log_recovery(&mut self) {
        let dropped = self.queue.take_dropped();
        self.lost += dropped;
        if self.outage_logged || dropped > 0 {
            let what = self.target.signal.noun();
            let lost = std::mem::take(&mut self.lost);
            if self.outage_logged {
                tracing::info!(lost, "exporting {what} again")
            } else {
                tracing::warn!(lost, "export queue was full: dropped {what}")
            }
            self.outage_logged = false;
        }
    }

    fn log_losses(&mut self) {
        let lost = self.lost + self.queue.take_dropped();
        if lost > 0 {
            tracing::warn!(lost, "{} were lost before the exit", self.target.signal.noun());
        }
    }
}

fn host(url: &http::Uri) -> &str {
    url.authority().map_or("", |authority| authority.as_str().rsplit('@').next().unwrap_or(""))
}

/// The tag and length of a length-delimited field.
fn length_prefix(field: u32, bytes: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(10);
    wire::varint(&mut head, u64::from(field << 3 | 2));
    wire::varint(&mut head, bytes as u64);
    head
}

/// The gRPC status, from the headers of a response without a body, else from the trailers.
fn grpc_status(headers: &HeaderMap, trailers: &HeaderMap) -> Option<(Code, String)> {
    let text = |name: &str| {
        let value = headers.get(name).or_else(|| trailers.get(name))?;
        value.to_str().ok().map(str::to_owned)
    };
    let code = text("grpc-status")?.parse::<i32>().ok()?;
    Some((Code::from_i32(code), text("grpc-message").unwrap_or_default()))
}

/// The codes for which OTLP allows a retry.
fn is_retryable(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

/// The response to an export: the fields that matter.
#[derive(Clone, PartialEq, prost::Message)]
struct Exported {
    #[prost(message, optional, tag = "1")]
    partial: Option<Partial>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Partial {
    #[prost(int64, tag = "1")]
    rejected: i64,
    #[prost(string, tag = "2")]
    why: String,
}

fn accepted(body: &[u8]) -> ExportResult {
    let partial = <Exported as prost::Message>::decode(body).unwrap_or_default().partial;
    match partial.filter(|partial| partial.rejected > 0) {
        Some(partial) => ExportResult::PartlyAccepted(partial.rejected as u64, partial.why),
        None => ExportResult::Accepted,
    }
}
