//! Golden tests of the screen.

use faultline_proto::{json, v1::AgentActivity};

use super::*;

fn seen() -> Snapshot {
    let agents = r#"{"agents":[
        {"name":"bank","workers":1,"queued":4,"computing":2,"health":{"circuit":"CIRCUIT_OPEN",
         "consecutiveFailures":3}},
        {"name":"echo","workers":2,"computing":1,"health":{"healthy":true,
         "circuit":"CIRCUIT_CLOSED"}},
        {"name":"search","waiting":1,"health":{"healthy":true,"circuit":"CIRCUIT_CLOSED",
         "consecutiveFailures":1}}]}"#;
    let workers = r#"{"workers":[
        {"name":"w-1","agents":["bank","echo"],"slots":4,"used":4,"attached":true,
         "since":"2026-01-01T00:00:00Z"},
        {"name":"w-2","agents":["echo"],"slots":64,"used":1,"orphans":1,"draining":true,
         "attached":true,"since":"2026-01-01T00:00:50Z"},
        {"name":"w-3","agents":["echo"],"slots":8,"since":"2026-01-01T00:00:50Z"}]}"#;
    let failures = r#"{"failures":[
        {"reason":"RATE_LIMITED","origin":"bank","failures":3,"tasks":12,
         "last":"2026-01-01T00:00:59Z","lastTaskId":"t-1","buckets":[0,1,4,7]},
        {"reason":"INTERNAL","origin":"search","failures":1,"tasks":1,
         "last":"2026-01-01T00:00:10Z","lastTaskId":"t-2","buckets":[0,0,1,0]}]}"#;
    let numbers = |each: fn(usize) -> u32| (0..61).map(each).collect::<Vec<_>>();
    let activity = AgentActivity {
        agent: "bank".into(),
        submitted: numbers(|_| 0),
        completed: numbers(|at| at as u32 / 6),
        failed: numbers(|at| u32::from(at > 50)),
        stopped: numbers(|_| 0),
    };
    Snapshot {
        agents: json::from_str(agents).unwrap(),
        workers: json::from_str(workers).unwrap(),
        activity: ActivityResponse { agents: vec![activity], ..<_>::default() },
        failures: json::from_str(failures).unwrap(),
        at: Timestamp { seconds: 1_767_225_660, nanos: 0 },
    }
}

fn around(selected: Option<usize>) -> ScreenContext<'static> {
    ScreenContext {
        gateway: "http://127.0.0.1:8080",
        since: "15m",
        selected,
        foot: "q quit",
        trouble: "",
    }
}

fn text(seen: &Snapshot, selected: Option<usize>, columns: usize, rows: Option<usize>) -> String {
    let screen = Screen { columns, rows, style: Style::plain() };
    frame(seen, &around(selected), screen).join("\n")
}

#[test]
fn small_screen_shows_all_tables() {
    assert_eq!(
        text(&seen(), Some(1), 80, Some(17)),
        "\
faultline  http://127.0.…  9.5 done/s  0.9 failed/s  4 queued  3 busy  1 waiting

AGENT   CIRCUIT    WORKERS  QUEUED  BUSY  WAITING  DONE/S  FAIL/S  DONE   FAILED
bank    open             1       4     2        0     9.5     0.9  ▁▂▄▆█  ····█
echo    closed           2       0     1        0     0.0     0.0  ·····  ·····
search  closed 1✗     none       0     0        1     0.0     0.0  ·····  ·····

WORKER  STATE     SLOTS       USED  OF  ORPHANS  FOR    AGENTS
w-1     attached  ██████████     4   4        0  1m 0s  bank echo
w-2     draining  █░░░░░░░░░     1  64        1  10s    echo
w-3     away      ░░░░░░░░░░     0   8        0  10s    echo

  REASON        ORIGIN  FAILURES  TASKS  LAST  OVER TIME
  RATE_LIMITED  bank           3     12  1s    ·▂▅█
› INTERNAL      search         1      1  50s   ··█·

q quit"
    );
}

#[test]
fn wide_screen_shows_every_second_and_style_adds_escape_codes_only() {
    let wide = text(&seen(), None, 200, None);
    let bank = wide.lines().find(|line| line.starts_with("bank")).unwrap();
    assert!(bank.ends_with(&format!("{}{}", "·".repeat(51), "█".repeat(10))), "{bank}");
    assert!(!wide.contains('›') && !wide.contains("q quit"), "printed output has no selection");
    let screen = Screen { columns: 200, rows: None, style: Style::always() };
    let painted = frame(&seen(), &around(None), screen).join("\n");
    let mut plain = String::new();
    for (n, piece) in painted.split('\x1b').enumerate() {
        plain.push_str(if n == 0 { piece } else { &piece[piece.find('m').unwrap() + 1..] });
    }
    assert!(painted != plain && plain == wide, "{painted}");
}

#[test]
fn frames_fit_screens_of_every_size() {
    let mut many = seen();
    for n in 0..30 {
        let mut agent = many.agents.agents[1].clone();
        agent.name = format!("idle-{n:02}");
        agent.computing = 0;
        many.agents.agents.insert(1, agent);
        many.workers.workers.push(many.workers.workers[0].clone());
        many.failures.failures.push(many.failures.failures[1].clone());
    }
    for columns in (0..220).step_by(7) {
        for rows in 0..60 {
            for selected in [0, 5, 31] {
                let screen = Screen { columns, rows: Some(rows), style: Style::plain() };
                let lines = frame(&many, &around(Some(selected)), screen);
                assert_eq!(lines.len(), rows.max(1), "{columns}x{rows}");
                let widest = lines.iter().map(|line| line.chars().count()).max();
                assert!(widest <= Some(columns), "{columns}x{rows}: {lines:#?}");
            }
        }
    }
    let shown = text(&many, Some(31), 80, Some(24));
    for name in ["bank", "echo", "search", "and 2", "› INTERNAL"] {
        assert!(shown.contains(name), "{name} is missing: {shown}");
    }
}

#[test]
fn empty_mesh_has_a_line_for_each_empty_table() {
    let shown = text(&Snapshot::default(), Some(0), 80, Some(24));
    for words in ["0.0 done/s", "no agent was ever offered", "no worker is attached", "last 15m"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn warning_replaces_the_line_of_keys() {
    let screen = Screen { columns: 80, rows: Some(24), style: Style::plain() };
    let around = ScreenContext { trouble: "no news for 3s: gone", ..around(Some(0)) };
    assert_eq!(frame(&seen(), &around, screen)[23], "no news for 3s: gone");
}

#[test]
fn lines_are_divided_by_demand() {
    assert_eq!(divide_rows([3, 3, 3], 15), [3, 3, 3]);
    assert_eq!(divide_rows([9, 1, 1], 9), [7, 1, 1]);
    assert_eq!(divide_rows([9, 9, 9], 10), [3, 3, 4]);
    assert_eq!(divide_rows([0, 0, 20], 12), [1, 1, 10]);
    assert_eq!(divide_rows([5, 5, 5], 0), [0, 0, 0]);
}
