//! Tests of the state machine against a written transition table and against random histories.

use faultline_proto::{
    a2a::{self, Artifact, Part, part::Content},
    reason,
    v1::{ArtifactChunk, Completed, Released, Report, Started, Stopped, attempt::Outcome, report},
};
use proptest::prelude::*;

use super::*;
use crate::task::{frame::text_message, report::ReportOutcome};
use faultline_proto::v1::interrupt;

const NOW: Millis = 1_700_000_000_000;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const WORKER: &str = "0199aaaa-0000-7000-8000-000000000001";

fn first() -> Submitted {
    Submitted {
        message: Some(text_message("hi".into())),
        traceparent: format!("00-{TRACE}-00f067aa0ba902b7-01"),
        principal: LOCAL.into(),
        ..Submitted::default()
    }
}

fn submitted() -> Task {
    let id = TaskId::from_bytes([7; 16]);
    Task::submit(id, "a", "c".into(), first(), NOW).0
}

fn act(task: &mut Task, body: event::Body) {
    task.version += 1;
    task.apply_now(body, NOW);
}

fn working() -> Task {
    let mut task = submitted();
    let body = task.decide_assign(WORKER, "w-1", "a").unwrap();
    act(&mut task, body);
    task
}

fn report(task: &Task, body: report::Body) -> Report {
    let (attempt, number) = (task.attempt, task.reported + 1);
    Report { task_id: task.id.to_string(), attempt, number, body: Some(body) }
}

/// Takes a report as the coordinator does; false: it was refused.
fn take(task: &mut Task, body: report::Body) -> bool {
    let report = report(task, body);
    let number = report.number;
    match task.decide_report(report) {
        Ok(ReportOutcome::Events(bodies)) => {
            task.reported = number;
            bodies.into_iter().for_each(|body| act(task, body));
            show_again(task);
            true
        }
        Ok(ReportOutcome::Rejected(message)) => {
            let body = task.reject(*message, Failure::new(&reason::TASK_REJECTED));
            act(task, body);
            true
        }
        Ok(ReportOutcome::Failed(failure)) => {
            let body = task.decide_fail(*failure).unwrap();
            act(task, body);
            true
        }
        Ok(ReportOutcome::BareMessage(_) | ReportOutcome::TooLarge) | Err(_) => false,
    }
}

fn show_again(task: &mut Task) {
    if let Some(body) = task.shown_again() {
        act(task, body);
    }
}

fn chunk(id: &str, text: &str, append: bool) -> report::Body {
    let part = Part { content: Some(Content::Text(text.into())), ..Part::default() };
    let artifact = Artifact { artifact_id: id.into(), parts: vec![part], ..Artifact::default() };
    report::Body::Artifact(ArtifactChunk { artifact: Some(artifact), append, last_chunk: false })
}

fn ask(kind: interrupt::Kind) -> report::Body {
    report::Body::Ask(Interrupt { key: "k".into(), kind: kind as i32, ..Interrupt::default() })
}

fn failed() -> report::Body {
    report::Body::Failed(Failure::new(&reason::ABORTED).into_record())
}

fn stop() -> Failure {
    Failure::new(&reason::CANCELLED)
}

fn text_of(task: &Task, id: &str) -> Option<String> {
    let task = task.to_a2a(None, true);
    let artifact = task.artifacts.into_iter().find(|a| a.artifact_id == id)?;
    let texts = artifact.parts.into_iter().map(|p| match p.content {
        Some(Content::Text(text)) => text,
        _ => String::new(),
    });
    Some(texts.collect())
}

fn in_state(state: TaskState) -> Task {
    use TaskState::*;
    let mut task = if state == Submitted { submitted() } else { working() };
    let reached = match state {
        Submitted | Working => true,
        Completed => take(&mut task, report::Body::Completed(Default::default())),
        Failed => take(&mut task, failed()),
        Rejected => take(&mut task, report::Body::Rejected(text_message("no".into()))),
        Canceled => {
            let body = task.decide_cancel(stop()).unwrap();
            act(&mut task, body);
            true
        }
        InputRequired => take(&mut task, ask(interrupt::Kind::Input)),
        AuthRequired => take(&mut task, ask(interrupt::Kind::AuthUrl)),
        Unspecified => false,
    };
    assert!(reached && task.state == state, "{state:?}");
    task
}

#[test]
fn every_transition_is_in_the_table_and_no_other() {
    use TaskState::*;
    // For each state: assign, answer, cancel, lose, report status, ask, complete, fail, release.
    // `-` is refused, a letter is the state after: W C F X(canceled) I or = (same).
    let table = [
        (Submitted, "W-X------"),
        (Working, "--X=WICF="),
        (InputRequired, "-WX===CF="),
        (AuthRequired, "-WX===CF="),
        (Completed, "---------"),
        (Failed, "---------"),
        (Canceled, "---------"),
        (Rejected, "---------"),
    ];
    for (state, row) in table {
        let mut seen = String::new();
        for command in 0..9 {
            let mut task = in_state(state);
            let done = match command {
                0 => task.decide_assign("w", "w", "a").map(|b| act(&mut task, b)).is_ok(),
                1 => {
                    let answer = task.decide_answer(text_message("y".into()));
                    answer.map(|b| act(&mut task, b)).is_ok()
                }
                2 => task.decide_cancel(stop()).map(|b| act(&mut task, b)).is_ok(),
                3 => {
                    let lost = task.decide_lose(3, |_| Failure::new(&reason::WORKER_LOST));
                    lost.map(|bs| bs.into_iter().for_each(|b| act(&mut task, b))).is_ok()
                }
                4 => take(&mut task, report::Body::Status(text_message("s".into()))),
                5 => take(&mut task, ask(interrupt::Kind::Input)),
                6 => take(&mut task, report::Body::Completed(Default::default())),
                7 => take(&mut task, failed()),
                _ => take(&mut task, report::Body::Released(Released {})),
            };
            seen.push(match (done, task.state) {
                (false, _) => '-',
                (true, Working) if !matches!(command, 3 | 8) => 'W',
                (true, Completed) => 'C',
                (true, Failed) => 'F',
                (true, Canceled) => 'X',
                (true, InputRequired) if state != InputRequired => 'I',
                (true, after) if after == state => '=',
                (true, after) => panic!("{state:?} became {after:?} by command {command}"),
            });
        }
        assert_eq!(seen, row, "{state:?}");
    }
}

#[test]
fn a_report_is_taken_once_in_order_and_only_of_the_current_attempt() {
    let mut task = working();
    let first = report(&task, report::Body::Started(Started {}));
    assert!(take(&mut task, report::Body::Started(Started {})));
    assert_eq!(task.decide_report(first.clone()), Err(Refused::Duplicate));
    let gap = Report { number: 5, ..first.clone() };
    assert!(matches!(task.decide_report(gap), Err(Refused::Nonsense(_))));
    let old = Report { attempt: 0, number: 2, ..first.clone() };
    assert_eq!(task.decide_report(old), Err(Refused::Fenced));
    let empty = Report { number: 2, body: None, ..first };
    assert!(matches!(task.decide_report(empty), Err(Refused::Nonsense(_))));
}

#[test]
fn losses_end_a_task_only_when_there_were_enough() {
    let mut task = working();
    for loss in 1..=3 {
        let lost = task.decide_lose(3, |_| Failure::new(&reason::WORKER_LOST)).unwrap();
        lost.into_iter().for_each(|b| act(&mut task, b));
        assert_eq!(task.losses, loss);
        if loss < 3 {
            assert_eq!((task.state, task.worker.as_str()), (TaskState::Working, ""));
            let body = task.decide_assign(WORKER, "w-1", "a").unwrap();
            act(&mut task, body);
            assert_eq!((task.attempt, task.reported), (loss + 1, 0));
        }
    }
    assert_eq!(task.state, TaskState::Failed);
    let outcomes: Vec<_> = task.attempts.iter().map(|a| a.outcome()).collect();
    assert_eq!(outcomes, [Outcome::WorkerLost; 3]);
}

#[test]
fn returned_or_waiting_attempt_is_no_loss() {
    let mut task = working();
    assert!(take(&mut task, report::Body::Released(Released {})));
    assert_eq!((task.losses, task.state), (0, TaskState::Working));
    let mut waiting = in_state(TaskState::InputRequired);
    let lost = waiting.decide_lose(1, |_| Failure::new(&reason::WORKER_LOST)).unwrap();
    lost.into_iter().for_each(|b| act(&mut waiting, b));
    assert_eq!((waiting.losses, waiting.state), (0, TaskState::InputRequired));
}

#[test]
fn lost_attempt_rewinds_to_its_checkpoint() {
    let mut task = working();
    take(&mut task, chunk("kept", "a", false));
    take(&mut task, chunk("kept", "b", true));
    take(&mut task, chunk("same", "s", false));
    take(&mut task, report::Body::Checkpoint("1".into()));
    take(&mut task, chunk("kept", "c", true));
    take(&mut task, chunk("stray", "x", false));
    assert_eq!(text_of(&task, "kept").as_deref(), Some("abc"));
    let lost = task.decide_lose(3, |_| Failure::new(&reason::WORKER_LOST)).unwrap();
    // Watchers are told how far it goes back: the one that changed, and only that one.
    let resent: Vec<_> = lost.iter().filter(|b| matches!(b, event::Body::Artifact(_))).collect();
    assert_eq!(resent.len(), 1);
    lost.into_iter().for_each(|b| act(&mut task, b));
    assert_eq!(text_of(&task, "kept").as_deref(), Some("ab"));
    assert_eq!(text_of(&task, "same").as_deref(), Some("s"));
    assert_eq!(text_of(&task, "stray"), None);
    let body = task.decide_assign(WORKER, "w-1", "a").unwrap();
    act(&mut task, body);
    take(&mut task, chunk("kept", "d", true));
    take(&mut task, chunk("stray", "y", true));
    assert_eq!(text_of(&task, "kept").as_deref(), Some("abd"));
    assert_eq!(text_of(&task, "stray").as_deref(), Some("y"));
}

#[test]
fn an_artifact_replaced_after_a_checkpoint_goes_back_to_what_it_was() {
    let mut task = working();
    take(&mut task, chunk("a", "old", false));
    take(&mut task, report::Body::Checkpoint("1".into()));
    take(&mut task, chunk("a", "new", false));
    let lost = task.decide_lose(3, |_| Failure::new(&reason::WORKER_LOST)).unwrap();
    lost.into_iter().for_each(|b| act(&mut task, b));
    assert_eq!(text_of(&task, "a").as_deref(), Some("old"));
}

#[test]
fn a_bare_message_is_one_only_as_the_very_first_report() {
    let task = working();
    let message = report::Body::Message(text_message("hi".into()));
    let verdict = task.decide_report(report(&task, message.clone()));
    assert!(matches!(verdict, Ok(ReportOutcome::BareMessage(_))));
    let mut later = working();
    take(&mut later, report::Body::Started(Started {}));
    assert!(take(&mut later, message));
    assert_eq!(later.state, TaskState::Completed);
}

#[test]
fn a_failed_task_shows_its_failure_whole_in_task_and_frame() {
    let mut task = working();
    let body = match task.decide_report(report(&task, failed())).unwrap() {
        ReportOutcome::Failed(failure) => task.decide_fail(*failure).unwrap(),
        other => panic!("{other:?}"),
    };
    let event = task.apply_now(body, NOW);
    let shown = task.to_a2a(None, true);
    let frame = task.ids().frame(&event).unwrap();
    let Some(a2a::stream_response::Payload::StatusUpdate(update)) = frame.payload else { panic!() };
    assert_eq!(update.metadata, shown.metadata);
    assert_eq!(update.status, shown.status);
    let failure = Failure::from_metadata(&shown.metadata.unwrap()).unwrap();
    assert_eq!((failure.reason.as_str(), failure.origin_agent()), ("ABORTED", "a"));
    assert_eq!((failure.task_id.clone(), failure.trace_id.as_str()), (task.id.to_string(), TRACE));
}

#[test]
fn a_tolerated_failure_is_shown_and_ends_nothing() {
    let mut task = working();
    take(&mut task, chunk("a", "x", true));
    let failure = Failure::new(&reason::RATE_LIMITED).because("slow down").into_record();
    let tolerated = report::Body::Tolerated(failure);
    let Ok(ReportOutcome::Events(bodies)) = task.decide_report(report(&task, tolerated.clone()))
    else {
        panic!("it is taken");
    };
    let [event::Body::Tolerated(stored)] = bodies.as_slice() else { panic!("{bodies:?}") };
    let stored = stored.failure.as_ref().unwrap();
    assert_eq!(stored.severity(), v1::Severity::Recoverable);
    assert_eq!(stored.origin.as_ref().unwrap().agent, "a");

    let event = task.apply_now(bodies[0].clone(), NOW);
    task.reported += 1;
    let frame = task.ids().frame(&event).unwrap();
    let Some(a2a::stream_response::Payload::StatusUpdate(update)) = frame.payload else { panic!() };
    assert_eq!(update.status.unwrap().state(), TaskState::Working);
    let shown = Failure::from_metadata(update.metadata.as_ref().unwrap()).unwrap();
    assert_eq!(shown.record(), stored);
    assert!(!update.metadata.unwrap().fields.contains_key("error_code"), "nothing has ended");

    // Output after the checkpoint is undone with its attempt; output before it stays.
    take(&mut task, report::Body::Checkpoint("s".into()));
    take(&mut task, tolerated);
    assert_eq!(task.tolerated.failures().len(), 2);
    take(&mut task, report::Body::Released(Released {}));
    assert_eq!(task.tolerated.failures(), std::slice::from_ref(stored));
    let body = task.decide_assign(WORKER, "w-1", "a").unwrap();
    act(&mut task, body);
    take(&mut task, report::Body::Completed(Completed::default()));
    let metadata = task.to_a2a(None, true).metadata.unwrap();
    assert!(metadata.fields.contains_key("faultline.dev/degraded"), "{metadata:?}");
    assert_eq!(task.state, TaskState::Completed);
}

#[test]
fn a_failed_attempt_goes_back_to_its_checkpoint_and_another_agent_to_nothing() {
    let mut task = working();
    assert!(take(&mut task, chunk("out", "one ", false)));
    assert!(take(&mut task, report::Body::Checkpoint("s".into())));
    assert!(take(&mut task, chunk("out", "two", true)));
    let failure = || Failure::new(&reason::UNAVAILABLE);
    let bodies = task.decide_retry(failure(), Some(NOW + 1000));
    assert_eq!(bodies.len(), 2, "watchers are told how far it goes back");
    bodies.into_iter().for_each(|body| act(&mut task, body));
    assert_eq!((task.retries, task.losses, task.retry_at), (1, 0, Some(NOW + 1000)));
    assert_eq!((task.state, text_of(&task, "out").as_deref()), (TaskState::Working, Some("one ")));
    let again = task.decide_assign(WORKER, "w-1", "a").unwrap();
    act(&mut task, again);
    assert_eq!((task.retry_at, task.checkpoint.as_deref()), (None, Some(b"s".as_slice())));
    task.decide_retry(failure(), None).into_iter().for_each(|body| act(&mut task, body));
    assert!(task.passed_on && task.retry_at.is_none());
    let other = task.decide_assign(WORKER, "w-1", "b").unwrap();
    act(&mut task, other);
    assert_eq!((task.agent.as_str(), task.runner(), task.retries), ("a", "b", 0));
    assert_eq!((task.checkpoint.clone(), text_of(&task, "out")), (None, None));
    let outcomes: Vec<_> = task.attempts.iter().map(v1::Attempt::outcome).collect();
    assert_eq!(outcomes, [Outcome::Failed, Outcome::Failed, Outcome::Running]);
}

#[derive(Clone, Debug)]
enum Step {
    Assign,
    StandIn,
    Retry(bool),
    Answer,
    Cancel,
    Lose,
    Chunk(u8, bool),
    Checkpoint,
    Status,
    Ask(u8),
    Withdraw(u8),
    Complete,
    Release,
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Assign),
        1 => Just(Step::StandIn),
        2 => any::<bool>().prop_map(Step::Retry),
        2 => Just(Step::Answer),
        1 => Just(Step::Cancel),
        2 => Just(Step::Lose),
        8 => (0..3u8, any::<bool>()).prop_map(|(id, append)| Step::Chunk(id, append)),
        3 => Just(Step::Checkpoint),
        2 => Just(Step::Status),
        4 => (0..3u8).prop_map(Step::Ask),
        1 => (0..3u8).prop_map(Step::Withdraw),
        1 => Just(Step::Complete),
        1 => Just(Step::Release),
        1 => Just(Step::Stop),
    ]
}

proptest! {
    #[test]
    fn any_life_replays_to_the_same_task_and_ends_once(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut task = submitted();
        let first = Task::submit(task.id, "a", "c".into(), first(), NOW).1;
        let mut log = vec![first];
        for step in steps {
            let before = task.clone();
            let bodies = match step {
                Step::Assign => task.decide_assign(WORKER, "w-1", "a").into_iter().collect(),
                Step::StandIn => task.decide_assign(WORKER, "w-1", "b").into_iter().collect(),
                Step::Retry(here) if task.is_current(task.attempt) => {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    task.decide_retry(failure, here.then_some(NOW + 1000))
                }
                Step::Retry(_) => Vec::new(),
                Step::Answer => task.decide_answer(text_message("y".into())).into_iter().collect(),
                Step::Cancel => task.decide_cancel(stop()).into_iter().collect(),
                Step::Lose => task
                    .decide_lose(3, |_| Failure::new(&reason::WORKER_LOST))
                    .unwrap_or_default(),
                reported => {
                    let body = match reported {
                        Step::Chunk(id, append) => chunk(&format!("a{id}"), "x", append),
                        Step::Checkpoint => report::Body::Checkpoint("s".into()),
                        Step::Status => report::Body::Status(text_message("s".into())),
                        Step::Ask(key) => report::Body::Ask(Interrupt {
                            key: key.to_string(),
                            ..Interrupt::default()
                        }),
                        Step::Withdraw(key) => {
                            report::Body::Withdrawn(v1::Withdrawn { key: key.to_string() })
                        }
                        Step::Complete => report::Body::Completed(Completed::default()),
                        Step::Release => report::Body::Released(Released {}),
                        _ => report::Body::Stopped(Stopped {}),
                    };
                    match task.decide_report(report(&task, body)) {
                        Ok(ReportOutcome::Events(bodies)) => { task.reported += 1; bodies }
                        _ => Vec::new(),
                    }
                }
            };
            if before.is_final() {
                prop_assert!(bodies.is_empty(), "a final task changed");
            }
            for body in bodies {
                log.push(task.apply_now(body, NOW));
            }
            log.extend(task.shown_again().map(|body| task.apply_now(body, NOW)));
            prop_assert_eq!(is_waiting(task.state), !task.pending.is_empty(), "asks or not");
        }
        let mut replayed = Task::blank(task.id, "a".into(), "c".into(), NOW);
        log.iter().for_each(|event| replayed.apply(event));
        replayed.version = task.version;
        replayed.reported = task.reported;
        prop_assert_eq!(&replayed, &task);
        prop_assert_eq!(task.seq, log.len() as u64);
        let ends = log.iter().filter(|e| matches!(e.body, Some(event::Body::Ended(_)))).count();
        prop_assert_eq!(ends, usize::from(task.is_final()));
    }
}
