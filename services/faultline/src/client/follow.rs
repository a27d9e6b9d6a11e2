//! Follows the event stream of a task for a person or a script: artifacts go to stdout, the live
//! line and the final failure or question to stderr. On a terminal the question is answered in
//! place.
//!
//! A terminal receives artifacts as they arrive. A pipe or a file receives the stored artifacts
//! once the task has ended or asks: a lost attempt is rolled back to its last checkpoint, and bytes
//! in a pipe cannot be taken back.

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

/// The options of one follow.
pub(crate) struct FollowOptions<'a> {
    /// The id of the message that answers a question. Until the task's history has this message,
    /// the question of the task is the answered one.
    pub(crate) answer: Option<String>,
    /// The first words of a failed call's report.
    pub(crate) headline: &'a str,
}

/// Opens the stream with `open` and follows it until the task ends, or asks a question that no one
/// at this terminal answers.
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

/// Timeout for reading the stored task on a pipe. If it passes, no artifact is printed: a rollback
/// may have revoked the artifacts of the events.
const STORED_TASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether artifacts are held back until they are final.
fn holds_artifacts() -> bool {
    !io::stdout().is_terminal()
}

/// The stored task, if it can be read in time.
async fn read_stored_task(client: &Client, id: &str) -> Option<Task> {
    tokio::time::timeout(STORED_TASK_TIMEOUT, client.task(id)).await.ok()?.ok()
}

/// Prints the artifacts that were held back, for a task with an open question or a cancelled task.
async fn print_held_artifacts(client: &Client, id: String) -> anyhow::Result<()> {
    let mut session = FollowSession::new(false, None, Some(id))?;
    session.release(client).await?;
    Ok(session.close()?)
}

/// A second Ctrl-C within this time after the first one cancels the task.
const SECOND_INTERRUPT_WITHIN: Duration = Duration::from_secs(2);

/// A person's reaction to a question.
enum TypedAnswer {
    Answer(Vec<Part>),
    /// An empty line, Ctrl-D or one Ctrl-C: the task continues to wait.
    Nothing,
    /// Ctrl-C twice.
    Cancel,
}

async fn read_answer(question: Interrupt) -> anyhow::Result<TypedAnswer> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let (typed, reading) = oneshot::channel();
    // A separate thread: the read may block for ever, and the runtime must not wait for it.
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

/// Whether a person at a terminal can see a question and type an answer.
fn is_attended() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The outcome of following one stream.
struct FollowOutcome {
    exit: Exit,
    /// The question, if a person at this terminal can answer it.
    open_question: Option<OpenQuestion>,
}

/// The question of a task that waits.
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
    // A question that is answered at this terminal does not end the output.
    if !session.has_message && !session.is_asking() {
        session.release(client).await?;
    }
    session.conclude()
}

/// The state of the artifacts that were held back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Released {
    /// Printed, or none were held back.
    All,
    /// Not printed: the stored task could not be read.
    Unread,
    /// Not printed: Ctrl-C interrupted the read of the stored task.
    Interrupted,
}

/// The state of following one stream: the latest status of the task, the output, and the signals.
/// One call of `follow_once` owns it and updates it with every event.
struct FollowSession {
    json: bool,
    /// Artifacts are printed when the task has ended or asks, not as they arrive.
    holds: bool,
    printer: ArtifactPrinter<Stdout>,
    progress: Progress,
    ticks: Interval,
    interrupts: Signal,
    /// The id of the task that is answered; `task_id` is empty until its first event.
    answered: Option<String>,
    task_id: String,
    status: TaskStatus,
    metadata: Option<Struct>,
    answer: Option<String>,
    /// The response was a message without a task, which ends the stream.
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

    /// The result of `work`, while the live line is updated. `None`: Ctrl-C.
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

    /// The task asks, and a person at this terminal can answer.
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

    /// The id of the task, if it is known.
    fn task(&self) -> Option<&str> {
        let followed = Some(self.task_id.as_str()).filter(|id| !id.is_empty());
        followed.or(self.answered.as_deref())
    }

    /// Prints the artifacts that were held back from the stored task. If it cannot be read, a note
    /// on stderr is printed instead.
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
            "Its artifacts are not printed: the stored task was not read. Read it with: faultline \
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

    /// Prints the final state and returns the outcome.
    fn conclude(mut self) -> anyhow::Result<FollowOutcome> {
        let state = self.status.state();
        let style = Style::stderr();
        let failure = failure_of(&self.status, self.metadata.as_ref());
        // Without artifacts, the final status message is the result.
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
            // A script must not take the missing output for an empty result.
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
        let headline = format!("the stream of task {id} was lost");
        let hint = format!("the task may continue: faultline watch {id}");
        connect.report_failure(&as_unknown_outcome(error.into()), &headline, Some(&hint))
    }

    /// Ctrl-C ends the command; the task continues.
    fn end_by_interrupt(mut self) -> anyhow::Result<Exit> {
        self.close()?;
        if let Some(id) = self.task() {
            let id = line(id);
            let next = format!("  watch   faultline watch {id}\n  cancel  faultline cancel {id}\n");
            self.print_to_stderr(&format!("The task continues.\n{next}"))?;
        }
        Ok(Exit::INTERRUPTED)
    }

    fn close(&mut self) -> io::Result<()> {
        self.progress.clear();
        self.printer.finish()
    }

    /// Text for people on stderr. With `--json` the events contain the same information.
    fn print_to_stderr(&self, text: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { io::stderr().write_all(text.as_bytes()) }
    }
}

/// The failure of a stream whose task is known. A repeated send would start a second task, so a
/// retryable failure becomes one whose advice is to look up the task.
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
    fn advice_after_a_lost_stream_is_to_look_up_the_task() {
        for row in [&reason::UNAVAILABLE, &reason::OVERLOADED, &reason::RECONNECT_EXHAUSTED] {
            let failure = as_unknown_outcome(Failure::new(row));
            let text = advise(&failure, Reader::Caller).text;
            assert!(text.contains("see whether the task goes on"), "{}: {text}", row.name);
        }
        let gone = as_unknown_outcome(Failure::new(&reason::TASK_NOT_FOUND));
        assert_eq!(gone.row(), &reason::TASK_NOT_FOUND);
    }
}
