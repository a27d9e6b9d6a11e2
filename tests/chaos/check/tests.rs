//! The history checker finds each kind of violation in an otherwise valid history.

use faultline_tests::{Frame, task::WORKING};
use serde_json::json;

use super::*;

const ROOT: &str = "root";
const CHILD: &str = "child";
const GRANDCHILD: &str = "grandchild";
const FAILED_ONE: &str = "failed";
const WAITING: &str = "waiting";
const STOPPED: &str = "stopped";

fn entries(events: &[(&str, Value)]) -> Vec<Entry> {
    let entry = |(n, (kind, body)): (usize, &(&str, Value))| Entry {
        seq: n as u64 + 1,
        time: String::new(),
        kind: (*kind).to_owned(),
        body: body.clone(),
    };
    events.iter().enumerate().map(entry).collect()
}

fn wrote(append: bool, text: &str) -> (&'static str, Value) {
    let artifact = json!({"artifactId": "output", "parts": [{"text": text}]});
    ("artifact", json!({"artifact": artifact, "append": append}))
}

fn begun(message: &str) -> (&'static str, Value) {
    ("submitted", json!({"message": {"messageId": message}}))
}

fn assigned(attempt: u64) -> (&'static str, Value) {
    ("assigned", json!({"attempt": attempt, "worker": format!("w{attempt}")}))
}

fn ended(state: &str) -> (&'static str, Value) {
    ("ended", json!({"state": state}))
}

/// A stored task with these events and this output.
fn stored(id: &str, state: &str, text: &str, parent: Option<&str>, events: Vec<Entry>) -> Stored {
    let output = json!({"artifactId": "output", "parts": [{"text": text}]});
    let task = json!({"id": id, "status": {"state": state}, "artifacts": [output]});
    let begun = events.iter().filter(|e| e.kind == "assigned");
    let attempts = begun.map(|e| json!({"number": e.body["attempt"], "outcome": "OUTCOME_ENDED"}));
    let mut inspected = json!({"task": task, "attempts": attempts.collect::<Vec<_>>()});
    if let Some(parent) = parent {
        inspected["parent"] = json!({"taskId": parent});
    }
    Stored { task: Some(task), inspected, events }
}

fn observed(id: &str, expected: Expected, finals: &[&str]) -> Observation {
    Observation {
        client: "the client".to_owned(),
        task_id: id.to_owned(),
        message_id: format!("m-{id}"),
        expected,
        answered: None,
        finals: finals.iter().map(|state| (*state).to_owned()).collect(),
        views: Vec::new(),
        canceling: false,
    }
}

/// The frames that a subscriber receives for these events.
fn shown(stored: &Stored) -> Vec<Frame> {
    let frame = |event: &Entry| {
        let state = |state: &str| json!({"statusUpdate": {"status": {"state": state}}});
        let body = match event.kind.as_str() {
            "submitted" | "checkpointed" | "lost" => return None,
            "artifact" => json!({"artifactUpdate": {"artifact": event.body["artifact"]}}),
            "ended" => state(event.body["state"].as_str().unwrap()),
            _ => state(WORKING),
        };
        Some(Frame { id: Some(event.seq), body })
    };
    stored.events.iter().filter_map(frame).collect()
}

/// A valid history: a root with two attempts, a child and a grandchild; one failed task, one with
/// an open question and one that was cancelled.
fn history() -> (Vec<Observation>, Store) {
    let mut store = Store::new();
    let events = entries(&[
        begun("m-root"),
        assigned(1),
        wrote(false, "0.1.1 "),
        ("checkpointed", json!({})),
        wrote(true, "0.1.2 "),
        ("lost", json!({"attempt": 1})),
        wrote(false, "0.1.1 "),
        assigned(2),
        wrote(true, "0.1.2 "),
        wrote(true, "0.1.3 "),
        ended(COMPLETED),
    ]);
    store.insert(ROOT.into(), stored(ROOT, COMPLETED, "0.1.1 0.1.2 0.1.3 ", None, events));
    let ends = |state: &str| entries(&[begun("m-of-agent"), assigned(1), ended(state)]);
    store.insert(CHILD.into(), stored(CHILD, COMPLETED, "", Some(ROOT), ends(COMPLETED)));
    let grandchild = stored(GRANDCHILD, COMPLETED, "", Some(CHILD), ends(COMPLETED));
    store.insert(GRANDCHILD.into(), grandchild);

    let events = entries(&[begun("m-failed"), assigned(1), ended(FAILED)]);
    let mut failed = stored(FAILED_ONE, FAILED, "", None, events);
    let failure = json!({
        "id": "f", "reason": "NOT_FOUND", "publicMessage": "no", "hop": 1,
        "origin": {"agent": "script"},
        "causes": [
            {"taskId": FAILED_ONE, "agent": "script", "reason": "NOT_FOUND", "hop": 1},
            {"taskId": "x", "agent": "script", "reason": "NOT_FOUND"},
        ],
    });
    failed.task.as_mut().unwrap()["metadata"] = json!({"faultline.dev/failure": failure});
    store.insert(FAILED_ONE.into(), failed);

    let events = entries(&[begun("m-waiting"), assigned(1), ("asked", json!({}))]);
    store.insert(WAITING.into(), stored(WAITING, INPUT_REQUIRED, "", None, events));
    let events = entries(&[begun("m-stopped"), assigned(1), ended(CANCELED)]);
    store.insert(STOPPED.into(), stored(STOPPED, CANCELED, "", None, events));

    let text = "0.1.1 0.1.2 0.1.3 ".to_owned();
    let mut root = observed(ROOT, Expected::Artifact("output", text), &[COMPLETED, COMPLETED]);
    let frames = shown(&store[ROOT]);
    let snapshot = Frame { id: Some(3), body: json!({"task": {"id": ROOT}}) };
    let late = [snapshot].into_iter().chain(frames.iter().filter(|f| f.id > Some(3)).cloned());
    root.views = vec![
        View { frames: late.collect(), resumed: 2 },
        View { frames: frames.clone(), resumed: 0 },
        // A subscriber that closed early.
        View { frames: frames[..3].to_vec(), resumed: 0 },
    ];
    let stopped = observed(STOPPED, Expected::Artifact("output", "x".into()), &[CANCELED]);
    let observations = vec![
        root,
        observed(FAILED_ONE, Expected::Failure("NOT_FOUND", 1), &[FAILED]),
        observed(WAITING, Expected::Question, &[]),
        Observation { canceling: true, ..stopped },
    ];
    (observations, store)
}

/// The rules that the history violates after this change.
fn broken(spoil: impl FnOnce(&mut Vec<Observation>, &mut Store)) -> Vec<Rule> {
    let (mut observations, mut store) = history();
    spoil(&mut observations, &mut store);
    let mut rules: Vec<_> =
        check(&observations, &store, &[]).into_iter().map(|found| found.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

/// Inserts an event, renumbers all, and shows it to one subscriber.
fn insert(observations: &mut [Observation], store: &mut Store, at: usize, event: (&str, Value)) {
    let root = store.get_mut(ROOT).unwrap();
    let mut events: Vec<_> =
        root.events.iter().map(|e| (e.kind.as_str(), e.body.clone())).collect();
    events.insert(at, event);
    root.events = entries(&events);
    observations[0].views = vec![View { frames: shown(root), resumed: 0 }];
}

fn set_state(store: &mut Store, id: &str, state: &str) {
    let stored = store.get_mut(id).unwrap();
    stored.inspected["task"]["status"]["state"] = state.into();
    stored.task.as_mut().unwrap()["status"]["state"] = state.into();
}

#[test]
fn valid_history_breaks_no_rule() {
    let (observations, store) = history();
    let found: Vec<_> = check(&observations, &store, &[]).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn missing_acknowledged_task_is_reported() {
    assert_eq!(broken(|_, store| drop(store.remove(STOPPED))), [Rule::Lost]);
    // Visible to operators, and not to its owner.
    assert_eq!(broken(|_, store| store.get_mut(STOPPED).unwrap().task = None), [Rule::Lost]);
}

#[test]
fn unreadable_task_is_reported_as_damaged_only() {
    for id in [STOPPED, CHILD] {
        let (observations, mut store) = history();
        store.remove(id);
        let found = check(&observations, &store, &[id.to_owned()]);
        assert_eq!(found.iter().map(|found| found.rule).collect::<Vec<_>>(), [Rule::Damaged]);
    }
}

#[test]
fn missing_acknowledged_answer_is_reported() {
    let answered = |event: Value| {
        broken(move |observations, store| {
            observations[0].answered = Some("yes".to_owned());
            insert(observations, store, 10, ("answered", event));
        })
    };
    assert_eq!(answered(json!({"message": {"messageId": "yes"}})), []);
    assert_eq!(answered(json!({"message": {"messageId": "another"}})), [Rule::Lost]);
}

#[test]
fn unended_task_and_unresolved_question_are_reported() {
    let unended = broken(|observations, store| {
        set_state(store, STOPPED, WORKING);
        store.get_mut(STOPPED).unwrap().events.pop();
        observations[3].finals.clear();
    });
    assert_eq!(unended, [Rule::Unended]);
    let asked = broken(|observations, _| {
        observations[2].expected = Expected::Artifact("output", "yes".into())
    });
    assert_eq!(asked, [Rule::Unended]);
}

#[test]
fn second_end_and_events_after_the_end_are_reported() {
    let twice = broken(|observations, store| insert(observations, store, 10, ended(COMPLETED)));
    assert_eq!(twice, [Rule::TwoEnds]);
    let on = broken(|observations, store| insert(observations, store, 11, wrote(true, "0.1.4 ")));
    assert_eq!(on, [Rule::TwoEnds]);
    let other = broken(|observations, _| observations[0].finals.push(CANCELED.to_owned()));
    assert_eq!(other, [Rule::OtherEnd]);
}

#[test]
fn unexpected_outcome_is_reported() {
    let text = broken(|_, store| {
        let task = store.get_mut(ROOT).unwrap().task.as_mut().unwrap();
        task["artifacts"][0]["parts"][0]["text"] = "0.1.1 0.1.2 0.1.2 0.1.3 ".into();
    });
    assert_eq!(text, [Rule::OtherEnd]);
    assert_eq!(broken(|observations, _| observations[3].canceling = false), [Rule::OtherEnd]);
    let reason =
        broken(|observations, _| observations[1].expected = Expected::Failure("INTERNAL", 1));
    assert_eq!(reason, [Rule::OtherEnd]);
}

#[test]
fn gap_in_a_stream_is_reported() {
    assert_eq!(
        broken(|observations, _| drop(observations[0].views[0].frames.remove(2))),
        [Rule::Gap]
    );
    assert_eq!(
        broken(|observations, _| drop(observations[0].views[1].frames.remove(0))),
        [Rule::Gap]
    );
}

#[test]
fn duplicate_or_late_stream_event_is_reported() {
    let twice = broken(|observations, _| {
        let frame = observations[0].views[1].frames[3].clone();
        observations[0].views[1].frames.insert(3, frame);
    });
    assert_eq!(twice, [Rule::Order]);
    assert_eq!(broken(|observations, _| observations[0].views[1].frames.swap(2, 3)), [Rule::Order]);
}

#[test]
fn stream_event_that_is_not_stored_is_reported() {
    let text = broken(|observations, _| {
        let parts =
            &mut observations[0].views[1].frames[1].body["artifactUpdate"]["artifact"]["parts"];
        *parts = json!([{"text": "from another world"}]);
    });
    assert_eq!(text, [Rule::Unstored]);
    let end = broken(|observations, _| {
        let frame = Frame { id: Some(12), body: json!({"statusUpdate": {}}) };
        observations[0].views[1].frames.push(frame);
    });
    assert_eq!(end, [Rule::Unstored]);
}

#[test]
fn misnumbered_events_are_reported() {
    let gap = broken(|_, store| store.get_mut(CHILD).unwrap().events[2].seq = 7);
    assert_eq!(gap, [Rule::Order]);
    let twice = broken(|observations, store| insert(observations, store, 1, begun("m-root")));
    assert_eq!(twice, [Rule::Order]);
}

#[test]
fn overlapping_and_misnumbered_attempts_are_reported() {
    // A second owner assigns the task while the first attempt runs.
    let overlap = broken(|observations, store| insert(observations, store, 8, assigned(3)));
    assert_eq!(overlap, [Rule::Attempts]);
    let again = broken(|_, store| {
        store.get_mut(ROOT).unwrap().events[7].body["attempt"] = 1.into();
    });
    assert_eq!(again, [Rule::Attempts]);
    let other = broken(|_, store| {
        store.get_mut(ROOT).unwrap().events[5].body["attempt"] = 7.into();
    });
    assert_eq!(other, [Rule::Attempts]);
    let outlives = broken(|_, store| {
        let attempts = &mut store.get_mut(ROOT).unwrap().inspected["attempts"];
        attempts[1]["outcome"] = "OUTCOME_RUNNING".into();
    });
    assert_eq!(outlives, [Rule::Attempts]);
}

#[test]
fn writes_of_an_ended_attempt_are_reported() {
    // Before the next attempt begins, and during it.
    let between =
        broken(|observations, store| insert(observations, store, 6, wrote(true, "0.1.3 ")));
    assert_eq!(between, [Rule::Interleaved]);
    let status =
        broken(|observations, store| insert(observations, store, 7, ("status", json!({}))));
    assert_eq!(status, [Rule::Interleaved]);
    let among =
        broken(|observations, store| insert(observations, store, 10, wrote(true, "0.1.2 ")));
    assert_eq!(among, [Rule::Interleaved]);
}

#[test]
fn orphaned_child_is_reported() {
    let going_on = broken(|_, store| {
        set_state(store, GRANDCHILD, INPUT_REQUIRED);
        store.get_mut(GRANDCHILD).unwrap().events[2] = entries(&[("asked", json!({}))]).remove(0);
        store.get_mut(GRANDCHILD).unwrap().events[2].seq = 3;
    });
    assert_eq!(going_on, [Rule::Unended, Rule::Orphan]);
    let unknown = broken(|_, store| drop(store.remove(CHILD)));
    assert_eq!(unknown, [Rule::Orphan]);
}

#[test]
fn incomplete_failure_record_is_reported() {
    let spoil = |spoil: fn(&mut Value)| {
        broken(move |_, store| {
            let task = store.get_mut(FAILED_ONE).unwrap().task.as_mut().unwrap();
            spoil(&mut task["metadata"]["faultline.dev/failure"]);
        })
    };
    assert_eq!(spoil(|failure| failure["origin"] = json!({})), [Rule::Unexplained]);
    assert_eq!(spoil(|failure| failure["publicMessage"] = "".into()), [Rule::Unexplained]);
    assert_eq!(spoil(|failure| drop(failure["causes"][0].take())), [Rule::Unexplained]);
    let none = spoil(|failure| drop(failure.take()));
    assert_eq!(none, [Rule::OtherEnd, Rule::Unexplained]);
}

#[test]
fn send_that_created_two_tasks_is_reported() {
    // Unknown to its client, or known.
    let unknown = broken(|_, store| {
        let events = entries(&[begun("m-stopped"), assigned(1), ended(COMPLETED)]);
        store.insert("another".into(), stored("another", COMPLETED, "", None, events));
    });
    assert_eq!(unknown, [Rule::Doubled]);
    let known = broken(|observations, _| observations[1].message_id = "m-waiting".into());
    assert_eq!(known, [Rule::Doubled]);
}
