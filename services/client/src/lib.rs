//! The A2A client: JSON-RPC over HTTP/1.1, errors as [`Failure`]s, streams that can be followed
//! through a restart of whatever serves them. It knows no service of the mesh, only the protocol.
//!
//! ```no_run
//! # async fn example() -> Result<(), faultline_proto::Failure> {
//! use faultline_client::{Client, text};
//!
//! let echo = Client::new("http://127.0.0.1:8080")?.agent("echo");
//! let mut events = echo.follow(text("hello")).await?;
//! while let Some(event) = events.next().await {
//!     println!("{:?}", event?.response);
//! }
//! # Ok(())
//! # }
//! ```

mod error;
mod events;
mod follow;
mod http;
mod outcome;
mod sse;

use std::time::Duration;

use faultline_chassis::TraceContext;
use faultline_proto::{
    Failure,
    a2a::{
        CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Message, Part,
        Role, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest, Task, part::Content,
    },
    json::ProtoJson,
};

pub use events::{Event, Events};
pub use follow::Follow;
pub use outcome::{failure_of, interrupt_of, is_final, is_waiting, text_of};

use crate::http::{Call, Transport};

/// Calls that only read or sign off take no longer than this; a send takes as long as its task.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Three missed keep-alives of a stream: it counts as broken.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// One A2A endpoint: the root of a server, or one of its agents. Cheap to clone; clones share
/// their connections.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    /// Where JSON-RPC is posted, below the server's address.
    path: String,
    trace: Option<TraceContext>,
}

impl Client {
    /// Prepares a client for the server at an `http://` address; the first call connects.
    pub fn new(url: &str) -> Result<Self, Failure> {
        Ok(Self { transport: Transport::new(url)?, path: String::new(), trace: None })
    }

    /// The same server, but one agent of it.
    pub fn agent(&self, name: &str) -> Self {
        Self { path: format!("/agents/{}", http::segment(name)), ..self.clone() }
    }

    /// Every call in this trace; otherwise each call starts one of its own.
    pub fn with_trace(self, trace: TraceContext) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// Starts a task or continues one, and waits until it ends or asks. Never repeated by itself.
    pub async fn send(&self, request: SendMessageRequest) -> Result<SendMessageResponse, Failure> {
        self.transport.call(self.rpc("SendMessage", &request)).await
    }

    /// The same, with each event as it happens.
    pub async fn send_streaming(&self, request: SendMessageRequest) -> Result<Events, Failure> {
        self.transport.stream(self.rpc("SendStreamingMessage", &request)).await
    }

    pub async fn get_task(&self, request: GetTaskRequest) -> Result<Task, Failure> {
        self.transport.call(self.rpc("GetTask", &request).within(ANSWER_TIMEOUT)).await
    }

    pub async fn list_tasks(
        &self,
        request: ListTasksRequest,
    ) -> Result<ListTasksResponse, Failure> {
        self.transport.call(self.rpc("ListTasks", &request).within(ANSWER_TIMEOUT)).await
    }

    pub async fn cancel_task(&self, request: CancelTaskRequest) -> Result<Task, Failure> {
        self.transport.call(self.rpc("CancelTask", &request).within(ANSWER_TIMEOUT)).await
    }

    /// The task as it stands and then its events; with `after` exactly the events after that one.
    pub async fn subscribe(&self, id: &str, after: Option<u64>) -> Result<Events, Failure> {
        let request = SubscribeToTaskRequest { id: id.to_owned(), ..Default::default() };
        let call = self.rpc("SubscribeToTask", &request).within(IDLE_TIMEOUT).after(after);
        self.transport.stream(call).await
    }

    /// [`Client::send_streaming`] that goes on after a break: every event once.
    pub async fn follow(&self, request: SendMessageRequest) -> Result<Follow, Failure> {
        Ok(Follow::sent(self.clone(), self.send_streaming(request).await?))
    }

    /// [`Client::subscribe`] that goes on after a break: every event once.
    pub fn follow_task(&self, id: &str, after: Option<u64>) -> Follow {
        Follow::task(self.clone(), id, after)
    }

    /// One method of the operators' service, `faultline.v1.Mesh`.
    pub async fn mesh<Q, A>(&self, method: &str, request: &Q) -> Result<A, Failure>
    where
        Q: ProtoJson,
        A: ProtoJson,
    {
        let path = format!("/mesh/{}", http::segment(method));
        let call = Call::plain(path, request, self.trace).within(ANSWER_TIMEOUT);
        self.transport.call(call).await
    }

    fn rpc(&self, method: &str, request: &impl ProtoJson) -> Call {
        Call::rpc(self.path.clone(), method, request, self.trace)
    }
}

/// The request that starts a task with one text.
pub fn text(text: impl Into<String>) -> SendMessageRequest {
    let part = Part { content: Some(Content::Text(text.into())), ..Part::default() };
    let message = Message {
        message_id: faultline_proto::id::TaskId::new().to_string(),
        role: Role::User as i32,
        parts: vec![part],
        ..Message::default()
    };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}
