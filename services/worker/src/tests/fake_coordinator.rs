//! A fake coordinator: a real server on a free port that answers heartbeats and otherwise does only
//! the actions of the test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{self, a2a_service_server::A2aServiceServer},
    id::TaskId,
    v1::{self, from_worker, hub_server, report, to_worker},
};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use crate::tests::endpoint::{A2aEndpoint, SentMessage};
use crate::{Config, Offer, Service, ServiceError, Worker};
use faultline_chassis::Drain;

/// Awaits a future for 10 seconds at most.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.expect("nothing happened within 10 s")
}

/// A coordinator for one test: a real gRPC server that does what the test says.
pub(super) struct FakeCoordinator {
    pub(super) address: String,
    connections: mpsc::Receiver<Connection>,
    sent: mpsc::Receiver<SentMessage>,
    cancelled: mpsc::Receiver<String>,
    watched: mpsc::Sender<a2a::StreamResponse>,
    server: JoinHandle<()>,
}

impl FakeCoordinator {
    pub(super) async fn start() -> Self {
        Self::serve(None).await
    }

    pub(super) async fn refusing_attach(failure: Failure) -> Self {
        Self::serve(Some(failure)).await
    }

    async fn serve(refusal: Option<Failure>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (send, connections) = mpsc::channel(8);
        let service = hub_server::HubServer::new(HubService { connections: send, refusal })
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        let (sends, sent) = mpsc::channel(8);
        let (cancels, cancelled) = mpsc::channel(8);
        let (watched, frames) = mpsc::channel(8);
        let watches = Mutex::new(frames);
        let endpoint = A2aEndpoint { sent: sends, cancelled: cancels, watched: watches };
        let endpoint = A2aServiceServer::new(endpoint);
        let server = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let server = Server::builder().add_service(service).add_service(endpoint);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self { address, connections, sent, cancelled, watched, server }
    }

    /// The next message that an agent sends to another agent.
    pub(super) async fn sent(&mut self) -> SentMessage {
        soon(self.sent.recv()).await.unwrap()
    }

    /// The id of the next task that an agent cancels.
    pub(super) async fn cancelled(&mut self) -> String {
        soon(self.cancelled.recv()).await.unwrap()
    }

    /// Sends a snapshot of a task to its subscriber.
    pub(super) async fn show(&self, task: a2a::Task) {
        let payload = Some(a2a::stream_response::Payload::Task(task));
        self.watched.send(a2a::StreamResponse { payload }).await.unwrap();
    }

    /// The next connection of the worker, not yet welcomed.
    pub(super) async fn attached(&mut self) -> Connection {
        soon(self.connections.recv()).await.unwrap()
    }

    /// The next connection, welcomed with nothing to resume.
    pub(super) async fn welcomed(&mut self) -> Connection {
        let conn = self.attached().await;
        conn.welcome(v1::Welcome { heartbeat_ms: 500, ..v1::Welcome::default() }).await;
        conn
    }
}

impl Drop for FakeCoordinator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct HubService {
    connections: mpsc::Sender<Connection>,
    refusal: Option<Failure>,
}

#[tonic::async_trait]
impl hub_server::Hub for HubService {
    type AttachStream = ReceiverStream<Result<v1::ToWorker, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::FromWorker>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        if let Some(failure) = &self.refusal {
            return Err(failure.clone().into());
        }
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|m| m.body);
        let Some(from_worker::Body::Hello(hello)) = first else { panic!("no hello: {first:?}") };
        let (to, answers) = mpsc::channel(64);
        let (said, received) = mpsc::channel(64);
        let mute = Arc::new(AtomicBool::new(false));
        let conn = Connection { hello, received, to: to.clone(), mute: Arc::clone(&mute) };
        self.connections.send(conn).await.unwrap();
        let to = to.downgrade();
        tokio::spawn(async move {
            while let Ok(Some(message)) = incoming.message().await {
                match message.body.unwrap() {
                    from_worker::Body::Heartbeat(beat) => {
                        let Some(to) = to.upgrade() else { break };
                        let body = Some(to_worker::Body::Heartbeat(beat));
                        if !mute.load(Ordering::Relaxed) {
                            let _ = to.send(Ok(v1::ToWorker { body })).await;
                        }
                    }
                    body => {
                        if said.send(body).await.is_err() {
                            break;
                        }
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// The coordinator's end of one connection. Dropping it breaks the connection.
pub(super) struct Connection {
    pub(super) hello: v1::Hello,
    received: mpsc::Receiver<from_worker::Body>,
    to: mpsc::Sender<Result<v1::ToWorker, Status>>,
    mute: Arc<AtomicBool>,
}

impl Connection {
    pub(super) async fn send(&self, body: to_worker::Body) {
        soon(self.to.send(Ok(v1::ToWorker { body: Some(body) }))).await.unwrap();
    }

    pub(super) async fn welcome(&self, welcome: v1::Welcome) {
        self.send(to_worker::Body::Welcome(welcome)).await;
    }

    /// From now on nothing is answered, not even heartbeats.
    pub(super) fn fall_silent(&self) {
        self.mute.store(true, Ordering::Relaxed);
    }

    /// Assigns a new task.
    pub(super) async fn assign(&self, agent: &str, text: &str) -> Task {
        let task = Task { id: TaskId::new(), attempt: 1, agent: agent.into(), text: text.into() };
        self.send(to_worker::Body::Assign(task.assign())).await;
        task
    }

    pub(super) async fn ack(&self, task: &Task, number: u32) {
        let acks = v1::Acks { acks: vec![task.ack(number)] };
        self.send(to_worker::Body::Acks(acks)).await;
    }

    pub(super) async fn cancel(&self, task: &Task) {
        self.send(to_worker::Body::Cancel(v1::Cancel {
            task_id: task.id.to_string(),
            attempt: task.attempt,
            initiator: "user".into(),
        }))
        .await;
    }

    pub(super) async fn answer(&self, task: &Task, key: &str, text: &str) {
        self.send(to_worker::Body::Answer(v1::Answer {
            task_id: task.id.to_string(),
            attempt: task.attempt,
            key: key.into(),
            message: Some(user_message(text)),
            ..Default::default()
        }))
        .await;
    }

    /// The next message of the worker; `None`: the worker closed the connection.
    pub(super) async fn next(&mut self) -> Option<from_worker::Body> {
        soon(self.received.recv()).await
    }

    /// The next message, a slot update of `task`: whether the slot is released.
    pub(super) async fn slot_update(&mut self, task: &Task) -> bool {
        match self.next().await {
            Some(from_worker::Body::Slot(slot)) => {
                assert_eq!((slot.task_id, slot.attempt), (task.id.to_string(), task.attempt));
                slot.released
            }
            other => panic!("no slot: {other:?}"),
        }
    }

    pub(super) async fn grant_slot(&self, task: &Task) {
        let task_id = task.id.to_string();
        let attempt = task.attempt;
        self.send(to_worker::Body::GoOn(v1::GoOn { task_id, attempt })).await;
    }

    /// The reports of the next message.
    pub(super) async fn reports(&mut self) -> Vec<v1::Report> {
        match self.next().await {
            Some(from_worker::Body::Reports(reports)) => reports.reports,
            other => panic!("no reports: {other:?}"),
        }
    }

    /// All reports of `task`, acknowledged, up to the final one.
    pub(super) async fn until_final(&mut self, task: &Task) -> Vec<report::Body> {
        let mut bodies = Vec::new();
        loop {
            for report in self.reports().await {
                assert_eq!(report.task_id, task.id.to_string());
                assert_eq!(report.number as usize, bodies.len() + 1, "no gap, no repetition");
                bodies.push(report.body.unwrap());
            }
            self.ack(task, bodies.len() as u32).await;
            if bodies.last().is_some_and(is_final) {
                return bodies;
            }
        }
    }
}

pub(super) fn is_final(body: &report::Body) -> bool {
    use report::Body::*;
    matches!(body, Completed(_) | Failed(_) | Rejected(_) | Message(_) | Released(_) | Stopped(_))
}

/// A task of the fake coordinator.
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) attempt: u32,
    pub(super) agent: String,
    pub(super) text: String,
}

impl Task {
    pub(super) fn assign(&self) -> v1::Assign {
        v1::Assign {
            task_id: self.id.to_string(),
            context_id: "context".into(),
            agent: self.agent.clone(),
            attempt: self.attempt,
            message: Some(user_message(&self.text)),
            traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
            token: format!("token-{}", self.attempt),
            ..v1::Assign::default()
        }
    }

    pub(super) fn ack(&self, number: u32) -> v1::Ack {
        v1::Ack { task_id: self.id.to_string(), attempt: self.attempt, number }
    }

    pub(super) fn held(&self) -> v1::Held {
        v1::Held { task_id: self.id.to_string(), attempt: self.attempt, waits: false }
    }

    pub(super) fn successor(self) -> Self {
        Self { attempt: self.attempt + 1, ..self }
    }
}

pub(super) fn user_message(text: &str) -> a2a::Message {
    a2a::Message {
        message_id: "m".into(),
        role: a2a::Role::User as i32,
        parts: crate::Content::from(text).0,
        ..a2a::Message::default()
    }
}

/// A worker with both built-in agents and those of the test, attached to a fake coordinator.
pub(super) struct Harness {
    pub(super) coordinator: FakeCoordinator,
    pub(super) drain: Drain,
    running: JoinHandle<Result<(), ServiceError>>,
}

impl Harness {
    pub(super) async fn start(offers: Vec<Offer>) -> (Self, Connection) {
        Self::start_with(offers, |_| {}).await
    }

    pub(super) async fn start_with(
        offers: Vec<Offer>,
        change: impl FnOnce(&mut Service),
    ) -> (Self, Connection) {
        let mut coordinator = FakeCoordinator::start().await;
        let (drain, running) = start_worker(&coordinator, offers, change).await;
        let conn = coordinator.welcomed().await;
        (Self { coordinator, drain, running }, conn)
    }

    /// The result of the worker.
    pub(super) async fn ended(&mut self) -> Result<(), ServiceError> {
        soon(&mut self.running).await.unwrap()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub(super) async fn start_worker(
    coordinator: &FakeCoordinator,
    offers: Vec<Offer>,
    change: impl FnOnce(&mut Service),
) -> (Drain, JoinHandle<Result<(), ServiceError>>) {
    start_worker_at(coordinator.address.clone(), offers, change).await
}

/// Starts a worker with these coordinators.
pub(super) async fn start_worker_at(
    coordinator: String,
    offers: Vec<Offer>,
    change: impl FnOnce(&mut Service),
) -> (Drain, JoinHandle<Result<(), ServiceError>>) {
    let config = Config {
        coordinator,
        agents: vec!["echo".into(), "script".into()],
        drills: true,
        name: Some("test-worker".into()),
        ..Config::default()
    };
    let worker = offers.into_iter().fold(Worker::new(config), Worker::offer);
    let mut service = worker.bind().await.unwrap();
    change(&mut service);
    let drain = Drain::new();
    let running = tokio::spawn(service.run(drain.clone()));
    (drain, running)
}
