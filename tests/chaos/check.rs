//! History checker: compares the observations of clients with the events in the store, and reports
//! every violation of a rule. Pure: it reads data only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use faultline_proto::reason;
use faultline_tests::task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, is_final};
use serde_json::Value;

use crate::observations::{Entry, Expected, Observation, Store, Stored, View, number};

/// A rule of histories, named by its violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A task, or an answer to one, was acknowledged and is not stored.
    Lost,
    /// A task is stored and cannot be read.
    Damaged,
    /// A task has not ended, and does not wait for an answer that its client withholds.
    Unended,
    /// A task has two ends, or events after its end.
    TwoEnds,
    /// The end of a task differs from the expected one, or from one that a client was shown.
    OtherEnd,
    /// A subscriber missed a stored event.
    Gap,
    /// A subscriber received an event twice or late, or stored events are not in order.
    Order,
    /// A subscriber received an event that is not stored.
    Unstored,
    /// Attempts overlap, or their numbers do not ascend.
    Attempts,
    /// An attempt wrote after its end.
    Interleaved,
    /// A delegated task runs although its parent has ended.
    Orphan,
    /// The failure record of a task is incomplete.
    Unexplained,
    /// One send created several tasks.
    Doubled,
}

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) task_id: String,
    details: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: task {}: {}", self.rule, self.task_id, self.details)
    }
}

/// Checks all observations against the store; `unreadable` are ids of tasks that cannot be read.
pub(crate) fn check(
    observations: &[Observation],
    store: &Store,
    unreadable: &[String],
) -> Vec<Violation> {
    let mut found = Found::default();
    for id in unreadable {
        found.id = id;
        found.add(Rule::Damaged, "the mesh has it and cannot read it");
    }
    let by_root: BTreeMap<&str, &Observation> =
        observations.iter().map(|observed| (observed.task_id.as_str(), observed)).collect();
    for (id, stored) in store {
        found.id = id;
        events(stored, &mut found);
        attempts(stored, &mut found);
        end(stored, by_root.get(root(store, id)).copied(), &mut found);
        parent(store, unreadable, stored, &mut found);
        if let Some(flaw) = stored.task.as_ref().and_then(failure_flaw) {
            found.add(Rule::Unexplained, flaw);
        }
    }
    for observed in observations {
        found.id = &observed.task_id;
        match store.get(&observed.task_id) {
            Some(stored) if stored.task.is_some() => {
                outcome(observed, stored, &mut found);
                observed.views.iter().for_each(|seen| view(seen, stored, &mut found));
            }
            None if unreadable.contains(&observed.task_id) => {}
            _ => found.add(Rule::Lost, format!("it was acknowledged to {}", observed.client)),
        }
    }
    duplicates(observations, store, &mut found);
    found.all
}

#[derive(Default)]
struct Found<'a> {
    id: &'a str,
    all: Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, rule: Rule, details: impl Into<String>) {
        let task_id = self.id.to_owned();
        self.all.push(Violation { rule, task_id, details: details.into() });
    }
}

/// The task at the root of the delegation that this one belongs to.
fn root<'a>(store: &'a Store, id: &'a str) -> &'a str {
    let parent = store.get(id).and_then(Stored::parent);
    parent.map_or(id, |parent| root(store, parent))
}

/// Stored events are numbered without a gap, begin once and end once.
fn events(stored: &Stored, found: &mut Found<'_>) {
    let seqs: Vec<u64> = stored.events.iter().map(|event| event.seq).collect();
    if seqs != (1..=seqs.len() as u64).collect::<Vec<_>>() {
        found.add(Rule::Order, format!("its events are numbered {seqs:?}"));
    }
    let at = |kind: &str| -> Vec<usize> {
        let of_kind = stored.events.iter().enumerate().filter(|(_, event)| event.kind == kind);
        of_kind.map(|(at, _)| at).collect()
    };
    if at("submitted") != [0] {
        found.add(Rule::Order, format!("it is submitted at {:?}", at("submitted")));
    }
    match (at("ended").as_slice(), is_final(stored.state())) {
        ([], false) => {}
        ([only], true) if only + 1 == seqs.len() => {
            let end = stored.events[*only].body["state"].as_str();
            if end != Some(stored.state()) {
                found.add(Rule::OtherEnd, format!("{end:?} became {}", stored.state()));
            }
        }
        (ends, _) => {
            let count = seqs.len();
            let state = stored.state();
            found.add(Rule::TwoEnds, format!("{state}, and of {count} events {ends:?} are ends"));
        }
    }
}

/// Attempts do not overlap, their numbers ascend, and only a running attempt writes events.
fn attempts(stored: &Stored, found: &mut Found<'_>) {
    let mut last = 0;
    let mut running = false;
    let mut written: Option<u64> = None;
    for Entry { seq, kind, body, .. } in &stored.events {
        match kind.as_str() {
            "assigned" => {
                let attempt = number(&body["attempt"]);
                if running || attempt <= last {
                    let state = if running { "runs" } else { "was the last" };
                    found.add(Rule::Attempts, format!("{seq}: {attempt} began, {last} {state}"));
                }
                (last, running, written) = (attempt, true, None);
            }
            "lost" => {
                let attempt = number(&body["attempt"]);
                if !running || attempt != last {
                    found.add(Rule::Attempts, format!("{seq}: {attempt} is lost, not {last}"));
                }
                running = false;
            }
            // Output of a lost attempt since its last checkpoint is withdrawn.
            "artifact" if !running && last > 0 && body["append"] != true => {}
            "artifact" | "status" | "checkpointed" if !running => {
                found.add(Rule::Interleaved, format!("{seq}: {kind} after attempt {last}"));
            }
            "artifact" => {
                for place in places(&task::text(&body["artifact"])) {
                    // A script moves forward, so a step back was written by another attempt.
                    if written.is_some_and(|before| place <= before) {
                        let before = written.unwrap_or_default();
                        let details = format!("{seq}: {place} after {before} in attempt {last}");
                        found.add(Rule::Interleaved, details);
                    }
                    written = Some(place);
                }
            }
            _ => {}
        }
    }
    let listed = stored.inspected["attempts"].as_array().into_iter().flatten();
    let (numbers, outcomes): (Vec<_>, Vec<_>) =
        listed.map(|a| (number(&a["number"]), a["outcome"].as_str().unwrap_or_default())).unzip();
    if !numbers.is_sorted_by(|a, b| a < b) {
        found.add(Rule::Attempts, format!("its attempts are listed as {numbers:?}"));
    }
    if is_final(stored.state()) && outcomes.contains(&"OUTCOME_RUNNING") {
        found.add(Rule::Attempts, format!("an attempt outlives its task: {outcomes:?}"));
    }
}

/// Positions in a script that wrote this text: the last numbers of words such as `3.14.15`.
fn places(text: &str) -> Vec<u64> {
    let place = |word: &str| {
        let numbers: Option<Vec<u64>> = word.split('.').map(|n| n.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() == 3).map(|numbers| numbers[2])
    };
    text.split_whitespace().filter_map(place).collect()
}

/// Every task has ended, unless its client withholds the answer to its question.
fn end(stored: &Stored, observed: Option<&Observation>, found: &mut Found<'_>) {
    let state = stored.state();
    let must_end = observed.is_some_and(|one| one.expected != Expected::Question || one.canceling);
    if !is_final(state) && (state != INPUT_REQUIRED || must_end) {
        found.add(Rule::Unended, format!("it is still {state}"));
    }
}

fn parent(store: &Store, unreadable: &[String], stored: &Stored, found: &mut Found<'_>) {
    let Some(parent) = stored.parent() else { return };
    let state = stored.state();
    match store.get(parent).map(Stored::state) {
        None if unreadable.iter().any(|id| id == parent) => {}
        None => found.add(Rule::Orphan, format!("its parent {parent} is not stored")),
        Some(end) if is_final(end) && !is_final(state) && !stored.is_detached() => {
            found.add(Rule::Orphan, format!("it is {state}, its parent {parent} is {end}"));
        }
        Some(_) => {}
    }
}

/// The stored outcome is the one that the client was shown and the one that it expects.
fn outcome(observed: &Observation, stored: &Stored, found: &mut Found<'_>) {
    let state = stored.state();
    let task = stored.task.as_ref().unwrap_or(&Value::Null);
    if task::state(task) != state {
        found.add(Rule::OtherEnd, format!("GetTask answers {}, not {state}", task::state(task)));
    }
    for seen in observed.finals.iter().filter(|seen| *seen != state) {
        found.add(Rule::OtherEnd, format!("{} saw {seen}, it is {state}", observed.client));
    }
    let took = |id: &String| {
        let answers = stored.events.iter().filter(|event| event.kind == "answered");
        answers.into_iter().any(|event| event.body["message"]["messageId"] == **id)
    };
    if let Some(answer) = observed.answered.as_ref().filter(|id| !took(id)) {
        found.add(Rule::Lost, format!("the answer {answer} of {} is not stored", observed.client));
    }
    if !is_final(state) || (observed.canceling && state == CANCELED) {
        return;
    }
    let failure = &task["metadata"]["faultline.dev/failure"];
    let is_expected = match &observed.expected {
        Expected::Artifact(name, text) => {
            state == COMPLETED && task::artifacts(task).get(*name) == Some(text)
        }
        Expected::Failure(reason, hop) => {
            state == FAILED && failure["reason"] == *reason && number(&failure["hop"]) == *hop
        }
        Expected::Question => false,
    };
    if !is_expected {
        found.add(Rule::OtherEnd, format!("expected {:?} of {task}", observed.expected));
    }
}

/// A subscriber receives every event from its first on, once and as stored.
fn view(view: &View, stored: &Stored, found: &mut Found<'_>) {
    let Some(first) = view.frames.first() else { return };
    let ids: Vec<u64> = view.frames.iter().map(|frame| frame.id.unwrap_or(0)).collect();
    if !ids.is_sorted_by(|a, b| a < b) {
        found.add(Rule::Order, format!("a subscriber received {ids:?}"));
    }
    let is_snapshot = first.body.get("task").is_some();
    let after = if is_snapshot { ids[0] } else { 0 };
    let last = ids[ids.len() - 1];
    let shown: BTreeSet<u64> = ids.iter().copied().collect();
    let hidden = ["submitted", "checkpointed", "lost"];
    let visible = stored.events.iter().filter(|e| !hidden.contains(&e.kind.as_str()));
    let due: BTreeSet<u64> =
        visible.map(|e| e.seq).filter(|seq| *seq > after && *seq <= last).collect();
    let missed: Vec<_> = due.difference(&shown).collect();
    if !missed.is_empty() {
        found.add(Rule::Gap, format!("a subscriber received {ids:?}, without {missed:?}"));
    }
    for (frame, id) in view.frames.iter().zip(&ids).skip(usize::from(is_snapshot)) {
        let event = stored.events.iter().find(|event| event.seq == *id && due.contains(id));
        if !event.is_some_and(|event| is_shown_by(event, &frame.body)) {
            found.add(Rule::Unstored, format!("a subscriber received {id} as {}", frame.body));
        }
    }
}

fn is_shown_by(event: &Entry, frame: &Value) -> bool {
    let state = frame["statusUpdate"]["status"]["state"].as_str();
    match event.kind.as_str() {
        "artifact" => {
            let shown = &frame["artifactUpdate"]["artifact"];
            shown["artifactId"] == event.body["artifact"]["artifactId"]
                && task::text(shown) == task::text(&event.body["artifact"])
        }
        "ended" => state.is_some() && state == event.body["state"].as_str(),
        _ => state.is_some_and(|state| !is_final(state)),
    }
}

/// One send creates one task, even if the client repeats it: message ids are unique.
fn duplicates<'a>(observations: &'a [Observation], store: &'a Store, found: &mut Found<'a>) {
    let mut tasks: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for observed in observations {
        tasks.entry(&observed.message_id).or_default().insert(&observed.task_id);
    }
    for (id, stored) in store.iter().filter(|(_, stored)| stored.parent().is_none()) {
        if let Some(message) = stored.message_id() {
            tasks.entry(message).or_default().insert(id);
        }
    }
    for (message, ids) in tasks.iter().filter(|(_, ids)| ids.len() > 1) {
        found.id = ids.first().copied().unwrap_or_default();
        found.add(Rule::Doubled, format!("message {message} is {ids:?}"));
    }
}

/// The part that is missing in the failure record of a failed task: origin, reason or chain.
pub(crate) fn failure_flaw(task: &Value) -> Option<String> {
    if task::state(task) != FAILED {
        return None;
    }
    let failure = &task["metadata"]["faultline.dev/failure"];
    let has_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let Some(reason) = failure["reason"].as_str() else {
        return Some(format!("no reason: {task}"));
    };
    if reason::named(reason).is_none() {
        return Some(format!("its reason is not in the table: {failure}"));
    }
    let origin = &failure["origin"];
    if !has_text(&origin["agent"]) && !has_text(&origin["service"]) {
        return Some(format!("no origin: {failure}"));
    }
    if !has_text(&failure["id"]) || !has_text(&failure["publicMessage"]) {
        return Some(format!("no id or no text: {failure}"));
    }
    // One hop for each task, from this one down to the origin of the failure.
    let Some(causes) = failure["causes"].as_array().filter(|causes| !causes.is_empty()) else {
        return Some(format!("no chain: {failure}"));
    };
    let hops: Vec<_> = causes.iter().map(|cause| number(&cause["hop"])).collect();
    let deepest = number(&failure["hop"]);
    let is_whole = hops == (0..=deepest).rev().collect::<Vec<_>>()
        && causes[0]["taskId"] == task["id"]
        && causes.iter().all(|cause| has_text(&cause["agent"]) && has_text(&cause["reason"]))
        && causes[causes.len() - 1]["reason"] == reason;
    (!is_whole).then(|| format!("hops are missing: {failure}"))
}

#[cfg(test)]
mod tests;
