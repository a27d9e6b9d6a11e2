//! A fake coordinator: the text of a message is its command, it records every call, and its links
//! can be cut. It follows the link protocol: a frame only for credit.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use faultline_proto::{
    Failure,
    a2a::{
        AgentCard, ListTaskPushNotificationConfigsResponse, ListTasksResponse, Message,
        SendMessageRequest, SendMessageResponse, StreamResponse, Task, TaskPushNotificationConfig,
        TaskState, TaskStatus, part::Content, send_message_response, stream_response,
    },
    reason,
    v1::{
        self, ActivityResponse, Agent, AgentsResponse, Call, Deleted, End, EventsResponse,
        FailuresResponse, Frame, InspectResponse, OperatorAnswerRequest, OperatorCancelRequest,
        RemoveAgentResponse, Reply, Subscribe, TaskSummary, TasksResponse, WatchResponse, Worker,
        WorkersResponse, call,
        link_server::{Link, LinkServer},
        reply,
    },
};
use futures::{Stream, StreamExt};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{Request, Response, Status, Streaming};

use crate::soon;

/// The initial credit of a stream.
const CREDIT: u64 = faultline_chassis::limits::STREAM_CREDIT as u64;

/// The fake coordinator. It stops when it is dropped.
pub(crate) struct Fake {
    address: SocketAddr,
    part: Part,
    _server: AbortOnDropHandle<()>,
}

type Sender = mpsc::Sender<Result<Reply, Status>>;

/// State that all connections share.
#[derive(Clone, Default)]
struct Part {
    calls: Arc<watch::Sender<Vec<Call>>>,
    cut: Arc<Mutex<CancellationToken>>,
    down: Arc<AtomicBool>,
    /// The connected gateways.
    senders: Arc<Mutex<Vec<Sender>>>,
    /// The agents with their cards.
    agents: Arc<Mutex<Vec<Agent>>>,
}

impl Fake {
    pub(crate) async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let part = Part::default();
        let link = LinkServer::new(part.clone())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let server = tonic::transport::Server::builder().add_service(link);
        let server = server.serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(tokio::spawn(async move { server.await.unwrap() }));
        let fake = Self { address, part, _server: server };
        fake.offer(vec![agent("echo", true), agent("plan", false)]);
        fake
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn offer(&self, agents: Vec<Agent>) {
        *self.part.agents.lock().unwrap() = agents;
    }

    /// Ends every open link.
    pub(crate) fn cut(&self) {
        std::mem::take(&mut *self.part.cut.lock().unwrap()).cancel();
    }

    /// Ends every open link and accepts no more.
    pub(crate) fn go_down(&self) {
        self.part.down.store(true, Ordering::Relaxed);
        self.cut();
    }

    /// Sends a reply on every open link.
    pub(crate) fn say(&self, id: u64, body: reply::Body) {
        let mut senders = self.part.senders.lock().unwrap();
        senders.retain(|sender| !sender.is_closed());
        assert!(!senders.is_empty(), "no gateway is connected");
        for sender in senders.iter() {
            let reply = Reply { id, body: Some(body.clone()), extensions: Vec::new() };
            sender.try_send(Ok(reply)).unwrap();
        }
    }

    /// Waits until a gateway is connected.
    pub(crate) async fn until_connected(&self) {
        let connected = async {
            while !self.part.senders.lock().unwrap().iter().any(|sender| !sender.is_closed()) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        soon("a connection", connected).await;
    }

    /// Waits until no gateway is connected.
    pub(crate) async fn until_alone(&self) {
        while self.part.senders.lock().unwrap().iter().any(|sender| !sender.is_closed()) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// The recorded calls, without the link's own messages.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let mut calls = self.part.calls.borrow().clone();
        calls.retain(|call| call.caller.is_some());
        calls
    }

    /// Waits until the recorded calls meet a condition.
    pub(crate) async fn until(&self, what: &str, is: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        let mut calls = self.part.calls.subscribe();
        let calls = soon(what, calls.wait_for(|calls| is(calls))).await.unwrap();
        calls.clone()
    }

    /// The last recorded call, without the link's own messages.
    pub(crate) async fn last_call(&self) -> Call {
        let is_call =
            |c: &Call| !matches!(c.body, Some(call::Body::Credit(_) | call::Body::Drop(_)) | None);
        let calls = self.until("a call", |calls| calls.iter().any(is_call)).await;
        calls.into_iter().rfind(is_call).unwrap()
    }
}

pub(crate) fn agent(name: &str, is_default: bool) -> Agent {
    let card = AgentCard { name: name.to_owned(), ..AgentCard::default() };
    Agent { name: name.to_owned(), card: Some(card), is_default, ..Agent::default() }
}

pub(crate) fn drops(calls: &[Call]) -> usize {
    calls.iter().filter(|c| matches!(c.body, Some(call::Body::Drop(_)))).count()
}

#[tonic::async_trait]
impl Link for Part {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;

    async fn open(
        &self,
        request: Request<Streaming<Call>>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        if self.down.load(Ordering::Relaxed) {
            return Err(Failure::new(&reason::UNAVAILABLE).into());
        }
        let (sender, receiver) = mpsc::channel(100_000);
        let cut = self.cut.lock().unwrap().clone();
        let ended = cut.clone();
        self.senders.lock().unwrap().push(sender.clone());
        let part = self.clone();
        let streams = HashMap::new();
        let active = HashMap::new();
        let mut session = Session { part, sender, streams, active };
        let mut calls = request.into_inner();
        tokio::spawn(async move {
            let serve = async {
                while let Ok(Some(call)) = calls.message().await {
                    session.part.calls.send_modify(|all| all.push(call.clone()));
                    session.handle(call);
                }
            };
            cut.run_until_cancelled(serve).await;
        });
        let open = ReceiverStream::new(receiver).take_until(ended.cancelled_owned());
        Ok(Response::new(Box::pin(open)))
    }
}

/// One link of a gateway.
struct Session {
    part: Part,
    sender: Sender,
    streams: HashMap<u64, Events>,
    /// The active extensions for the first reply to a call.
    active: HashMap<u64, Vec<String>>,
}

/// A stream that counts from `next` to `last`.
struct Events {
    next: u64,
    last: u64,
    credit: u64,
    /// The approximate size of each frame.
    bytes: usize,
}

impl Session {
    fn reply(&mut self, id: u64, body: reply::Body) {
        let extensions = self.active.remove(&id).unwrap_or_default();
        drop(self.sender.try_send(Ok(Reply { id, body: Some(body), extensions })));
    }

    fn handle(&mut self, call: Call) {
        let id = call.id;
        let mut declared = call.caller.map(|caller| caller.extensions).unwrap_or_default();
        declared.retain(|uri| uri.contains("known"));
        self.active.insert(id, declared);
        match call.body.unwrap() {
            call::Body::Send(request) => self.send(id, &request),
            call::Body::Stream(request) => self.stream(id, &request),
            call::Body::Get(request) if request.id == "hang" => {}
            call::Body::Get(request) => {
                self.reply(id, reply::Body::Task(Box::new(task(&request.id))))
            }
            call::Body::Cancel(request) => {
                self.reply(
                    id,
                    failure(Failure::new(&reason::TASK_NOT_FOUND).with_task(request.id, "")),
                );
            }
            call::Body::List(_) => {
                self.reply(id, reply::Body::List(ListTasksResponse::default()));
            }
            call::Body::Subscribe(subscribe) if task_id_of(&subscribe) == "open" => {
                self.reply(id, frame(1));
            }
            call::Body::Subscribe(subscribe) => {
                let after = subscribe.after.unwrap_or(0);
                let next = after + 1;
                let last = after + 3;
                self.streams.insert(id, Events { next, last, credit: CREDIT, bytes: 0 });
            }
            call::Body::Wait(wait) if wait.task_id == "hang" => {}
            call::Body::Wait(wait) => {
                let payload = Some(send_message_response::Payload::Task(task(&wait.task_id)));
                self.reply(id, reply::Body::Sent(SendMessageResponse { payload }));
            }
            call::Body::Agents(request) => {
                let all = self.part.agents.lock().unwrap().clone();
                let meant = |a: &Agent| request.name.is_empty() || a.name == request.name;
                let agents = all.into_iter().filter(meant).collect();
                self.reply(id, reply::Body::Agents(AgentsResponse { agents }));
            }
            call::Body::Workers(_) => {
                let worker = Worker { name: "w-1".to_owned(), ..Worker::default() };
                let workers = vec![worker];
                self.reply(id, reply::Body::Workers(WorkersResponse { workers }));
            }
            call::Body::Inspect(request) if request.task_id.is_empty() => {
                self.reply(id, failure(Failure::new(&reason::TASK_NOT_FOUND)));
            }
            call::Body::Inspect(request) => {
                let task = Some(task(&request.task_id));
                let trace_id = "4bf9".repeat(8);
                let inspect = InspectResponse { task, trace_id, ..InspectResponse::default() };
                self.reply(id, reply::Body::Inspect(Box::new(inspect)));
            }
            call::Body::Tasks(_) => {
                let tasks = vec![TaskSummary { task_id: "t-1".to_owned(), ..Default::default() }];
                let tasks = TasksResponse { tasks, ..TasksResponse::default() };
                self.reply(id, reply::Body::Tasks(tasks));
            }
            call::Body::Events(_) => {
                self.reply(id, reply::Body::Events(EventsResponse::default()));
            }
            call::Body::Activity(_) => {
                self.reply(id, reply::Body::Activity(ActivityResponse::default()));
            }
            call::Body::Failures(_) => {
                self.reply(id, reply::Body::Failures(FailuresResponse::default()));
            }
            call::Body::OperatorCancel(OperatorCancelRequest { task_id, .. })
            | call::Body::OperatorAnswer(OperatorAnswerRequest { task_id, .. }) => {
                let task = Some(task(&task_id));
                let inspect = InspectResponse { task, ..InspectResponse::default() };
                self.reply(id, reply::Body::Inspect(Box::new(inspect)));
            }
            call::Body::Watch(request) => {
                let agent = request.filter.unwrap_or_default().agent;
                match agent.as_str() {
                    "refused" => self.reply(id, failure(rich())),
                    "silent" => {}
                    _ => {
                        let summary = TaskSummary { agent, ..TaskSummary::default() };
                        for tasks in [vec![], vec![summary]] {
                            let changed = Some(WatchResponse { tasks, ..Default::default() });
                            let frame = Frame { changed, ..Frame::default() };
                            self.reply(id, reply::Body::Frame(frame));
                        }
                        self.reply(id, failure(rich()));
                    }
                }
            }
            call::Body::CreatePush(mut config) => {
                config.id = "p-1".to_owned();
                self.reply(id, reply::Body::Push(Box::new(config)));
            }
            call::Body::GetPush(request) => {
                let config = TaskPushNotificationConfig {
                    id: request.id,
                    task_id: request.task_id,
                    url: "https://hook.example".to_owned(),
                    ..TaskPushNotificationConfig::default()
                };
                self.reply(id, reply::Body::Push(Box::new(config)));
            }
            call::Body::ListPush(request) => {
                let mut configs = ListTaskPushNotificationConfigsResponse::default();
                if request.task_id == "pushed" {
                    let id = "p-1".to_owned();
                    let task_id = request.task_id;
                    let first = TaskPushNotificationConfig { id, task_id, ..Default::default() };
                    configs.configs.push(first);
                }
                self.reply(id, reply::Body::Pushes(configs));
            }
            call::Body::DeletePush(_) => self.reply(id, reply::Body::Deleted(Deleted {})),
            call::Body::ExtendedCard(request) => {
                let card = AgentCard { name: request.tenant, ..AgentCard::default() };
                self.reply(id, reply::Body::Card(Box::new(card)));
            }
            call::Body::Credit(frames) => {
                if let Some(events) = self.streams.get_mut(&id) {
                    events.credit += u64::from(frames);
                }
            }
            // Acknowledges the drop like a coordinator.
            call::Body::Drop(_) => {
                self.streams.remove(&id);
                self.reply(id, reply::Body::End(End {}));
            }
            call::Body::RemoveAgent(_) => {
                self.reply(id, reply::Body::AgentRemoved(RemoveAgentResponse {}));
            }
        }
        self.pump(id);
    }

    fn send(&mut self, id: u64, request: &SendMessageRequest) {
        match words(request).as_slice() {
            ["hang", ..] => {}
            ["fail"] => self.reply(id, failure(rich())),
            ["error", name] => self.reply(id, failure(fixed(name))),
            ["unknown"] => {
                let mut record = Failure::new(&reason::UNAVAILABLE).into_record();
                record.reason = "FROM_THE_FUTURE".to_owned();
                self.reply(id, reply::Body::Failure(Box::new(record)));
            }
            ["mixup"] => self.reply(id, reply::Body::Workers(WorkersResponse::default())),
            ["message"] => {
                let message = Message { message_id: "m-2".to_owned(), ..Message::default() };
                let payload = Some(send_message_response::Payload::Message(message));
                self.reply(id, reply::Body::Sent(SendMessageResponse { payload }));
            }
            _ => {
                let payload = Some(send_message_response::Payload::Task(task(&request.tenant)));
                self.reply(id, reply::Body::Sent(SendMessageResponse { payload }));
            }
        }
    }

    fn stream(&mut self, id: u64, request: &SendMessageRequest) {
        match words(request).as_slice() {
            ["hang"] => {}
            ["fail"] => self.reply(id, failure(rich())),
            ["break"] => {
                self.reply(id, frame(1));
                self.reply(id, failure(rich()));
            }
            ["message"] => {
                self.reply(id, frame(0));
                self.reply(id, reply::Body::End(End {}));
            }
            ["flood", n] => {
                for seq in 1..=n.parse().unwrap() {
                    self.reply(id, frame(seq));
                }
            }
            ["open"] => self.reply(id, frame(1)),
            ["count", n] => {
                let last = n.parse().unwrap();
                self.streams.insert(id, Events { next: 1, last, credit: CREDIT, bytes: 0 });
            }
            ["count", n, bytes] => {
                let last = n.parse().unwrap();
                let bytes = bytes.parse().unwrap();
                self.streams.insert(id, Events { next: 1, last, credit: CREDIT, bytes });
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends as many frames as the credit allows.
    fn pump(&mut self, id: u64) {
        let Some(mut events) = self.streams.remove(&id) else { return };
        while events.credit > 0 && events.next <= events.last {
            self.reply(id, large_frame(events.next, events.bytes));
            events.next += 1;
            events.credit -= 1;
        }
        if events.next > events.last {
            self.reply(id, reply::Body::End(End {}));
        } else {
            self.streams.insert(id, events);
        }
    }
}

fn task_id_of(subscribe: &Subscribe) -> &str {
    subscribe.request.as_ref().map_or("", |request| &request.id)
}

fn words(request: &SendMessageRequest) -> Vec<&str> {
    match request.message.as_ref().and_then(|m| m.parts.first()).and_then(|p| p.content.as_ref()) {
        Some(Content::Text(text)) => text.split_whitespace().collect(),
        _ => Vec::new(),
    }
}

fn task(id: &str) -> Task {
    let status = TaskStatus { state: TaskState::Completed as i32, ..TaskStatus::default() };
    Task { id: id.to_owned(), status: Some(status), ..Task::default() }
}

pub(crate) fn frame(seq: u64) -> reply::Body {
    large_frame(seq, 0)
}

fn large_frame(seq: u64, bytes: usize) -> reply::Body {
    let status = TaskStatus { state: TaskState::Working as i32, ..TaskStatus::default() };
    let task = Task {
        id: format!("t-{seq}"),
        context_id: "c".repeat(bytes),
        status: Some(status),
        ..Task::default()
    };
    let payload = Some(stream_response::Payload::Task(task));
    let response = Some(StreamResponse { payload });
    reply::Body::Frame(Frame { seq, response, ..Frame::default() })
}

pub(crate) fn failure(failure: Failure) -> reply::Body {
    reply::Body::Failure(Box::new(failure.into_record()))
}

/// A failure with fixed ids, for byte comparisons.
fn fixed(name: &str) -> Failure {
    let failure = Failure::new(reason::named(name).unwrap()).with_trace("t", "s");
    Failure::from_record(v1::Failure {
        id: "f-1".to_owned(),
        time: None,
        origin: Some(v1::Origin { service: "fake".to_owned(), ..v1::Origin::default() }),
        ..failure.into_record()
    })
}

/// A failure with all fields set.
fn rich() -> Failure {
    Failure::new(&reason::RATE_LIMITED)
        .because("slow down")
        .with_business_code("40401")
        .with_retry_after(std::time::Duration::from_millis(1500))
        .with_violation("order.id", "missing")
        .with_trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
        .with_task("t-1", "c-1")
        .born_at(v1::Origin { agent: "code".to_owned(), ..v1::Origin::default() })
        .wrap("plan", "t-0", "c-1")
}
