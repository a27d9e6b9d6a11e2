//! `faultline explain TASK` as people run it: the binary, against a mesh whose agents call agents.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use faultline::{Config, LocalMesh};
use faultline_client::{Answer, text};
use faultline_proto::a2a::Task;
use faultline_worker::{Agent, Context, Error, Offer, Worker, reason};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Each gives what it is told to the next; the last does it.
const LINE: [&str; 5] = ["front", "plan", "search", "pay", "bank"];
const PATIENCE: Duration = Duration::from_secs(10);

struct Hop(usize);

impl Agent for Hop {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        if LINE[self.0] == "plan" {
            cx.delegate("echo", "sunny").await?;
        }
        match LINE.get(self.0 + 1) {
            Some(next) => cx.delegate(*next, cx.text()).await.map(drop),
            None if cx.text() == "ask" => cx.ask("Which card?").await.map(drop),
            None if cx.text() == "wait" => cx.sleep(Duration::from_secs(60)).await,
            None => Err(Error::new(&reason::RATE_LIMITED)
                .code("CARD_17")
                .because("slow down")
                .retryable(false)),
        }
    }
}

struct Setup {
    mesh: LocalMesh,
    _data: TempDir,
}

impl Setup {
    async fn start() -> Self {
        let data = TempDir::new().expect("a directory can be made");
        let mut config = Config::local(data.path()).on_free_ports();
        config.gateway.trace_url = Some("https://traces.example/{trace_id}".to_owned());
        let mut mesh = LocalMesh::start(config).await.expect("the mesh starts");
        for (at, agent) in LINE.into_iter().enumerate() {
            let name = Some(format!("w-{}", at + 1));
            let config = faultline_worker::Config { name, ..Default::default() };
            let build = |config| Worker::new(config).offer(Offer::new(agent, Hop(at)));
            mesh.attach(config, build).await.expect("a worker attaches");
        }
        Self { mesh, _data: data }
    }

    async fn send(&self, words: &str) -> Task {
        let front = self.mesh.client().agent("front");
        let sent = match words {
            "wait" => front.send(text(words).return_immediately()).await,
            _ => front.send(text(words)).await,
        };
        match sent.expect("the call runs") {
            Answer::Task(task) => task,
            other => panic!("no task: {other:?}"),
        }
    }

    /// What the binary prints on stdout.
    async fn explain(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.arg("explain").args(args).args(["--gateway", &self.mesh.url()]);
        command.env("NO_COLOR", "1").stdin(Stdio::null());
        let ran = tokio::task::spawn_blocking(move || command.output()).await;
        let ran = ran.expect("no panic").expect("the binary runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("output is text")
    }

    /// What it prints once it says this.
    async fn explained(&self, id: &str, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let told = self.explain(&[id]).await;
            if told.contains(what) {
                return told;
            }
            assert!(Instant::now() < end, "never '{what}': {told}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Without what no two runs have in common: ids, times, how long it took.
fn lasting(told: &str) -> String {
    let is_id = |word: &str| word.len() == 36 && word.matches('-').count() == 4;
    let is_trace = |word: &str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let is_link = |word: &str| word.strip_prefix("https://traces.example/").is_some_and(is_trace);
    let is_time = |word: &str| word.starts_with("20") && word.ends_with('Z');
    let is_span = |word: &str| {
        let number = word.trim_end_matches(['m', 's']);
        number != word && number.parse::<f64>().is_ok()
    };
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let words = line.split_whitespace().map(|word| match word {
            word if is_id(word) => "ID",
            word if is_trace(word) => "TRACE",
            word if is_time(word) => "TIME",
            word if is_link(word) => "LINK",
            word if is_span(word) => "SPAN",
            word => word,
        });
        format!("{}{}\n", &line[..indent], words.collect::<Vec<_>>().join(" "))
    };
    told.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_five_hops_down_is_told_from_its_origin() {
    let setup = Setup::start().await;
    let task = setup.send("fail").await;
    let told = setup.explain(&[&task.id]).await;
    assert_eq!(
        lasting(&told),
        "\
✗ bank failed: RATE_LIMITED (gRPC RESOURCE_EXHAUSTED, not retryable)
  slow down
  code CARD_17
  where 4 hops below the task you asked about, on worker w-5
  when TIME

  AGENT STATE TOOK TRIED REASON TASK
  front failed SPAN on w-1 RATE_LIMITED ID
  └─ plan failed SPAN on w-2 RATE_LIMITED ID
     ├─ echo completed SPAN on local ID
     └─ search failed SPAN on w-3 RATE_LIMITED ID
        └─ pay failed SPAN on w-4 RATE_LIMITED ID
           └─ bank failed SPAN on w-5 RATE_LIMITED ID ← it broke here
                 not tried again: the failure itself says no

  do agent 'bank' marked this as not retryable: the owner of agent 'bank' has to find
         out why
  sent TIME
  trace TRACE
  link LINK
  more faultline explain RATE_LIMITED
",
        "{told}"
    );
    assert!(told.contains(&task.id), "{told}");

    let whole: Value = serde_json::from_str(&setup.explain(&[&task.id, "--json"]).await).unwrap();
    assert_eq!(whole["task"]["id"], *task.id);
    let mut at = &whole;
    for (depth, agent) in LINE.iter().enumerate() {
        assert_eq!(at["agent"], **agent, "{at}");
        assert_eq!(at["failure"]["id"], whole["failure"]["id"], "{at}");
        let children = at["children"].as_array().map(Vec::as_slice).unwrap_or_default();
        let last = children.last();
        assert_eq!(last.is_none(), depth + 1 == LINE.len(), "{at}");
        at = last.map_or(at, |child| &child["inspect"]);
    }
    let echoed = &whole["children"][0]["inspect"]["children"][0]["inspect"];
    assert_eq!((&echoed["agent"], &echoed["children"]), (&"echo".into(), &Value::Null), "{echoed}");

    // Where it broke it is one task, and says who called.
    let bank = at["task"]["id"].as_str().expect("it has an id");
    let told = setup.explain(&[bank]).await;
    let pay = &at["parent"]["taskId"];
    let from = format!("from     task {}", pay.as_str().expect("it has a parent"));
    assert!(told.contains(&from), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_not_over_says_where_it_is() {
    let setup = Setup::start().await;
    let asking = setup.send("ask").await;
    let told = setup.explained(&asking.id, "waits for an answer").await;
    assert!(told.contains("  bank asks \"Which card?\", for "), "{told}");
    assert!(told.contains(&format!("faultline answer {} TEXT", asking.id)), "{told}");
    let waiting = setup.send("wait").await;
    let told = setup.explained(&waiting.id, "  bank computes on worker w-5, attempt 1").await;
    assert!(told.starts_with(&format!("● task {} is under way\n", waiting.id)), "{told}");
    assert!(told.contains("           └─ bank  working "), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_tree_is_shown_with_all_its_levels() {
    let setup = Setup::start().await;
    let task = setup.send("wait").await;
    setup.explained(&task.id, "  bank computes on worker w-5, attempt 1").await;
    setup.mesh.client().agent("front").cancel(&task.id).await.expect("the task is cancelled");
    let told = setup.explain(&[&task.id]).await;
    for agent in LINE {
        assert!(told.lines().any(|line| line.contains(&format!("{agent} "))), "{agent}: {told}");
    }
}
