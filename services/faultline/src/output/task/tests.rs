//! Golden tests of the rendering of tasks.

use faultline_proto::{
    advice::advise,
    json, reason,
    v1::{NotRetried, Origin, interrupt},
};

use super::*;

fn task(json: &str) -> Task {
    json::from_str(json).unwrap()
}

fn failed() -> (Task, Failure) {
    let failure = Failure::new(&reason::AGENT_PANICKED)
        .because("the agent panicked")
        .with_task("t-1", "c-1")
        .born_at(Origin { agent: "script".into(), worker: "w-2".into(), service: String::new() });
    let failure = Failure::from_record(v1::Failure { id: "f-1".into(), ..failure.into_record() });
    let mut task = task(
        r#"{"id":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_FAILED",
        "timestamp":"2026-01-01T00:00:02.345Z"}}"#,
    );
    task.metadata = Some(failure.to_metadata(TaskState::Failed));
    (task, failure)
}

#[test]
fn card_shows_state_and_artifacts() {
    let task = task(
        r#"{"id":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_COMPLETED",
        "timestamp":"2026-01-01T00:00:00.123456Z"},"artifacts":[
        {"artifactId":"a","name":"echo","parts":[{"text":"hello "},{"text":"world"}]}]}"#,
    );
    assert_eq!(
        card(&task, Style::plain()),
        "\
task     t-1
state    completed
since    2026-01-01T00:00:00.123Z
context  c-1

artifact echo
hello world
"
    );
}

#[test]
fn history_shows_attempts_then_the_failure_with_its_origin() {
    let (task, failure) = failed();
    let mut inspect: InspectResponse = json::from_str(
        r#"{"agent":"script","traceId":"4bf9","created":"2026-01-01T00:00:00Z","lateReports":1,
        "attempts":[
        {"number":1,"worker":"w-1","started":"2026-01-01T00:00:00.001Z",
         "ended":"2026-01-01T00:00:02Z","outcome":"OUTCOME_WORKER_LOST"},
        {"number":2,"worker":"w-2","started":"2026-01-01T00:00:02.100Z",
         "ended":"2026-01-01T00:00:02.345Z","outcome":"OUTCOME_ENDED"}]}"#,
    )
    .unwrap();
    inspect.task = Some(task);
    inspect.advice = Some(advise(&failure, Reader::Operator).to_record());
    inspect.failure = Some(failure.with_retries_spent(1).into_record());
    inspect.set_not_retried(NotRetried::Reason);
    assert_eq!(
        history(&inspect, Style::plain()),
        "\
task     t-1
agent    script
state    failed  2.3s after it was sent
sent     2026-01-01T00:00:00.000Z
context  c-1
trace    4bf9
late     1 report after the end, dropped

attempt 1  worker w-1  2026-01-01T00:00:00.001Z  2s     worker lost  tried again 100ms later
attempt 2  worker w-2  2026-01-01T00:00:02.100Z  245ms  ended
not tried again: its reason says that this makes no sense

✗ task t-1 failed: AGENT_PANICKED (gRPC INTERNAL, not retryable, 1 retry spent)
  the agent panicked
  └─ script   AGENT_PANICKED  \"the agent panicked\"   worker w-2, attempt 2
  do     agent 'script' has a bug (failure id f-1): the owner of agent 'script' has to read
         the log of its worker under this id
  more   faultline explain AGENT_PANICKED
"
    );
}

#[test]
fn question_names_the_command_that_answers_it() {
    let interrupt = Interrupt {
        kind: interrupt::Kind::Choice as i32,
        prompt: "Which one?".into(),
        schema: Some(
            json::from_str(r#"{"type":"object","properties":{"choice":{"enum":["a","b"]}}}"#)
                .unwrap(),
        ),
        url: "http://sign.in".into(),
        ..Interrupt::default()
    };
    let record = Kind::StructValue(json::to_struct(&interrupt)).into();
    let metadata = Struct { fields: [("faultline.dev/interrupt".to_owned(), record)].into() };
    let status = TaskStatus { state: TaskState::InputRequired as i32, ..TaskStatus::default() };
    assert_eq!(
        question("t-1", &status, Some(&metadata), Style::plain()),
        "\
? task t-1 asks: Which one?
  one of  a, b
  open    http://sign.in
  answer  faultline answer t-1 TEXT
"
    );
}

#[test]
fn list_is_a_table_for_people_and_tab_separated_for_programs() {
    let tasks = vec![failed().0];
    let list = ListTasksResponse { tasks, ..ListTasksResponse::default() };
    let since = "2026-01-01T00:00:02.345Z";
    let says = "AGENT_PANICKED: the agent panicked";
    assert_eq!(
        table(&list, true, Style::plain()),
        format!(
            "TASK  STATE   SINCE                     SAYS\n\
             t-1   failed  {since}  AGENT_PANICKED: the agent panick…\n"
        )
    );
    let bare = format!("t-1\tfailed\t{since}\tc-1\t{says}\n");
    assert_eq!(table(&list, false, Style::plain()), bare);
}

#[test]
fn degraded_task_names_the_tolerated_failures() {
    let mut task: Task = json::from_str(
        r#"{"id":"t-1","status":{"state":"TASK_STATE_COMPLETED"},"metadata":{
        "faultline.dev/degraded":true,"faultline.dev/tolerated":[
        {"code":9,"reason":"FAILED_PRECONDITION","origin":{"agent":"down"}}]}}"#,
    )
    .unwrap();
    let text = card(&task, Style::plain());
    assert!(text.contains("down: FAILED_PRECONDITION (it is degraded)\n"), "{text}");
    task.metadata = None;
    assert!(!card(&task, Style::plain()).contains("degraded"));
}

/// The whole screen of `faultline explain` for one task that failed at once.
fn screen(failure: Failure, not_retried: NotRetried) -> String {
    let failure = Failure::from_record(v1::Failure {
        id: "f-1".into(),
        // The coordinator stores the flag of the reason table.
        retryable: Some(failure.may_retry()),
        ..failure.into_record()
    });
    let mut inspect: InspectResponse = json::from_str(
        r#"{"agent":"ledger","attempts":[{"number":1,"started":"2026-01-01T00:00:00Z",
        "ended":"2026-01-01T00:00:02Z","outcome":"OUTCOME_ENDED"}]}"#,
    )
    .unwrap();
    let mut task = task(r#"{"id":"t-1","status":{"state":"TASK_STATE_FAILED"}}"#);
    task.metadata = Some(failure.to_metadata(TaskState::Failed));
    inspect.task = Some(task);
    inspect.failure = Some(failure.into_record());
    inspect.set_not_retried(not_retried);
    history(&inspect, Style::plain())
}

fn by_agent(row: &'static reason::Reason) -> Failure {
    let origin = Origin { agent: "ledger".into(), service: "worker".into(), worker: String::new() };
    Failure::new(row).because("no").born_at(origin)
}

#[test]
fn overload_is_retryable_in_every_line_of_its_card() {
    let text = screen(by_agent(&reason::OVERLOADED), NotRetried::Reason);
    assert!(text.contains("OVERLOADED (gRPC RESOURCE_EXHAUSTED, retryable, wait 1s)"), "{text}");
    assert!(text.contains("do     wait 1s, then send again;"), "{text}");
    assert!(!text.contains("makes no sense"), "{text}");
    assert!(!text.contains("(the operator"), "{text}");
}

#[test]
fn aborted_task_advises_to_repeat_the_whole_request() {
    let text = screen(by_agent(&reason::ABORTED), NotRetried::Reason);
    let why = "not tried again: only the whole unit of work can be tried again";
    assert!(text.contains(why), "{text}");
    assert!(text.contains("do     other work came first: send the whole request again"), "{text}");
}

#[test]
fn invalid_request_four_hops_down_is_reported_to_its_author() {
    let far = ["billing", "planner", "desk", "front"]
        .into_iter()
        .fold(by_agent(&reason::INVALID_ARGUMENT), |failure, agent| failure.wrap(agent, "t", "c"));
    let text = screen(far, NotRetried::Below);
    let advice =
        "do     agent 'ledger' refused the request that agent 'billing' wrote: report it to";
    assert!(text.contains(advice), "{text}");
    assert!(!text.contains("correct the request") && !text.contains("(the caller)"), "{text}");
}

#[test]
fn agent_bug_does_not_blame_the_mesh() {
    let text = screen(by_agent(&reason::INTERNAL), NotRetried::Reason);
    assert!(text.contains("do     agent 'ledger' has a bug (failure id f-1)"), "{text}");
    assert!(!text.contains("mesh"), "{text}");
}

#[test]
fn advice_of_the_gateway_is_printed_unchanged() {
    // The gateway knows the scopes of the reader; a visible worker name proves nothing.
    for (worker, reader) in [("w-1", Reader::Caller), ("", Reader::Operator)] {
        let failure = by_agent(&reason::WORKER_LOST);
        let advice = advise(&failure, reader);
        let attempt = v1::Attempt { worker: worker.into(), number: 1, ..v1::Attempt::default() };
        let inspect = InspectResponse {
            task: Some(task(r#"{"id":"t-1","status":{"state":"TASK_STATE_FAILED"}}"#)),
            attempts: vec![attempt],
            advice: Some(advice.to_record()),
            failure: Some(failure.into_record()),
            ..InspectResponse::default()
        };
        let text = history(&inspect, Style::plain());
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("do {}", advice.sentence())), "{text}");
        assert_eq!(text.contains("crash"), reader == Reader::Operator, "{text}");
    }
}

#[test]
fn unknown_outcome_is_not_called_retryable() {
    let text = screen(by_agent(&reason::TASK_TIMEOUT), NotRetried::Spent);
    assert!(text.contains("TASK_TIMEOUT (gRPC DEADLINE_EXCEEDED, outcome unknown)"), "{text}");
    assert!(text.contains("and repeat it only if that does no harm"), "{text}");
    let text = screen(by_agent(&reason::UNKNOWN), NotRetried::Reason);
    assert!(text.contains("the agent is not declared idempotent"), "{text}");
}

#[test]
fn refusal_by_a_person_advises_against_a_repeat() {
    let declined = v1::Failure { declined: true, ..by_agent(&reason::TASK_REJECTED).into_record() };
    let text = screen(Failure::from_record(declined), NotRetried::Unspecified);
    let advice = "do     a person refused this: do not send it again unless that decision changes";
    assert!(text.contains(advice), "{text}");
}
