//! Following a task on behalf of a person or a script: artifacts to stdout, the live line, and at
//! the end the failure, the question or nothing. On a terminal a question is answered right there.
//!
//! A terminal is shown artifacts as they come. A pipe or a file gets them when the task has ended
//! or asks, as the store has them: a lost attempt is undone to its last checkpoint, and bytes that
//! were written to a pipe cannot be taken back.

use std::{
    io::{self, IsTerminal, Stdout, Write},
    time::Duration,
};

use faultline_client::{
    Client, Error, Follow, failure_of, interrupt_of, is_final, is_waiting, text_of,
};
use faultline_proto::{
    Failure,
    a2a::{Part, StreamResponse, Task, TaskState, TaskStatus, stream_response::Payload},
    advice::Reader,
    json, reason,
    v1::{AnswerAction, Interrupt},
};
use prost_types::Struct;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    time::{Instant, Interval, interval_at},
};

use crate::{
    client::{answer_message, connect::Connect, question_form},
    exit::{self, Exit},
    output::{
        artifacts::ArtifactPrinter,
        failure_card,
        progress::{self, Progress},
        style::Style,
        task,
        text::{line, span},
    },
};

/// What is to be followed.
pub(crate) struct FollowOptions<'a> {
    /// The message that answers a question: until the task has it, its question is the old one.
    pub(crate) answer: Option<String>,
    /// What is said of a call that fails.
    pub(crate) headline: &'a str,
}

/// Opens the stream with `open` and follows it until the task ends, or asks and nobody is there to
/// answer.
pub(crate) async fn follow(
    connect: &Connect,
    client: &Client,
    following: FollowOptions<'_>,
    open: impl Future<Output = Result<Follow, Error>>,
) -> anyhow::Result<Exit> {
    let mut followed = follow_once(connect, client, following, None, open).await?;
    while let Some(OpenQuestion { task, question }) = followed.open_question.take() {
        let key = question.key.clone();
        let parts = match read_answer(question).await? {
            TypedAnswer::Answer(parts) => parts,
            TypedAnswer::Nothing => {
                print_held_artifacts(client, task).await?;
                break;
            }
            TypedAnswer::Cancel => {
                let exit = cancel(connect, client, &task).await?;
                print_held_artifacts(client, task).await?;
                return Ok(exit);
            }
        };
        let draft = answer_message::draft(&task, &key, AnswerAction::Accept, parts);
        let headline = format!("answer to task {task} failed");
        let answer = Some(draft.message_id().to_owned());
        let following = FollowOptions { answer, headline: &headline };
        followed =
            follow_once(connect, client, following, Some(task), client.follow(draft)).await?;
    }
    Ok(followed.exit)
}

/// How long a pipe waits for the stored task. Without it nothing is printed: what the events told
/// may have been undone.
const STORED_TASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether artifacts are held back until they can no longer be taken back.
fn holds_artifacts() -> bool {
    !io::stdout().is_terminal()
}

/// The task as it is stored, if it can be read soon.
async fn read_stored_task(client: &Client, id: &str) -> Option<Task> {
    tokio::time::timeout(STORED_TASK_TIMEOUT, client.task(id)).await.ok()?.ok()
}

/// Prints what was held back of a task whose question is left open, or that was cancelled.
async fn print_held_artifacts(client: &Client, id: String) -> anyhow::Result<()> {
    let mut session = FollowSession::new(false, None, Some(id))?;
    session.release(client).await?;
    Ok(session.close()?)
}

/// How long after the first Ctrl-C a second one cancels the task.
const SECOND_INTERRUPT_WITHIN: Duration = Duration::from_secs(2);

/// What a person makes of a question.
enum TypedAnswer {
    Answer(Vec<Part>),
    /// The task waits on: an empty line, Ctrl-D, or Ctrl-C once.
    Nothing,
    /// Ctrl-C twice.
    Cancel,
}

async fn read_answer(question: Interrupt) -> anyhow::Result<TypedAnswer> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let (typed, reading) = oneshot::channel();
    // A thread of its own: it may wait for a line for ever, and nobody waits for it.
    std::thread::spawn(move || {
        let filled = question_form::ask(&question, &mut io::stdin().lock(), &mut io::stderr());
        let _ = typed.send(filled);
    });
    tokio::select! {
        filled = reading => Ok(filled??.map_or(TypedAnswer::Nothing, TypedAnswer::Answer)),
        _ = interrupts.recv() => {
            eprintln!("\nNot answered. Ctrl-C once more cancels the task.");
            match tokio::time::timeout(SECOND_INTERRUPT_WITHIN, interrupts.recv()).await {
                Ok(_) => Ok(TypedAnswer::Cancel),
                Err(_) => Ok(TypedAnswer::Nothing),
            }
        }
    }
}

async fn cancel(connect: &Connect, client: &Client, task: &str) -> anyhow::Result<Exit> {
    match client.cancel(task).await {
        Ok(cancelled) => {
            let state = cancelled.status.as_ref().map_or(TaskState::Canceled, TaskStatus::state);
            eprintln!("{}", task::headline(task, state));
            Ok(Exit::INTERRUPTED)
        }
        Err(error) => connect.report_error(error, &format!("cancel of task {task} failed")),
    }
}

/// Whether somebody sits there who sees a question and can type.
fn is_attended() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// How following ended.
struct FollowOutcome {
    exit: Exit,
    /// What it asks, where somebody can answer.
    open_question: Option<OpenQuestion>,
}

struct OpenQuestion {
    task: String,
    question: Interrupt,
}

impl From<Exit> for FollowOutcome {
    fn from(exit: Exit) -> Self {
        Self { exit, open_question: None }
    }
}

async fn follow_once(
    connect: &Connect,
    client: &Client,
    following: FollowOptions<'_>,
    answered: Option<String>,
    open: impl Future<Output = Result<Follow, Error>>,
) -> anyhow::Result<FollowOutcome> {
    let FollowOptions { answer, headline } = following;
    let mut session = FollowSession::new(connect.json, answer, answered)?;
    let mut events = match session.wait(open).await {
        Some(Ok(events)) => events,
        Some(Err(error)) => {
            session.release(client).await?;
            return Ok(session.end_with_error(connect, error, headline)?.into());
        }
        None => {
            session.release(client).await?;
            return Ok(session.end_by_interrupt()?.into());
        }
    };
    while !session.is_over() {
        match session.wait(events.next()).await {
            Some(Some(Ok(event))) => session.show(&event.response)?,
            Some(Some(Err(error))) => {
                session.release(client).await?;
                return Ok(session.end_with_error(connect, error, headline)?.into());
            }
            Some(None) => break,
            None => {
                session.release(client).await?;
                return Ok(session.end_by_interrupt()?.into());
            }
        }
    }
    // A question that is answered right here is not the end yet.
    if !session.has_message && !session.is_asking() {
        session.release(client).await?;
    }
    session.conclude()
}

/// What became of the artifacts that were held back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Released {
    /// They are printed, or nothing was held back.
    All,
    /// The stored task could not be read.
    Unread,
    /// The person did not wait for it.
    Interrupted,
}

/// What was seen of the task, and where it is shown.
struct FollowSession {
    json: bool,
    /// Artifacts are printed when the task has ended or asks, not as they come.
    holds: bool,
    printer: ArtifactPrinter<Stdout>,
    progress: Progress,
    ticks: Interval,
    interrupts: Signal,
    /// The task that is answered, before its first event.
    answered: Option<String>,
    task_id: String,
    status: TaskStatus,
    metadata: Option<Struct>,
    answer: Option<String>,
    /// With a bare message, after which there is nothing.
    has_message: bool,
    released: Released,
}

impl FollowSession {
    fn new(json: bool, answer: Option<String>, answered: Option<String>) -> anyhow::Result<Self> {
        Ok(Self {
            json,
            holds: !json && holds_artifacts(),
            printer: ArtifactPrinter::new(io::stdout()),
            progress: Progress::start(json),
            ticks: interval_at(Instant::now() + progress::TICK, progress::TICK),
            interrupts: signal(SignalKind::interrupt())?,
            answered,
            task_id: String::new(),
            status: TaskStatus::default(),
            metadata: None,
            answer,
            has_message: false,
            released: Released::All,
        })
    }

    /// The result of `work`, with the live line kept alive meanwhile. None: the person left.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                _ = self.interrupts.recv() => return None,
                _ = self.ticks.tick() => self.progress.tick(self.printer.is_mid_line()),
            }
        }
    }

    fn is_over(&self) -> bool {
        let state = self.status.state();
        self.has_message || is_final(state) || is_waiting(state)
    }

    /// It asks, and somebody sits there who can answer.
    fn is_asking(&self) -> bool {
        is_waiting(self.status.state()) && !self.json && is_attended()
    }

    fn show(&mut self, response: &StreamResponse) -> anyhow::Result<()> {
        if self.json {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", json::to_string(response))?;
            out.flush()?;
        }
        match &response.payload {
            Some(Payload::Task(task)) => {
                self.print_artifacts(task)?;
                self.note(&task.id, task.status.as_ref(), task.metadata.as_ref());
                let is_old = |id: &String| task.history.iter().all(|m| m.message_id != *id);
                if self.answer.as_ref().is_some_and(is_old) && is_waiting(self.status.state()) {
                    self.status = TaskStatus::default();
                }
            }
            Some(Payload::StatusUpdate(update)) => {
                self.note(&update.task_id, update.status.as_ref(), update.metadata.as_ref());
            }
            Some(Payload::ArtifactUpdate(update)) => {
                if let Some(artifact) = update.artifact.as_ref().filter(|_| !self.holds) {
                    self.print(|printer| printer.artifact(artifact, update.append))?;
                }
            }
            Some(Payload::Message(message)) => {
                self.has_message = true;
                self.print(|printer| printer.text(&text_of(message)))?;
            }
            None => {}
        }
        Ok(())
    }

    fn print_artifacts(&mut self, task: &Task) -> io::Result<()> {
        if self.holds {
            return Ok(());
        }
        for artifact in &task.artifacts {
            self.print(|printer| printer.artifact(artifact, false))?;
        }
        Ok(())
    }

    /// The task, as far as it is known.
    fn task(&self) -> Option<&str> {
        let followed = Some(self.task_id.as_str()).filter(|id| !id.is_empty());
        followed.or(self.answered.as_deref())
    }

    /// Prints what was held back, as the store has it. If the store cannot be read, nothing is
    /// printed, and stderr says so.
    async fn release(&mut self, client: &Client) -> io::Result<()> {
        let Some(id) = self.task().map(str::to_owned).filter(|_| self.holds) else { return Ok(()) };
        self.holds = false;
        self.released = match self.wait(read_stored_task(client, &id)).await {
            Some(Some(task)) => return self.print_artifacts(&task),
            Some(None) => Released::Unread,
            None => Released::Interrupted,
        };
        self.progress.clear();
        let id = line(&id);
        self.print_to_stderr(&format!(
            "Its artifacts are not printed: the read_stored_task task was not read. Read it with: faultline \
             get {id}\n"
        ))
    }

    fn print(
        &mut self,
        print: impl FnOnce(&mut ArtifactPrinter<Stdout>) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        self.progress.clear();
        print(&mut self.printer)
    }

    fn note(&mut self, id: &str, status: Option<&TaskStatus>, metadata: Option<&Struct>) {
        id.clone_into(&mut self.task_id);
        self.status = status.cloned().unwrap_or_default();
        self.metadata = metadata.cloned();
        let said = self.status.message.as_ref().map(text_of).unwrap_or_default();
        self.progress.set(self.status.state(), &said);
    }

    /// How it ended, told to whom it concerns.
    fn conclude(mut self) -> anyhow::Result<FollowOutcome> {
        let state = self.status.state();
        let style = Style::stderr();
        let failure = failure_of(&self.status, self.metadata.as_ref());
        // An agent that made nothing may still have said something: that is its answer.
        let is_whole = self.released == Released::All;
        if state == TaskState::Completed && self.printer.is_empty() && is_whole {
            let said = self.status.message.as_ref().map(text_of).unwrap_or_default();
            self.print(|printer| printer.text(&said))?;
        }
        self.close()?;
        if let Some(failure) = &failure {
            let headline = task::headline(&self.task_id, state);
            self.print_to_stderr(&failure_card::render(failure, &headline, Reader::Caller, style))?;
            return Ok(Exit::of_failure(failure).into());
        }
        let open_question = self.is_asking();
        if is_waiting(state) {
            let metadata = self.metadata.as_ref();
            self.print_to_stderr(&task::question(&self.task_id, &self.status, metadata, style))?;
        } else if state == TaskState::Completed {
            let took = style.dim(format!("in {}", span(self.progress.elapsed())));
            let text =
                format!("{} task {} completed {took}", style.green("✓"), line(&self.task_id));
            self.progress.print_last_line(&text);
        }
        let question = interrupt_of(&self.status, self.metadata.as_ref()).unwrap_or_default();
        let open_question = open_question.then_some(OpenQuestion { task: self.task_id, question });
        let exit = match (self.released, exit::of_state(state)) {
            (Released::Interrupted, _) => Exit::INTERRUPTED,
            // A script must not take nothing for the output.
            (Released::Unread, Exit::OK) => Exit::UNAVAILABLE,
            (_, exit) => exit,
        };
        Ok(FollowOutcome { exit, open_question })
    }

    fn end_with_error(
        mut self,
        connect: &Connect,
        error: Error,
        headline: &str,
    ) -> anyhow::Result<Exit> {
        self.close()?;
        if self.task_id.is_empty() {
            return connect.report_error(error, headline);
        }
        let id = line(&self.task_id);
        let headline = format!("task {id} is out of sight");
        let hint = format!("the task may go on: faultline watch {id}");
        connect.report_failure(&as_unknown_outcome(error.into()), &headline, Some(&hint))
    }

    /// Ctrl-C ends the following, not the task.
    fn end_by_interrupt(mut self) -> anyhow::Result<Exit> {
        self.close()?;
        if let Some(id) = self.task() {
            let id = line(id);
            let next = format!("  watch   faultline watch {id}\n  cancel  faultline cancel {id}\n");
            self.print_to_stderr(&format!("The task goes on.\n{next}"))?;
        }
        Ok(Exit::INTERRUPTED)
    }

    fn close(&mut self) -> io::Result<()> {
        self.progress.clear();
        self.printer.finish()
    }

    /// To stderr, for people: a program has read the same in the events.
    fn print_to_stderr(&self, text: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { io::stderr().write_all(text.as_bytes()) }
    }
}

/// The failure of a stream whose task is known. To repeat the call would start the work a second
/// time, so it is not one of those for which the advice is to send again.
fn as_unknown_outcome(failure: Failure) -> Failure {
    if failure.may_retry() && failure.row() != &reason::RECONNECT_EXHAUSTED {
        Failure::new(&reason::RECONNECT_EXHAUSTED).because(failure.public_message.clone())
    } else {
        failure
    }
}

#[cfg(test)]
mod tests {
    use faultline_proto::advice::advise;

    use super::*;

    #[test]
    fn advice_after_a_lost_stream_is_to_look_for_the_task() {
        for row in [&reason::UNAVAILABLE, &reason::OVERLOADED, &reason::RECONNECT_EXHAUSTED] {
            let failure = as_unknown_outcome(Failure::new(row));
            let text = advise(&failure, Reader::Caller).text;
            assert!(text.contains("see whether the task goes on"), "{}: {text}", row.name);
        }
        let gone = as_unknown_outcome(Failure::new(&reason::TASK_NOT_FOUND));
        assert_eq!(gone.row(), &reason::TASK_NOT_FOUND);
    }
}
