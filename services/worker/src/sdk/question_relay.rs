//! Relay of questions: an open question of a child task becomes a question of its parent, so that
//! the whole chain waits and any task of it may be answered. The first answer counts; a question
//! that the child has closed is withdrawn.

use std::{future::poll_fn, sync::Arc, task::Poll};

use faultline_proto::{
    Failure,
    a2a::{self, TaskState, stream_response},
    json, reason,
    v1::{Interrupt, interrupt::Kind},
};
use futures::{FutureExt, future::BoxFuture};
use prost_types::{Struct, Value, value};

use crate::{
    Answer, Error,
    sdk::{
        content::text_of,
        delegation::{BACKOFF, Call, is_transient},
    },
};

/// Metadata keys of a waiting task: its question, and the list if there are several.
const INTERRUPT: &str = "faultline.dev/interrupt";
const INTERRUPTS: &str = "faultline.dev/interrupts";

/// Answers questions of a child inside the parent agent.
pub(crate) type Hook<'a> =
    Arc<dyn Fn(Interrupt) -> BoxFuture<'a, Option<Answer>> + Send + Sync + 'a>;

/// The open questions of one child, asked by its parent. Lives as long as the delegation is
/// awaited.
pub(crate) struct QuestionRelay<'c, 'a> {
    call: &'c Call<'a>,
    open: Vec<OpenQuestion<'c>>,
    /// The last answer that was sent to the child, and its rejection if there was one.
    last: Option<SentAnswer>,
    /// Questions for which an answer of the hook was rejected: they go to the caller.
    passed_up: Vec<String>,
}

struct OpenQuestion<'c> {
    key: String,
    answer: BoxFuture<'c, Result<(Answer, AnsweredBy), Error>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnsweredBy {
    Hook,
    Caller,
}

struct SentAnswer {
    key: String,
    source: AnsweredBy,
    refusal: Option<Failure>,
}

impl<'c, 'a> QuestionRelay<'c, 'a> {
    pub(crate) fn new(call: &'c Call<'a>) -> Self {
        Self { call, open: Vec::new(), last: None, passed_up: Vec::new() }
    }

    /// The message that answers a question of the waiting child. `None`: its questions have
    /// changed.
    pub(crate) async fn next_answer(
        &mut self,
        child: &a2a::Task,
    ) -> Result<Option<a2a::Message>, Error> {
        let questions = questions_of(child);
        self.check_refusal(&questions)?;
        self.drop_withdrawn(&questions);
        for question in &questions {
            if !self.open.iter().any(|asked| asked.key == question.key) {
                let asked = self.ask(question.clone());
                self.open.push(asked);
            }
        }
        let call = self.call;
        tokio::select! {
            biased;
            (key, answer) = self.answered() => {
                let (answer, source) = answer?;
                let message = answer.into_message_for(&child.id, &key);
                self.last = Some(SentAnswer { key, source, refusal: None });
                Ok(Some(message))
            }
            () = questions_changed(call, child, &questions) => {
                // Between two questions a task is briefly working.
                if let Ok(child) = call.send(call.message.clone(), true).await {
                    self.drop_withdrawn(&questions_of(&child));
                }
                Ok(None)
            }
        }
    }

    /// Drops questions that the child has closed, which withdraws them.
    fn drop_withdrawn(&mut self, questions: &[Interrupt]) {
        self.open.retain(|asked| questions.iter().any(|q| q.key == asked.key));
    }

    /// The key of the question that was answered last, if the answer came from the caller.
    pub(crate) fn last_key(&self) -> Option<String> {
        let last = self.last.as_ref().filter(|last| last.source == AnsweredBy::Caller);
        last.map(|last| last.key.clone())
    }

    /// Records that the child rejected the last answer.
    pub(crate) fn refused(&mut self, failure: Failure) {
        if let Some(last) = &mut self.last {
            last.refusal = Some(failure);
        }
    }

    /// While the question stays open, the same answer would be rejected again.
    fn check_refusal(&mut self, questions: &[Interrupt]) -> Result<(), Error> {
        let Some(SentAnswer { key, source, refusal: Some(failure) }) = self.last.take() else {
            return Ok(());
        };
        if questions.iter().any(|question| question.key == key) {
            match source {
                AnsweredBy::Hook => {
                    tracing::debug!(
                        question = key, reason = %failure,
                        "answer from the hook was rejected, relaying the question"
                    );
                    self.passed_up.push(key);
                }
                AnsweredBy::Caller => return Err(failure.into()),
            }
        }
        Ok(())
    }

    fn ask(&self, question: Interrupt) -> OpenQuestion<'c> {
        let call = self.call;
        let hook = call.hook.clone().filter(|_| !self.passed_up.contains(&question.key));
        let key = question.key.clone();
        let answer = async move {
            if let Some(hook) = hook
                && let Some(answer) = hook(question.clone()).await
            {
                return Ok((answer, AnsweredBy::Hook));
            }
            let key = format!("{}/{}", call.key, question.key);
            match call.cx.ask_as(Interrupt { key, ..question }).await {
                // The clock of the child decides, and the child then closes the question.
                Err(error) if is_timeout(&error) => std::future::pending().await,
                answer => answer.map(|answer| (answer, AnsweredBy::Caller)),
            }
        };
        OpenQuestion { key, answer: answer.boxed() }
    }

    /// The first question that is answered.
    async fn answered(&mut self) -> (String, Result<(Answer, AnsweredBy), Error>) {
        poll_fn(|task| {
            for at in 0..self.open.len() {
                if let Poll::Ready(answer) = self.open[at].answer.poll_unpin(task) {
                    return Poll::Ready((self.open.swap_remove(at).key, answer));
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn is_timeout(error: &Error) -> bool {
    error.failure().is_some_and(|failure| failure.row() == &reason::INPUT_TIMEOUT)
}

/// Returns when the open questions of the child differ from `questions`. The child may be answered
/// or cancelled by other callers.
async fn questions_changed(call: &Call<'_>, child: &a2a::Task, questions: &[Interrupt]) {
    let mut pauses = BACKOFF.without_jitter().start();
    loop {
        match watch_questions(call, child, questions).await {
            Ok(()) => return,
            Err(failure) if !is_transient(&failure) => return,
            Err(_) => tokio::time::sleep(pauses.next_pause()).await,
        }
    }
}

async fn watch_questions(
    call: &Call<'_>,
    child: &a2a::Task,
    questions: &[Interrupt],
) -> Result<(), Failure> {
    let tenant = call.agent.clone();
    let id = child.id.clone();
    let request = a2a::SubscribeToTaskRequest { tenant, id };
    // Without a span: the subscription lasts as long as a human thinks.
    let request = call.request(request, &call.cx.trace());
    let answer = call.client().subscribe_to_task(request).await?;
    let mut frames = answer.into_inner();
    while let Some(frame) = frames.message().await? {
        let now = match &frame.payload {
            Some(stream_response::Payload::Task(task)) => questions_of(task),
            Some(stream_response::Payload::StatusUpdate(update)) => {
                questions_in(update.status.as_ref(), update.metadata.as_ref())
            }
            _ => continue,
        };
        if !now.iter().map(|q| &q.key).eq(questions.iter().map(|q| &q.key)) {
            return Ok(());
        }
    }
    Err(Failure::new(&reason::UNAVAILABLE))
}

pub(crate) fn questions_of(task: &a2a::Task) -> Vec<Interrupt> {
    questions_in(task.status.as_ref(), task.metadata.as_ref())
}

/// The open questions of a task, oldest first; empty unless the task waits. A question without a
/// record is made from the status message.
fn questions_in(status: Option<&a2a::TaskStatus>, metadata: Option<&Struct>) -> Vec<Interrupt> {
    let waits = |s: &&a2a::TaskStatus| {
        matches!(s.state(), TaskState::InputRequired | TaskState::AuthRequired)
    };
    let Some(status) = status.filter(waits) else { return Vec::new() };
    let listed = metadata.and_then(|m| m.fields.get(INTERRUPTS)?.kind.as_ref());
    if let Some(value::Kind::ListValue(list)) = listed {
        return list.values.iter().filter_map(question_record).collect();
    }
    let message = status.message.clone().unwrap_or_default();
    let shown = message.metadata.as_ref().and_then(|m| question_record(m.fields.get(INTERRUPT)?));
    vec![shown.unwrap_or_else(|| {
        let auth = status.state() == TaskState::AuthRequired;
        Interrupt {
            kind: if auth { Kind::AuthUrl } else { Kind::Input } as i32,
            prompt: text_of(&message).into_owned(),
            requested_at: status.timestamp,
            key: message.message_id,
            ..Interrupt::default()
        }
    })]
}

fn question_record(value: &Value) -> Option<Interrupt> {
    match value.kind.as_ref()? {
        value::Kind::StructValue(record) => json::from_struct(record).ok(),
        _ => None,
    }
}
