//! One call of a client: its headers and its place, and how often it is made.

use bytes::Bytes;
use faultline_chassis::{TraceContext, trace::TRACEPARENT};
use faultline_proto::{
    a2a::{GetTaskRequest, SendMessageRequest, SubscribeToTaskRequest, Task},
    json::ProtoJson,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::{
    Client,
    error::Error,
    events::Events,
    http::{Exchange, Form},
    operation::{self, Operation, Request},
    retry::Fault,
    transport,
};

/// Repeated as the policy says.
impl Client {
    pub(crate) async fn call<Q, A>(&self, operation: Operation<Q>) -> Result<A, Error>
    where
        Q: Request,
        A: transport::Answer,
    {
        // However often it is made, it is one call.
        let trace = self.trace();
        let call = || self.call_once(&operation, trace);
        Ok(self.retry.run(operation.repeatable, call).await?)
    }

    pub(crate) async fn stream<Q: Request>(
        &self,
        operation: Operation<Q>,
    ) -> Result<Events, Error> {
        let trace = self.trace();
        let call = || self.stream_once(&operation, trace);
        Ok(self.retry.run(operation.repeatable, call).await?)
    }
}

/// Made once; twice where a token has expired.
impl Client {
    async fn call_once<Q, A>(
        &self,
        operation: &Operation<Q>,
        trace: TraceContext,
    ) -> Result<A, Fault>
    where
        Q: Request,
        A: transport::Answer,
    {
        let call = || async {
            let headers = self.headers(operation, trace).await?;
            let _permit = self.pool.enter().await?;
            self.transport.call(operation.clone(), &self.tenant, headers).await
        };
        self.bearer.run(call).await
    }

    async fn stream_once<Q: Request>(
        &self,
        operation: &Operation<Q>,
        trace: TraceContext,
    ) -> Result<Events, Fault> {
        let call = || async {
            let headers = self.headers(operation, trace).await?;
            let permit = self.pool.enter().await?;
            let events = self.transport.stream(operation.clone(), &self.tenant, headers).await?;
            Ok(events.holding(permit))
        };
        self.bearer.run(call).await
    }

    pub(crate) async fn task_once(&self, id: &str) -> Result<Task, Fault> {
        let request = GetTaskRequest { id: id.to_owned(), ..Default::default() };
        self.call_once(&operation::get_task(request), self.trace()).await
    }

    pub(crate) async fn subscribe_once(
        &self,
        id: &str,
        after: Option<u64>,
    ) -> Result<Events, Fault> {
        let operation = operation::subscribe(subscription(id), after);
        self.stream_once(&operation, self.trace()).await
    }

    pub(crate) async fn send_streaming_once(
        &self,
        request: SendMessageRequest,
    ) -> Result<Events, Fault> {
        self.stream_once(&operation::send_streaming(request), self.trace()).await
    }

    /// A call that is no A2A, so it goes by the general name of JSON.
    pub(crate) async fn post<A: ProtoJson>(&self, url: String, body: Bytes) -> Result<A, Error> {
        let call = || async {
            let mut headers = self.traced(self.trace());
            self.bearer.put(&mut headers).await?;
            let (url, body) = (url.clone(), Some(body.clone()));
            let exchange =
                Exchange { verb: Method::POST, url, headers, body, form: Form::Enveloped };
            let _permit = self.pool.enter().await?;
            self.http.call(exchange).await?.read(Form::Bare, false)
        };
        Ok(self.bearer.run(call).await.map_err(|fault| fault.failure)?)
    }

    fn trace(&self) -> TraceContext {
        self.trace.unwrap_or_else(TraceContext::root)
    }

    fn traced(&self, trace: TraceContext) -> HeaderMap {
        let mut headers = self.headers.clone();
        put(&mut headers, TRACEPARENT, Some(&trace.to_string()));
        headers
    }

    async fn headers<Q>(
        &self,
        operation: &Operation<Q>,
        trace: TraceContext,
    ) -> Result<HeaderMap, Fault> {
        let mut headers = self.traced(trace);
        put(&mut headers, "idempotency-key", operation.idempotency_key.as_deref());
        let after = operation.after.map(|seq| seq.to_string());
        put(&mut headers, "last-event-id", after.as_deref());
        self.bearer.put(&mut headers).await?;
        Ok(headers)
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
