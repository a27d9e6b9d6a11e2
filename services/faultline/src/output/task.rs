//! Tasks as text: one task, a table of tasks, the history of a task, and the question of a task
//! that waits.

use faultline_client::{failure_of, interrupt_of, is_final, is_waiting, text_of};
use faultline_proto::{
    Failure,
    a2a::{ListTasksResponse, Task, TaskState, TaskStatus},
    advice::{self, Reader},
    failure::state_word,
    json,
    v1::{self, Attempt, InspectResponse, Interrupt, TasksResponse, attempt::Outcome},
};
use prost_types::{Struct, value::Kind};

use crate::output::{
    artifacts::part_text,
    failure_card, retry_text,
    style::Style,
    text::{between, columns, instant, line, short, span},
};

/// Bound on the text of a failure behind its attempt.
const WHY_CHARS_MAX: usize = 60;

/// The plain and the styled text of a cell.
type Cell = (String, String);

fn plain(text: impl Into<String>) -> Cell {
    let text = text.into();
    (text.clone(), text)
}

fn fact(rows: &mut Vec<Vec<Cell>>, style: Style, name: &str, value: Cell) {
    if !value.0.is_empty() {
        rows.push(vec![(name.to_owned(), style.dim(name)), value]);
    }
}

fn state_cell(state: TaskState, style: Style) -> Cell {
    let word = state_word(state);
    let painted = match state {
        TaskState::Completed => style.green(word),
        TaskState::Failed | TaskState::Rejected => style.red(word),
        _ if is_waiting(state) => style.yellow(word),
        _ if is_final(state) => style.dim(word),
        _ => style.cyan(word),
    };
    (word.to_owned(), painted)
}

fn status_of(task: &Task) -> TaskStatus {
    task.status.clone().unwrap_or_default()
}

/// The headline of a failure of this task.
pub(crate) fn headline(task_id: &str, state: TaskState) -> String {
    format!("task {} {}", line(task_id), state_word(state))
}

/// The advice that the gateway gave for this reader; gateways of older builds give none.
pub(crate) fn advice_of(inspect: &InspectResponse, failure: &Failure) -> String {
    match &inspect.advice {
        Some(record) => line(&advice::sentence(record)),
        None => failure_card::advice(failure, Reader::Caller),
    }
}

/// The failure of a task with this advice.
fn failure_card(task: &Task, failure: &Failure, advice: &str, style: Style) -> String {
    let headline = headline(&task.id, status_of(task).state());
    failure_card::render_with_advice(failure, &headline, advice, style)
}

/// `faultline get`.
pub(crate) fn card(task: &Task, style: Style) -> String {
    let status = status_of(task);
    let mut rows = Vec::new();
    fact(&mut rows, style, "task", (task.id.clone(), style.bold(line(&task.id))));
    fact(&mut rows, style, "state", state_cell(status.state(), style));
    if let Some(time) = &status.timestamp {
        fact(&mut rows, style, "since", plain(instant(time)));
    }
    fact(&mut rows, style, "context", plain(line(&task.context_id)));
    let lacks = degraded(task);
    fact(&mut rows, style, "lacks", (lacks.clone(), style.yellow(lacks)));
    let failure = failure_of(&status, task.metadata.as_ref());
    let told_below = failure.is_some() || is_waiting(status.state());
    if let Some(message) = status.message.as_ref().filter(|_| !told_below) {
        fact(&mut rows, style, "says", plain(short(&text_of(message), 100)));
    }
    let mut out = columns(&rows);
    for artifact in &task.artifacts {
        let name = if artifact.name.is_empty() { &artifact.artifact_id } else { &artifact.name };
        let text: String = artifact.parts.iter().map(part_text).collect();
        out.push_str(&format!("\n{} {}\n", style.dim("artifact"), line(name)));
        out.push_str(text.trim_end_matches('\n'));
        out.push('\n');
    }
    if is_waiting(status.state()) {
        out.push('\n');
        out.push_str(&question(&task.id, &status, task.metadata.as_ref(), style));
    }
    if let Some(failure) = failure {
        let advice = failure_card::advice(&failure, Reader::Caller);
        out.push('\n');
        out.push_str(&failure_card(task, &failure, &advice, style));
    }
    out
}

/// The failures that a degraded task tolerated.
fn degraded(task: &Task) -> String {
    let field = |name| task.metadata.as_ref().and_then(|m| m.fields.get(name)?.kind.as_ref());
    if !matches!(field("faultline.dev/degraded"), Some(Kind::BoolValue(true))) {
        return String::new();
    }
    let listed = match field("faultline.dev/tolerated") {
        Some(Kind::ListValue(list)) => list.values.as_slice(),
        _ => &[],
    };
    let records = listed.iter().filter_map(|value| match &value.kind {
        Some(Kind::StructValue(record)) => json::from_struct::<v1::Failure>(record).ok(),
        _ => None,
    });
    let each = records.map(Failure::from_record);
    let each: Vec<_> =
        each.map(|f| format!("{}: {}", line(f.origin_agent()), line(&f.reason))).collect();
    if each.is_empty() {
        "something: it is degraded".to_owned()
    } else {
        format!("{} (it is degraded)", each.join(", "))
    }
}

/// `faultline list`: a table for people, lines with tabs for programs. The table is cut to the
/// width of a terminal; programs also receive the context.
pub(crate) fn table(list: &ListTasksResponse, for_people: bool, style: Style) -> String {
    let mut rows = Vec::new();
    if for_people {
        let head = ["TASK", "STATE", "SINCE", "SAYS"];
        rows.push(head.iter().map(|h| ((*h).to_owned(), style.dim(h))).collect());
    }
    for task in &list.tasks {
        let status = status_of(task);
        let since = status.timestamp.as_ref().map(instant).unwrap_or_default();
        let says = match failure_of(&status, task.metadata.as_ref()) {
            Some(failure) => format!("{}: {}", failure.reason, failure.public_message),
            None => status.message.as_ref().map(text_of).unwrap_or_default(),
        };
        let mut row = vec![plain(line(&task.id)), state_cell(status.state(), style), plain(since)];
        if !for_people {
            row.push(plain(line(&task.context_id)));
        }
        row.push(plain(short(&says, if for_people { 32 } else { 60 })));
        rows.push(row);
    }
    if for_people { columns(&rows) } else { rows.iter().map(|row| bare(row)).collect() }
}

/// `faultline list --all`: the tasks of all callers.
pub(crate) fn summaries(list: &TasksResponse, for_people: bool, style: Style) -> String {
    let mut rows = Vec::new();
    if for_people {
        let head = ["TASK", "STATE", "SINCE", "AGENT", "WHOSE", "REASON"];
        rows.push(head.iter().map(|h| ((*h).to_owned(), style.dim(h))).collect());
    }
    for task in &list.tasks {
        let since = task.changed.as_ref().map(instant).unwrap_or_default();
        let reason = match (task.reason.as_str(), task.origin.as_str()) {
            (reason, origin) if !for_people || origin.is_empty() => line(reason),
            (reason, origin) => format!("{} in {}", line(reason), line(origin)),
        };
        let mut row = vec![
            plain(line(&task.task_id)),
            state_cell(task.state(), style),
            plain(since),
            plain(line(&task.agent)),
            plain(line(&task.principal)),
            plain(reason),
        ];
        if !for_people {
            row.push(plain(line(&task.origin)));
        }
        rows.push(row);
    }
    if for_people { columns(&rows) } else { rows.iter().map(|row| bare(row)).collect() }
}

fn bare(row: &[Cell]) -> String {
    row.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("\t") + "\n"
}

/// The question of a task that waits, and the command that answers it.
pub(crate) fn question(
    task_id: &str,
    status: &TaskStatus,
    metadata: Option<&Struct>,
    style: Style,
) -> String {
    let interrupt = interrupt_of(status, metadata).unwrap_or_default();
    let said = status.message.as_ref().map(text_of).unwrap_or_default();
    let prompt = if interrupt.prompt.is_empty() { said } else { interrupt.prompt.clone() };
    let mark = style.yellow("?");
    let mut out = format!("{mark} task {} asks: {}\n", line(task_id), style.bold(line(&prompt)));
    let mut tell = |label: &str, text: &str| {
        out.push_str(&format!("  {}  {text}\n", style.dim(format!("{label:<6}"))));
    };
    let choices = choices(&interrupt);
    if !choices.is_empty() {
        tell("one of", &choices.join(", "));
    }
    if !interrupt.url.is_empty() {
        tell("open", &line(&interrupt.url));
    }
    if let Some(time) = &interrupt.expires_at {
        tell("until", &instant(time));
    }
    let keys = open_keys(metadata);
    if keys.len() > 1 {
        tell("all", &keys.join(", "));
        let answer = format!("faultline answer {} --question KEY TEXT", line(task_id));
        tell("answer", &answer);
    } else {
        tell("answer", &format!("faultline answer {} TEXT", line(task_id)));
    }
    out
}

/// The keys of all open questions of a task.
fn open_keys(metadata: Option<&Struct>) -> Vec<String> {
    let listed = metadata.and_then(|m| m.fields.get("faultline.dev/interrupts")?.kind.as_ref());
    let Some(Kind::ListValue(list)) = listed else { return Vec::new() };
    let key = |value: &prost_types::Value| match value.kind.as_ref()? {
        Kind::StructValue(record) => match record.fields.get("key")?.kind.as_ref()? {
            Kind::StringValue(key) => Some(line(key)),
            _ => None,
        },
        _ => None,
    };
    list.values.iter().filter_map(key).collect()
}

/// The options in the schema of the answer.
fn choices(interrupt: &Interrupt) -> Vec<String> {
    fn find(value: &prost_types::Value, out: &mut Vec<String>) {
        let Some(Kind::StructValue(object)) = &value.kind else { return };
        for (key, value) in &object.fields {
            match &value.kind {
                Some(Kind::ListValue(list)) if key == "enum" => {
                    out.extend(list.values.iter().filter_map(|v| match &v.kind {
                        Some(Kind::StringValue(text)) => Some(line(text)),
                        _ => None,
                    }));
                }
                _ => find(value, out),
            }
        }
    }
    let mut out = Vec::new();
    if let Some(schema) = &interrupt.schema {
        find(&Kind::StructValue(schema.clone()).into(), &mut out);
    }
    out
}

/// `faultline explain TASK`: the history of a task, attempt by attempt, and its failure.
pub(crate) fn history(inspect: &InspectResponse, style: Style) -> String {
    let task = inspect.task.clone().unwrap_or_default();
    let status = status_of(&task);
    let mut rows = Vec::new();
    fact(&mut rows, style, "task", (task.id.clone(), style.bold(line(&task.id))));
    fact(&mut rows, style, "agent", plain(line(&inspect.agent)));
    if let Some(parent) = &inspect.parent {
        fact(&mut rows, style, "from", plain(format!("task {}", line(&parent.task_id))));
    }
    let (word, painted) = state_cell(status.state(), style);
    let after = match (&inspect.created, &status.timestamp) {
        (Some(created), Some(since)) => between(created, since)
            .map(|time| format!("  {} after it was sent", span(time)))
            .unwrap_or_default(),
        _ => String::new(),
    };
    fact(&mut rows, style, "state", (format!("{word}{after}"), format!("{painted}{after}")));
    let sent = inspect.created.as_ref().map(instant).unwrap_or_default();
    fact(&mut rows, style, "sent", plain(sent));
    fact(&mut rows, style, "context", plain(line(&task.context_id)));
    fact(&mut rows, style, "trace", plain(line(&inspect.trace_id)));
    fact(&mut rows, style, "link", plain(line(&inspect.trace_url)));
    if inspect.late_reports > 0 {
        let word = if inspect.late_reports == 1 { "report" } else { "reports" };
        let late = format!("{} {word} after the end, dropped", inspect.late_reports);
        fact(&mut rows, style, "late", plain(late));
    }
    let mut out = columns(&rows);
    if !inspect.attempts.is_empty() {
        out.push('\n');
        out.push_str(&columns(&attempts(&inspect.attempts, style)));
    }
    if let Some(why) = retry_text::not_retried_text(inspect) {
        out.push_str(&format!("{} {why}\n", style.dim("not tried again:")));
    }
    if is_waiting(status.state()) {
        out.push('\n');
        out.push_str(&question(&task.id, &status, task.metadata.as_ref(), style));
    }
    let whole = inspect.failure.clone().map(Failure::from_record);
    if let Some(failure) = whole.or_else(|| failure_of(&status, task.metadata.as_ref())) {
        let advice = advice_of(inspect, &failure);
        out.push('\n');
        out.push_str(&failure_card(&task, &failure, &advice, style));
    }
    out
}

fn attempts(attempts: &[Attempt], style: Style) -> Vec<Vec<Cell>> {
    let row = |attempt: &Attempt| {
        let started = attempt.started.as_ref().map(instant).unwrap_or_default();
        let (word, painted) = match attempt.outcome() {
            Outcome::Unspecified => ("", String::new()),
            Outcome::Running => ("running", style.cyan("running")),
            Outcome::Ended => ("ended", "ended".to_owned()),
            Outcome::WorkerLost => ("worker lost", style.red("worker lost")),
            Outcome::Failed => ("failed", style.red("failed")),
            Outcome::Released => ("handed back", style.yellow("handed back")),
        };
        let name = format!("attempt {}", attempt.number);
        let mut row = vec![
            (name.clone(), style.dim(name)),
            plain(format!("worker {}", line(&attempt.worker))),
            plain(started),
            plain(retry_text::duration_text(attempt).unwrap_or_default()),
            (word.to_owned(), painted),
        ];
        let why = attempt.failure.as_ref().map(|failure| {
            short(&format!("{}: {}", failure.reason, failure.public_message), WHY_CHARS_MAX)
        });
        let why = why.unwrap_or_default() + &retry_text::next_attempt_text(attempt, attempts);
        if !why.is_empty() {
            row.push(plain(why.trim_start_matches(", ")));
        }
        row
    };
    attempts.iter().map(row).collect()
}

#[cfg(test)]
mod tests;
