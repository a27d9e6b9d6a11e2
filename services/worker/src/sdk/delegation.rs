//! Delegation of work to another agent of the mesh: an A2A call to the coordinator with the token
//! of the calling attempt, so that the coordinator knows parent and child. The key of a delegation
//! is an idempotency key: the same call with the same key finds the same child task.

use std::{sync::Arc, time::Duration};

use faultline_chassis::{
    TraceContext,
    backoff::Backoff,
    client::Channel,
    limits,
    telemetry::ClientSpan,
    trace::{TRACEPARENT, TRACESTATE},
};
use faultline_proto::{
    Failure,
    a2a::{self, TaskState, a2a_service_client::A2aServiceClient, send_message_response},
    answer,
    disposition::RUN_ERROR,
    reason,
    v1::{AnswerAction, Interrupt, Origin},
};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tonic::{
    Code, Request, Response, Status,
    metadata::{Ascii, MetadataValue},
};

use crate::{
    Answer, Child, Content, Context, Error, Outcome, OutcomeCall,
    sdk::{
        content::{check_message, text_of, text_parts},
        question_relay::{Hook, QuestionRelay},
    },
};

/// Header: the token of the calling attempt.
const TASK: &str = "faultline-task";
/// Header: the key of the child (idempotency key).
const KEY: &str = "faultline-key";
/// Header: the child outlives its parent.
const DETACHED: &str = "faultline-detached";

/// Backoff between repeated calls and polls of a child.
pub(crate) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// The longest `retry_after` delay for which a rejected call is repeated.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Limit for the cancellation of a child that is no longer needed.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Work for another agent, made by [`Context::delegate`]. Awaiting it sends the work and waits for
/// the end. Dropping the future, for example after a timeout, leaves the child running: the child
/// ends with this task, and its key finds it until then.
///
/// ```
/// # use faultline_worker::{Context, Error};
/// # async fn run(cx: &Context) -> Result<(), Error> {
/// let (weather, news) = tokio::try_join!(
///     cx.delegate("weather", "Bern").key("weather"),
///     cx.delegate("news", "Bern").key("news"),
/// )?;
/// cx.artifact("briefing", format!("{}\n{}", weather.text(), news.text())).await
/// # }
/// ```
#[must_use = "nothing is sent until it is awaited"]
pub struct Delegation<'a> {
    pub(crate) cx: &'a Context,
    agent: String,
    content: Content,
    key: Option<String>,
    task_id: String,
    /// The question that the content answers; empty: the oldest.
    question: String,
    detached: bool,
    hook: Option<Hook<'a>>,
}

impl<'a> Delegation<'a> {
    pub(crate) fn new(cx: &'a Context, agent: String, content: Content) -> Self {
        let task_id = String::new();
        let question = String::new();
        Self { cx, agent, content, key: None, task_id, question, detached: false, hook: None }
    }

    /// Names the child within its parent, in visible ASCII. The same key in a later attempt finds
    /// the same child. Without a key, delegations are numbered; give keys when their order may
    /// change.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The child continues when this task ends. Without this it is cancelled with its parent.
    pub fn detached(self) -> Self {
        Self { detached: true, ..self }
    }

    /// Continues a task that was delegated earlier and has an open question: the content is the
    /// answer.
    pub fn to_task(self, task_id: impl Into<String>) -> Self {
        Self { task_id: task_id.into(), ..self }
    }

    /// Answers the question of this outcome and no other. Fails if another answer came first.
    pub fn answering(self, asked: &Outcome) -> Self {
        Self { task_id: asked.task_id.clone(), question: asked.question.clone(), ..self }
    }

    /// Returns the end of the other task as text for a language model (a loop of a model and its
    /// tools).
    pub fn outcome(self) -> OutcomeCall<'a> {
        OutcomeCall::new(self)
    }

    /// Answers questions of the child inside this agent: `hook` sees each question first. With
    /// `None`, or an answer that does not match the schema, the question goes to the caller of this
    /// task, as all questions do without a hook. After a crash the same question may be asked
    /// again.
    ///
    /// ```
    /// # use faultline_worker::{Answer, Context, Error};
    /// # async fn run(cx: &Context) -> Result<(), Error> {
    /// let built = cx.delegate("builder", "release 1.2").answer_with(async |question| {
    ///     question.prompt.contains("branch").then(|| Answer::new("main"))
    /// });
    /// cx.reply(built.await?.text()).await
    /// # }
    /// ```
    pub fn answer_with<F, A>(self, hook: F) -> Self
    where
        F: Fn(Interrupt) -> A + Send + Sync + 'a,
        A: Future<Output = Option<Answer>> + Send + 'a,
    {
        Self { hook: Some(Arc::new(move |question| Box::pin(hook(question)))), ..self }
    }

    /// Sends the work and returns once it is stored, without waiting for its end.
    pub async fn start(mut self) -> Result<Child<'a>, Error> {
        let key = self.take_key();
        Child::start(Call::new(self, key)?).await
    }

    /// The given key, or the next ordinal.
    pub(crate) fn take_key(&mut self) -> String {
        let given = self.key.take();
        given.unwrap_or_else(|| self.cx.attempt_state().next_delegation("delegate"))
    }

    async fn run(self, key: String) -> Result<Delegated, Error> {
        Call::new(self, key)?.wait_without_slot().await
    }
}

impl<'a> IntoFuture for Delegation<'a> {
    type Output = Result<Delegated, Error>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        let key = self.take_key();
        Box::pin(self.run(key))
    }
}

/// The result of another agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Delegated(pub(crate) a2a::Task);

impl Delegated {
    /// The id of the task; empty if the agent answered with a bare message.
    pub fn task_id(&self) -> &str {
        &self.0.id
    }

    /// The artifacts of the task.
    pub fn artifacts(&self) -> &[a2a::Artifact] {
        &self.0.artifacts
    }

    /// The final message, if there is one.
    pub fn message(&self) -> Option<&a2a::Message> {
        self.0.status.as_ref()?.message.as_ref()
    }

    /// The text of all artifacts, joined by line breaks, or that of the message without artifacts.
    /// The pieces of one artifact are joined without a break.
    pub fn text(&self) -> String {
        let artifacts = self.0.artifacts.iter();
        let artifacts = artifacts.map(|a| text_parts(&a.parts).collect::<String>());
        let written: Vec<_> = artifacts.filter(|text| !text.is_empty()).collect();
        if written.is_empty() {
            self.message().map(text_of).unwrap_or_default().into_owned()
        } else {
            written.join("\n")
        }
    }
}

/// The calls of one delegation to the coordinator. Lives as long as the delegation is awaited.
pub(crate) struct Call<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) agent: String,
    pub(crate) key: String,
    key_value: MetadataValue<Ascii>,
    pub(crate) message: a2a::Message,
    /// Headers of every call.
    metadata: Vec<(&'static str, MetadataValue<Ascii>)>,
    /// Sees the questions of the child first.
    pub(crate) hook: Option<Hook<'a>>,
    /// Questions of the child are asked by this task; otherwise they are returned to the agent.
    relays_questions: bool,
    /// Questions that were answered here after the child had received another answer.
    superseded: Mutex<Vec<String>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(delegation: Delegation<'a>, key: String) -> Result<Self, Error> {
        let Delegation { cx, agent, content, task_id, question, detached, hook, .. } = delegation;
        let attempt = cx.attempt_state();
        if attempt.token.is_empty() {
            let text = "the coordinator accepts no delegations: it is older than this worker";
            return Err(Error::new(&reason::UNIMPLEMENTED).because(text));
        }
        let key_value = ascii_value("the key of a delegation", &key)?;
        let mut metadata = vec![(TASK, ascii_value("the token", &attempt.token)?)];
        if detached {
            metadata.push((DETACHED, MetadataValue::from_static("true")));
        }
        let mut message = a2a::Message { task_id, ..user_message(content.0) };
        if !question.is_empty() {
            message.metadata = Some(answer::record(&question, AnswerAction::Accept));
        }
        check_message(&message)?;
        Ok(Self {
            cx,
            agent,
            key,
            key_value,
            message,
            metadata,
            hook,
            relays_questions: true,
            superseded: Mutex::default(),
        })
    }

    /// Waits for the end while the slot is released.
    pub(crate) async fn wait_without_slot(&self) -> Result<Delegated, Error> {
        let released = self.cx.attempt_state().release_slot();
        let ended = self.cx.unless_cancelled(self.run_to_end()).await?;
        released.reacquire().await?;
        self.report_superseded().await?;
        ended.and_then(|child| self.result(child))
    }

    /// Questions of the child are returned instead of asked.
    pub(crate) fn returning_questions(self) -> Self {
        Self { relays_questions: false, ..self }
    }

    /// Sends the work, relays questions and answers, and returns the child when it has ended.
    /// Transient failures are retried with exponential backoff and jitter under the same key.
    pub(crate) async fn run_to_end(&self) -> Result<a2a::Task, Error> {
        let mut pauses = BACKOFF.start();
        let mut relay = QuestionRelay::new(self);
        let mut answer = None;
        let mut retried = false;
        loop {
            // Without an answer to send, the first message is repeated; its key finds the child.
            let answers = answer.is_some();
            let message = answer.take().unwrap_or_else(|| self.message.clone());
            match self.send(message, false).await {
                Ok(child) => match state(&child) {
                    TaskState::InputRequired | TaskState::AuthRequired if self.relays_questions => {
                        answer = relay.next_answer(&child).await?;
                        if answer.is_some() {
                            pauses.reset();
                            continue;
                        }
                    }
                    TaskState::Submitted | TaskState::Working => {}
                    TaskState::Unspecified => return Err(self.unknown_state(&child)),
                    _ => return Ok(child),
                },
                // The child continued without this answer: it received another one, or it has
                // ended.
                Err(failure) if answers && failure.row() == &reason::UNSUPPORTED_OPERATION => {
                    self.superseded.lock().extend(relay.last_key());
                }
                Err(failure) if answers && failure.row() == &reason::INVALID_PARAMS => {
                    relay.refused(failure);
                }
                Err(failure) if is_transient(&failure) => {
                    tracing::debug!(
                        agent = self.agent, reason = %failure,
                        "delegation call failed, retrying"
                    );
                }
                Err(failure) => {
                    self.wait_after(failure, retried).await?;
                    retried = true;
                    continue;
                }
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    /// Waits before one repetition of a rejected call, if the failure allows a retry, names a
    /// delay, and the task has the time.
    pub(crate) async fn wait_after(&self, failure: Failure, retried: bool) -> Result<(), Error> {
        let failure = failure.with_error_type(RUN_ERROR);
        if retried {
            return Err(failure.with_retries_spent(1).into());
        }
        // An open circuit breaker is reported at once.
        let passes = failure.may_retry() && failure.row() != &reason::CIRCUIT_OPEN;
        let delay = failure.retry_after().filter(|delay| passes && *delay <= RETRY_AFTER_MAX);
        let Some(delay) = delay else { return Err(failure.into()) };
        if self.cx.remaining().is_some_and(|left| left <= delay) {
            return Err(failure.into());
        }
        tracing::debug!(
            agent = self.agent, reason = %failure, ?delay,
            "delegation call rejected, retrying after the delay"
        );
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// Reports the answers that came too late: their senders were told that the answers were
    /// accepted.
    pub(crate) async fn report_superseded(&self) -> Result<(), Error> {
        let keys = std::mem::take(&mut *self.superseded.lock());
        for key in keys {
            self.cx.superseded(&format!("{}/{key}", self.key)).await?;
        }
        Ok(())
    }

    /// Such a child might never end.
    fn unknown_state(&self, child: &a2a::Task) -> Error {
        let text = format!("the task of '{}' is in an unknown state", self.agent);
        let failure = Failure::new(&reason::INVALID_AGENT_RESPONSE).because(text);
        failure.with_error_type(RUN_ERROR).with_task(&child.id, &child.context_id).into()
    }

    /// The result of the child, or its failure.
    pub(crate) fn result(&self, child: a2a::Task) -> Result<Delegated, Error> {
        match self.failure(&child) {
            None => Ok(Delegated(child)),
            Some(failure) => Err(failure.into()),
        }
    }

    /// Cancels the child, because its result is no longer needed, and returns its id if that is
    /// known. Best effort with a short limit: the child ends with this task anyway.
    pub(crate) async fn cancel(&self) -> String {
        let mut id = self.message.task_id.clone();
        let cancelling = async {
            if id.is_empty() {
                let child = self.send(self.message.clone(), true).await?;
                id = child.id;
            }
            let tenant = self.agent.clone();
            let id = id.clone();
            let request = a2a::CancelTaskRequest { tenant, id, ..Default::default() };
            let mut calling = self.calling("CancelTask");
            let request = self.request(request, calling.context());
            let cancelled = self.client().cancel_task(request).await;
            answered(&mut calling, cancelled).map(drop)
        };
        match tokio::time::timeout(CANCEL_TIMEOUT, cancelling).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                tracing::debug!(agent = self.agent, %why, "child task was not cancelled")
            }
            Err(_) => tracing::debug!(agent = self.agent, "child task was not cancelled in time"),
        }
        id
    }

    /// Returns when the child has ended or has an open question; `at_once`: when it is stored.
    pub(crate) async fn send(
        &self,
        message: a2a::Message,
        at_once: bool,
    ) -> Result<a2a::Task, Failure> {
        // The key identifies the delegated work: with the key, an answer would be taken for a
        // repetition of that work.
        let first = message.message_id == self.message.message_id;
        let request = a2a::SendMessageRequest {
            tenant: self.agent.clone(),
            message: Some(message),
            configuration: Some(a2a::SendMessageConfiguration {
                history_length: Some(0),
                return_immediately: at_once,
                ..a2a::SendMessageConfiguration::default()
            }),
            ..a2a::SendMessageRequest::default()
        };
        let mut calling = self.calling("SendMessage");
        let mut request = self.request(request, calling.context());
        if first {
            request.metadata_mut().insert(KEY, self.key_value.clone());
        }
        let changed = self.cx.attempt_state().channel.changed();
        let mut client = self.client();
        let sent = tokio::select! {
            sent = client.send_message(request) => sent.map_err(failure_of),
            // The worker moved to another coordinator. A call with a key can be repeated there; the
            // old coordinator may be gone.
            () = changed, if first && !at_once => Err(Failure::new(&reason::UNAVAILABLE)
                .because("the worker moved to another coordinator")),
        };
        let sent = sent.and_then(|answer| match answer.into_inner().payload {
            Some(send_message_response::Payload::Task(task)) => Ok(task),
            Some(send_message_response::Payload::Message(message)) => Ok(completed_with(message)),
            None => Err(Failure::new(&reason::INVALID_AGENT_RESPONSE)),
        });
        calling.ended(sent.as_ref().map(Some));
        sent
    }

    /// A client for one call, on the channel to the current coordinator.
    pub(crate) fn client(&self) -> A2aServiceClient<Channel> {
        A2aServiceClient::new(self.cx.attempt_state().channel.current())
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX)
    }

    /// The span of one call to the coordinator.
    pub(crate) fn calling(&self, method: &str) -> ClientSpan {
        let attempt = self.cx.attempt_state();
        let (host, port) = attempt.channel.current().peer();
        ClientSpan::begin("worker", method, &attempt.trace()).to(&host, port)
    }

    pub(crate) fn request<T>(&self, message: T, trace: &TraceContext) -> Request<T> {
        let mut request = Request::new(message);
        let text = [(TRACEPARENT, trace.to_string()), (TRACESTATE, trace.state().to_owned())];
        for (name, value) in text.into_iter().filter(|(_, value)| !value.is_empty()) {
            if let Ok(value) = value.parse() {
                request.metadata_mut().insert(name, value);
            }
        }
        for (name, value) in &self.metadata {
            request.metadata_mut().insert(*name, value.clone());
        }
        request
    }

    /// The failure of the child, if it has one.
    pub(crate) fn failure(&self, child: &a2a::Task) -> Option<Failure> {
        let failure = Failure::of_task(child.status.as_ref()?, child.metadata.as_ref())?;
        if failure.origin.is_some() {
            return Some(failure);
        }
        let origin = Origin { agent: self.agent.clone(), ..Origin::default() };
        Some(failure.with_task(&child.id, &child.context_id).born_at(origin))
    }
}

/// The failure of a rejected call. A fault of the mesh has the coordinator as its origin; any other
/// rejection has the calling agent as its origin.
fn failure_of(status: Status) -> Failure {
    let failure = Failure::from(status);
    let faults = [Code::Unavailable, Code::Internal, Code::DataLoss];
    let is_of_mesh = faults.contains(&failure.code()) || failure.row() == &reason::OVERLOADED;
    if failure.origin.is_some() || !is_of_mesh {
        return failure;
    }
    failure.born_at(Origin { service: "coordinator".to_owned(), ..Origin::default() })
}

/// The task in the response, or the failure of the call; ends the span.
pub(crate) fn answered(
    calling: &mut ClientSpan,
    answer: Result<Response<a2a::Task>, Status>,
) -> Result<a2a::Task, Failure> {
    let answer = answer.map(Response::into_inner).map_err(failure_of);
    calling.ended(answer.as_ref().map(Some));
    answer
}

pub(crate) fn state(task: &a2a::Task) -> TaskState {
    task.status.as_ref().map_or(TaskState::Unspecified, a2a::TaskStatus::state)
}

/// A bare message in the form of a completed task.
fn completed_with(message: a2a::Message) -> a2a::Task {
    let status = a2a::TaskStatus {
        state: TaskState::Completed as i32,
        message: Some(message),
        timestamp: None,
    };
    a2a::Task { status: Some(status), ..a2a::Task::default() }
}

pub(crate) fn user_message(parts: Vec<a2a::Part>) -> a2a::Message {
    a2a::Message {
        message_id: uuid::Uuid::now_v7().to_string(),
        role: a2a::Role::User as i32,
        parts,
        ..a2a::Message::default()
    }
}

/// The coordinator or its store is unavailable for now: the call may be repeated.
pub(crate) fn is_transient(failure: &Failure) -> bool {
    let passing = [&reason::UNAVAILABLE, &reason::OUTCOME_UNKNOWN, &reason::STORE_UNAVAILABLE];
    passing.contains(&failure.row())
}

fn ascii_value(what: &str, text: &str) -> Result<MetadataValue<Ascii>, Error> {
    let visible = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    let value = text.parse().ok().filter(|_| visible && text.len() <= limits::KEY_BYTES_MAX);
    value.ok_or_else(|| {
        let most = limits::KEY_BYTES_MAX;
        let text = format!("{what} takes 1 to {most} visible ASCII characters");
        Error::new(&reason::INVALID_ARGUMENT).because(text)
    })
}
