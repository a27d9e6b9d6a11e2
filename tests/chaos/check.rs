//! Is what clients were told, and what the mesh has stored, a history that may be? Pure: from data
//! to everything that is wrong with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use faultline_proto::reason;
use faultline_tests::task::{self, CANCELED, COMPLETED, FAILED, INPUT_REQUIRED, is_final};
use serde_json::Value;

use crate::told::{Entry, Store, Stored, Told, View, Wanted, number};

/// What must hold, named by how it is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// It, or an answer to it, was acknowledged, and nobody knows it.
    Lost,
    /// It is there and cannot be read.
    Damaged,
    /// It neither ended nor waits for somebody who may not come.
    Unended,
    /// It ended more than once, or went on after its end.
    TwoEnds,
    /// It came to something else than it had to, or than somebody was told.
    OtherEnd,
    /// A subscriber was not shown what is stored.
    Gap,
    /// A subscriber was shown something twice, or late; or what is stored is not in order.
    Order,
    /// A subscriber was shown what is not stored.
    Unstored,
    /// Attempts overlap, or are not numbered as they came.
    Attempts,
    /// An attempt wrote when it was over.
    Interleaved,
    /// It goes on although whoever gave it has ended.
    Orphan,
    /// It failed and does not say all there is to say.
    Unexplained,
    /// One send is several tasks.
    Doubled,
}

#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) task_id: String,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: task {}: {}", self.rule, self.task_id, self.what)
    }
}

/// What was told, what is stored, and what is there and could not be read.
pub(crate) fn check(told: &[Told], store: &Store, unreadable: &[String]) -> Vec<Violation> {
    let mut found = Found::default();
    for id in unreadable {
        found.id = id;
        found.add(Rule::Damaged, "the mesh knows it and cannot tell of it");
    }
    let by_root: BTreeMap<&str, &Told> = told.iter().map(|t| (t.task_id.as_str(), t)).collect();
    for (id, stored) in store {
        found.id = id;
        events(stored, &mut found);
        attempts(stored, &mut found);
        end(stored, by_root.get(root(store, id)).copied(), &mut found);
        family(store, unreadable, stored, &mut found);
        if let Some(flaw) = stored.task.as_ref().and_then(failure_flaw) {
            found.add(Rule::Unexplained, flaw);
        }
    }
    for told in told {
        found.id = &told.task_id;
        match store.get(&told.task_id) {
            Some(stored) if stored.task.is_some() => {
                outcome(told, stored, &mut found);
                told.views.iter().for_each(|seen| view(seen, stored, &mut found));
            }
            None if unreadable.contains(&told.task_id) => {}
            _ => found.add(Rule::Lost, format!("{} was given it", told.client)),
        }
    }
    doubles(told, store, &mut found);
    found.all
}

#[derive(Default)]
struct Found<'a> {
    id: &'a str,
    all: Vec<Violation>,
}

impl Found<'_> {
    fn add(&mut self, rule: Rule, what: impl Into<String>) {
        self.all.push(Violation { rule, task_id: self.id.to_owned(), what: what.into() });
    }
}

/// The task that a client sent, of which this one came.
fn root<'a>(store: &'a Store, id: &'a str) -> &'a str {
    let parent = store.get(id).and_then(Stored::parent);
    parent.map_or(id, |parent| root(store, parent))
}

/// What is stored is numbered without a gap, begins once and ends once.
fn events(stored: &Stored, found: &mut Found<'_>) {
    let seqs: Vec<u64> = stored.events.iter().map(|event| event.seq).collect();
    if seqs != (1..=seqs.len() as u64).collect::<Vec<_>>() {
        found.add(Rule::Order, format!("it is numbered {seqs:?}"));
    }
    let at = |kind: &str| -> Vec<usize> {
        let of_kind = stored.events.iter().enumerate().filter(|(_, event)| event.kind == kind);
        of_kind.map(|(at, _)| at).collect()
    };
    if at("submitted") != [0] {
        found.add(Rule::Order, format!("it begins at {:?}", at("submitted")));
    }
    match (at("ended").as_slice(), is_final(stored.state())) {
        ([], false) => {}
        ([only], true) if only + 1 == seqs.len() => {
            let told = stored.events[*only].body["state"].as_str();
            if told != Some(stored.state()) {
                found.add(Rule::OtherEnd, format!("{told:?} became {}", stored.state()));
            }
        }
        (ends, _) => {
            let (count, state) = (seqs.len(), stored.state());
            found.add(Rule::TwoEnds, format!("{state}, and of {count} events {ends:?} are ends"));
        }
    }
}

/// At most one attempt at a time, each with a higher number than the one before; and what is not
/// being attempted writes nothing.
fn attempts(stored: &Stored, found: &mut Found<'_>) {
    let (mut last, mut running) = (0, false);
    let mut written: Option<u64> = None;
    for Entry { seq, kind, body, .. } in &stored.events {
        match kind.as_str() {
            "assigned" => {
                let attempt = number(&body["attempt"]);
                if running || attempt <= last {
                    let how = if running { "is not over" } else { "was the last" };
                    found.add(Rule::Attempts, format!("{seq}: {attempt} began, {last} {how}"));
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
            // What a lost attempt had written since it last saved its place is taken back.
            "artifact" if !running && last > 0 && body["append"] != true => {}
            "artifact" | "status" | "checkpointed" if !running => {
                found.add(Rule::Interleaved, format!("{seq}: {kind} after attempt {last}"));
            }
            "artifact" => {
                for place in places(&task::text(&body["artifact"])) {
                    // Within an attempt a script goes forward, so whoever goes back is another.
                    if written.is_some_and(|before| place <= before) {
                        let before = written.unwrap_or_default();
                        let what = format!("{seq}: {place} after {before} in attempt {last}");
                        found.add(Rule::Interleaved, what);
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
        found.add(Rule::Attempts, format!("they are listed as {numbers:?}"));
    }
    if is_final(stored.state()) && outcomes.contains(&"OUTCOME_RUNNING") {
        found.add(Rule::Attempts, format!("one outlives its task: {outcomes:?}"));
    }
}

/// The places in a script that a text was written at: words such as `3.14.15` end in them.
fn places(text: &str) -> Vec<u64> {
    let place = |word: &str| {
        let numbers: Option<Vec<u64>> = word.split('.').map(|n| n.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() == 3).map(|numbers| numbers[2])
    };
    text.split_whitespace().filter_map(place).collect()
}

/// Everything has ended, except what waits for an answer that nobody promised.
fn end(stored: &Stored, told: Option<&Told>, found: &mut Found<'_>) {
    let state = stored.state();
    let promised = told.is_some_and(|told| told.wanted != Wanted::Question || told.canceling);
    if !is_final(state) && (state != INPUT_REQUIRED || promised) {
        found.add(Rule::Unended, format!("it is still {state}"));
    }
}

fn family(store: &Store, unreadable: &[String], stored: &Stored, found: &mut Found<'_>) {
    let Some(parent) = stored.parent() else { return };
    let state = stored.state();
    match store.get(parent).map(Stored::state) {
        None if unreadable.iter().any(|id| id == parent) => {}
        None => found.add(Rule::Orphan, format!("nobody knows its parent {parent}")),
        Some(end) if is_final(end) && !is_final(state) && !stored.is_detached() => {
            found.add(Rule::Orphan, format!("it is {state}, its parent {parent} is {end}"));
        }
        Some(_) => {}
    }
}

/// What the client was told is what is stored, and what it asked for.
fn outcome(told: &Told, stored: &Stored, found: &mut Found<'_>) {
    let (state, task) = (stored.state(), stored.task.as_ref().unwrap_or(&Value::Null));
    if task::state(task) != state {
        found.add(Rule::OtherEnd, format!("GetTask says {}, not {state}", task::state(task)));
    }
    for seen in told.finals.iter().filter(|seen| *seen != state) {
        found.add(Rule::OtherEnd, format!("{} saw {seen}, it is {state}", told.client));
    }
    let took = |id: &String| {
        let answers = stored.events.iter().filter(|event| event.kind == "answered");
        answers.into_iter().any(|event| event.body["message"]["messageId"] == **id)
    };
    if let Some(answer) = told.answered.as_ref().filter(|id| !took(id)) {
        found.add(Rule::Lost, format!("{} answered it by {answer}", told.client));
    }
    if !is_final(state) || (told.canceling && state == CANCELED) {
        return;
    }
    let failure = &task["metadata"]["faultline.dev/failure"];
    let is_so = match &told.wanted {
        Wanted::Artifact(name, text) => {
            state == COMPLETED && task::artifacts(task).get(*name) == Some(text)
        }
        Wanted::Failure(reason, hop) => {
            state == FAILED && failure["reason"] == *reason && number(&failure["hop"]) == *hop
        }
        Wanted::Question => false,
    };
    if !is_so {
        found.add(Rule::OtherEnd, format!("wanted {:?} of {task}", told.wanted));
    }
}

/// A subscriber has seen every event from its first on, each once and as it is stored.
fn view(view: &View, stored: &Stored, found: &mut Found<'_>) {
    let Some(first) = view.frames.first() else { return };
    let ids: Vec<u64> = view.frames.iter().map(|frame| frame.id.unwrap_or(0)).collect();
    if !ids.is_sorted_by(|a, b| a < b) {
        found.add(Rule::Order, format!("a subscriber was shown {ids:?}"));
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
        found.add(Rule::Gap, format!("a subscriber was shown {ids:?}, and not {missed:?}"));
    }
    for (frame, id) in view.frames.iter().zip(&ids).skip(usize::from(is_snapshot)) {
        let event = stored.events.iter().find(|event| event.seq == *id && due.contains(id));
        if !event.is_some_and(|event| is_told_by(event, &frame.body)) {
            found.add(Rule::Unstored, format!("a subscriber was shown {id} as {}", frame.body));
        }
    }
}

fn is_told_by(event: &Entry, frame: &Value) -> bool {
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

/// One send is one task, however often it was made: a message has its id for itself.
fn doubles<'a>(told: &'a [Told], store: &'a Store, found: &mut Found<'a>) {
    let mut tasks: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for told in told {
        tasks.entry(&told.message_id).or_default().insert(&told.task_id);
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

/// What a failed task does not say: who, why, and through whom.
pub(crate) fn failure_flaw(task: &Value) -> Option<String> {
    if task::state(task) != FAILED {
        return None;
    }
    let failure = &task["metadata"]["faultline.dev/failure"];
    let said = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let Some(reason) = failure["reason"].as_str() else { return Some(format!("why: {task}")) };
    if reason::named(reason).is_none() {
        return Some(format!("a reason of the table: {failure}"));
    }
    let origin = &failure["origin"];
    if !said(&origin["agent"]) && !said(&origin["service"]) {
        return Some(format!("where from: {failure}"));
    }
    if !said(&failure["id"]) || !said(&failure["publicMessage"]) {
        return Some(format!("its id and a text: {failure}"));
    }
    // A hop for each task on the way, from this one down to where it broke.
    let Some(causes) = failure["causes"].as_array().filter(|causes| !causes.is_empty()) else {
        return Some(format!("the chain: {failure}"));
    };
    let hops: Vec<_> = causes.iter().map(|cause| number(&cause["hop"])).collect();
    let deepest = number(&failure["hop"]);
    let is_whole = hops == (0..=deepest).rev().collect::<Vec<_>>()
        && causes[0]["taskId"] == task["id"]
        && causes.iter().all(|cause| said(&cause["agent"]) && said(&cause["reason"]))
        && causes[causes.len() - 1]["reason"] == reason;
    (!is_whole).then(|| format!("every hop: {failure}"))
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
