//! Golden tests of the rendering of trees.

use faultline_proto::{
    advice::{Reader, advise},
    json, reason,
    v1::{Aggregate, Child, InspectResponse, NotRetried, Origin},
};

use super::*;

/// A task as `Inspect` returns it, with this state.
fn seen(id: &str, agent: &str, state: &str, end: Option<&str>, attempts: &str) -> TaskTree {
    let ended = end.map(|end| format!(r#""ended":"2026-01-01T00:00:{end}Z","#));
    let text = format!(
        r#"{{"agent":"{agent}","traceId":"4bf9","created":"2026-01-01T00:00:00Z",{}
        "task":{{"id":"{id}","status":{{"state":"TASK_STATE_{state}",
        "timestamp":"2026-01-01T00:00:01Z"}}}},"attempts":[{attempts}]}}"#,
        ended.unwrap_or_default()
    );
    let task: InspectResponse = json::from_str(&text).unwrap();
    TaskTree { task, subtasks: Vec::new() }
}

fn attempt(number: u32, worker: &str, from: &str, to: Option<&str>, outcome: &str) -> String {
    let ended = to.map(|to| format!(r#""ended":"2026-01-01T00:00:{to}Z","#)).unwrap_or_default();
    format!(
        r#"{{"number":{number},"worker":"{worker}","started":"2026-01-01T00:00:{from}Z",
        {ended}"outcome":"OUTCOME_{outcome}"}}"#
    )
}

fn once(worker: &str) -> String {
    attempt(1, worker, "00", Some("02"), "ENDED")
}

fn with(mut tree: TaskTree, below: Vec<TaskTree>) -> TaskTree {
    tree.subtasks = below.into_iter().map(|tree| Subtask::Loaded(Box::new(tree))).collect();
    tree
}

fn because(mut tree: TaskTree, failure: &Failure) -> TaskTree {
    tree.task.failure = Some(failure.record().clone());
    tree.task.advice = Some(advise(failure, Reader::Operator).to_record());
    tree
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds: 1_767_225_600 + seconds, nanos: 0 }
}

fn born() -> Failure {
    let origin = Origin { agent: "bank".into(), worker: "w-3".into(), ..Origin::default() };
    let mut record = Failure::new(&reason::RATE_LIMITED)
        .because("slow down")
        .with_business_code("CARD_17")
        .with_retry_after(std::time::Duration::from_secs(2))
        .with_retries_spent(2)
        .with_task("t-5", "c-1")
        .into_record();
    record.time = Some(at(2));
    Failure::from_record(record).born_at(origin)
}

/// front → plan → search → pay → bank, where bank fails at its third attempt.
fn five_hops() -> TaskTree {
    let hops = [("pay", "t-4"), ("search", "t-3"), ("plan", "t-2"), ("front", "t-1")];
    let mut failures = vec![born()];
    for (agent, id) in hops {
        failures.push(failures[failures.len() - 1].clone().wrap(agent, id, "c-1"));
    }
    let tries = [
        attempt(1, "w-1", "00", Some("00.400"), "WORKER_LOST"),
        attempt(2, "w-2", "00.400", Some("00.900"), "FAILED"),
        attempt(3, "w-3", "01", Some("02"), "ENDED"),
    ];
    let mut bank = seen("t-5", "bank", "FAILED", Some("02"), &tries.join(","));
    let down = Failure::new(&reason::UNAVAILABLE).because("closed");
    bank.task.attempts[1].failure = Some(down.into_record());
    bank.task.set_not_retried(NotRetried::Spent);
    let bank = because(bank, &failures[0]);
    let pay = seen("t-4", "pay", "FAILED", Some("02.1"), &once("w-2"));
    let pay = with(because(pay, &failures[1]), vec![bank]);
    let search = seen("t-3", "search", "FAILED", Some("02.2"), &once("w-1"));
    let search = with(because(search, &failures[2]), vec![pay]);
    let weather = seen("t-9", "weather", "COMPLETED", Some("00.350"), &once("w-1"));
    let plan = seen("t-2", "plan", "FAILED", Some("02.3"), &once("w-1"));
    let plan = with(because(plan, &failures[3]), vec![weather, search]);
    let mut front = seen("t-1", "front", "FAILED", Some("02.4"), &once("w-1"));
    front.task.trace_url = "https://traces.example/4bf9".into();
    with(because(front, &failures[4]), vec![plan])
}

const FIVE_HOPS: &str = "\
✗ bank failed: RATE_LIMITED (gRPC RESOURCE_EXHAUSTED, retryable, wait 2s, 2 retries spent)
  slow down
  code   CARD_17
  where  4 hops below the task you asked about, on worker w-3
  when   2026-01-01T00:00:02.000Z

  AGENT             STATE      TOOK   TRIED       REASON        TASK
  front             failed     2.4s   on w-1      RATE_LIMITED  t-1
  └─ plan           failed     2.3s   on w-1      RATE_LIMITED  t-2
     ├─ weather     completed  350ms  on w-1                    t-9
     └─ search      failed     2.2s   on w-1      RATE_LIMITED  t-3
        └─ pay      failed     2.1s   on w-2      RATE_LIMITED  t-4
           └─ bank  failed     2s     3 attempts  RATE_LIMITED  t-5  ← it broke here
                 attempt 1 on w-1: its worker was lost after 400ms, tried again at once
                 attempt 2 on w-2: UNAVAILABLE \"closed\" after 500ms, tried again 100ms later
                 attempt 3 on w-3: failed after 1s
                 not tried again: all attempts that it may have were made

  do     the caller can send again after 2s
  sent   2026-01-01T00:00:00.000Z
  trace  4bf9
  link   https://traces.example/4bf9
  more   faultline explain RATE_LIMITED
";

#[test]
fn failure_five_hops_down_shows_origin_tree_and_advice() {
    assert_eq!(render(&five_hops(), &at(9), Style::plain()), FIVE_HOPS);
}

#[test]
fn styled_text_equals_plain_text_without_escape_codes() {
    let painted = render(&five_hops(), &at(9), Style::always());
    assert!(painted.contains("\x1b["));
    let mut plain = String::new();
    for (n, piece) in painted.split('\x1b').enumerate() {
        plain.push_str(if n == 0 { piece } else { &piece[piece.find('m').unwrap() + 1..] });
    }
    assert_eq!(plain, FIVE_HOPS);
}

#[test]
fn cancelled_tree_with_failures_shows_all_levels() {
    let stopped = |agent: &str, id: &str, by: &str| {
        let failure = Failure::new(&reason::CANCELLED).because("the task was canceled");
        let failure = failure.with_cancellation(by, "").with_task(id, "c-1");
        let failure = failure.born_at(Origin { agent: agent.into(), ..Origin::default() });
        because(seen(id, agent, "CANCELED", Some("02"), &once("w-1")), &failure)
    };
    let done = seen("t-5", "weather", "COMPLETED", Some("01"), &once("w-1"));
    let pay = with(stopped("pay", "t-3", "parent"), vec![stopped("bank", "t-4", "parent"), done]);
    let plan = with(stopped("plan", "t-2", "parent"), vec![pay]);
    let root = with(stopped("front", "t-1", "user"), vec![plan]);
    let text = render(&root, &at(5), Style::plain());
    let tree = "
  front             canceled   2s    on w-1  CANCELLED  t-1
  └─ plan           canceled   2s    on w-1  CANCELLED  t-2
     └─ pay         canceled   2s    on w-1  CANCELLED  t-3
        ├─ bank     canceled   2s    on w-1  CANCELLED  t-4
        └─ weather  completed  1s    on w-1             t-5
";
    assert!(text.contains(tree), "{text}");
    let advice =
        "  do     the work was cancelled: send it again only if that was a mistake (the caller)\n";
    assert!(text.contains(advice), "{text}");
}

#[test]
fn live_task_lists_its_active_subtasks() {
    let running = attempt(1, "w-1", "00", None, "RUNNING");
    let search = seen("t-2", "search", "WORKING", None, &attempt(2, "w-7", "04", None, "RUNNING"));
    let queued = seen("t-3", "sum", "SUBMITTED", None, "");
    let done = seen("t-4", "weather", "COMPLETED", Some("01"), &once("w-1"));
    let root = seen("t-1", "front", "WORKING", None, &running);
    let text = render(&with(root, vec![done, search, queued]), &at(5), Style::plain());
    assert_eq!(
        text,
        "\
● task t-1 is under way
  search computes on worker w-7, attempt 2, for 1s
  sum waits for a worker for 5s

  AGENT       STATE      TOOK  TRIED      TASK
  front       working    5s    on w-1     t-1
  ├─ weather  completed  1s    on w-1     t-4
  ├─ search   working    5s    on w-7     t-2
  └─ sum      submitted  5s    never ran  t-3

  sent   2026-01-01T00:00:00.000Z
  trace  4bf9
"
    );
}

#[test]
fn waiting_task_names_the_asking_agent_and_its_question() {
    let running = attempt(1, "w-1", "00", None, "RUNNING");
    let mut pay = seen("t-2", "pay", "INPUT_REQUIRED", None, &running);
    pay.task.interrupts = vec![json::from_str(r#"{"prompt":"Which card?"}"#).unwrap()];
    let mut root = seen("t-1", "front", "INPUT_REQUIRED", None, &running);
    root.task.interrupts = pay.task.interrupts.clone();
    let text = render(&with(root, vec![pay]), &at(13), Style::plain());
    assert_eq!(
        text,
        "\
? task t-1 waits for an answer
  pay asks \"Which card?\", for 12s
  answer  faultline answer t-1 TEXT

  AGENT   STATE           TOOK  TRIED   TASK
  front   input-required  13s   on w-1  t-1
  └─ pay  input-required  13s   on w-1  t-2
        asks \"Which card?\"

  sent   2026-01-01T00:00:00.000Z
  trace  4bf9
"
    );
}

#[test]
fn tolerated_failures_are_listed_and_many_siblings_are_counted() {
    let many = (0..30).map(|n| seen(&format!("t-{n}"), "echo", "COMPLETED", Some("01"), ""));
    let mut below: Vec<_> = many.collect();
    let failed = seen("t-x", "bank", "FAILED", Some("01"), &once("w-3"));
    below.push(because(failed, &born()));
    let mut root = with(seen("t-1", "front", "COMPLETED", Some("02"), &once("w-1")), below);
    root.task.tolerated = vec![born().into_record()];
    root.subtasks.push(Subtask::NotLoaded(Child { agent: "far".into(), ..Child::default() }));
    let text = render(&root, &at(9), Style::plain());
    assert!(text.starts_with("✓ task t-1 completed after 2s\n\n"), "{text}");
    assert!(text.contains("\n  │  went on without bank: RATE_LIMITED \"slow down\"\n"), "{text}");
    assert!(text.contains("\n  ├─ bank "), "{text}");
    assert!(text.contains("\n  └─ 22 more completed\n"), "{text}");
    assert!(
        text.contains("  cut    1 task was not looked into; explain one by its id\n"),
        "{text}"
    );
    assert!(!text.contains("it broke here"), "{text}");
}

#[test]
fn hops_outside_the_mesh_are_quoted() {
    let mut record = born().wrap("gate", "t-1", "c-1").into_record();
    record.foreign = true;
    record.causes[1].task_id = "theirs".into();
    record.causes[1].public_message = "no \x1b[31mway".into();
    let gate = seen("t-1", "gate", "FAILED", Some("01"), &once("w-1"));
    let done = seen("t-2", "echo", "COMPLETED", Some("01"), &once("w-1"));
    let gate = with(because(gate, &Failure::from_record(record)), vec![done]);
    let text = render(&gate, &at(9), Style::plain());
    let quoted =
        "  └─ bank  outside the mesh, says: RATE_LIMITED \"no [31mway\"  ← it broke here\n";
    assert!(text.contains(quoted), "{text}");
    assert!(text.contains("as a peer outside the mesh says"), "{text}");
}

#[test]
fn fan_out_shows_the_number_of_answers() {
    let aggregate = Aggregate { required: 2, succeeded: 1, asked: 3, ..Aggregate::default() };
    let mut record = Failure::new(&reason::MIN_RESULTS_NOT_MET)
        .because("Only 1/3 agents responded. Minimum required: 2")
        .with_task("t-1", "c-1")
        .born_at(Origin { agent: "front".into(), ..Origin::default() })
        .into_record();
    record.aggregate = Some(aggregate);
    let bank = because(seen("t-2", "bank", "FAILED", Some("01"), &once("w-3")), &born());
    let front = seen("t-1", "front", "FAILED", Some("02"), &once("w-1"));
    let front = with(because(front, &Failure::from_record(record)), vec![bank]);
    let text = render(&front, &at(9), Style::plain());
    assert!(text.contains("  of     3 were asked, 2 had to answer, 1 did\n"), "{text}");
    assert!(text.contains("  where  in the task you asked about, on worker w-1\n"), "{text}");
    assert!(text.contains("\n  └─ bank "), "{text}");
}

#[test]
fn failed_branches_of_a_fan_out_lead_to_their_origins() {
    let failed = |id, agent| seen(id, agent, "FAILED", Some("02"), &once("w-1"));
    let bank = because(failed("t-5", "bank"), &born());
    let wrapped = born().wrap("pay", "t-4", "c-1");
    let pay = with(because(failed("t-4", "pay"), &wrapped), vec![bank]);
    let echo = seen("t-3", "echo", "COMPLETED", Some("01"), &once("w-1"));
    let origin = |agent: &str| Origin { agent: agent.into(), ..Origin::default() };
    let refused = Failure::new(&reason::AGENT_NOT_FOUND).because("no such agent");
    let branches =
        [wrapped.to_branch("pay"), refused.born_at(origin("nobody")).to_branch("nobody")];
    let few = Failure::too_few(3, 3, 1, &branches).with_task("t-2", "c-1").born_at(origin("fan"));
    let fan = with(because(failed("t-2", "fan"), &few), vec![pay, echo]);
    let top = because(failed("t-1", "front"), &few.wrap("front", "t-1", "c-1"));
    let text = render(&with(top, vec![fan]), &at(9), Style::plain());
    let head = "\
  of     3 were asked, 3 had to answer, 1 did
  broke  pay → bank   RATE_LIMITED  \"slow down\"  code CARD_17
  broke  nobody   AGENT_NOT_FOUND  \"no such agent\"
";
    assert!(text.contains(head), "{text}");
    let tree = "\
  front          failed     2s    on w-1  MIN_RESULTS_NOT_MET  t-1
  └─ fan         failed     2s    on w-1  MIN_RESULTS_NOT_MET  t-2
     ├─ pay      failed     2s    on w-1  RATE_LIMITED         t-4
     │  └─ bank  failed     2s    on w-1  RATE_LIMITED         t-5  ← it broke here
     ├─ echo     completed  1s    on w-1                       t-3
     └─ nobody   AGENT_NOT_FOUND  \"no such agent\"  ← it broke here
";
    assert!(text.contains(tree), "{text}");
}

#[test]
fn cancelled_tree_without_failure_records_below_the_root_shows_all_levels() {
    let canceled = |id, agent| seen(id, agent, "CANCELED", Some("02"), &once("w-1"));
    let search = with(canceled("t-3", "search"), vec![canceled("t-4", "bank")]);
    let plan = with(canceled("t-2", "plan"), vec![search]);
    let failure = Failure::new(&reason::CANCELLED).with_task("t-1", "c-1");
    let front = because(canceled("t-1", "front"), &failure);
    let text = render(&with(front, vec![plan]), &at(9), Style::plain());
    for line in ["└─ plan ", "   └─ search ", "      └─ bank "] {
        assert!(text.contains(&format!("\n  {line}")), "{text}");
    }
}
