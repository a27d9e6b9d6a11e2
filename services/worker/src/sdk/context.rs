//! The context of a task: everything that an agent can read and do.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use faultline_chassis::{TraceContext, limits};
use faultline_proto::{
    a2a, answer,
    id::TaskId,
    v1::{self, report::Body},
};
use prost::Message as _;

use crate::{
    Answer, Content, Delegation, Error, Fanout, Question,
    attempt::state::{Attempt, Restored},
    sdk::{
        agent::OfferedAgent,
        content::{self, check_message, check_object_depth, check_size, text_of},
        failure_record::{self, attempt_message},
    },
};

/// Metadata key of a task that only delivers a stop.
const STOP_KEY: &str = "faultline.dev/stop";

/// An agent's access to one attempt at one task.
///
/// Reports (status, artifacts, checkpoints and so on) are kept in order, survive a broken
/// connection, and leave the worker as soon as the agent waits or ends. Every method that reports
/// returns `Err` once the agent has to stop, so that `?` is enough to stop in time. Run long
/// computations without an `await` in a task of their own (`tokio::task::spawn_blocking`); a clone
/// of the context can go along, and can report until the agent itself has ended.
#[derive(Clone)]
pub struct Context {
    attempt: Arc<Attempt>,
    offered: Arc<OfferedAgent>,
}

impl Context {
    pub(crate) fn new(attempt: Arc<Attempt>, offered: Arc<OfferedAgent>) -> Self {
        Self { attempt, offered }
    }

    pub(crate) fn offered(&self) -> &OfferedAgent {
        &self.offered
    }

    pub(crate) fn attempt_state(&self) -> &Attempt {
        &self.attempt
    }

    // The task.

    /// The id of the task, unique and permanent.
    pub fn task_id(&self) -> TaskId {
        self.attempt.key.task_id
    }

    /// The id of the conversation that the task belongs to.
    pub fn context_id(&self) -> &str {
        &self.attempt.context_id
    }

    /// The number of this attempt at the task, from 1. It is above 1 after a lost worker, a drain
    /// or a retry.
    pub fn attempt(&self) -> u32 {
        self.attempt.key.attempt
    }

    /// The message that started the task.
    pub fn message(&self) -> &a2a::Message {
        &self.attempt.message
    }

    /// The text parts of [`message`](Self::message), joined by line breaks.
    pub fn text(&self) -> Cow<'_, str> {
        text_of(&self.attempt.message)
    }

    /// The active time that the task has left; `None` without a deadline. A task has a deadline if
    /// its caller or the configuration of its agent sets one. Waiting for humans does not count.
    pub fn remaining(&self) -> Option<Duration> {
        self.attempt.remaining()
    }

    /// The trace context of this attempt, including the tracestate of other vendors.
    pub fn trace(&self) -> TraceContext {
        self.attempt.trace()
    }

    /// The trace context as a `traceparent` header, for calls to other services. An answer to a
    /// question starts a new one.
    pub fn traceparent(&self) -> String {
        self.attempt.trace().to_string()
    }

    // Reports.

    /// Reports that the agent works on the task. Needed only by agents that may answer with a bare
    /// message: callers receive nothing before the first report.
    pub async fn start(&self) -> Result<(), Error> {
        Ok(self.attempt.report(Body::Started(v1::Started {})).await?)
    }

    /// Whether this task only delivers the stop of an earlier task and has its checkpoint; see
    /// [`Offer::delivers_stops`](crate::Offer::delivers_stops).
    pub fn delivers_stop(&self) -> bool {
        let metadata = self.attempt.message.metadata.as_ref();
        metadata.is_some_and(|metadata| metadata.fields.contains_key(STOP_KEY))
    }

    /// Reports a status message for humans. Use artifacts for results.
    pub async fn status(&self, content: impl Into<Content>) -> Result<(), Error> {
        let message = self.message_of(content.into())?;
        Ok(self.attempt.report(Body::Status(message)).await?)
    }

    /// Reports that an answer to this question came too late: another one counts.
    pub(crate) async fn superseded(&self, question: &str) -> Result<(), Error> {
        let text = format!("another answer to '{question}' came first, and counts");
        let mut message = self.message_of(text.into())?;
        message.metadata = Some(answer::superseded(question));
        Ok(self.attempt.report(Body::Status(message)).await?)
    }

    /// Adds a whole artifact, or replaces the one of the same name.
    pub async fn artifact(
        &self,
        name: impl Into<String>,
        content: impl Into<Content>,
    ) -> Result<(), Error> {
        self.chunk(name.into(), content.into(), false, true).await
    }

    /// Appends to an artifact; the first piece creates it.
    pub async fn append(
        &self,
        name: impl Into<String>,
        content: impl Into<Content>,
    ) -> Result<(), Error> {
        self.chunk(name.into(), content.into(), true, false).await
    }

    /// Appends the last piece of an artifact.
    pub async fn append_last(
        &self,
        name: impl Into<String>,
        content: impl Into<Content>,
    ) -> Result<(), Error> {
        self.chunk(name.into(), content.into(), true, true).await
    }

    /// Passes on a piece of an artifact of another agent, with its id, name and metadata. `append`:
    /// adds to the pieces passed on before.
    pub async fn relay(
        &self,
        artifact: a2a::Artifact,
        append: bool,
        last_chunk: bool,
    ) -> Result<(), Error> {
        content::check_artifact(&artifact)?;
        let chunk = v1::ArtifactChunk { artifact: Some(artifact), append, last_chunk };
        Ok(self.attempt.report(Body::Artifact(chunk)).await?)
    }

    /// Sets the final message. It is sent when the agent returns `Ok`: as a bare message without a
    /// task if the agent [may](crate::Offer::may_answer_with_message) do that and has reported
    /// nothing else, otherwise as the message of the COMPLETED task. A later call replaces it.
    pub async fn reply(&self, content: impl Into<Content>) -> Result<(), Error> {
        let message = self.message_of(content.into())?;
        self.attempt.set_reply(message);
        self.check_not_stopped()
    }

    /// Waits until every report so far is stored. Use it before a step that must not precede them.
    pub async fn settled(&self) -> Result<(), Error> {
        Ok(self.attempt.settled().await?)
    }

    // Checkpoints.

    /// Saves a checkpoint. If this worker is lost, the next attempt finds the bytes in
    /// [`restored`](Self::restored), together with everything reported before this call; later
    /// reports are undone.
    pub async fn checkpoint(&self, bytes: impl Into<Bytes>) -> Result<(), Error> {
        let saved = self.attempt.envelope(bytes.into());
        check_size("the checkpoint", saved.len(), limits::CHECKPOINT_BYTES_MAX)?;
        Ok(self.attempt.report(Body::Checkpoint(saved)).await?)
    }

    /// The last checkpoint of an earlier attempt.
    pub fn restored(&self) -> Option<&[u8]> {
        match &self.attempt.restored {
            Restored::Checkpoint(bytes) => Some(bytes),
            Restored::Nothing | Restored::Unreadable => None,
        }
    }

    // Questions.

    /// Asks a human and waits for the answer. Meanwhile the task is INPUT_REQUIRED and holds no
    /// slot of the worker. If an earlier attempt received the answer, the stored answer is returned
    /// at once.
    ///
    /// - Several questions may be open at once, each with its [key](Question::key), and are
    ///   answered in any order. The agent can keep reporting beside them.
    /// - The answer may be a no: see [`Answer::action`].
    /// - Dropping the future withdraws the question.
    /// - A question that [expires](Question::expires_in) fails with INPUT_TIMEOUT.
    pub async fn ask(&self, question: impl Into<Question>) -> Result<Answer, Error> {
        let mut question = question.into();
        let key = question.key.take().unwrap_or_else(|| self.attempt.next_ask());
        self.ask_as(question.into_interrupt(key, &self.attempt.names.agent)?).await
    }

    /// Asks this question unchanged, also for a child task.
    pub(crate) async fn ask_as(&self, interrupt: v1::Interrupt) -> Result<Answer, Error> {
        interrupt.schema.as_ref().map_or(Ok(()), check_object_depth)?;
        check_size("the question", interrupt.encoded_len(), limits::MESSAGE_BYTES_MAX)?;
        let given = self.attempt.ask(interrupt.clone()).await?;
        Answer::of(&interrupt, given)
    }

    /// Asks for a credential to be given at `url`; short for [`Question::auth`].
    pub async fn auth(&self, url: impl Into<String>) -> Result<Answer, Error> {
        self.ask(Question::auth(url)).await
    }

    // Delegation.

    /// Delegates work to another agent of the mesh and waits for the end; see [`Delegation`].
    /// Meanwhile this task holds no slot of the worker.
    ///
    /// - The result is a [`Delegated`](crate::Delegated).
    /// - If the other agent fails, rejects the work or is cancelled, its full failure is returned
    ///   as the [`Error`]: `?` passes it on, and this agent is added to the chain of causes.
    /// - Questions of the other agent become questions of this task, and the answers are passed
    ///   down.
    /// - If this task is stopped, so is the other task.
    ///
    /// ```
    /// # use faultline_worker::{Context, Error};
    /// # async fn run(cx: &Context) -> Result<(), Error> {
    /// let translated = cx.delegate("translator", cx.text()).await?;
    /// cx.artifact("translation", translated.text()).await
    /// # }
    /// ```
    pub fn delegate(
        &self,
        agent: impl Into<String>,
        content: impl Into<Content>,
    ) -> Delegation<'_> {
        Delegation::new(self, agent.into(), content.into())
    }

    /// Delegates the same work to several agents at once; see [`Fanout`].
    pub fn fanout(&self, content: impl Into<Content>) -> Fanout<'_> {
        Fanout::new(self, content.into())
    }

    // Degraded results.

    /// Records a failure that the agent continues without. The task is marked as degraded and keeps
    /// the failure, also after it has completed. A [stop](Error::is_stop) is returned as an error.
    ///
    /// ```
    /// # use faultline_worker::{Context, Error};
    /// # async fn run(cx: &Context) -> Result<(), Error> {
    /// let news = match cx.delegate("news", "Bern").await {
    ///     Ok(news) => news.text(),
    ///     Err(error) => {
    ///         cx.tolerate(error).await?;
    ///         "no news today".to_owned()
    ///     }
    /// };
    /// # cx.artifact("news", news).await
    /// # }
    /// ```
    pub async fn tolerate(&self, error: impl Into<Error>) -> Result<(), Error> {
        let tolerated = failure_record::tolerated(self, error.into())?;
        Ok(self.attempt.report(tolerated).await?)
    }

    // Cancellation.

    /// Returns when the agent has to stop. An agent that ignores the stop is dropped after 5
    /// seconds.
    pub async fn cancelled(&self) {
        self.attempt.stopping().await;
    }

    /// Whether the agent has to stop.
    pub fn is_cancelled(&self) -> bool {
        self.attempt.must_stop()
    }

    /// Runs `work` until the agent has to stop.
    pub async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.cancelled() => Err(Error::stopped()),
            done = work => Ok(done),
        }
    }

    /// Sleeps until the time is over or the agent has to stop.
    pub async fn sleep(&self, time: Duration) -> Result<(), Error> {
        self.unless_cancelled(tokio::time::sleep(time)).await
    }

    fn check_not_stopped(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::stopped()) } else { Ok(()) }
    }

    fn message_of(&self, content: Content) -> Result<a2a::Message, Error> {
        let message = attempt_message(&self.attempt, content);
        check_message(&message)?;
        Ok(message)
    }

    async fn chunk(
        &self,
        name: String,
        content: Content,
        append: bool,
        last_chunk: bool,
    ) -> Result<(), Error> {
        let artifact = Some(content::artifact(name, content)?);
        let chunk = v1::ArtifactChunk { artifact, append, last_chunk };
        Ok(self.attempt.report(Body::Artifact(chunk)).await?)
    }
}
