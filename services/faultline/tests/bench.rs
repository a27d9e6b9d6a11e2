//! Sections of `faultline bench` at a small size, to prove that they run: every request is answered
//! and every figure is reported.

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use serde_json::{Value, json};
use tempfile::TempDir;

/// The PostgreSQL server that `tests/run` has started.
fn server() -> String {
    env::var("FAULTLINE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "this test needs PostgreSQL and FAULTLINE_TEST_POSTGRES is not set: run tests/run, or \
             eval \"$(tests/postgres env)\" once and then this test again"
        )
    })
}

/// The JSON of `faultline bench ARGS --json`, which must succeed.
fn bench(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    let output = command.arg("bench").args(args).arg("--json").output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{printed}");
    serde_json::from_str(&printed).expect("the output is JSON")
}

fn all_served(figures: &Value) {
    assert!(figures["requests"].as_u64() > Some(0), "{figures}");
    assert_eq!(figures["failed"], 0, "{figures}");
}

/// A program that prints figures as `faultline bench --json` does: for each row the throughput as a
/// part of the bare chain's, and the CPU time.
fn stand_in(path: &Path, rows: [(f64, f64); 4]) {
    let points = (1..).zip(rows).map(|(concurrency, (rps, cpu))| {
        json!({
            "shape": "chain", "concurrency": concurrency,
            "mesh": {"rps": 1000.0 * rps, "cpu_ms_per_1000": cpu, "failed": 0},
            "bare": {"rps": 1000.0, "failed": 0},
        })
    });
    let figures = json!({"points": points.collect::<Vec<_>>()});
    fs::write(path, format!("#!/bin/sh\necho '{figures}'\n")).expect("there is room");
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, all).expect("the file is ours");
}

#[test]
fn comparison_fails_for_a_slow_mean_a_slow_row_and_more_cpu() {
    let scratch = TempDir::new().expect("there is room");
    let [base, new] = ["base", "new"].map(|name| scratch.path().join(name));
    let compare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compare");
    stand_in(&base, [(0.5, 100.0); 4]);
    let row = |rps| [(rps, 100.0), (0.52, 100.0), (0.52, 100.0), (0.52, 100.0)];
    for (figures, limit) in [
        ([(0.5, 100.0); 4], None),
        ([(0.48, 104.0); 4], None),
        (row(0.43), None),
        (row(0.42), Some("throughput of chain at concurrency 1 fell by more than 15%")),
        ([(0.47, 100.0); 4], Some("throughput fell by more than 5%")),
        ([(0.5, 106.0); 4], Some("CPU for 1,000 requests grew by more than 5%")),
    ] {
        stand_in(&new, figures);
        let output = Command::new(&compare).args([&base, &new]).output().expect("python3 runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(i32::from(limit.is_some())), "{printed}");
        let broken: Vec<_> =
            printed.lines().filter_map(|line| line.strip_prefix("too slow: ")).collect();
        assert_eq!(broken, Vec::from_iter(limit), "{printed}");
    }
}

#[test]
fn cluster_is_measured_on_both_stores_and_with_more_workers() {
    let server = server();
    let args = ["--coordinators", "1,2", "--workers", "1,2", "--concurrency", "4"];
    let args = [&["cluster", "--postgres", &server, "--seconds", "0.4"], &args[..]].concat();
    let seen = bench(&args);
    let of = |list: &str| seen[list].as_array().expect("points").clone();
    let meshes: Vec<_> = of("coordinators")
        .iter()
        .map(|p| (p["store"].clone(), p["coordinators"].clone()))
        .collect();
    let expected = [("sqlite", 1), ("postgres", 1), ("postgres", 2), ("postgres", 2)];
    assert_eq!(meshes, expected.map(|(store, n)| (store.into(), n.into())));
    let workers: Vec<_> = of("workers").iter().map(|p| p["workers"].clone()).collect();
    assert_eq!(workers, [1, 2]);
    for point in of("coordinators").iter().chain(&of("workers")) {
        all_served(&point["mesh"]);
        let measured = point["postgres_cpu_ms_per_1000"].is_number();
        assert_eq!(measured, point["store"] == "postgres", "{point}");
    }
}

#[test]
fn idle_workers_are_attached_on_both_stores() {
    let seen = bench(&["idle", "--workers", "20", "--seconds", "0.1", "--postgres", &server()]);
    let stores = seen["stores"].as_array().expect("stores");
    assert_eq!(stores.len(), 2);
    for store in stores {
        assert!(store["with"]["bytes"].as_u64() > Some(0), "{store}");
        assert!(store["cpu_us_per_second_per_worker"].is_number(), "{store}");
    }
}

#[test]
fn seeded_tasks_are_measured_on_both_stores() {
    let args = ["stored", "--tasks", "1000,3000", "--seconds", "0.4", "--postgres", &server()];
    let seen = bench(&args);
    let points = seen["points"].as_array().expect("points");
    assert_eq!(points.len(), 8);
    for point in points {
        all_served(&point["small"]);
        all_served(&point["large"]);
        assert!(point["p50_ratio"].as_f64() > Some(0.0), "{point}");
    }
}
