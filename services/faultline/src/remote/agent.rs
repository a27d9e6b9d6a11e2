//! A remote agent as an agent of this mesh. Each local task has one remote task: its artifacts,
//! questions and outcome are copied to the local task, and a stop of the local task cancels it.

use std::{pin::pin, time::Duration};

use faultline_chassis::backoff::Backoff;
use faultline_client::{
    Client, Ended, Error as ClientError, Follow, a2a::stream_response::Payload,
};
use faultline_proto::{
    Failure,
    a2a::{Artifact, CancelTaskRequest, Message, SendMessageRequest, Task, TaskState, TaskStatus},
    reason,
};
use faultline_worker::{Agent, Context, Error};
use http::{HeaderName, HeaderValue};
use prost_types::{Value, value::Kind};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{OnceCell, watch},
    time::{sleep, timeout},
};
use tonic::Code;

use crate::remote::{
    config::{InvalidRemote, Remote},
    foreign_failure, keeps_keys,
    relay::{self, RemoteQuestion},
};

const IDEMPOTENCY_KEY: &str = "faultline.dev/idempotencyKey";
const IDEMPOTENCY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("faultline-timeout-ms");
/// How long a stopped task waits for the confirmation that the remote task was cancelled.
const STOP_CONFIRM_WAIT: Duration = Duration::from_millis(500);
/// How long a stopped task waits for the id of a remote task that is just being started.
const START_ID_WAIT: Duration = Duration::from_secs(1);
/// The number of attempts to cancel a remote task, and the pauses between them.
const STOP_CALLS: u32 = 5;
const STOP_PAUSE: Duration = Duration::from_millis(500);
const STOP_BACKOFF: Backoff = Backoff::new(STOP_PAUSE, Duration::from_secs(8)).without_jitter();
/// The number of retries of an answer that could not be delivered.
const ANSWERS_MAX: u32 = 3;
/// The pauses between polls of a remote task that asks: it may be answered by another party.
const POLL: Backoff =
    Backoff::new(Duration::from_millis(500), Duration::from_secs(15)).without_jitter();
/// A draining worker drops the futures of its agents within this time.
const DRAIN_DROP_WAIT: Duration = Duration::from_millis(20);

/// The adapter of one remote agent. The client is built on first use and kept for the life of the
/// worker.
pub(super) struct RemoteAgent {
    name: String,
    remote: Remote,
    client: OnceCell<Client>,
}

/// The checkpoint of a task: the remote task that a later attempt continues.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
struct RemotePosition {
    /// The id of the remote task; empty until it is known, and after that task has failed.
    task: String,
    /// The id of the remote context.
    context: String,
    /// The number of failed remote tasks; each further one has an idempotency key of its own.
    failed: u32,
}

impl RemoteAgent {
    pub(super) fn new(name: &str, remote: &Remote) -> Result<Self, InvalidRemote> {
        // A wrong configuration is an error before the agent is offered.
        let checked = remote.builder(name)?.direct();
        checked
            .map_err(|e| InvalidRemote::Unusable { name: name.to_owned(), source: Box::new(e) })?;
        Ok(Self { name: name.to_owned(), remote: remote.clone(), client: OnceCell::new() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The client, built from the agent's card on the first successful read.
    pub(super) async fn client(&self) -> Result<&Client, ClientError> {
        self.client
            .get_or_try_init(|| async {
                let builder = self.remote.builder(&self.name).expect("it was checked before");
                builder.connect().await
            })
            .await
    }

    fn failed(&self, error: ClientError) -> Error {
        foreign_failure::to_error(&self.name, self.peer(), error)
    }

    /// The name on the remote agent's card.
    fn peer(&self) -> &str {
        let card = self.client.get().and_then(Client::card);
        card.map_or("remote", |card| card.name.as_str())
    }
}

impl Agent for RemoteAgent {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        if cx.delivers_stop() && cx.restored().is_some() {
            return self.deliver_stop(cx).await;
        }
        let (known, mut seen) = watch::channel(RemotePosition::default());
        let mut work = pin!(self.work(cx, known));
        let ended = tokio::select! {
            biased;
            ended = &mut work => Some(ended),
            () = cx.cancelled() => None,
        };
        let is_over = match ended {
            Some(Err(error)) if error.is_stop() => true,
            Some(ended) => return ended,
            None => false,
        };
        // A draining worker hands the task back with its remote task, and drops this future here.
        sleep(DRAIN_DROP_WAIT).await;
        if !is_over {
            // A remote task that is just being started can be cancelled once its id is known.
            tokio::select! {
                _ = seen.wait_for(|place| !place.task.is_empty()) => {}
                _ = &mut work => {}
                () = sleep(START_ID_WAIT) => {}
            }
        }
        let task = Some(seen.borrow().task.clone()).filter(|id| !id.is_empty());
        if let (Some(task), Some(client)) = (task, self.client.get()) {
            let client = traced(client.clone(), cx);
            let stopping = tokio::spawn(stop(client, self.name.clone(), task));
            let _ = timeout(STOP_CONFIRM_WAIT, stopping).await;
        }
        cx.start().await
    }
}

impl RemoteAgent {
    /// Cancels the remote task of a local task that was stopped while no worker was attached. The
    /// mesh retries a failed delivery.
    async fn deliver_stop(&self, cx: &Context) -> Result<(), Error> {
        let place = restored(cx)?;
        if place.task.is_empty() {
            return Ok(());
        }
        let client = self.client().await.map_err(|error| self.failed(error))?;
        match traced(client.clone(), cx).cancel_task(stop_request(&place.task)).await {
            Err(error) if !is_already_ended(&error) => Err(self.failed(error)),
            _ => Ok(()),
        }
    }

    async fn work(&self, cx: &Context, known: watch::Sender<RemotePosition>) -> Result<(), Error> {
        let mut place = restored(cx)?;
        let client = self.client().await.map_err(|error| self.failed(error))?;
        let client = traced(client.clone(), cx);
        let follow = match place.task.as_str() {
            "" => self.start(cx, &client, &place).await,
            task => {
                known.send_replace(place.clone());
                Ok(client.follow_task(task, None))
            }
        };
        let follow = follow.map_err(|error| self.failed(error))?;
        let Err(ended) = self.follow(cx, &client, follow, &mut place, &known).await else {
            return Ok(());
        };
        // A further attempt needs a new remote task.
        let next =
            RemotePosition { task: String::new(), failed: place.failed + 1, ..place.clone() };
        Err(match ended {
            FollowEnd::RemoteEnded(ended) => {
                if !place.task.is_empty() {
                    cx.checkpoint(saved(&next)).await?;
                }
                self.failed(ended.into())
            }
            FollowEnd::CallFailed(error) if is_task_unknown(&error) && !place.task.is_empty() => {
                // A server that lost its tasks has also lost its contexts.
                cx.checkpoint(saved(&RemotePosition { context: String::new(), ..next })).await?;
                foreign_failure::task_lost(&self.name, self.peer())
            }
            FollowEnd::CallFailed(error) => {
                let broken = |failure: &Failure| failure.row() == &reason::INVALID_AGENT_RESPONSE;
                if error.failure().is_some_and(broken) {
                    self.abandon(client, place.task);
                }
                self.failed(error)
            }
            FollowEnd::InvalidEvent(failure) => {
                self.abandon(client, place.task);
                self.failed(failure.into())
            }
            FollowEnd::Local(error) => error,
        })
    }

    /// Cancels a remote task that can no longer be followed, in the background.
    fn abandon(&self, client: Client, task: String) {
        if !task.is_empty() {
            tokio::spawn(stop(client, self.name.clone(), task));
        }
    }

    async fn start(
        &self,
        cx: &Context,
        client: &Client,
        place: &RemotePosition,
    ) -> Result<Follow, ClientError> {
        let key = match place.failed {
            0 => cx.task_id().to_string(),
            failed => format!("{}.{failed}", cx.task_id()),
        };
        let mut request = relay::request(cx.message(), &place.context, cx.remaining());
        let mut sender = client.clone();
        if let Ok(key) = HeaderValue::from_str(&key) {
            sender = sender.with_header(IDEMPOTENCY_HEADER, key);
        }
        if let Some(left) = cx.remaining() {
            sender = sender.with_header(TIMEOUT_HEADER, (left.as_millis() as u64).into());
        }
        // The metadata key makes the client retry, which is safe only if the server stores keys;
        // for other servers the header is a hint.
        if keeps_keys(client) {
            let metadata = request.metadata.get_or_insert_default();
            let key = Value { kind: Some(Kind::StringValue(key)) };
            metadata.fields.insert(IDEMPOTENCY_KEY.to_owned(), key);
        }
        Ok(sender.follow(request).await?.through(client.clone()))
    }

    /// Follows the remote task to its end, including its questions.
    async fn follow(
        &self,
        cx: &Context,
        client: &Client,
        mut follow: Follow,
        place: &mut RemotePosition,
        known: &watch::Sender<RemotePosition>,
    ) -> Result<(), FollowEnd> {
        let mut undelivered = 0;
        loop {
            self.copy(cx, &mut follow, place, known).await?;
            let task = follow.task_so_far();
            if let Some(asked) = RemoteQuestion::of(task) {
                let answer = self.ask(cx, client, task, &asked).await?;
                let given = match answer {
                    Some(answer) => follow.answer(answer).await,
                    // The remote task continued without this answer.
                    None => {
                        follow = client.follow_task(&place.task, None);
                        Ok(())
                    }
                };
                match given {
                    Ok(()) => undelivered = 0,
                    Err(error) if is_transient(&error) && undelivered < ANSWERS_MAX => {
                        undelivered += 1;
                        cx.sleep(STOP_PAUSE * undelivered).await?;
                        follow = client.follow_task(&place.task, None);
                    }
                    Err(error) => return Err(FollowEnd::CallFailed(error)),
                }
                continue;
            }
            return match client.ended(task) {
                Some(ended) => Err(FollowEnd::RemoteEnded(ended)),
                None => Ok(()),
            };
        }
    }

    /// Copies the events of the remote task to the local task until it ends or asks.
    async fn copy(
        &self,
        cx: &Context,
        follow: &mut Follow,
        place: &mut RemotePosition,
        known: &watch::Sender<RemotePosition>,
    ) -> Result<(), FollowEnd> {
        while let Some(event) = follow.next().await {
            let event = event.map_err(FollowEnd::CallFailed)?;
            let checked = relay::check(&event.response);
            let task = &follow.task_so_far().id;
            let context = &follow.task_so_far().context_id;
            if place.task.is_empty() && !task.is_empty() {
                place.task.clone_from(task);
                place.context.clone_from(context);
                known.send_replace(place.clone());
                cx.checkpoint(saved(place)).await?;
            }
            checked.map_err(FollowEnd::InvalidEvent)?;
            let status = match event.response.payload {
                Some(Payload::Message(message)) => {
                    cx.reply(relay::parts(&message)).await?;
                    None
                }
                Some(Payload::Task(Task { artifacts, status, .. })) => {
                    for artifact in artifacts {
                        relay_artifact(cx, artifact, false, true).await?;
                    }
                    status
                }
                Some(Payload::ArtifactUpdate(update)) => {
                    if let Some(artifact) = update.artifact {
                        relay_artifact(cx, artifact, update.append, update.last_chunk).await?;
                    }
                    None
                }
                Some(Payload::StatusUpdate(update)) => update.status,
                None => None,
            };
            match status.and_then(said) {
                Some((TaskState::Completed, message)) => cx.reply(relay::parts(&message)).await?,
                Some((TaskState::Working, message)) => cx.status(relay::parts(&message)).await?,
                _ => {}
            }
            if follow.asks() {
                break;
            }
        }
        Ok(())
    }

    /// Asks the question in this mesh and returns the answer; `None` if the remote question was
    /// closed meanwhile.
    async fn ask(
        &self,
        cx: &Context,
        client: &Client,
        task: &Task,
        asked: &RemoteQuestion,
    ) -> Result<Option<SendMessageRequest>, FollowEnd> {
        tokio::select! {
            biased;
            answer = cx.ask(asked.question()) => Ok(Some(asked.answer(answer?.message()))),
            () = until_question_closed(client, &task.id, asked) => {
                // Withdraws the local question.
                cx.start().await?;
                Ok(None)
            }
        }
    }
}

/// The reason for which following ended without success.
enum FollowEnd {
    /// The remote task did not complete.
    RemoteEnded(Ended),
    /// A call to the remote server failed.
    CallFailed(ClientError),
    /// The remote task sent an event that is not valid A2A.
    InvalidEvent(Failure),
    /// The local task has to stop, or rejected an artifact of the remote task.
    Local(Error),
}

impl From<Error> for FollowEnd {
    fn from(error: Error) -> Self {
        FollowEnd::Local(error)
    }
}

fn traced(client: Client, cx: &Context) -> Client {
    client.in_trace(cx.trace())
}

fn restored(cx: &Context) -> Result<RemotePosition, Error> {
    let Some(bytes) = cx.restored() else { return Ok(RemotePosition::default()) };
    serde_json::from_slice(bytes).map_err(|error| {
        let text = "the checkpoint of an earlier attempt cannot be read";
        Error::new(&reason::DATA_LOSS).because(text).caused_by(error)
    })
}

fn saved(place: &RemotePosition) -> Vec<u8> {
    serde_json::to_vec(place).expect("strings and a number are JSON")
}

fn said(status: TaskStatus) -> Option<(TaskState, Message)> {
    let state = status.state();
    status.message.filter(|message| !message.parts.is_empty()).map(|message| (state, message))
}

async fn relay_artifact(
    cx: &Context,
    artifact: Artifact,
    append: bool,
    last: bool,
) -> Result<(), Error> {
    let pieces = relay::pieces(artifact);
    let count = pieces.len();
    for (at, piece) in pieces.into_iter().enumerate() {
        cx.relay(piece, append || at > 0, last && at + 1 == count).await?;
    }
    Ok(())
}

/// Polls until the remote task no longer asks this question.
async fn until_question_closed(client: &Client, task: &str, asked: &RemoteQuestion) {
    let mut pauses = POLL.start();
    loop {
        sleep(pauses.next_pause()).await;
        match client.task(task).await {
            Ok(task) if RemoteQuestion::of(&task).is_none_or(|now| now.id != asked.id) => return,
            Ok(_) => {}
            // A permanent error will be reported by the next call that follows the task.
            Err(error) if !is_transient(&error) => return,
            Err(_) => {}
        }
    }
}

/// Whether the call may succeed later. A task that was answered by another party counts as well.
fn is_transient(error: &ClientError) -> bool {
    let answered_by_another = |error: &ClientError| {
        error.failure().is_some_and(|f| f.row() == &reason::UNSUPPORTED_OPERATION)
    };
    error.failure().is_some_and(|failure| failure.may_retry()) || answered_by_another(error)
}

/// Whether the remote server does not know the task.
fn is_task_unknown(error: &ClientError) -> bool {
    error.failure().is_some_and(|failure| failure.code() == Code::NotFound)
}

/// Whether the remote task has ended already.
fn is_already_ended(error: &ClientError) -> bool {
    let over = [&reason::TASK_NOT_CANCELABLE, &reason::TASK_NOT_FOUND];
    error.failure().is_some_and(|failure| over.contains(&failure.row()))
}

fn stop_request(task: &str) -> CancelTaskRequest {
    let metadata = Some(relay::cancel());
    CancelTaskRequest { id: task.to_owned(), metadata, ..CancelTaskRequest::default() }
}

/// Cancels the remote task, with exponential backoff between attempts.
async fn stop(client: Client, agent: String, task: String) {
    let mut pauses = STOP_BACKOFF.start();
    for call in 1..=STOP_CALLS {
        let Err(error) = client.cancel_task(stop_request(&task)).await else { return };
        if is_already_ended(&error) {
            return;
        }
        let passes = error.failure().is_some_and(|failure| failure.may_retry());
        if !passes || call == STOP_CALLS {
            let text = "a remote task could not be cancelled: it may still be running";
            tracing::warn!(agent, remote.task = task, calls = call, %error, "{text}");
            return;
        }
        sleep(pauses.next_pause()).await;
    }
}
