//! Conformance tests of operator queries; part of `conformance`.

use faultline_proto::{
    Failure,
    a2a::TaskState,
    id::TaskId,
    reason::{self, Reason},
    v1::{Ended, Origin, Parent, Submitted, event},
};

use super::{
    Buckets, Cursor, Row, Scope, Store, Wanted, Write,
    conformance::{Life, artifact, assigned, commit, completed},
    encode,
};
use crate::task::{Millis, Task, ended};

fn born(at: &str, reason: &'static Reason) -> Failure {
    Failure::new(reason).born_at(Origin { agent: at.into(), ..Origin::default() })
}

fn failed(failure: &Failure) -> event::Body {
    ended(TaskState::Failed, None, Some(failure.clone()))
}

async fn all(store: &dyn Store, wanted: Wanted) -> Vec<TaskId> {
    let page = store.tasks(wanted, None, 100).await.unwrap();
    assert!(!page.more);
    page.rows.iter().map(|row| row.id).collect()
}

/// One of each kind, the oldest first; all of them end in `now`, which goes up by one.
async fn some(store: &dyn Store) -> Vec<TaskId> {
    let deep = born("code", &reason::RATE_LIMITED).wrap("plan", "t", "c");
    let here = born("plan", &reason::INTERNAL);
    let stopped = born("plan", &reason::CANCELLED);
    let ends = [
        ("ann", "plan", completed()),
        ("ben", "plan", failed(&deep)),
        ("ann", "code", failed(&deep)),
        ("ben", "code", failed(&here)),
        ("cat", "plan", ended(TaskState::Canceled, None, Some(stopped))),
        ("ann", "plan", assigned()),
        ("ben", "code", assigned()),
    ];
    let mut ids = Vec::new();
    for (n, (whose, agent, end)) in (0..).zip(ends) {
        let (mut life, insert) = Life::insert_of(whose, agent, "c", 1000 + n);
        let step = life.advance(vec![end]);
        assert!(commit(store, vec![insert, step]).await.iter().all(Result::is_ok));
        ids.push(life.task.id);
    }
    ids
}

pub(super) async fn everybodys_tasks_are_found_by_what_they_are(store: &dyn Store) {
    let ids = some(store).await;
    let parent = Parent { task_id: ids[5].to_string(), ..Parent::default() };
    let submitted = Submitted { principal: "ann".into(), parent: Some(parent), ..<_>::default() };
    let (child, event) = Task::submit(TaskId::new(), "code", "c".into(), submitted, 2000);
    let (row, events) = (Row::from(&child), vec![encode(1, &event)]);
    commit(store, vec![Write::Insert { row, events, with: None }]).await;
    let some = |text: &str| Some(text.to_owned());
    let any = Wanted::default;
    use TaskState::{Canceled, Completed, Failed, Submitted as Queued, Working};
    let states = |states: &[TaskState]| Wanted { states: states.to_vec(), ..any() };
    let limited = Wanted { reason: some("RATE_LIMITED"), ..any() };
    for (wanted, expected) in [
        (any(), vec![7, 6, 5, 4, 3, 2, 1, 0]),
        (Wanted { roots: true, ..any() }, vec![6, 5, 4, 3, 2, 1, 0]),
        (Wanted { agent: some("code"), ..any() }, vec![7, 6, 3, 2]),
        (Wanted { principal: some("ben"), ..any() }, vec![6, 3, 1]),
        (Wanted { principal: some("dan"), ..any() }, vec![]),
        (states(&[Working]), vec![6, 5]),
        (states(&[Queued, Working]), vec![7, 6, 5]),
        (states(&[Failed]), vec![3, 2, 1]),
        (states(&[Failed, Canceled]), vec![4, 3, 2, 1]),
        (states(&[Failed, Completed]), vec![3, 2, 1, 0]),
        (states(&[Failed, Working]), vec![6, 5, 3, 2, 1]),
        (limited.clone(), vec![2, 1]),
        (Wanted { agent: some("code"), ..limited.clone() }, vec![2]),
        (Wanted { states: vec![Working], ..limited.clone() }, vec![]),
        (Wanted { states: vec![Failed, Working], ..limited }, vec![2, 1]),
        (Wanted { origin: some("plan"), ..any() }, vec![4, 3]),
        (Wanted { origin: some("plan"), states: vec![Failed], ..any() }, vec![3]),
        (Wanted { from: Some(1003), to: Some(1005), ..any() }, vec![4, 3]),
        (Wanted { from: Some(1002), to: Some(1003), states: vec![Failed], ..any() }, vec![2]),
        (Wanted { to: Some(1006), states: vec![Working], ..any() }, vec![5]),
    ] {
        let place =
            |id| if id == child.id { 7 } else { ids.iter().position(|i| *i == id).unwrap() };
        let found: Vec<_> = all(store, wanted.clone()).await.into_iter().map(place).collect();
        assert_eq!(found, expected, "{wanted:?}");
        let every = store.rows(ids.iter().copied().chain([child.id, TaskId::new()]).collect());
        let fits = every.await.unwrap().into_iter().rev().filter(|row| wanted.fits(row));
        let fits: Vec<_> = fits.map(|row| place(row.id)).collect();
        assert_eq!(fits, expected, "whoever watches sees what whoever lists sees: {wanted:?}");
    }
}

pub(super) async fn a_row_remembers_the_root_of_its_failure(store: &dyn Store) {
    let ids = some(store).await;
    let rows = store.rows(ids.clone()).await.unwrap();
    let seen = rows.iter().map(|row| {
        let failure = row.failure.as_deref();
        failure.map(|f| (f.reason.as_str(), f.origin.as_str(), f.id.as_str()))
    });
    let seen: Vec<_> = seen.collect();
    let deep = seen[1].unwrap();
    assert_eq!((seen[0], deep.0, deep.1), (None, "RATE_LIMITED", "code"));
    assert_eq!(seen[2], Some(deep), "one failure ended both");
    assert_eq!(seen[3].map(|f| (f.0, f.1)), Some(("INTERNAL", "plan")));
    assert_eq!(seen[5], None);
    assert!(store.rows(vec![TaskId::new()]).await.unwrap().is_empty());
}

pub(super) async fn pages_of_everybodys_tasks_stand_still_while_more_come(store: &dyn Store) {
    let mut expected = Vec::new();
    for n in 0..50 {
        let whose = ["ann", "ben", "cat"][n % 3];
        // Several of the same millisecond: the id decides.
        let (life, insert) = Life::insert_of(whose, "echo", "c", 1000 + n as Millis / 4);
        commit(store, vec![insert]).await;
        expected.push((life.task.status_at, life.task.id));
    }
    expected.sort_by(|a, b| b.cmp(a));
    for size in [1, 7, 49, 50, 51] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let old = Wanted { to: Some(2000), ..Wanted::default() };
            let page = store.tasks(old, after, size).await.unwrap();
            assert!(page.rows.len() <= size && (!page.more || page.rows.len() == size));
            let (_, insert) = Life::insert_of("ann", "echo", "c", 1000 + 999);
            commit(store, vec![insert]).await;
            seen.extend(page.rows.iter().map(|row| (row.status_at, row.id)));
            after = page.rows.last().map(|row| Cursor { status_at: row.status_at, id: row.id });
            if !page.more {
                break;
            }
        }
        seen.retain(|(at, _)| *at < 1999);
        assert_eq!(seen, expected, "{size} a page");
    }
}

pub(super) async fn a_story_is_read_in_parts_within_scope(store: &dyn Store) {
    let (mut life, insert) = Life::insert_of("ann", "echo", "c", 1000);
    let step = life.advance((0..9).map(|n| artifact(&n.to_string())).collect());
    commit(store, vec![insert, step]).await;
    let id = life.task.id;
    let read = async |scope: Scope, after, limit| {
        let story = store.story(id, scope, after, limit).await.unwrap()?;
        Some((story.events.iter().map(|e| e.seq).collect::<Vec<_>>(), story.more))
    };
    let of = |whose: &str| Scope { principal: Some(whose.into()), ..Scope::default() };
    assert_eq!(read(Scope::default(), 0, 4).await, Some((vec![1, 2, 3, 4], true)));
    assert_eq!(read(of("ann"), 8, 2).await, Some((vec![9, 10], false)));
    assert_eq!(read(of("ann"), 10, 2).await, Some((vec![], false)));
    for beyond in [1 << 63, u64::MAX] {
        assert_eq!(read(of("ann"), beyond, 2).await, Some((vec![], false)), "{beyond}");
        assert!(store.events(id, beyond, 2).await.unwrap().is_empty(), "{beyond}");
    }
    assert_eq!(read(of("ben"), 0, 4).await, None);
    assert!(store.story(TaskId::new(), Scope::default(), 0, 9).await.unwrap().is_none());
    let large = "x".repeat(3 * 1024 * 1024);
    let step = life.advance((0..9).map(|_| artifact(&large)).collect());
    commit(store, vec![step]).await;
    let (seqs, more) = read(Scope::default(), 10, 100).await.unwrap();
    assert!(more && (5..9).contains(&seqs.len()), "{seqs:?}: a page ends early when it is large");
}

pub(super) async fn activity_counts_what_began_and_how_it_ended(store: &dyn Store) {
    let now = crate::clock::now();
    let deep = born("code", &reason::RATE_LIMITED);
    let rejected = Ended { state: TaskState::Rejected as i32, ..Ended::default() };
    for (whose, agent, end, at) in [
        ("ann", "a", Some(completed()), now + 1500),
        ("ben", "a", Some(completed()), now + 1600),
        ("ben", "a", Some(failed(&deep)), now + 2500),
        ("ann", "b", Some(event::Body::Ended(rejected)), now + 10),
        ("ann", "b", None, now),
        // It ended before anybody asks, and after.
        ("ann", "c", Some(completed()), now - 60_000),
    ] {
        let (mut life, insert) = Life::insert_of(whose, agent, "c", now);
        life.now = at;
        let step = end.map(|end| life.advance(vec![end]));
        commit(store, [insert].into_iter().chain(step).collect()).await;
    }
    let over = Buckets { from: now - 2000, width: 1000, count: 8 };
    let found = store.activity(over).await.unwrap();
    let names: Vec<_> = found.iter().map(|agent| agent.agent.as_str()).collect();
    assert_eq!(names, ["a", "b"], "by name; what was still is not there");
    let sums = |counts: &[u32]| counts.iter().sum::<u32>();
    let (a, b) = (&found[0], &found[1]);
    assert_eq!(a.completed, [0, 0, 0, 2, 0, 0, 0, 0]);
    assert_eq!(a.failed, [0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(b.stopped, [0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!((sums(&a.submitted), sums(&b.submitted)), (3, 2));
    assert_eq!((sums(&a.stopped), sums(&b.completed), sums(&b.failed)), (0, 0, 0));
    assert!(store.activity(Buckets { from: now + 9000, ..over }).await.unwrap().is_empty());
}

pub(super) async fn failures_are_counted_once_and_their_tasks_each(store: &dyn Store) {
    let ids = some(store).await;
    let over = Buckets { from: 1000, width: 2, count: 3 };
    let mut found = store.failures(over).await.unwrap();
    found.sort_by(|a, b| a.reason.cmp(&b.reason));
    let kinds: Vec<_> =
        found.iter().map(|f| (f.reason.as_str(), f.origin.as_str(), f.failures, f.tasks)).collect();
    let expected = [("INTERNAL", "plan", 1, 1), ("RATE_LIMITED", "code", 1, 2)];
    assert_eq!(kinds, expected, "who was stopped did not fail");
    assert_eq!(found[1].buckets, [1, 1, 0]);
    assert_eq!(found[1].last_task_id, ids[2].to_string());
    assert_eq!(found[1].last, Some(crate::task::timestamp(1002)));
    let later = store.failures(Buckets { from: 1003, ..over }).await.unwrap();
    assert_eq!(later.iter().map(|f| f.reason.as_str()).collect::<Vec<_>>(), ["INTERNAL"]);
}
