//! A user-written worker in operation: configuration, logs, probes, metrics, drain and exit codes,
//! all provided by `faultline_worker::main`.

use std::{fs, path::Path};

use faultline_chassis::config::Environment;
use faultline_tests::{Process, Program, Rpc, cluster::free_address, task, until, wait::SOON};
use serde_json::Value;

use crate::{
    admin::{probe, until_ready},
    scrape::Scraped,
};

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn user_written_worker_reads_file_and_environment_and_serves_probes_and_metrics() {
    let program = Program::example("travel").await;
    let dir = tempfile::tempdir().unwrap();
    let [hub, listen, admin] = [(); 3].map(|()| free_address());
    let (hub, url) = (hub.to_string(), format!("http://{hub}"));
    let mut coordinator =
        Process::start(dir.path(), "coordinator", &["coordinator", "--listen", &hub]).await;
    let listen = listen.to_string();
    let args = ["gateway", "--listen", &listen, "--coordinator", &url];
    let gateway = Process::start(dir.path(), "gateway", &args).await;
    // One file for all roles. The environment overrides it.
    let file = format!(
        "[gateway]\nlisten = '{listen}'\n[coordinator]\nlisten = '{hub}'\n\
         [worker]\ncoordinator = '{url}'\nadmin = '{admin}'\nslots = 3\nname = 'traveller'\n\
         [log]\njson = true\n"
    );
    fs::write(dir.path().join("mesh.toml"), file).unwrap();
    let env = environment(&[("FAULTLINE_WORKER__SLOTS", "5")]);
    let args = ["--config", "mesh.toml"];
    let mut worker = Process::start_program(program, dir.path(), "travel", &args, &env).await;

    for path in ["/livez", "/readyz", "/startupz"] {
        assert_eq!(probe(admin, path).await, (200, "ok".to_owned()), "{path}");
    }
    let address = gateway.ready().strip_prefix("http://").unwrap().parse().unwrap();
    let done = Rpc::at(address).agent("planner").send("Rome").await;
    assert_eq!(task::artifacts(&done)["plan"], "a trip to Rome for 40 €");
    let scraped = Scraped::of(&Rpc::bare(admin)).await;
    scraped.check();
    assert_eq!(scraped.sum("faultline_worker_slots", &[]), 5.);
    assert_eq!(scraped.sum("faultline_worker_attached", &[]), 1.);
    assert_eq!(scraped.sum("target_info", &[("service_name", "faultline-worker")]), 1.);
    let ended = [("agent", "ledger"), ("outcome", "completed")];
    assert_eq!(scraped.sum("faultline_attempt_duration_seconds_count", &ended), 1.);

    // Log lines of the program have the fields of their task.
    let log = worker.log();
    let lines: Vec<Value> = log.lines().map(|l| serde_json::from_str(l).expect(l)).collect();
    let own = lines.iter().find(|line| line["town"] == "Rome").unwrap_or_else(|| panic!("{log}"));
    assert_eq!(own["target"], "travel");
    assert!(own.to_string().contains("trace"), "{own}");

    coordinator.kill().await;
    until_ready(admin, 503).await;
    assert_eq!(probe(admin, "/livez").await.0, 200);
    coordinator.restart().await;
    until_ready(admin, 200).await;
    worker.terminate().await;
    assert_eq!(worker.exit_within(SOON).await.unwrap().code(), Some(0));
}

/// Runs a program to its end; returns exit code, stdout and stderr.
async fn run(
    program: &Program,
    dir: &Path,
    args: &[&str],
    env: &[(&str, &str)],
) -> (Option<i32>, String, String) {
    let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
    let mut command = program.command(&args, &environment(env));
    let output = command.current_dir(dir).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_of_a_user_written_worker_tells_why_it_cannot_run() {
    let program = Program::example("travel").await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let (code, help, _) = run(&program, path, &["--help"], &[]).await;
    assert_eq!(code, Some(0));
    for word in ["--config FILE", "FAULTLINE_WORKER__COORDINATOR", "OTEL_EXPORTER_OTLP_ENDPOINT"] {
        assert!(help.contains(word), "{help}");
    }
    let (code, _, error) = run(&program, path, &["--confg", "x"], &[]).await;
    assert_eq!((code, error.contains("did you mean '--config'?")), (Some(64), true), "{error}");

    fs::write(path.join("faultline.toml"), "[worker]\nslot = 1\n").unwrap();
    let (code, _, error) = run(&program, path, &[], &[]).await;
    let expected = "error: faultline.toml:2: unknown key `slot` in [worker]; did you mean `slots`?";
    assert_eq!((code, error.trim()), (Some(78), expected));
    let (code, _, error) = run(&program, path, &["--config", "away.toml"], &[]).await;
    let expected = "error: cannot read 'away.toml': ";
    assert_eq!((code, error.starts_with(expected)), (Some(78), true), "{error}");
    fs::remove_file(path.join("faultline.toml")).unwrap();
    let none = [("FAULTLINE_WORKER__SLOTS", "0")];
    assert_eq!(run(&program, path, &[], &none).await.0, Some(78));
    let filter = [("FAULTLINE_LOG", "=loud=")];
    assert_eq!(run(&program, path, &[], &filter).await.0, Some(78));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = taken.local_addr().unwrap().to_string();
    let (code, _, error) = run(&program, path, &[], &[("FAULTLINE_WORKER__ADMIN", &admin)]).await;
    let expected = format!("error: the admin port cannot start: cannot listen on {admin}");
    assert_eq!((code, error.contains(&expected)), (Some(69), true), "{error}");

    let hub = free_address().to_string();
    let env = environment(&[("FAULTLINE_MESH__TOKEN", "hunter2")]);
    let args = ["coordinator", "--listen", &hub];
    let _coordinator = Process::start_with(path, "coordinator", &args, &env).await;
    let url = format!("http://{hub}");
    let env = [("FAULTLINE_WORKER__COORDINATOR", url.as_str()), ("FAULTLINE_MESH__TOKEN", "wrong")];
    let (code, _, error) = run(&program, path, &[], &env).await;
    assert_eq!(code, Some(77), "{error}");
    assert!(error.contains("error: the coordinator refuses this worker: "), "{error}");
}

/// A signal ends the worker also while no coordinator is reachable.
#[tokio::test(flavor = "multi_thread")]
async fn user_written_worker_without_a_coordinator_is_alive_not_ready_and_exits_on_a_signal() {
    let program = Program::example("travel").await;
    let dir = tempfile::tempdir().unwrap();
    let [hub, admin] = [(); 2].map(|()| free_address());
    let env = environment(&[
        ("FAULTLINE_WORKER__COORDINATOR", &format!("http://{hub}")),
        ("FAULTLINE_WORKER__ADMIN", &admin.to_string()),
    ]);
    let mut command = program.command(&[], &env);
    let mut child = command.current_dir(dir.path()).kill_on_drop(true).spawn().unwrap();
    until("the admin port answers", SOON, async || {
        tokio::net::TcpStream::connect(admin).await.ok()
    })
    .await;
    until_ready(admin, 503).await;
    assert_eq!(probe(admin, "/livez").await.0, 200);
    let kill = format!("kill -TERM {}", child.id().unwrap());
    let sent = tokio::process::Command::new("sh").args(["-c", &kill]).status().await;
    assert!(sent.unwrap().success());
    let ended = tokio::time::timeout(SOON, child.wait()).await.expect("it exits").unwrap();
    assert_eq!(ended.code(), Some(0));
}
