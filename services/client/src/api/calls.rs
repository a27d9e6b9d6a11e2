//! One call of a client: headers, span, call limit, token and retries.

use bytes::Bytes;
use faultline_chassis::{TraceContext, telemetry::ClientSpan};
use faultline_proto::{
    a2a::{GetTaskRequest, SendMessageRequest, SubscribeToTaskRequest, Task},
    json::ProtoJson,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;

use crate::{
    Client,
    api::client::ROLE,
    api::error::Error,
    protocol::operation::{self, Operation, Request},
    transport::{
        binding::{self, Transport},
        events::Events,
        http::{BodyFormat, HttpRequest},
        retry::Fault,
    },
};

/// Calls with retries.
impl Client {
    pub(crate) async fn call<Q, A>(&self, operation: Operation<Q>) -> Result<A, Error>
    where
        Q: Request,
        A: binding::ResponseMessage,
    {
        // All repetitions belong to one call in the trace.
        let spans = self.spans();
        let call = || self.call_once(&operation, &spans);
        let keyed = operation.idempotency_key.is_some();
        Ok(self.retry.run(operation.repeatable, keyed, call).await?)
    }

    pub(crate) async fn stream<Q: Request>(
        &self,
        operation: Operation<Q>,
    ) -> Result<Events, Error> {
        let spans = self.spans();
        let call = || self.stream_once(&operation, &spans);
        let keyed = operation.idempotency_key.is_some();
        Ok(self.retry.run(operation.repeatable, keyed, call).await?)
    }
}

/// Calls without retries, except for one after an expired token.
impl Client {
    async fn call_once<Q, A>(&self, operation: &Operation<Q>, spans: &CallSpans) -> Result<A, Fault>
    where
        Q: Request,
        A: binding::ResponseMessage,
    {
        let call = || async {
            let _permit = self.call_limit.acquire().await?;
            let mut calling = spans.next(self, operation);
            let headers = self.headers(operation, calling.context()).await?;
            let answer = self.transport.call(operation.clone(), &self.tenant, headers).await;
            calling.ended(answer.as_ref().map(|_| None).map_err(|fault| &fault.failure));
            answer
        };
        self.bearer.run(call).await
    }

    async fn stream_once<Q: Request>(
        &self,
        operation: &Operation<Q>,
        spans: &CallSpans,
    ) -> Result<Events, Fault> {
        let call = || async {
            let permit = self.call_limit.acquire().await?;
            let mut calling = spans.next(self, operation);
            let headers = self.headers(operation, calling.context()).await?;
            match self.transport.stream(operation.clone(), &self.tenant, headers).await {
                Ok(events) => Ok(events.holding(permit, calling)),
                Err(fault) => {
                    calling.ended(Err(&fault.failure));
                    Err(fault)
                }
            }
        };
        self.bearer.run(call).await
    }

    pub(crate) async fn task_once(&self, id: &str) -> Result<Task, Fault> {
        let request = GetTaskRequest { id: id.to_owned(), ..Default::default() };
        self.call_once(&operation::get_task(request), &self.spans()).await
    }

    pub(crate) async fn subscribe_once(
        &self,
        id: &str,
        after: Option<u64>,
    ) -> Result<Events, Fault> {
        let operation = operation::subscribe(subscription(id), after);
        self.stream_once(&operation, &self.spans()).await
    }

    pub(crate) async fn send_streaming_once(
        &self,
        request: SendMessageRequest,
    ) -> Result<Events, Fault> {
        self.stream_once(&operation::send_streaming(request), &self.spans()).await
    }

    /// A call outside of A2A, with the media type `application/json`.
    pub(crate) async fn post<A: ProtoJson>(&self, url: String, body: Bytes) -> Result<A, Error> {
        let call = || async {
            let mut headers = self.traced(&self.parent().child());
            self.bearer.put(&mut headers).await?;
            let url = url.clone();
            let body = Some(body.clone());
            let exchange =
                HttpRequest { verb: Method::POST, url, headers, body, form: BodyFormat::Enveloped };
            let _permit = self.call_limit.acquire().await?;
            self.http.call(exchange).await?.read(BodyFormat::Bare, false)
        };
        Ok(self.bearer.run(call).await.map_err(|fault| fault.failure)?)
    }

    fn parent(&self) -> TraceContext {
        self.trace.clone().unwrap_or_else(TraceContext::begin)
    }

    fn spans(&self) -> CallSpans {
        CallSpans { parent: self.parent(), last: Mutex::default() }
    }

    fn traced(&self, trace: &TraceContext) -> HeaderMap {
        let mut headers = self.headers.clone();
        trace.inject(&mut headers);
        headers
    }

    async fn headers<Q>(
        &self,
        operation: &Operation<Q>,
        trace: &TraceContext,
    ) -> Result<HeaderMap, Fault> {
        let mut headers = self.traced(trace);
        put(&mut headers, "idempotency-key", operation.idempotency_key.as_deref());
        let after = operation.after.map(|seq| seq.to_string());
        put(&mut headers, "last-event-id", after.as_deref());
        self.bearer.put(&mut headers).await?;
        Ok(headers)
    }
}

/// The spans of one operation: all in one trace, each linked to the call that it repeats.
struct CallSpans {
    parent: TraceContext,
    last: Mutex<Option<TraceContext>>,
}

impl CallSpans {
    /// The span of the next call.
    fn next<Q>(&self, client: &Client, operation: &Operation<Q>) -> ClientSpan {
        let parent = &self.parent;
        let name = operation.name;
        let calling = match &client.transport {
            Transport::Grpc(_) => ClientSpan::begin(ROLE, name, parent),
            Transport::JsonRpc { .. } => ClientSpan::http(ROLE, "POST", name, parent),
            Transport::HttpJson { .. } => {
                ClientSpan::http(ROLE, operation.verb.as_str(), name, parent)
            }
        };
        let (host, port) = &*client.peer;
        let calling = calling.to(host, *port);
        let mut last = self.last.lock();
        let before = last.replace(calling.context().clone());
        calling.retry_of(before.as_ref())
    }
}

fn put(headers: &mut HeaderMap, name: &'static str, value: Option<&str>) {
    if let Some(value) = value.and_then(|v| HeaderValue::from_str(v).ok()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

pub(crate) fn subscription(id: &str) -> SubscribeToTaskRequest {
    SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() }
}
