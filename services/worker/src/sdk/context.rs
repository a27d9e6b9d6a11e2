//! What an agent sees of its task, and everything it can do with it.

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

/// Tells that a task only stops what another has started.
const STOP_KEY: &str = "faultline.dev/stop";

/// An agent's view of one attempt at one task.
///
/// Everything that reports something returns `Err` once the agent was told to stop, so `?` is all
/// an agent has to do to stop in time. Reports are kept in order, survive a broken connection, and
/// leave the worker as soon as the agent waits for something or ends. An agent that computes for
/// long without waiting should do that in a task of its own (`tokio::task::spawn_blocking`); a
/// clone of the context can go with it, and can report until the agent itself has ended.
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

    /// Names the task, everywhere and for ever.
    pub fn task_id(&self) -> TaskId {
        self.attempt.key.task_id
    }

    /// Names the conversation that the task belongs to.
    pub fn context_id(&self) -> &str {
        &self.attempt.context_id
    }

    /// Which try at the task this is, from 1. More than 1: a worker was lost or had to leave.
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

    /// Active time that the task has left; `None`: as much as it takes. Tasks have no deadline
    /// unless their caller or their agent's configuration gives them one. Waiting for people costs
    /// nothing.
    pub fn remaining(&self) -> Option<Duration> {
        self.attempt.remaining()
    }

    /// The trace of this attempt, with what other vendors say of it.
    pub fn trace(&self) -> TraceContext {
        self.attempt.trace()
    }

    /// The same as a `traceparent`, for calls to other services. After an answer it is another:
    /// that of whoever answered.
    pub fn traceparent(&self) -> String {
        self.attempt.trace().to_string()
    }

    // Telling.

    /// Says that the agent works on it. Only agents that may answer with a bare message need to:
    /// callers hear nothing of the task until its first report.
    pub async fn start(&self) -> Result<(), Error> {
        Ok(self.attempt.report(Body::Started(v1::Started {})).await?)
    }

    /// Whether this task is only here to stop what another one, whose checkpoint it has, started
    /// elsewhere; see [`Offer::delivers_stops`](crate::Offer::delivers_stops).
    pub fn delivers_stop(&self) -> bool {
        let metadata = self.attempt.message.metadata.as_ref();
        metadata.is_some_and(|metadata| metadata.fields.contains_key(STOP_KEY))
    }

    /// Tells people what the agent is doing. For results use artifacts.
    pub async fn status(&self, content: impl Into<Content>) -> Result<(), Error> {
        let message = self.message_of(content.into())?;
        Ok(self.attempt.report(Body::Status(message)).await?)
    }

    /// An answer to this question was taken here when another one counted already.
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

    /// Adds to the end of an artifact, which is made by the first piece.
    pub async fn append(
        &self,
        name: impl Into<String>,
        content: impl Into<Content>,
    ) -> Result<(), Error> {
        self.chunk(name.into(), content.into(), true, false).await
    }

    /// The same, and tells readers that nothing more will be added.
    pub async fn append_last(
        &self,
        name: impl Into<String>,
        content: impl Into<Content>,
    ) -> Result<(), Error> {
        self.chunk(name.into(), content.into(), true, true).await
    }

    /// Hands on a piece of an artifact that somebody else made, with its id, its name and whatever
    /// else it has there. `append`: it goes to the end of what was handed on before.
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

    /// Gives the answer in words. It is sent when the agent returns `Ok`: as a bare message
    /// without a task if the agent [may](crate::Offer::may_answer_with_message) do that and
    /// reported nothing else, or else as the message of the COMPLETED task. The last one counts.
    pub async fn reply(&self, content: impl Into<Content>) -> Result<(), Error> {
        let message = self.message_of(content.into())?;
        self.attempt.set_reply(message);
        self.check_not_stopped()
    }

    /// Waits until everything reported so far is stored, for a step that must not come before.
    pub async fn settled(&self) -> Result<(), Error> {
        Ok(self.attempt.settled().await?)
    }

    // Surviving.

    /// Saves a place to go on from. Should this worker be lost, the next attempt finds the bytes
    /// in [`restored`](Self::restored), together with everything reported before this call;
    /// what was reported later is undone.
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

    // Asking.

    /// Asks a human and waits for the answer, however long that takes: the task is INPUT_REQUIRED
    /// and holds no slot of the worker meanwhile. If this question was answered in an earlier
    /// attempt, the stored answer comes back at once.
    ///
    /// - Several may be open at once, each with its [key](Question::key); they are answered in any
    ///   order. What else the agent reports is seen beside them.
    /// - The answer may be a no: see [`Answer::action`].
    /// - Dropping the future takes the question back.
    /// - One that [expires](Question::expires_in) fails with INPUT_TIMEOUT.
    pub async fn ask(&self, question: impl Into<Question>) -> Result<Answer, Error> {
        let mut question = question.into();
        let key = question.key.take().unwrap_or_else(|| self.attempt.next_ask());
        self.ask_as(question.into_interrupt(key, &self.attempt.names.agent)?).await
    }

    /// Asks just this, whoever asked it first.
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

    // Delegating.

    /// Gives work to another agent of the mesh and waits for its end; see [`Delegation`] for more.
    /// This task holds no slot of the worker meanwhile.
    ///
    /// - What the agent makes comes back as [`Delegated`].
    /// - If it fails, rejects the work or is cancelled, its whole failure comes back as the
    ///   [`Error`]: `?` hands it on, and this agent adds itself to the chain.
    /// - What it asks, this task asks, and the answer finds its way down.
    /// - If this task is told to stop, so is the other.
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

    /// Gives the same work to several agents at once; see [`Fanout`].
    pub fn fanout(&self, content: impl Into<Content>) -> Fanout<'_> {
        Fanout::new(self, content.into())
    }

    // Going on without.

    /// Something failed and the agent goes on without it. The task shows that it is degraded and
    /// keeps the failure, also after it has completed. An error that only says to stop comes back.
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

    // Stopping.

    /// Returns when the agent has to stop. An agent that ignores it is dropped after 5 seconds.
    pub async fn cancelled(&self) {
        self.attempt.stopping().await;
    }

    pub fn is_cancelled(&self) -> bool {
        self.attempt.must_stop()
    }

    /// Does `work`, but gives up when the agent has to stop.
    pub async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.cancelled() => Err(Error::stopped()),
            done = work => Ok(done),
        }
    }

    /// Sleeps, but not longer than it may.
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
