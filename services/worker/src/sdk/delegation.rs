//! Giving work to another agent of the mesh. A delegation is an A2A call to the coordinator that
//! names the calling attempt, so that the coordinator knows parent and child. The child is stored
//! under a key: whatever breaks, the same call with the same key finds the same child.

use std::{sync::Arc, time::Duration};

use faultline_chassis::{
    TraceContext,
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

/// The token of the calling attempt.
const TASK: &str = "faultline-task";
/// The child's key.
const KEY: &str = "faultline-key";
/// The child outlives its parent.
const DETACHED: &str = "faultline-detached";

pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(50);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest delay that a refused call is made again after.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// How long the end of a child that is not wanted any longer is waited for.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Work for another agent, made by [`Context::delegate`]. Awaiting it sends it and waits for its
/// end. An agent that does not wait for the end, because it raced the work against a timer perhaps,
/// leaves it running: it ends with this task, and its key finds it until then.
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
    /// The question of that task that it answers; empty: its oldest.
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
    /// the same child. Without one, delegations are counted, so give keys when their order may
    /// change.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The child goes on when this task ends. Others are cancelled with it.
    pub fn detached(self) -> Self {
        Self { detached: true, ..self }
    }

    /// Goes on with a task that was delegated before and asks something: the content is its answer.
    pub fn to_task(self, task_id: impl Into<String>) -> Self {
        Self { task_id: task_id.into(), ..self }
    }

    /// Answers the question that this outcome has, and no other: if somebody else was faster, it is
    /// refused.
    pub fn answering(self, asked: &Outcome) -> Self {
        Self { task_id: asked.task_id.clone(), question: asked.question.clone(), ..self }
    }

    /// For loops of a model and its tools: whatever becomes of the other agent comes back as text
    /// that a model understands.
    pub fn outcome(self) -> OutcomeCall<'a> {
        OutcomeCall::new(self)
    }

    /// Lets this agent answer what the child asks: `hook` sees each question first, and `None` lets
    /// it rise to this task's own caller, as all do without a hook. So does an answer that does
    /// not fit the question. After a crash the same question may come again.
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

    /// Sends the work and comes back once it is stored, without waiting for its end.
    pub async fn start(mut self) -> Result<Child<'a>, Error> {
        let key = self.take_key();
        Child::start(Call::new(self, key)?).await
    }

    /// Its key, which is counted on if none was given.
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

/// What another agent made of its task.
#[derive(Clone, Debug, PartialEq)]
pub struct Delegated(pub(crate) a2a::Task);

impl Delegated {
    /// Empty if the agent answered with a bare message.
    pub fn task_id(&self) -> &str {
        &self.0.id
    }

    pub fn artifacts(&self) -> &[a2a::Artifact] {
        &self.0.artifacts
    }

    /// The answer in words, if there is one.
    pub fn message(&self) -> Option<&a2a::Message> {
        self.0.status.as_ref()?.message.as_ref()
    }

    /// All text of the artifacts, a line break between two, or that of the message if they have
    /// none. The pieces of one artifact belong together.
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

/// One delegation on its way.
pub(crate) struct Call<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) agent: String,
    pub(crate) key: String,
    key_value: MetadataValue<Ascii>,
    pub(crate) message: a2a::Message,
    /// What every call says.
    metadata: Vec<(&'static str, MetadataValue<Ascii>)>,
    /// Sees the child's questions first.
    pub(crate) hook: Option<Hook<'a>>,
    /// A question of the child is asked here; else whoever delegated is given it.
    relays_questions: bool,
    /// Questions that were answered here when somebody else had answered them further down.
    superseded: Mutex<Vec<String>>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(delegation: Delegation<'a>, key: String) -> Result<Self, Error> {
        let Delegation { cx, agent, content, task_id, question, detached, hook, .. } = delegation;
        let attempt = cx.attempt_state();
        if attempt.token.is_empty() {
            let text = "the coordinator takes no delegations: it is older than this worker";
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

    /// Waits for the end, without a slot.
    pub(crate) async fn wait_without_slot(&self) -> Result<Delegated, Error> {
        let released = self.cx.attempt_state().release_slot();
        let ended = self.cx.unless_cancelled(self.run_to_end()).await?;
        released.reacquire().await?;
        self.report_superseded().await?;
        ended.and_then(|child| self.result(child))
    }

    /// Questions of the child come back instead of being asked.
    pub(crate) fn returning_questions(self) -> Self {
        Self { relays_questions: false, ..self }
    }

    /// Sends the work, carries questions up and answers down, and comes back with the child when
    /// that is over.
    pub(crate) async fn run_to_end(&self) -> Result<a2a::Task, Error> {
        let mut pause = PAUSE_MIN;
        let mut relay = QuestionRelay::new(self);
        let mut answer = None;
        let mut retried = false;
        loop {
            // Without an answer to give the first message goes again, which finds the child.
            let answers = answer.is_some();
            let message = answer.take().unwrap_or_else(|| self.message.clone());
            match self.send(message, false).await {
                Ok(child) => match state(&child) {
                    TaskState::InputRequired | TaskState::AuthRequired if self.relays_questions => {
                        answer = relay.next_answer(&child).await?;
                        if answer.is_some() {
                            pause = PAUSE_MIN;
                            continue;
                        }
                    }
                    TaskState::Submitted | TaskState::Working => {}
                    TaskState::Unspecified => return Err(self.unknown_state(&child)),
                    _ => return Ok(child),
                },
                // The child went on without this answer: somebody else gave one, or it has ended.
                Err(failure) if answers && failure.row() == &reason::UNSUPPORTED_OPERATION => {
                    self.superseded.lock().extend(relay.last_key());
                }
                Err(failure) if answers && failure.row() == &reason::INVALID_PARAMS => {
                    relay.refused(failure);
                }
                Err(failure) if is_transient(&failure) => {
                    tracing::debug!(agent = self.agent, reason = %failure, "sending it again");
                }
                Err(failure) => {
                    self.wait_after(failure, retried).await?;
                    retried = true;
                    continue;
                }
            }
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The call was refused. If that may pass it is made once more, after the delay that was asked
    /// for, given that this task has the time.
    pub(crate) async fn wait_after(&self, failure: Failure, retried: bool) -> Result<(), Error> {
        let failure = failure.with_error_type(RUN_ERROR);
        if retried {
            return Err(failure.with_retries_spent(1).into());
        }
        // An open circuit is there to be heard of at once.
        let passes = failure.may_retry() && failure.row() != &reason::CIRCUIT_OPEN;
        let delay = failure.retry_after().filter(|delay| passes && *delay <= RETRY_AFTER_MAX);
        let Some(delay) = delay else { return Err(failure.into()) };
        if self.cx.remaining().is_some_and(|left| left <= delay) {
            return Err(failure.into());
        }
        tracing::debug!(agent = self.agent, reason = %failure, ?delay, "refused for now");
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// Says which answers came too late: whoever gave them was told that they were taken.
    pub(crate) async fn report_superseded(&self) -> Result<(), Error> {
        let keys = std::mem::take(&mut *self.superseded.lock());
        for key in keys {
            self.cx.superseded(&format!("{}/{key}", self.key)).await?;
        }
        Ok(())
    }

    /// Nobody knows whether such a child will ever end.
    fn unknown_state(&self, child: &a2a::Task) -> Error {
        let text = format!("the task of '{}' is in a state that is not known here", self.agent);
        let failure = Failure::new(&reason::INVALID_AGENT_RESPONSE).because(text);
        failure.with_error_type(RUN_ERROR).with_task(&child.id, &child.context_id).into()
    }

    /// What the child made, or why it did not.
    pub(crate) fn result(&self, child: a2a::Task) -> Result<Delegated, Error> {
        match self.failure(&child) {
            None => Ok(Delegated(child)),
            Some(failure) => Err(failure.into()),
        }
    }

    /// Ends the child because nobody waits for it any longer, and gives its id as far as it is
    /// known. Not for long: if it cannot be told now, it ends with this task.
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
            Ok(Err(why)) => tracing::debug!(agent = self.agent, %why, "not cancelled"),
            Err(_) => tracing::debug!(agent = self.agent, "not cancelled in time"),
        }
        id
    }

    /// Returns when the child has ended or asks something; `at_once`: when it is stored.
    pub(crate) async fn send(
        &self,
        message: a2a::Message,
        at_once: bool,
    ) -> Result<a2a::Task, Failure> {
        // The key stands for what was delegated: with it an answer to a question on the way would
        // be taken for that.
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
            // The coordinator that was asked is no longer ours, and what has a key can be asked of
            // the next one: the other may leave, or be gone without a word.
            () = changed, if first && !at_once => Err(Failure::new(&reason::UNAVAILABLE)
                .because("the worker went to another coordinator")),
        };
        let sent = sent.and_then(|answer| match answer.into_inner().payload {
            Some(send_message_response::Payload::Task(task)) => Ok(task),
            Some(send_message_response::Payload::Message(message)) => Ok(completed_with(message)),
            None => Err(Failure::new(&reason::INVALID_AGENT_RESPONSE)),
        });
        calling.ended(sent.as_ref().map(Some));
        sent
    }

    /// For one call, to the coordinator that has this worker now.
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

    /// Why the child did not do it, if it did not.
    pub(crate) fn failure(&self, child: &a2a::Task) -> Option<Failure> {
        let failure = Failure::of_task(child.status.as_ref()?, child.metadata.as_ref())?;
        if failure.origin.is_some() {
            return Some(failure);
        }
        let origin = Origin { agent: self.agent.clone(), ..Origin::default() };
        Some(failure.with_task(&child.id, &child.context_id).born_at(origin))
    }
}

/// The refusal of a call of this agent. A fault of the mesh is not the agent's: its origin is the
/// coordinator, and the agent only passes it on. Any other refusal says that the call was wrong.
fn failure_of(status: Status) -> Failure {
    let failure = Failure::from(status);
    let faults = [Code::Unavailable, Code::Internal, Code::DataLoss];
    let is_of_mesh = faults.contains(&failure.code()) || failure.row() == &reason::OVERLOADED;
    if failure.origin.is_some() || !is_of_mesh {
        return failure;
    }
    failure.born_at(Origin { service: "coordinator".to_owned(), ..Origin::default() })
}

/// What a call that is answered by a task came to.
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

/// An answer without a task, as the task it might have been.
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

/// The coordinator is away or cannot say, and will be back.
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
