//! Client of one agent: construction, whole tasks, and the single operations of A2A.

use std::sync::Arc;

use faultline_chassis::TraceContext;
use faultline_proto::{
    a2a::{
        AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse,
        ListTasksRequest, ListTasksResponse, Task, TaskPushNotificationConfig,
    },
    json::{self, ProtoJson},
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    Answer, Binding, Builder, Draft, Ended, Error, Events, Follow, Reconnect, Retry,
    api::{builder, calls::subscription},
    protocol::{
        operation,
        task_outcome::{Convert, is_final},
        wire_error,
    },
    transport::{bearer::Bearer, binding::Transport, call_limit::CallLimit, http::Http},
};

/// The role of the caller in spans.
pub(super) const ROLE: &str = "client";

/// A client of one agent, or of a server with several agents. Immutable and cheap to clone; clones
/// share connections, call limit and cached token.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) transport: Transport,
    pub(super) http: Http,
    /// The URL of the agent's server.
    pub(super) root: String,
    /// The tenant of requests that name none.
    pub(super) tenant: String,
    pub(super) headers: HeaderMap,
    pub(super) trace: Option<TraceContext>,
    /// Host and port for spans.
    pub(super) peer: Arc<(String, Option<u16>)>,
    pub(super) card: Option<Arc<AgentCard>>,
    pub(super) retry: Retry,
    pub(super) reconnect: Reconnect,
    pub(super) call_limit: CallLimit,
    pub(super) convert: Convert,
    pub(super) bearer: Bearer,
}

/// Construction.
impl Client {
    /// Reads the card of the agent at `url` and chooses an interface. The URL may be that of the
    /// card, of the agent or of its server.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A builder for a client of the agent at `url`.
    ///
    /// ```no_run
    /// # use faultline_client::{Binding, Client, Error, Retry};
    /// # async fn example(token: &str) -> Result<(), Error> {
    /// let agent = Client::builder("https://agents.example.org/agents/echo")
    ///     .bearer(token)
    ///     .ca("ca.pem")
    ///     .binding(Binding::Grpc)
    ///     .retry(Retry::never())
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A client for `url` by JSON-RPC and without a card. The first call connects.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).direct()
    }

    /// A client of another agent of the same faultline mesh, without its card.
    pub fn agent(&self, name: &str) -> Self {
        let mut client = self.clone();
        client.card = None;
        match &mut client.transport {
            Transport::JsonRpc { url, .. } | Transport::HttpJson { url, .. } => {
                *url = format!("{}/agents/{}", self.root, operation::segment(name));
            }
            Transport::Grpc(_) => name.clone_into(&mut client.tenant),
        }
        client
    }

    /// Requires an extension: an error before anything is sent, unless the agent's card lists it.
    pub fn require_extension(mut self, uri: &str) -> Result<Self, Error> {
        let capabilities = self.card.as_ref().and_then(|card| card.capabilities.as_ref());
        if !capabilities.is_some_and(|c| c.extensions.iter().any(|e| e.uri == uri)) {
            return Err(Error::ExtensionUnsupported { uri: uri.to_owned() });
        }
        builder::add_extension(&mut self.headers, uri);
        Ok(self)
    }

    /// Makes every call part of this trace.
    pub fn in_trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Sends this header with every call, in place of one of the same name.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The end of a task of this agent, unless the task completed or still runs; uses
    /// [`Builder::convert`].
    pub fn ended(&self, task: &Task) -> Option<Ended> {
        let ended = Ended::of(task)?;
        match self.convert.read(task).filter(|_| is_final(ended.how.state())) {
            Some(failure) => Some(Ended { failure, ..ended }),
            None => Some(ended),
        }
    }

    /// The agent's card, if the client was made from one.
    pub fn card(&self) -> Option<&AgentCard> {
        self.card.as_deref()
    }

    /// The binding of the calls.
    pub fn binding(&self) -> Binding {
        match self.transport {
            Transport::JsonRpc { .. } => Binding::JsonRpc,
            Transport::HttpJson { .. } => Binding::HttpJson,
            Transport::Grpc(_) => Binding::Grpc,
        }
    }

    /// Whether the agent streams events: true unless its card says otherwise.
    pub(super) fn streams(&self) -> bool {
        self.card.as_ref().is_none_or(|card| {
            card.capabilities.as_ref().is_some_and(|capabilities| capabilities.streaming())
        })
    }
}

/// Whole tasks.
impl Client {
    /// Sends a message and follows its task to the end. Returns the answer, or [`Error::Ended`]
    /// with the task if it failed, was rejected, was canceled or asks its caller a question.
    pub async fn run(&self, draft: impl Into<Draft>) -> Result<Answer, Error> {
        self.follow(draft).await?.finish().await
    }

    /// Follows a task to its end, through questions that other callers answer.
    pub async fn wait(&self, task_id: &str) -> Result<Answer, Error> {
        self.follow_task(task_id, None).finish_through_questions().await
    }

    /// Sends a message and returns the events of its task, each once, across reconnects. An agent
    /// without streaming is polled.
    pub async fn follow(&self, draft: impl Into<Draft>) -> Result<Follow, Error> {
        Follow::sent(self.clone(), draft.into().into()).await
    }

    /// The events of an existing task, each once, across reconnects: a snapshot and the events
    /// after it, or exactly the events after the event `after`.
    pub fn follow_task(&self, id: &str, after: Option<u64>) -> Follow {
        Follow::task(self.clone(), id, after)
    }

    /// The present state of the task.
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        self.get_task(GetTaskRequest { id: id.to_owned(), ..Default::default() }).await
    }

    /// Requests the cancellation of the task.
    pub async fn cancel(&self, id: &str) -> Result<Task, Error> {
        self.cancel_task(CancelTaskRequest { id: id.to_owned(), ..Default::default() }).await
    }
}

/// The operations of A2A.
impl Client {
    /// Starts or continues a task and waits until it ends or asks a question, on one connection,
    /// for [`Timeouts::read`](crate::Timeouts::read) at most; [`Draft::return_immediately`] does
    /// not wait. Use [`Client::run`] for longer tasks. A failed task is no error here;
    /// [`Answer::ok`] makes it one.
    pub async fn send(&self, draft: impl Into<Draft>) -> Result<Answer, Error> {
        let response = self.call(operation::send(draft.into().into())).await?;
        let empty =
            || wire_error::invalid_response("the server answered neither a task nor a message");
        Answer::read(response).ok_or_else(|| empty().into())
    }

    /// Like [`send`](Self::send), with the events of this one connection. [`Client::follow`]
    /// reconnects.
    pub async fn send_streaming(&self, draft: impl Into<Draft>) -> Result<Events, Error> {
        self.stream(operation::send_streaming(draft.into().into())).await
    }

    /// The present state of the task.
    pub async fn get_task(&self, request: GetTaskRequest) -> Result<Task, Error> {
        self.call(operation::get_task(request)).await
    }

    /// Tasks, the latest change first, in pages.
    pub async fn list_tasks(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        self.call(operation::list_tasks(request)).await
    }

    /// Requests the cancellation of the task.
    pub async fn cancel_task(&self, request: CancelTaskRequest) -> Result<Task, Error> {
        self.call(operation::cancel_task(request)).await
    }

    /// A snapshot of the task and its later events on this one connection; with `after`, and if the
    /// server numbers events, exactly the events after that one. [`Client::follow_task`]
    /// reconnects, and also follows a task of A2A 0.3, where a subscription has no snapshot.
    pub async fn subscribe(&self, id: &str, after: Option<u64>) -> Result<Events, Error> {
        self.stream(operation::subscribe(subscription(id), after)).await
    }

    /// Adds a webhook (push notification) to a task.
    pub async fn create_push_config(
        &self,
        config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig, Error> {
        self.call(operation::create_push(config)).await
    }

    /// One webhook of a task.
    pub async fn get_push_config(
        &self,
        request: GetTaskPushNotificationConfigRequest,
    ) -> Result<TaskPushNotificationConfig, Error> {
        self.call(operation::get_push(request)).await
    }

    /// The webhooks of a task, in pages.
    pub async fn list_push_configs(
        &self,
        request: ListTaskPushNotificationConfigsRequest,
    ) -> Result<ListTaskPushNotificationConfigsResponse, Error> {
        self.call(operation::list_pushes(request)).await
    }

    /// Removes a webhook. A webhook that does not exist counts as removed.
    pub async fn delete_push_config(
        &self,
        request: DeleteTaskPushNotificationConfigRequest,
    ) -> Result<(), Error> {
        self.call(operation::delete_push(request)).await
    }

    /// The card that the agent shows to authenticated callers.
    pub async fn extended_card(&self) -> Result<AgentCard, Error> {
        self.call(operation::extended_card()).await
    }

    /// Calls a method of the operators' service of a faultline mesh, `faultline.v1.Mesh`.
    pub async fn mesh<Q, A>(&self, method: &str, request: &Q) -> Result<A, Error>
    where
        Q: ProtoJson,
        A: ProtoJson,
    {
        let url = format!("{}/mesh/{}", self.root, operation::segment(method));
        self.post(url, json::to_vec(request).into()).await
    }
}
