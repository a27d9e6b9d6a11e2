//! The middle hop of the bare chain: A2A over gRPC towards the front, and the stream of an attached
//! back. It numbers calls, forwards them and keeps their waiters; it has no store and no tasks.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use faultline_chassis::{Drain, limits, process::print_ready_line, server};
use faultline_proto::{
    Failure,
    a2a::{
        Artifact, Message, SendMessageRequest, SendMessageResponse, StreamResponse, Task,
        TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
        a2a_service_server::A2aServiceServer, send_message_response, stream_response::Payload,
    },
    reason,
    v1::{
        Assign, Call, FromWorker, Reply, Report, ToWorker, call, from_worker,
        hub_server::{Hub, HubServer},
        link_server::{Link, LinkServer},
        reply, report, to_worker,
    },
};
use futures::{Stream, stream};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tonic::{Request, Response, Status, Streaming, service::Routes};

use crate::cmd::bench::roles::back::artifact;

mod a2a;

/// Bound on the frames that wait for one reader; a stream has fewer.
const FRAMES_MAX: usize = 8;

pub(crate) async fn serve(at_once: bool) -> anyhow::Result<()> {
    let middle = Middle(Arc::new(Shared { at_once, ..Shared::default() }));
    let router = Routes::new(A2aServiceServer::new(middle.clone()))
        .add_service(HubServer::new(middle.clone()))
        .add_service(LinkServer::new(middle))
        .prepare()
        .into_axum_router();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    print_ready_line(&format!("ready {}", listener.local_addr()?))?;
    server::serve(listener, router, Drain::new(), Duration::ZERO).await;
    Ok(())
}

#[derive(Clone)]
struct Middle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    at_once: bool,
    last_id: AtomicU64,
    back: Mutex<Option<mpsc::Sender<ToWorker>>>,
    waiting: Mutex<HashMap<String, Waiter>>,
}

enum Waiter {
    One(oneshot::Sender<Artifact>),
    Many(mpsc::Sender<Result<StreamResponse, Status>>),
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn boxed<T: Send + 'static>(mut receiver: mpsc::Receiver<Result<T, Status>>) -> Boxed<T> {
    Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)))
}

impl Middle {
    /// An id as long as those of the mesh, so that each hop transfers the same number of bytes.
    fn new_id(&self) -> String {
        format!("{:036}", self.0.last_id.fetch_add(1, Ordering::Relaxed))
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Waiter>> {
        self.0.waiting.lock()
    }

    async fn forward(&self, id: &str, message: Message, waiter: Waiter) -> Result<(), Status> {
        let back = self.0.back.lock().clone();
        let back = back.ok_or_else(not_attached)?;
        self.waiting().insert(id.to_owned(), waiter);
        let assign = Assign {
            task_id: id.to_owned(),
            context_id: id.to_owned(),
            agent: "echo".to_owned(),
            attempt: 1,
            message: Some(message),
            ..Assign::default()
        };
        let body = Some(to_worker::Body::Assign(assign));
        back.send(ToWorker { body }).await.map_err(|_| not_attached())
    }

    async fn send(&self, request: SendMessageRequest) -> Result<SendMessageResponse, Status> {
        let id = self.new_id();
        let message = request.message.unwrap_or_default();
        let artifact = if self.0.at_once {
            artifact(message.clone())
        } else {
            let (sender, receiver) = oneshot::channel();
            self.forward(&id, message.clone(), Waiter::One(sender)).await?;
            receiver.await.map_err(|_| not_attached())?
        };
        let task = task(id, message, TaskState::Completed, vec![artifact]);
        Ok(SendMessageResponse { payload: Some(send_message_response::Payload::Task(task)) })
    }

    async fn stream(&self, request: SendMessageRequest) -> Result<Boxed<StreamResponse>, Status> {
        let id = self.new_id();
        let message = request.message.unwrap_or_default();
        let (frames, receiver) = mpsc::channel(FRAMES_MAX);
        let task = task(id.clone(), message.clone(), TaskState::Submitted, Vec::new());
        put(&frames, Payload::Task(task));
        put(&frames, Payload::StatusUpdate(update(&id, TaskState::Working)));
        self.forward(&id, message, Waiter::Many(frames)).await?;
        Ok(boxed(receiver))
    }

    fn take(&self, report: Report) {
        let Report { task_id, body: Some(body), .. } = report else { return };
        let mut waiting = self.waiting();
        match body {
            report::Body::Artifact(chunk) => {
                let artifact = chunk.artifact.unwrap_or_default();
                match waiting.get(&task_id) {
                    Some(Waiter::Many(frames)) => {
                        let context_id = task_id.clone();
                        let event = TaskArtifactUpdateEvent {
                            task_id,
                            context_id,
                            artifact: Some(artifact),
                            last_chunk: chunk.last_chunk,
                            ..TaskArtifactUpdateEvent::default()
                        };
                        put(frames, Payload::ArtifactUpdate(event));
                    }
                    Some(Waiter::One(_)) => {
                        if let Some(Waiter::One(sender)) = waiting.remove(&task_id) {
                            let _ = sender.send(artifact);
                        }
                    }
                    None => {}
                }
            }
            report::Body::Completed(_) => {
                if let Some(Waiter::Many(frames)) = waiting.remove(&task_id) {
                    put(&frames, Payload::StatusUpdate(update(&task_id, TaskState::Completed)));
                }
            }
            _ => {}
        }
    }
}

/// Sends a frame. If the reader is gone, the load generator counts the failure.
fn put(frames: &mpsc::Sender<Result<StreamResponse, Status>>, payload: Payload) {
    let _ = frames.try_send(Ok(StreamResponse { payload: Some(payload) }));
}

fn not_attached() -> Status {
    Failure::new(&reason::UNAVAILABLE).because("no back is attached").into()
}

fn status(state: TaskState) -> Option<TaskStatus> {
    let timestamp = Some(SystemTime::now().into());
    Some(TaskStatus { state: state as i32, message: None, timestamp })
}

fn task(id: String, message: Message, state: TaskState, artifacts: Vec<Artifact>) -> Task {
    let message = Message { task_id: id.clone(), context_id: id.clone(), ..message };
    let context_id = id.clone();
    let history = vec![message];
    Task { id, context_id, status: status(state), artifacts, history, metadata: None }
}

fn update(id: &str, state: TaskState) -> TaskStatusUpdateEvent {
    let task_id = id.to_owned();
    let context_id = id.to_owned();
    TaskStatusUpdateEvent { task_id, context_id, status: status(state), metadata: None }
}

#[tonic::async_trait]
impl Hub for Middle {
    type AttachStream = Boxed<ToWorker>;

    async fn attach(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Boxed<ToWorker>>, Status> {
        let (sender, mut receiver) = mpsc::channel(limits::OUTBOX_MAX);
        *self.0.back.lock() = Some(sender);
        let middle = self.clone();
        let mut said = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(message)) = said.message().await {
                if let Some(from_worker::Body::Reports(reports)) = message.body {
                    reports.reports.into_iter().for_each(|report| middle.take(report));
                }
            }
        });
        let assigned = stream::poll_fn(move |cx| receiver.poll_recv(cx).map(|m| m.map(Ok)));
        Ok(Response::new(Box::pin(assigned)))
    }
}

#[tonic::async_trait]
impl Link for Middle {
    type OpenStream = Boxed<Reply>;

    /// Only for a middle that answers at once: calls are handled one after the other.
    async fn open(
        &self,
        request: Request<Streaming<Call>>,
    ) -> Result<Response<Boxed<Reply>>, Status> {
        let (replies, receiver) = mpsc::channel(limits::OUTBOX_MAX);
        let middle = self.clone();
        let mut calls = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(call)) = calls.message().await {
                let Some(call::Body::Send(request)) = call.body else { continue };
                let sent = middle.send(request).await.map(|sent| Reply {
                    id: call.id,
                    body: Some(reply::Body::Sent(sent)),
                    extensions: Vec::new(),
                });
                if replies.send(sent).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(boxed(receiver)))
    }
}
