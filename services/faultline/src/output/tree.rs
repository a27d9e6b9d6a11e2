//! `faultline explain TASK` for a task that delegated: first the origin of the failure or the
//! current activity, then the tree from the given task down to it, then the advice. Successful
//! tasks are dimmed and short.

use std::collections::HashSet;

use faultline_client::{failure_of, is_final, is_waiting};
use faultline_proto::{
    Failure,
    a2a::{TaskState, TaskStatus},
    failure::state_word,
    v1::{Attempt, Cause, attempt::Outcome},
};
use prost_types::Timestamp;

use crate::{
    output::{
        failure_card::{append, branch_line, facts, push_advice, push_labelled},
        retry_text,
        style::Style,
        task,
        text::{between, instant, line, short, span, wrapped},
        tree_layout::{Hop, Line, align, select_visible},
    },
    task_tree::{Subtask, TaskTree},
};

const COLUMNS: usize = 92;
const QUOTE_CHARS_MAX: usize = 56;
/// Bound on the active tasks and failed branches listed above the tree.
const ACTIVE_MAX: usize = 5;

/// Renders the tree. The age of a live task is the time until `now`.
pub(crate) fn render(tree: &TaskTree, now: &Timestamp, style: Style) -> String {
    let status = status_of(tree);
    let task = tree.task.task.clone().unwrap_or_default();
    let whole = tree.task.failure.clone().map(Failure::from_record);
    let failure = whole.or_else(|| failure_of(&status, task.metadata.as_ref()));
    let mut failure_path = HashSet::new();
    failure.iter().for_each(|failure| collect_failure_path(tree, failure, &mut failure_path));
    failure_path.remove("");
    let view = TreeView { root: tree, failure: failure.as_ref(), failure_path, now, style };
    let mut out = String::new();
    match &failure {
        Some(failure) => view.push_origin(failure, &mut out),
        None if is_final(tree.state()) => view.push_outcome(&mut out),
        None => view.push_progress(&mut out),
    }
    let mut lines = Vec::new();
    view.hop(tree, Indent::default(), &mut lines);
    append(&mut out, format_args!("\n{}\n", align(&lines, style)));
    if let Some(failure) = &failure {
        push_advice(&mut out, style, &task::advice_of(&tree.task, failure));
    }
    view.facts(&mut out);
    if let Some(failure) = &failure {
        let more = format!("faultline explain {}", failure.row().name);
        push_labelled(&mut out, style, "more", &more);
    }
    out
}

fn status_of(tree: &TaskTree) -> TaskStatus {
    tree.task.task.as_ref().and_then(|task| task.status.clone()).unwrap_or_default()
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn quote(text: &str) -> String {
    format!("\"{}\"", short(text, QUOTE_CHARS_MAX))
}

/// The tasks on the path to the origin of the failure: those of its chain of causes, and below a
/// fan-out those of every failed branch.
fn collect_failure_path(root: &TaskTree, failure: &Failure, found: &mut HashSet<String>) {
    found.extend(failure.causes.iter().map(|cause| cause.task_id.clone()));
    for branch in failure.aggregate.iter().flat_map(|all| &all.branches) {
        let is_new = found.insert(branch.task_id.clone());
        let below = root.find(&branch.task_id).filter(|_| is_new);
        if let Some(below) = below.and_then(|tree| tree.task.failure.clone()) {
            collect_failure_path(root, &Failure::from_record(below), found);
        }
    }
}

/// The inputs of one rendering.
struct TreeView<'a> {
    root: &'a TaskTree,
    failure: Option<&'a Failure>,
    /// The ids that `collect_failure_path` found.
    failure_path: HashSet<String>,
    now: &'a Timestamp,
    style: Style,
}

/// The lines of the tree before a hop: the connector before its agent, the margin before its notes.
#[derive(Clone, Default)]
struct Indent {
    connector: String,
    margin: String,
}

impl Indent {
    fn below(&self, is_last: bool) -> Self {
        let (connector, margin) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        Self {
            connector: format!("{}{connector}", self.margin),
            margin: format!("{}{margin}", self.margin),
        }
    }
}

// The text above the tree.
impl TreeView<'_> {
    /// The origin of the failure: agent, reason, message, worker and time.
    fn push_origin(&self, failure: &Failure, out: &mut String) {
        let style = self.style;
        let root = failure.causes.last().cloned().unwrap_or_default();
        let place = self.root.find(&root.task_id);
        let word = match place.map(TaskTree::state) {
            Some(state @ (TaskState::Rejected | TaskState::Canceled)) => state_word(state),
            _ => "failed",
        };
        let reason = if root.reason.is_empty() { &failure.reason } else { &root.reason };
        let text = match root.public_message.as_str() {
            "" => &failure.public_message,
            own => own,
        };
        append(
            out,
            format_args!(
                "{} {} {word}: {} {}\n{}\n",
                style.red("✗"),
                style.bold(name_of(failure, &root)),
                style.bold(line(reason)),
                style.dim(format!("({})", facts(failure))),
                wrapped(text, "  ", COLUMNS)
            ),
        );
        if !root.business_code.is_empty() {
            push_labelled(out, style, "code", &style.yellow(line(&root.business_code)));
        }
        for violation in &failure.violations {
            let text = format!("{}: {}", violation.field, violation.description);
            push_labelled(out, style, "field", wrapped(&text, "         ", COLUMNS).trim_start());
        }
        if let Some(all) = &failure.aggregate {
            let asked = all.asked;
            let needed = all.required;
            let text = format!("{asked} were asked, {needed} had to answer, {} did", all.succeeded);
            push_labelled(out, style, "of", &text);
            let failed = all.branches.iter().take(ACTIVE_MAX);
            failed.for_each(|one| push_labelled(out, style, "broke", &branch_line(one, style)));
        }
        let hops = failure.causes.len().saturating_sub(1) + failure.causes_dropped as usize;
        let depth = match hops {
            0 => "in the task you asked about".to_owned(),
            hops => format!("{} below the task you asked about", plural(hops, "hop", "hops")),
        };
        let last = place.and_then(|tree| tree.task.attempts.last());
        let worker = match last.map_or("", |attempt| attempt.worker.as_str()) {
            "" => String::new(),
            worker => format!(", on worker {}", line(worker)),
        };
        push_labelled(out, style, "where", &format!("{depth}{worker}"));
        if let Some(time) = root.time.as_ref().or(failure.time.as_ref()) {
            push_labelled(out, style, "when", &instant(time));
        }
    }

    fn push_outcome(&self, out: &mut String) {
        let state = self.root.state();
        let style = self.style;
        let mark = match state {
            TaskState::Completed => style.green("✓"),
            _ => style.dim("-"),
        };
        let after = match self.elapsed(self.root).as_str() {
            "" => String::new(),
            time => format!(" after {time}"),
        };
        let headline = task::headline(self.root.id(), state);
        append(out, format_args!("{mark} {headline}{after}\n"));
    }

    /// The tasks that run, wait for a worker or wait for an answer.
    fn push_progress(&self, out: &mut String) {
        let style = self.style;
        let state = self.root.state();
        let active = frontier(self.root);
        let mark = if is_waiting(state) { style.yellow("?") } else { style.cyan("●") };
        let word = if is_waiting(state) { "waits for an answer" } else { "is under way" };
        append(out, format_args!("{mark} task {} {word}\n", line(self.root.id())));
        for tree in active.iter().take(ACTIVE_MAX) {
            let agent = style.bold(line(&tree.task.agent));
            append(out, format_args!("  {agent} {}\n", self.activity(tree)));
        }
        if let Some(more) = active.len().checked_sub(ACTIVE_MAX).filter(|more| *more > 0) {
            append(out, format_args!("  {}\n", style.dim(format!("and {more} more"))));
        }
        if is_waiting(state) {
            let answer = format!("faultline answer {} TEXT", line(self.root.id()));
            push_labelled(out, style, "answer", &answer);
        }
    }

    /// The current activity of a task at the end of a live path.
    fn activity(&self, tree: &TaskTree) -> String {
        let last = tree.task.attempts.last();
        let left = match tree.task.remaining_ms {
            Some(ms) => format!(", {} left", span(std::time::Duration::from_millis(ms))),
            None => String::new(),
        };
        if is_waiting(tree.state()) {
            let prompts = tree.task.interrupts.iter().map(|i| match i.prompt.as_str() {
                "" => line(&i.url),
                prompt => quote(prompt),
            });
            let since = status_of(tree).timestamp;
            return format!(
                "asks {}, for {}",
                prompts.collect::<Vec<_>>().join(" and "),
                self.age(since.as_ref())
            );
        }
        match last.filter(|attempt| attempt.outcome() == Outcome::Running) {
            Some(running) => format!(
                "computes on worker {}, attempt {}, for {}{left}",
                line(&running.worker),
                running.number,
                self.age(running.started.as_ref())
            ),
            None => match last.map(|attempt| (attempt, self.describe_attempt(attempt, tree))) {
                Some((attempt, why)) => {
                    let since = self.age(attempt.ended.as_ref());
                    format!("waits to be tried again for {since}: {why}{left}")
                }
                None => format!("waits for a worker for {}{left}", self.elapsed(tree)),
            },
        }
    }

    /// Further facts about the root task.
    fn facts(&self, out: &mut String) {
        let shown = &self.root.task;
        let style = self.style;
        if let Some(parent) = &shown.parent {
            push_labelled(out, style, "from", &format!("task {}", line(&parent.task_id)));
        }
        if let Some(sent) = &shown.created {
            push_labelled(out, style, "sent", &instant(sent));
        }
        if shown.late_reports > 0 {
            let late = plural(shown.late_reports as usize, "report", "reports");
            push_labelled(out, style, "late", &format!("{late} after the end, dropped"));
        }
        if !shown.trace_id.is_empty() {
            push_labelled(out, style, "trace", &line(&shown.trace_id));
        }
        if !shown.trace_url.is_empty() {
            push_labelled(out, style, "link", &line(&shown.trace_url));
        }
        let unseen = self.root.count_not_loaded();
        if unseen > 0 {
            let tasks = plural(unseen, "task was", "tasks were");
            push_labelled(
                out,
                style,
                "cut",
                &format!("{tasks} not looked into; explain one by its id"),
            );
        }
    }
}

// The tree.
impl TreeView<'_> {
    fn hop(&self, tree: &TaskTree, at: Indent, lines: &mut Vec<Line>) {
        let opened = self.is_expanded(tree);
        let shown = if opened {
            select_visible(&tree.subtasks, |tree| self.is_on_failure_path(tree))
        } else {
            <_>::default()
        };
        let outside_hops = self.outside_hops(tree);
        let is_origin = tree.state() != TaskState::Canceled
            && self.is_on_failure_path(tree)
            && outside_hops.is_empty()
            && !tree.loaded().any(|t| self.is_on_failure_path(t));
        lines.push(Line::Hop(Hop {
            connector: at.connector.clone(),
            agent: line(&tree.task.agent),
            state: tree.state(),
            is_dimmed: !opened || tree.state() == TaskState::Completed,
            is_origin,
            cells: [
                self.elapsed(tree),
                attempts_cell(&tree.task.attempts),
                tree.task.failure.as_ref().map_or_else(String::new, |f| line(&f.reason)),
                line(tree.id()),
            ],
        }));
        let has_below =
            !shown.subtasks.is_empty() || !shown.rest.is_empty() || !outside_hops.is_empty();
        let margin = format!("{}{}", at.margin, if has_below { "│  " } else { "   " });
        if opened {
            self.notes(tree, &margin, lines);
        }
        let mut left = shown.subtasks.len() + usize::from(!shown.rest.is_empty());
        for below in shown.subtasks {
            left -= 1;
            let at = at.below(left == 0 && outside_hops.is_empty());
            match below {
                Subtask::Loaded(tree) => self.hop(tree, at, lines),
                Subtask::NotLoaded(child) => lines.push(Line::Hop(Hop {
                    connector: at.connector,
                    agent: line(&child.agent),
                    state: child.state(),
                    is_dimmed: true,
                    is_origin: false,
                    cells: [String::new(), String::new(), String::new(), line(&child.task_id)],
                })),
            }
        }
        if !shown.rest.is_empty() {
            let connector = at.below(outside_hops.is_empty()).connector;
            lines.push(Line::Note { margin: connector, text: self.style.dim(&shown.rest) });
        }
        self.push_outside_hops(outside_hops, &at, lines);
    }

    /// Notes below a hop: its attempts, tolerated failures and open questions.
    fn notes(&self, tree: &TaskTree, margin: &str, lines: &mut Vec<Line>) {
        let mut note = |text: String| {
            lines.push(Line::Note { margin: margin.to_owned(), text: self.style.dim(text) });
        };
        let attempts = &tree.task.attempts;
        let tried_again = attempts.len() > 1 || attempts.iter().any(|a| a.failure.is_some());
        for attempt in attempts.iter().filter(|_| tried_again) {
            let stand_in = match attempt.agent.as_str() {
                "" => String::new(),
                agent => format!(" by {}", line(agent)),
            };
            let number = attempt.number;
            let worker = line(&attempt.worker);
            let why = self.describe_attempt(attempt, tree);
            note(format!("attempt {number} on {worker}{stand_in}: {why}"));
        }
        if let Some(why) = retry_text::not_retried_text(&tree.task) {
            note(format!("not tried again: {why}"));
        }
        for failure in &tree.task.tolerated {
            let failure = Failure::from_record(failure.clone());
            let root = failure.causes.last().cloned().unwrap_or_default();
            let who = name_of(&failure, &root);
            let text = if root.public_message.is_empty() {
                quote(&failure.public_message)
            } else {
                quote(&root.public_message)
            };
            note(format!("went on without {who}: {} {text}", line(&failure.reason)));
        }
        if is_waiting(tree.state()) && !tree.loaded().any(|below| is_waiting(below.state())) {
            tree.task.interrupts.iter().for_each(|i| note(format!("asks {}", quote(&i.prompt))));
        }
    }

    /// The outcome of an attempt as text.
    fn describe_attempt(&self, attempt: &Attempt, tree: &TaskTree) -> String {
        let running = || self.age(attempt.started.as_ref());
        let took = retry_text::duration_text(attempt).unwrap_or_else(running);
        let why = match (&attempt.failure, attempt.outcome()) {
            (Some(failure), _) => {
                format!("{} {}", line(&failure.reason), quote(&failure.public_message))
            }
            (None, Outcome::WorkerLost) => "its worker was lost".to_owned(),
            (None, Outcome::Released) => "handed back by its worker".to_owned(),
            (None, Outcome::Failed) => "failed".to_owned(),
            (None, Outcome::Running) => return format!("running for {took}"),
            (None, _) => state_word(tree.state()).to_owned(),
        };
        format!("{why} after {took}{}", retry_text::next_attempt_text(attempt, &tree.task.attempts))
    }

    /// Causes below a task that are no tasks of this tree: a rejected call, or the hops that a peer
    /// outside the mesh reported. One line per hop, each deeper than the last; branches of a
    /// fan-out are on one level.
    fn outside_hops(&self, tree: &TaskTree) -> Vec<(usize, String)> {
        let own = tree.task.failure.clone().map(Failure::from_record);
        let on_top = |f: &&Failure| f.causes.iter().any(|cause| cause.task_id == tree.id());
        let failure =
            self.failure.filter(on_top).or(own.as_ref().filter(|_| self.is_on_failure_path(tree)));
        let Some(failure) = failure else { return Vec::new() };
        let at = failure.causes.iter().position(|cause| cause.task_id == tree.id());
        let below = at.and_then(|at| failure.causes.get(at + 1..)).unwrap_or_default();
        let here = self.style.red("  ← it broke here");
        if below.is_empty() {
            let all = failure.aggregate.iter().flat_map(|all| &all.branches);
            let refused = all.filter(|branch| self.root.find(&branch.task_id).is_none());
            let told = refused.map(|one| (0, format!("{}{here}", branch_line(one, self.style))));
            return told.collect();
        }
        if tree.loaded().any(|below| self.is_on_failure_path(below)) {
            return Vec::new();
        }
        let said = if failure.foreign { "outside the mesh, says" } else { "refused" };
        let told = below.iter().enumerate().map(|(depth, cause)| {
            let here = if depth + 1 == below.len() { here.as_str() } else { "" };
            let words = match cause.public_message.as_str() {
                "" => String::new(),
                words => format!(" {}", quote(words)),
            };
            let text = format!(
                "{}  {}: {}{words}{here}",
                self.style.cyan(name_of(failure, cause)),
                self.style.dim(said),
                self.style.bold(line(&cause.reason)),
            );
            (depth, text)
        });
        told.collect()
    }

    fn push_outside_hops(&self, told: Vec<(usize, String)>, at: &Indent, lines: &mut Vec<Line>) {
        let mut left = told.iter().filter(|(depth, _)| *depth == 0).count();
        let mut above = at.clone();
        for (depth, text) in told {
            left -= usize::from(depth == 0);
            let is_last = left == 0;
            let here = if depth > 0 { above.below(true) } else { at.below(is_last) };
            lines.push(Line::Note { margin: here.connector.clone(), text });
            above = here;
        }
    }

    /// Whether the path to the origin leads through this task.
    fn is_on_failure_path(&self, tree: &TaskTree) -> bool {
        self.failure_path.contains(tree.id())
            || tree.loaded().any(|below| self.is_on_failure_path(below))
    }

    /// Whether the tasks below `tree` are shown. A cancel stops the whole tree, so after one every
    /// level is; after a failure only the path to its origin is.
    fn is_expanded(&self, tree: &TaskTree) -> bool {
        let state = self.root.state();
        let all = is_final(state) && (self.failure.is_none() || state == TaskState::Canceled);
        all || self.is_on_failure_path(tree) || !is_final(tree.state())
    }

    fn elapsed(&self, tree: &TaskTree) -> String {
        let ended = status_of(tree).timestamp.filter(|_| is_final(tree.state()));
        let end = tree.task.ended.or(ended);
        match (&tree.task.created, end.as_ref().unwrap_or(self.now)) {
            (Some(created), end) => between(created, end).map(span).unwrap_or_default(),
            (None, _) => String::new(),
        }
    }

    fn age(&self, since: Option<&Timestamp>) -> String {
        span(since.and_then(|since| between(since, self.now)).unwrap_or_default())
    }
}

/// The worker of a single attempt, or the number of attempts.
fn attempts_cell(attempts: &[Attempt]) -> String {
    match attempts {
        [] => "never ran".to_owned(),
        [one] => format!("on {}", line(&one.worker)),
        many => format!("{} attempts", many.len()),
    }
}

/// The name of a hop: its agent, or else the service.
fn name_of(failure: &Failure, cause: &Cause) -> String {
    let origin = failure.origin.clone().unwrap_or_default();
    let names = [&cause.agent, &origin.agent, &origin.service];
    names.into_iter().find(|name| !name.is_empty()).map_or("somebody".to_owned(), |n| line(n))
}

/// The active ends of a live tree: tasks that do not wait for a subtask.
fn frontier(tree: &TaskTree) -> Vec<&TaskTree> {
    let live: Vec<_> = tree.loaded().filter(|below| !is_final(below.state())).collect();
    let asks = is_waiting(tree.state()) && !live.iter().any(|below| is_waiting(below.state()));
    let mut active: Vec<_> = live.iter().flat_map(|below| frontier(below)).collect();
    if active.is_empty() || asks {
        active.insert(0, tree);
    }
    active
}

#[cfg(test)]
mod tests;
