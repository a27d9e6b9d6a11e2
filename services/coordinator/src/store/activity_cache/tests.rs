//! Tests of the activity cache: no bucket is counted twice, and the numbers stay the same.

use crate::clock::now;
use faultline_proto::{
    a2a::TaskState,
    id::TaskId,
    v1::{Submitted, event},
};

use super::*;
use crate::{
    store::{Row, Write, encode},
    task::{Task, ended},
    testing::{Bench, offer},
};

/// A task that began and ended at this time.
fn past(agent: &str, at: Millis) -> Write {
    let mut bytes = *TaskId::new().as_bytes();
    bytes[..6].copy_from_slice(&at.to_be_bytes()[2..]);
    let submitted = Submitted::default();
    let (mut task, first) =
        Task::submit(TaskId::from_bytes(bytes), agent, "c".into(), submitted, at);
    let end: event::Body = ended(TaskState::Completed, None, None);
    let events = [first, task.apply_now(end, at)];
    let events = (1..).zip(&events).map(|(seq, event)| encode(seq, event)).collect();
    Write::Insert { row: Row::from(&task), events, with: None }
}

fn over(from: Millis, width: Millis, now: Millis) -> Buckets {
    let first = from.div_euclid(width);
    let count = (now.div_euclid(width) - first + 1) as usize;
    Buckets { from: first * width, width, count }
}

fn completed(agents: &[AgentActivity], name: &str) -> u32 {
    let agent = agents.iter().find(|agent| agent.agent == name);
    agent.map_or(0, |agent| agent.completed.iter().sum())
}

#[tokio::test]
async fn past_buckets_are_counted_once() {
    let bench = Bench::start(vec![offer("a")]).await;
    let now = now();
    let pulse = async |from: Millis, width| {
        bench.core.cached_activity(over(now - from, width, now)).await.unwrap()
    };
    for ago in [100_000, 50_000, 30_000, 2000] {
        bench.write(past("a", now - ago)).await;
    }
    let first = pulse(120_000, 1000).await;
    assert_eq!(completed(&first, "a"), 4);
    // Nobody writes into the past but a test.
    bench.write(past("a", now - 40_000)).await;
    bench.write(past("b", now - 1000)).await;
    let second = pulse(120_000, 1000).await;
    assert_eq!((completed(&second, "a"), completed(&second, "b")), (4, 1), "read from memory");
    assert!(second.iter().all(|agent| agent.completed.len() == first[0].completed.len()));
    assert_eq!(completed(&pulse(60_000, 1000).await, "a"), 3, "a shorter look is a part of it");
    assert_eq!(completed(&pulse(120_000, 1000).await, "a"), 4, "and does not shorten the memory");
    assert_eq!(completed(&pulse(120_000, 2000).await, "a"), 5, "others are counted by themselves");
    assert_eq!(completed(&pulse(200_000, 1000).await, "a"), 5, "and so is what lies before");
}

#[test]
fn joined_counts_equal_the_whole() {
    let agent = |name: &str, numbers: &[u32]| AgentActivity {
        agent: name.into(),
        submitted: numbers.to_vec(),
        completed: numbers.to_vec(),
        failed: vec![0; numbers.len()],
        stopped: vec![0; numbers.len()],
    };
    let agents = vec![agent("a", &[1, 2, 0, 0]), agent("b", &[0, 0, 3, 4])];
    let whole = Counted { over: Buckets { from: 1000, width: 10, count: 4 }, agents };
    for at in [900, 1000, 1005, 1010, 1020, 1039, 1040, 2000] {
        let (first, second) = (whole.until(at), whole.from(at));
        assert_eq!(first.over.count + second.over.count, 4, "{at}");
        assert_eq!(first.then(&second), whole, "{at}");
    }
    assert_eq!(whole.from(1020).agents.len(), 1, "who was still is not there");
}
