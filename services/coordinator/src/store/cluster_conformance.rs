//! Conformance tests of a store that two or three coordinators share.

use std::{collections::BTreeSet, time::Duration};

use faultline_proto::{
    id::{TaskId, WorkerId},
    v1::{Assigned, Load, Presence, event},
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use super::{
    Cluster, Notice, ReadError, Scope, Store, Write, WriteError,
    conformance::{Life, artifact, assigned, commit, completed, key, with_key},
    postgres::{OpenError, Postgres, Settings, testing::Database},
};
use crate::{clock::now, task::Task};

const CONFLICT: Result<(), WriteError> = Err(WriteError::Conflict);

async fn insert(store: &dyn Store) -> Life {
    let (life, insert) = Life::insert("echo", "c", 1000);
    assert_eq!(commit(store, vec![insert]).await, [Ok(())]);
    life
}

fn ids(tasks: &[Task]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

fn foreign(write: Write) -> Write {
    match write {
        Write::Advance { from, row, events, with } => {
            Write::CompareAndSwap { from, row, events, with }
        }
        other => other,
    }
}

async fn is_ours(store: &dyn Store, life: &Life) -> bool {
    store.task(life.task.id, Scope::default()).await.unwrap().unwrap().ours
}

async fn hears(notices: &mut mpsc::Receiver<Notice>, wanted: Notice) {
    let heard = async {
        while let Some(notice) = notices.recv().await {
            if notice == wanted {
                return;
            }
        }
    };
    timeout(Duration::from_secs(10), heard).await.unwrap_or_else(|_| panic!("no {wanted:?}"));
}

#[tokio::test]
async fn heartbeat_lists_peers_and_late_lease_has_lapsed() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let load =
        |demand| Presence { agents: vec![Load { demand, ..<_>::default() }], ..<_>::default() };
    assert_eq!(a.beat(load(1)).await.unwrap(), [Presence::default()], "it has not beaten yet");
    assert_eq!(b.beat(load(2)).await.unwrap(), [load(1)]);
    assert_eq!(a.beat(load(3)).await.unwrap(), [load(2)]);
    database.lapse(&b).await;
    assert_eq!(a.beat(load(1)).await.unwrap(), []);
    assert!(matches!(b.beat(load(1)).await, Err(ReadError::Lapsed)));
    b.recover().await.unwrap();
    assert_eq!(b.beat(load(4)).await.unwrap(), [load(1)], "it began anew");
}

#[tokio::test]
async fn orphaned_task_is_taken_over_by_one_coordinator() {
    let database = Database::make().await;
    let (a, b, c) = (database.open().await, database.open().await, database.open().await);
    let mut lives = Vec::new();
    for _ in 0..40 {
        lives.push(insert(&a).await);
    }
    let kept = insert(&b).await;
    assert!(b.take_over(100).await.unwrap().is_empty(), "they have an owner");
    database.lapse(&a).await;
    let all = async |store: &Postgres| {
        let mut taken = Vec::new();
        loop {
            let part = store.take_over(7).await.unwrap();
            assert!(part.len() <= 7);
            if part.is_empty() {
                return taken;
            }
            taken.extend(ids(&part));
        }
    };
    let (mut taken, rest) = tokio::join!(all(&b), all(&c));
    taken.extend(rest);
    taken.extend(all(&b).await);
    assert_eq!(taken.len(), 40, "none twice");
    let every: BTreeSet<_> = lives.iter().map(|life| life.task.id).collect();
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), every);
    assert!(is_ours(&b, &kept).await && !is_ours(&c, &kept).await);
    let late = lives[0].advance(vec![assigned()]);
    assert_eq!(commit(&a, vec![late]).await, [CONFLICT], "it is fenced off");
    assert!(matches!(a.beat(Presence::default()).await, Err(ReadError::Lapsed)));
    let theirs = b.owned().await.unwrap().len() + c.owned().await.unwrap().len();
    assert_eq!(theirs, 41);
}

#[tokio::test]
async fn recovery_reads_only_own_tasks() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let (ours, theirs) = (insert(&a).await, insert(&b).await);
    assert_eq!(ids(&a.recover().await.unwrap()), [ours.task.id]);
    assert!(is_ours(&a, &ours).await && is_ours(&b, &theirs).await);
    b.leave().await;
    let mut found = ids(&a.recover().await.unwrap());
    found.sort();
    assert_eq!(found, [ours.task.id, theirs.task.id]);
    let (_, write) = Life::insert("echo", "c", 1000);
    let refused = commit(&b, vec![write]).await;
    assert!(matches!(refused[..], [Err(WriteError::Unavailable(_))]), "nothing after leaving");
}

#[tokio::test]
async fn large_recovery_is_paged_and_skips_corrupt_tasks() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let (lives, writes): (Vec<_>, Vec<_>) =
        (0..300).map(|_| Life::insert("echo", "c", 1000)).unzip();
    assert!(commit(&a, writes).await.iter().all(Result::is_ok));
    let (theirs, writes): (Vec<_>, Vec<_>) =
        (0..300).map(|_| Life::insert("echo", "c", 1000)).unzip();
    assert!(commit(&b, writes).await.iter().all(Result::is_ok));
    database.lapse(&b).await;
    let uuid = |life: &Life| uuid::Uuid::from_bytes(*life.task.id.as_bytes());
    for damaged in [&lives[7], &theirs[7]] {
        let sql = "DELETE FROM events WHERE task_id = $1";
        assert_eq!(database.client().await.execute(sql, &[&uuid(damaged)]).await.unwrap(), 1);
    }
    let found: BTreeSet<_> = ids(&a.recover().await.unwrap()).into_iter().collect();
    let whole = lives[..7].iter().chain(&lives[8..]).chain(&theirs[..7]).chain(&theirs[8..]);
    assert_eq!(found, whole.map(|life| life.task.id).collect::<BTreeSet<_>>());
}

#[tokio::test]
async fn stalled_transaction_is_terminated() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let mut life = insert(&a).await;
    let stuck = a.stuck_with(life.task.id).await;
    let waiting = Instant::now();
    let step = foreign(life.advance(vec![completed()]));
    assert_eq!(commit(&b, vec![step]).await, [Ok(())]);
    assert!(waiting.elapsed() < Duration::from_secs(8), "{:?}", waiting.elapsed());
    assert!(stuck.batch_execute("SELECT 1").await.is_err(), "it was thrown out");
}

#[tokio::test]
async fn exhausted_pool_rejects_reads_and_keeps_the_lease() {
    let database = Database::make().await;
    let settings = Settings { lease: Duration::from_secs(60), connections: 1 };
    let store = Postgres::open(&database.url(), settings).await.unwrap();
    let life = insert(&store).await;
    let held = store.stuck_with(life.task.id).await;
    let refused = store.task(life.task.id, Scope::default()).await;
    assert!(matches!(refused, Err(ReadError::Unavailable(_))), "{refused:?}");
    assert!(store.beat(Presence::default()).await.is_ok());
    drop(held);
    assert!(store.task(life.task.id, Scope::default()).await.unwrap().is_some());
}

#[tokio::test]
async fn task_is_adopted_with_its_worker() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let worker = WorkerId::new();
    let mut life = insert(&a).await;
    let there = Assigned { attempt: 1, worker: worker.to_string(), ..Assigned::default() };
    let step = life.advance(vec![event::Body::Assigned(there)]);
    let other = insert(&a).await;
    assert_eq!(commit(&a, vec![step]).await, [Ok(())]);
    let adopted = b.adopt(worker).await.unwrap();
    assert_eq!(adopted, [life.task.clone()]);
    assert_eq!(b.adopt(worker).await.unwrap(), adopted, "whose answer was lost asks again");
    assert!(is_ours(&b, &life).await && is_ours(&a, &other).await);
    let end = life.advance(vec![completed()]);
    assert_eq!(commit(&a, vec![end.clone()]).await, [CONFLICT]);
    assert_eq!(commit(&b, vec![end]).await, [Ok(())]);
}

#[tokio::test]
async fn queued_task_is_claimed_once_oldest_first() {
    let database = Database::make().await;
    let (a, b, c) = (database.open().await, database.open().await, database.open().await);
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let (life, insert) = Life::insert("echo", "c", 1000);
        let queue = Write::Queue { id: life.task.id, agent: "echo".into() };
        assert_eq!(commit(&a, vec![insert, queue]).await, [Ok(()), Ok(())]);
        waiting.push(life);
    }
    assert!(a.claim("echo".into(), 9).await.unwrap().is_empty(), "not from oneself");
    assert!(b.claim("other".into(), 9).await.unwrap().is_empty());
    let step = waiting[0].advance(vec![assigned()]);
    assert_eq!(commit(&a, vec![step]).await, [Ok(())]);
    let mut first = ids(&b.claim("echo".into(), 2).await.unwrap());
    first.sort();
    assert_eq!(first, [waiting[1].task.id, waiting[2].task.id], "the first had its step");
    let claims =
        (0..9).map(|n| if n % 2 == 0 { &b } else { &c }).map(|s| s.claim("echo".into(), 2));
    let claimed = futures::future::join_all(claims).await;
    let mut claimed: Vec<_> = claimed.into_iter().flat_map(|part| ids(&part.unwrap())).collect();
    claimed.extend(ids(&b.claim("echo".into(), 99).await.unwrap()));
    let once: BTreeSet<_> = claimed.iter().copied().collect();
    assert_eq!((claimed.len(), once.len()), (17, 17));
}

#[tokio::test]
async fn first_of_two_writes_to_a_version_wins() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let mut life = insert(&a).await;
    let mut rival = Life { task: life.task.clone(), now: 1000 };
    let theirs = rival.advance(vec![completed()]);
    assert_eq!(commit(&b, vec![theirs.clone()]).await, [CONFLICT], "only its owner advances it");
    assert_eq!(commit(&b, vec![foreign(theirs)]).await, [Ok(())]);
    let ours = life.advance(vec![assigned()]);
    assert_eq!(commit(&a, vec![ours]).await, [CONFLICT]);
    assert!(is_ours(&a, &life).await, "it stays whose it was");
    let stored = b.task(life.task.id, Scope::default()).await.unwrap().unwrap();
    assert_eq!(stored.task, rival.task);
}

#[tokio::test]
async fn crossing_batches_do_not_deadlock() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let mut lives = Vec::new();
    for _ in 0..20 {
        lives.push(insert(&a).await);
    }
    for _ in 0..10 {
        let steps = |lives: &mut [Life]| -> Vec<Write> {
            lives.iter_mut().map(|life| foreign(life.advance(vec![assigned()]))).collect()
        };
        let (ours, mut theirs) = (steps(&mut lives), Vec::new());
        theirs.extend(ours.iter().rev().cloned());
        let (ours, theirs) = tokio::join!(commit(&a, ours), commit(&b, theirs));
        for (ours, theirs) in ours.iter().zip(theirs.iter().rev()) {
            assert!(ours.is_ok() != theirs.is_ok(), "one of two: {ours:?} {theirs:?}");
        }
    }
}

#[tokio::test]
async fn idempotency_key_belongs_to_one_task_across_coordinators() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let (first, one) = Life::insert("echo", "c", 1000);
    let (second, two) = Life::insert("echo", "c", 1000);
    let (at, old) = (now(), now() - crate::store::key_retention() - 1000);
    let one = with_key(one, key("k", first.task.id, at));
    let two = with_key(two, key("k", second.task.id, at));
    let (one, two) = tokio::join!(commit(&a, vec![one]), commit(&b, vec![two]));
    assert!(one[0].is_ok() != two[0].is_ok(), "{one:?} {two:?}");
    let lost = if one[0].is_ok() { second } else { first };
    assert!(a.task(lost.task.id, Scope::default()).await.unwrap().is_none());
    let (stale, write) = Life::insert("echo", "c", 1000);
    assert_eq!(commit(&a, vec![with_key(write, key("o", stale.task.id, old))]).await, [Ok(())]);
    let (fresh, write) = Life::insert("echo", "c", 1000);
    let fresh = key("o", fresh.task.id, at);
    assert_eq!(commit(&b, vec![with_key(write, fresh.clone())]).await, [Ok(())]);
    assert_eq!(a.key(fresh.name.clone(), 0).await.unwrap(), Some(fresh));
}

#[tokio::test]
async fn child_needs_a_parent_owned_by_the_inserter() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let parent = insert(&a).await;
    let child = || super::expire_conformance::child_of(parent.task.id).1;
    assert_eq!(commit(&b, vec![child()]).await, [CONFLICT], "it is another's");
    assert_eq!(commit(&a, vec![child()]).await, [Ok(())]);
    database.lapse(&a).await;
    assert_eq!(b.take_over(9).await.unwrap().len(), 2);
    assert_eq!(commit(&a, vec![child()]).await, [CONFLICT], "it has moved");
}

#[tokio::test]
async fn commit_notifies_other_coordinators() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let (mut at_a, mut at_b) = (a.notices(), b.notices());
    hears(&mut at_a, Notice::Missed).await;
    hears(&mut at_b, Notice::Missed).await;
    a.beat(Presence::default()).await.unwrap();
    b.beat(Presence::default()).await.unwrap();
    let (life, insert) = Life::insert("echo", "c", 1000);
    let id = life.task.id;
    commit(&a, vec![insert, Write::Queue { id, agent: "echo".into() }]).await;
    hears(&mut at_b, Notice::Changed(vec![id])).await;
    hears(&mut at_b, Notice::Queued(vec!["echo".into()])).await;
    assert_eq!(b.claim("echo".into(), 1).await.unwrap().len(), 1);
    hears(&mut at_a, Notice::Changed(vec![id])).await;
    b.tell(Notice::Followed(id));
    hears(&mut at_a, Notice::Followed(id)).await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(database.client().await.query(kill, &[]).await.unwrap().len(), 2);
    hears(&mut at_a, Notice::Missed).await;
    b.leave().await;
    hears(&mut at_a, Notice::Left).await;
}

#[tokio::test]
async fn aborted_batch_leaves_nothing_and_the_next_is_written() {
    let database = Database::make().await;
    let a = database.open().await;
    let mut life = insert(&a).await;
    let (other, also) = Life::insert("echo", "c", 1000);
    let mut holder = database.client().await;
    let held = holder.transaction().await.unwrap();
    held.execute("SELECT 1 FROM tasks FOR UPDATE", &[]).await.unwrap();
    let before = Life { task: life.task.clone(), now: 1000 };
    let written = a.commit(vec![also.clone(), life.advance(vec![assigned()])]);
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let client = database.client().await;
    let killed = async { while client.query(kill, &[]).await.unwrap().is_empty() {} };
    timeout(Duration::from_secs(10), killed).await.expect("it waits for the lock");
    let written = written.await.unwrap();
    assert!(written.iter().all(|w| matches!(w, Err(WriteError::Unavailable(_)))), "{written:?}");
    held.rollback().await.unwrap();
    assert!(a.task(other.task.id, Scope::default()).await.unwrap().is_none());
    let mut again = before;
    let step = again.advance(vec![assigned()]);
    assert_eq!(commit(&a, vec![also, step]).await, [Ok(()), Ok(())]);
}

#[tokio::test]
async fn text_with_nul_is_stored() {
    let database = Database::make().await;
    let a = database.open().await;
    let (life, write) = Life::insert_of("ann\0", "echo", "c\0d", 1000);
    let nul = key("k\0", life.task.id, now());
    let (_, other) = Life::insert("echo", "c", 1000);
    assert_eq!(commit(&a, vec![with_key(write, nul.clone()), other]).await, [Ok(()), Ok(())]);
    let scope = Scope { principal: Some("ann\0".into()), ..Scope::default() };
    let context_id = Some("c\0d".to_owned());
    let found = a.list(super::Filter { scope, context_id, limit: 9, ..<_>::default() }).await;
    assert_eq!(found.unwrap().tasks, [life.task]);
    assert_eq!(a.key(nul.name.clone(), 0).await.unwrap(), Some(nul));
}

#[tokio::test]
async fn concurrent_starts_migrate_once_and_share_the_secret() {
    let database = Database::make().await;
    let opened = futures::future::join_all((0..6).map(|_| database.open())).await;
    assert!(opened.iter().all(|store| store.secret() == opened[0].secret()));
    assert_ne!(*opened[0].secret(), [0; 32]);
}

#[tokio::test]
async fn open_error_names_the_cause_without_the_password() {
    let database = Database::make().await;
    drop(database.open().await);
    let client = database.client().await;
    let newer = "UPDATE meta SET value = '99' WHERE name = 'schema'";
    client.execute(newer, &[]).await.unwrap();
    let settings = Settings { lease: Duration::from_secs(6), connections: 1 };
    let open = async |url: &str| Postgres::open(url, settings).await.map(drop).unwrap_err();
    let error = open(&database.url()).await;
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
    let error = open("postgres://ann:hunter2@127.0.0.1:1/f").await;
    assert!(matches!(error, OpenError::Connect { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1/f") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn push_config_has_one_deliverer_and_moves_when_it_is_gone() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let life = insert(&a).await;
    let row = |id: &str| super::push_conformance::push(life.task.id, id, 1);
    let set = |id: &str| Write::Push(super::PushWrite::Set(row(id)));
    assert_eq!(commit(&a, vec![set("p"), set("q")]).await, [Ok(()), Ok(())]);
    assert!(a.sees_to(row("p").key).await.unwrap() && !b.sees_to(row("p").key).await.unwrap());
    assert!(b.take_over_pushes().await.unwrap().is_empty(), "they are seen to");
    // The coordinator that replaces the configuration delivers it; a deletion ends the delivery.
    assert_eq!(commit(&b, vec![set("q")]).await, [Ok(())]);
    assert!(b.sees_to(row("q").key).await.unwrap() && !a.sees_to(row("q").key).await.unwrap());
    let delete = Write::Push(super::PushWrite::Delete(row("q").key));
    assert_eq!(commit(&a, vec![delete]).await, [Ok(())]);
    assert!(!b.sees_to(row("q").key).await.unwrap());
    database.lapse(&a).await;
    assert_eq!(b.take_over_pushes().await.unwrap(), [row("p").key]);
    assert!(b.sees_to(row("p").key).await.unwrap());
    assert!(b.take_over_pushes().await.unwrap().is_empty(), "once");
}

#[tokio::test]
async fn write_based_on_a_rejected_version_is_rejected() {
    let database = Database::make().await;
    let (a, b) = (database.open().await, database.open().await);
    let mut life = insert(&a).await;
    let mut rival = Life { task: life.task.clone(), now: 1000 };
    let end = foreign(rival.advance(vec![completed()]));
    assert_eq!(commit(&b, vec![end]).await, [Ok(())]);
    // Its own next version is the one that the other has just made.
    let (first, second) = (life.advance(vec![artifact("x")]), life.advance(vec![assigned()]));
    assert_eq!(commit(&a, vec![first, second.clone()]).await, [CONFLICT, CONFLICT]);
    assert_eq!(commit(&a, vec![second]).await, [CONFLICT], "and nothing follows an end");
    let stored = a.task(life.task.id, Scope::default()).await.unwrap().unwrap();
    assert_eq!(stored.task, rival.task);
    // Of one that lives, too.
    let mut life = insert(&a).await;
    let mut rival = Life { task: life.task.clone(), now: 1000 };
    let step = foreign(rival.advance(vec![artifact("y")]));
    assert_eq!(commit(&b, vec![step]).await, [Ok(())]);
    let (first, second) = (life.advance(vec![artifact("x")]), life.advance(vec![assigned()]));
    assert_eq!(commit(&a, vec![first, second]).await, [CONFLICT, CONFLICT]);
}
