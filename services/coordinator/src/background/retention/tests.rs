//! The retention scan and its metrics, on both stores.

use std::time::Duration;

use faultline_chassis::Metrics;

use super::*;
use crate::{
    AgentPolicy,
    store::{
        postgres::testing::Database,
        seed::{SeedTask, finished},
    },
    testing::{Bench, offer},
};

fn first() -> TaskId {
    TaskId::from_bytes(START)
}

/// A bench on SQLite, or on this database.
async fn bench(database: Option<&Database>, config: Config) -> Bench {
    let config = Config { metrics: Metrics::of("test"), ..config };
    let offers = vec![offer("echo")];
    match database {
        None => Bench::start_with(config, offers).await,
        Some(database) => Bench::start_on(Box::new(database.open().await), config, offers).await,
    }
}

fn keeps_an_hour() -> Config {
    Config { keep_ended_hours: Some(1), ..Config::default() }
}

async fn put(bench: &Bench, agent: &str, hours: u64) {
    let ago = Duration::from_secs(hours * 3600);
    bench.write(finished(SeedTask { agent: agent.to_owned(), ago, ..SeedTask::default() })).await;
}

/// The number of erased tasks in the metrics of this coordinator.
fn expired(bench: &Bench) -> u64 {
    let text = bench.core.config.metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix("faultline_tasks_expired_total "));
    line.expect("metric is present").parse().expect("metric is a number")
}

async fn tasks_are_kept_for_their_retention(database: Option<&Database>) {
    let keeps = |hours| AgentPolicy { keep_ended_hours: Some(hours), ..<_>::default() };
    let agents = [("brief".to_owned(), keeps(1)), ("ever".to_owned(), keeps(0))].into();
    let config = Config { keep_ended_hours: Some(10), agents, ..Config::default() };
    let mut bench = bench(database, config).await;
    for hours in [0, 2, 20] {
        for agent in ["echo", "brief", "ever"] {
            put(&bench, agent, hours).await;
        }
    }
    bench.root("echo").await;
    assert_eq!((bench.count().await, expired(&bench)), (10, 0));
    assert_eq!(bench.core.expire_tasks(first()).await, None, "all at once");
    bench.core.flushed().await;
    assert_eq!(bench.count().await, 7, "one of echo, two of brief");
    assert_eq!(expired(&bench), 3);
    assert_eq!(bench.core.expire_tasks(first()).await, None);
    bench.core.flushed().await;
    assert_eq!((bench.count().await, expired(&bench)), (7, 3), "once is enough");
}

#[tokio::test]
async fn ended_tasks_are_kept_for_their_retention() {
    tasks_are_kept_for_their_retention(None).await;
}

#[tokio::test]
async fn ended_tasks_are_kept_for_their_retention_on_postgres() {
    let database = Database::make().await;
    tasks_are_kept_for_their_retention(Some(&database)).await;
}

async fn erasure_goes_in_bounded_steps(database: Option<&Database>) {
    let bench = bench(database, keeps_an_hour()).await;
    for _ in 0..AT_ONCE + 1 {
        let past = SeedTask { ago: Duration::from_secs(7200), ..SeedTask::default() };
        bench.core.change(|state| state.commit_write(finished(past), Vec::new()));
    }
    bench.core.flushed().await;
    let place = bench.core.expire_tasks(first()).await;
    bench.core.flushed().await;
    assert_eq!((bench.count().await, expired(&bench)), (1, AT_ONCE as u64));
    assert_eq!(bench.core.expire_tasks(place.expect("there are more")).await, None);
    bench.core.flushed().await;
    assert_eq!((bench.count().await, expired(&bench)), (0, AT_ONCE as u64 + 1));
}

#[tokio::test]
async fn old_tasks_are_erased_in_bounded_steps() {
    erasure_goes_in_bounded_steps(None).await;
}

#[tokio::test]
async fn old_tasks_are_erased_in_bounded_steps_on_postgres() {
    let database = Database::make().await;
    erasure_goes_in_bounded_steps(Some(&database)).await;
}

#[tokio::test]
async fn tasks_are_kept_for_ever_by_default() {
    let keeps = bench(None, Config::default()).await;
    put(&keeps, "echo", 10_000).await;
    assert_eq!(keeps.core.expire_tasks(first()).await, None);
    keeps.core.flushed().await;
    assert_eq!((keeps.count().await, expired(&keeps)), (1, 0), "for ever");
}

#[tokio::test]
async fn erased_task_is_counted_only_by_the_coordinator_that_erased_it() {
    let database = Database::make().await;
    let mut slow = bench(Some(&database), keeps_an_hour()).await;
    let quick = bench(Some(&database), keeps_an_hour()).await;
    for _ in 0..5 {
        put(&slow, "echo", 2).await;
    }
    // Both coordinators have found the tasks before either has erased one.
    slow.hold_writes().await;
    slow.core.expire_tasks(first()).await;
    assert_eq!(expired(&slow), 0, "nothing is gone yet");
    quick.core.expire_tasks(first()).await;
    quick.core.flushed().await;
    slow.write_on();
    slow.core.flushed().await;
    assert_eq!((expired(&quick), expired(&slow), quick.count().await), (5, 0, 0));
}

#[test]
fn tasks_with_many_events_are_erased_in_several_commits() {
    let aged = |events| {
        let (id, agent, ended) = (TaskId::new(), "echo".to_owned(), Some(1));
        Aged { id, agent, ended, events }
    };
    let few = EVENTS_AT_ONCE / 2;
    let page = [few, few, 1, 10 * EVENTS_AT_ONCE, 1].map(aged);
    let (mut rest, mut commits) = (&page[..], Vec::new());
    loop {
        let (ids, next) = chosen(rest, |_| true);
        commits.push(ids.len());
        let Some(next) = next else { break };
        rest = &rest[rest.iter().position(|task| task.id == next).unwrap() + 1..];
    }
    assert_eq!(commits, [2, 1, 1, 1], "a single one goes, however many it has");
    let (ids, next) = chosen(&page, |task| task.events == 1);
    assert_eq!((ids.len(), next), (2, None), "those that stay do not count");
}
