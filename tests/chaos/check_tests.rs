//! The checker on histories made by hand: one that may be, and the same with one thing wrong.

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

/// A task with these events, in this state, whose text is `text`.
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

fn told(id: &str, wanted: Wanted, finals: &[&str]) -> Told {
    Told {
        client: "the client".to_owned(),
        task_id: id.to_owned(),
        message_id: format!("m-{id}"),
        wanted,
        answered: None,
        finals: finals.iter().map(|state| (*state).to_owned()).collect(),
        views: Vec::new(),
        canceling: false,
    }
}

/// What a subscriber sees of these events, without what subscribers are not shown.
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

/// Two attempts and a delegated task each way down; one failed, one waits, one was cancelled.
fn history() -> (Vec<Told>, Store) {
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
    let mut root = told(ROOT, Wanted::Artifact("output", text), &[COMPLETED, COMPLETED]);
    let frames = shown(&store[ROOT]);
    let snapshot = Frame { id: Some(3), body: json!({"task": {"id": ROOT}}) };
    let late = [snapshot].into_iter().chain(frames.iter().filter(|f| f.id > Some(3)).cloned());
    root.views = vec![
        View { frames: late.collect(), resumed: 2 },
        View { frames: frames.clone(), resumed: 0 },
        // One that lost patience.
        View { frames: frames[..3].to_vec(), resumed: 0 },
    ];
    let stopped = told(STOPPED, Wanted::Artifact("output", "x".into()), &[CANCELED]);
    let told = vec![
        root,
        told(FAILED_ONE, Wanted::Failure("NOT_FOUND", 1), &[FAILED]),
        told(WAITING, Wanted::Question, &[]),
        Told { canceling: true, ..stopped },
    ];
    (told, store)
}

/// The rules that the history breaks after this was done to it.
fn broken(spoil: impl FnOnce(&mut Vec<Told>, &mut Store)) -> Vec<Rule> {
    let (mut told, mut store) = history();
    spoil(&mut told, &mut store);
    let mut rules: Vec<_> = check(&told, &store, &[]).into_iter().map(|found| found.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

/// Puts an event in and numbers all anew; subscribers then have to have seen it.
fn insert(told: &mut [Told], store: &mut Store, at: usize, event: (&str, Value)) {
    let root = store.get_mut(ROOT).unwrap();
    let mut events: Vec<_> =
        root.events.iter().map(|e| (e.kind.as_str(), e.body.clone())).collect();
    events.insert(at, event);
    root.events = entries(&events);
    told[0].views = vec![View { frames: shown(root), resumed: 0 }];
}

fn set_state(store: &mut Store, id: &str, state: &str) {
    let stored = store.get_mut(id).unwrap();
    stored.inspected["task"]["status"]["state"] = state.into();
    stored.task.as_mut().unwrap()["status"]["state"] = state.into();
}

#[test]
fn a_history_that_may_be_breaks_nothing() {
    let (told, store) = history();
    let found: Vec<_> = check(&told, &store, &[]).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_task_that_was_acknowledged_is_missed() {
    assert_eq!(broken(|_, store| drop(store.remove(STOPPED))), [Rule::Lost]);
    // Operators see it, and its owner does not.
    assert_eq!(broken(|_, store| store.get_mut(STOPPED).unwrap().task = None), [Rule::Lost]);
}

#[test]
fn a_task_that_cannot_be_read_is_damaged_and_nothing_else() {
    for id in [STOPPED, CHILD] {
        let (told, mut store) = history();
        store.remove(id);
        let found = check(&told, &store, &[id.to_owned()]);
        assert_eq!(found.iter().map(|found| found.rule).collect::<Vec<_>>(), [Rule::Damaged]);
    }
}

#[test]
fn an_answer_that_was_acknowledged_is_missed() {
    let answered = |event: Value| {
        broken(move |told, store| {
            told[0].answered = Some("yes".to_owned());
            insert(told, store, 10, ("answered", event));
        })
    };
    assert_eq!(answered(json!({"message": {"messageId": "yes"}})), []);
    assert_eq!(answered(json!({"message": {"messageId": "another"}})), [Rule::Lost]);
}

#[test]
fn a_task_that_never_ends_is_noticed_and_so_is_a_question_that_was_answered() {
    let unended = broken(|told, store| {
        set_state(store, STOPPED, WORKING);
        store.get_mut(STOPPED).unwrap().events.pop();
        told[3].finals.clear();
    });
    assert_eq!(unended, [Rule::Unended]);
    let asked = broken(|told, _| told[2].wanted = Wanted::Artifact("output", "yes".into()));
    assert_eq!(asked, [Rule::Unended]);
}

#[test]
fn a_task_that_ends_twice_or_goes_on_is_noticed() {
    let twice = broken(|told, store| insert(told, store, 10, ended(COMPLETED)));
    assert_eq!(twice, [Rule::TwoEnds]);
    let on = broken(|told, store| insert(told, store, 11, wrote(true, "0.1.4 ")));
    assert_eq!(on, [Rule::TwoEnds]);
    let other = broken(|told, _| told[0].finals.push(CANCELED.to_owned()));
    assert_eq!(other, [Rule::OtherEnd]);
}

#[test]
fn a_task_that_comes_to_something_else_is_noticed() {
    let text = broken(|_, store| {
        let task = store.get_mut(ROOT).unwrap().task.as_mut().unwrap();
        task["artifacts"][0]["parts"][0]["text"] = "0.1.1 0.1.2 0.1.2 0.1.3 ".into();
    });
    assert_eq!(text, [Rule::OtherEnd]);
    assert_eq!(broken(|told, _| told[3].canceling = false), [Rule::OtherEnd]);
    let reason = broken(|told, _| told[1].wanted = Wanted::Failure("INTERNAL", 1));
    assert_eq!(reason, [Rule::OtherEnd]);
}

#[test]
fn a_subscriber_that_missed_something_is_noticed() {
    assert_eq!(broken(|told, _| drop(told[0].views[0].frames.remove(2))), [Rule::Gap]);
    assert_eq!(broken(|told, _| drop(told[0].views[1].frames.remove(0))), [Rule::Gap]);
}

#[test]
fn a_subscriber_that_saw_something_twice_is_noticed() {
    let twice = broken(|told, _| {
        let frame = told[0].views[1].frames[3].clone();
        told[0].views[1].frames.insert(3, frame);
    });
    assert_eq!(twice, [Rule::Order]);
    assert_eq!(broken(|told, _| told[0].views[1].frames.swap(2, 3)), [Rule::Order]);
}

#[test]
fn a_subscriber_that_saw_what_is_not_stored_is_noticed() {
    let text = broken(|told, _| {
        let parts = &mut told[0].views[1].frames[1].body["artifactUpdate"]["artifact"]["parts"];
        *parts = json!([{"text": "from another world"}]);
    });
    assert_eq!(text, [Rule::Unstored]);
    let end = broken(|told, _| {
        let frame = Frame { id: Some(12), body: json!({"statusUpdate": {}}) };
        told[0].views[1].frames.push(frame);
    });
    assert_eq!(end, [Rule::Unstored]);
}

#[test]
fn events_that_are_not_numbered_as_they_came_are_noticed() {
    let gap = broken(|_, store| store.get_mut(CHILD).unwrap().events[2].seq = 7);
    assert_eq!(gap, [Rule::Order]);
    let twice = broken(|told, store| insert(told, store, 1, begun("m-root")));
    assert_eq!(twice, [Rule::Order]);
}

#[test]
fn attempts_that_overlap_or_count_backwards_are_noticed() {
    // A second owner gives it away while the first one's attempt runs.
    let overlap = broken(|told, store| insert(told, store, 8, assigned(3)));
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
fn an_attempt_that_writes_when_it_is_over_is_noticed() {
    // Before anybody else has it, and while somebody else does.
    let between = broken(|told, store| insert(told, store, 6, wrote(true, "0.1.3 ")));
    assert_eq!(between, [Rule::Interleaved]);
    let said = broken(|told, store| insert(told, store, 7, ("status", json!({}))));
    assert_eq!(said, [Rule::Interleaved]);
    let among = broken(|told, store| insert(told, store, 10, wrote(true, "0.1.2 ")));
    assert_eq!(among, [Rule::Interleaved]);
}

#[test]
fn a_child_that_goes_on_without_its_parent_is_noticed() {
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
fn a_failure_that_does_not_say_all_is_noticed() {
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
fn a_send_that_became_two_tasks_is_noticed() {
    // Whether its client knows of both or not.
    let unknown = broken(|_, store| {
        let events = entries(&[begun("m-stopped"), assigned(1), ended(COMPLETED)]);
        store.insert("another".into(), stored("another", COMPLETED, "", None, events));
    });
    assert_eq!(unknown, [Rule::Doubled]);
    let known = broken(|told, _| told[1].message_id = "m-waiting".into());
    assert_eq!(known, [Rule::Doubled]);
}
