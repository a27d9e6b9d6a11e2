//! `faultline explain TASK`: the binary against a mesh with five levels of delegation.

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

/// Each agent delegates its text to the next; the last one executes it.
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

    /// The stdout of `faultline explain`.
    async fn explain(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
        command.arg("explain").args(args).args(["--gateway", &self.mesh.url()]);
        command.env("NO_COLOR", "1").stdin(Stdio::null());
        let ran = tokio::task::spawn_blocking(move || command.output()).await;
        let ran = ran.expect("no panic").expect("the binary runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("output is text")
    }

    /// The stdout of `faultline explain`, once it contains this text.
    async fn explained(&self, id: &str, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let output = self.explain(&[id]).await;
            if output.contains(what) {
                return output;
            }
            assert!(Instant::now() < end, "never '{what}': {output}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Masks ids, times and durations, which differ from run to run.
fn masked(output: &str) -> String {
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
    output.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_five_hops_down_is_explained_from_its_origin() {
    let setup = Setup::start().await;
    let task = setup.send("fail").await;
    let output = setup.explain(&[&task.id]).await;
    assert_eq!(
        masked(&output),
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
        "{output}"
    );
    assert!(output.contains(&task.id), "{output}");

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

    // The origin has no subtasks; its history names the parent.
    let bank = at["task"]["id"].as_str().expect("it has an id");
    let output = setup.explain(&[bank]).await;
    let pay = &at["parent"]["taskId"];
    let from = format!("from     task {}", pay.as_str().expect("it has a parent"));
    assert!(output.contains(&from), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn live_task_shows_its_active_subtasks() {
    let setup = Setup::start().await;
    let asking = setup.send("ask").await;
    let output = setup.explained(&asking.id, "waits for an answer").await;
    assert!(output.contains("  bank asks \"Which card?\", for "), "{output}");
    assert!(output.contains(&format!("faultline answer {} TEXT", asking.id)), "{output}");
    let waiting = setup.send("wait").await;
    let output = setup.explained(&waiting.id, "  bank computes on worker w-5, attempt 1").await;
    assert!(output.starts_with(&format!("● task {} is under way\n", waiting.id)), "{output}");
    assert!(output.contains("           └─ bank  working "), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_tree_shows_all_levels() {
    let setup = Setup::start().await;
    let task = setup.send("wait").await;
    setup.explained(&task.id, "  bank computes on worker w-5, attempt 1").await;
    setup.mesh.client().agent("front").cancel(&task.id).await.expect("the task is cancelled");
    let output = setup.explain(&[&task.id]).await;
    for agent in LINE {
        assert!(
            output.lines().any(|line| line.contains(&format!("{agent} "))),
            "{agent}: {output}"
        );
    }
}
