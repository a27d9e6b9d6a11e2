//! A client of one agent: how it is made, the work of a task from start to end, and each operation
//! of A2A.

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

/// Who calls, as spans say it.
pub(super) const ROLE: &str = "client";

/// One agent, or a server with several. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) transport: Transport,
    pub(super) http: Http,
    /// The server that the agent is on.
    pub(super) root: String,
    /// In every request that names no other.
    pub(super) tenant: String,
    pub(super) headers: HeaderMap,
    pub(super) trace: Option<TraceContext>,
    /// Host and port, as spans name them.
    pub(super) peer: Arc<(String, Option<u16>)>,
    pub(super) card: Option<Arc<AgentCard>>,
    pub(super) retry: Retry,
    pub(super) reconnect: Reconnect,
    pub(super) call_limit: CallLimit,
    pub(super) convert: Convert,
    pub(super) bearer: Bearer,
}

/// How a client comes to be.
impl Client {
    /// Reads the card of the agent at `url` and chooses how to call it. The URL may be that of
    /// the card, of the agent or of its server.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A client of the agent at `url`, to be told more about.
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

    /// Calls `url` as it is, by JSON-RPC and without a card. The first call connects.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).direct()
    }

    /// Another agent of the same faultline mesh, without its card.
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

    /// With an extension that cannot be done without: an error, before anything is sent, unless
    /// the agent's card lists it.
    pub fn require_extension(mut self, uri: &str) -> Result<Self, Error> {
        let capabilities = self.card.as_ref().and_then(|card| card.capabilities.as_ref());
        if !capabilities.is_some_and(|c| c.extensions.iter().any(|e| e.uri == uri)) {
            return Err(Error::ExtensionUnsupported { uri: uri.to_owned() });
        }
        builder::add_extension(&mut self.headers, uri);
        Ok(self)
    }

    /// With this trace in every call, in place of another.
    pub fn in_trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// With this header in every call, in place of one of the same name.
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// How a task of this agent ended, unless it completed or still runs: as
    /// [`Builder::convert`] reads it, or as usual.
    pub fn ended(&self, task: &Task) -> Option<Ended> {
        let ended = Ended::of(task)?;
        match self.convert.read(task).filter(|_| is_final(ended.how.state())) {
            Some(failure) => Some(Ended { failure, ..ended }),
            None => Some(ended),
        }
    }

    /// The card that the agent was found by, if it was.
    pub fn card(&self) -> Option<&AgentCard> {
        self.card.as_deref()
    }

    /// What calls travel on.
    pub fn binding(&self) -> Binding {
        match self.transport {
            Transport::JsonRpc { .. } => Binding::JsonRpc,
            Transport::HttpJson { .. } => Binding::HttpJson,
            Transport::Grpc(_) => Binding::Grpc,
        }
    }

    /// The card does not say that there are no streams.
    pub(super) fn streams(&self) -> bool {
        self.card.as_ref().is_none_or(|card| {
            card.capabilities.as_ref().is_some_and(|capabilities| capabilities.streaming())
        })
    }
}

/// Work, start to end.
impl Client {
    /// Sends a message and follows its task to the end: what came of it, or how it ended
    /// otherwise, with all that was made until then. A question to the caller is such an end.
    pub async fn run(&self, draft: impl Into<Draft>) -> Result<Answer, Error> {
        self.follow(draft).await?.finish().await
    }

    /// Follows a task to its end, through questions that somebody else answers.
    pub async fn wait(&self, task_id: &str) -> Result<Answer, Error> {
        self.follow_task(task_id, None).finish_through_questions().await
    }

    /// Sends a message and gives each event of its task once, through breaks of the connection.
    /// Where the agent has no streams, its task is asked for.
    pub async fn follow(&self, draft: impl Into<Draft>) -> Result<Follow, Error> {
        Follow::sent(self.clone(), draft.into().into()).await
    }

    /// The events of a task that exists, each once, through breaks of the connection: the task as
    /// it stands and what follows, or exactly what follows the event `after`.
    pub fn follow_task(&self, id: &str, after: Option<u64>) -> Follow {
        Follow::task(self.clone(), id, after)
    }

    /// The task as it stands.
    pub async fn task(&self, id: &str) -> Result<Task, Error> {
        self.get_task(GetTaskRequest { id: id.to_owned(), ..Default::default() }).await
    }

    /// Asks the task to stop.
    pub async fn cancel(&self, id: &str) -> Result<Task, Error> {
        self.cancel_task(CancelTaskRequest { id: id.to_owned(), ..Default::default() }).await
    }
}

/// The operations of A2A, one by one.
impl Client {
    /// Starts a task or continues one, and waits until it ends or asks, on one connection: for
    /// [`Timeouts::read`] at most, unless the draft says [`Draft::return_immediately`]. What may
    /// take longer is for [`Client::run`]. A task that failed is no error here: [`Answer::ok`]
    /// makes it one.
    pub async fn send(&self, draft: impl Into<Draft>) -> Result<Answer, Error> {
        let response = self.call(operation::send(draft.into().into())).await?;
        let empty =
            || wire_error::invalid_response("the server answered neither a task nor a message");
        Answer::read(response).ok_or_else(|| empty().into())
    }

    /// The same, with each event of this one connection. [`Client::follow`] outlives it.
    pub async fn send_streaming(&self, draft: impl Into<Draft>) -> Result<Events, Error> {
        self.stream(operation::send_streaming(draft.into().into())).await
    }

    /// The task as it stands.
    pub async fn get_task(&self, request: GetTaskRequest) -> Result<Task, Error> {
        self.call(operation::get_task(request)).await
    }

    /// Tasks, the latest change first, a page at a time.
    pub async fn list_tasks(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        self.call(operation::list_tasks(request)).await
    }

    /// Asks the task to stop.
    pub async fn cancel_task(&self, request: CancelTaskRequest) -> Result<Task, Error> {
        self.call(operation::cancel_task(request)).await
    }

    /// The task as it stands and then its events on this one connection; with `after`, where the
    /// server numbers events, exactly those after that one. [`Client::follow_task`] outlives it,
    /// and follows a task of A2A 0.3 too, where a subscription does not show the task first.
    pub async fn subscribe(&self, id: &str, after: Option<u64>) -> Result<Events, Error> {
        self.stream(operation::subscribe(subscription(id), after)).await
    }

    /// Adds a webhook to a task.
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

    /// The webhooks of a task, a page at a time.
    pub async fn list_push_configs(
        &self,
        request: ListTaskPushNotificationConfigsRequest,
    ) -> Result<ListTaskPushNotificationConfigsResponse, Error> {
        self.call(operation::list_pushes(request)).await
    }

    /// Removes a webhook; one that is not there is removed already.
    pub async fn delete_push_config(
        &self,
        request: DeleteTaskPushNotificationConfigRequest,
    ) -> Result<(), Error> {
        self.call(operation::delete_push(request)).await
    }

    /// The card that the agent shows to callers it knows.
    pub async fn extended_card(&self) -> Result<AgentCard, Error> {
        self.call(operation::extended_card()).await
    }

    /// One method of the operators' service of a faultline mesh, `faultline.v1.Mesh`.
    pub async fn mesh<Q, A>(&self, method: &str, request: &Q) -> Result<A, Error>
    where
        Q: ProtoJson,
        A: ProtoJson,
    {
        let url = format!("{}/mesh/{}", self.root, operation::segment(method));
        self.post(url, json::to_vec(request).into()).await
    }
}
