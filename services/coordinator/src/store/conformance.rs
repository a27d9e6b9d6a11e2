//! The conformance suite of every store. A new store adds a module to `suite`.

use crate::task::confirmed::Confirmed;
use faultline_proto::{
    a2a::{Artifact, Message, Part, TaskState, part::Content},
    id::TaskId,
    v1::{AgentOffer, ArtifactWritten, Assigned, Ended, Event, Submitted, event},
};

use super::{
    Cursor, Extras, Filter, KeyName, KeyRow, Remembered, Row, Scope, Store, Tally, Write,
    WriteError, children_conformance::*, encode, expire_conformance::*, introduce_conformance::*,
    postgres::testing::Database, push_conformance::*, sqlite::Sqlite, view_conformance::*,
};
use crate::task::{LOCAL, Millis, Task};

/// A task and its events, stepped by hand.
pub(super) struct Life {
    pub(super) task: Task,
    pub(super) now: Millis,
}

impl Life {
    pub(super) fn insert(agent: &str, context: &str, now: Millis) -> (Self, Write) {
        Self::insert_of(LOCAL, agent, context, now)
    }

    pub(super) fn insert_of(whose: &str, agent: &str, context: &str, now: Millis) -> (Self, Write) {
        let content = Some(Content::Text("hi".into()));
        let message = Message {
            message_id: "m".into(),
            parts: vec![Part { content, ..Part::default() }],
            ..Message::default()
        };
        let (task, event) = Task::submit(
            TaskId::new(),
            agent,
            context.into(),
            Submitted {
                message: Some(message),
                traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
                principal: whose.into(),
                ..Submitted::default()
            },
            now,
        );
        let events = vec![encode(1, &event)];
        let write = Write::Insert { row: Row::from(&task), events, with: None };
        (Self { task, now }, write)
    }

    pub(super) fn advance(&mut self, bodies: Vec<event::Body>) -> Write {
        let from = self.task.version;
        self.task.version += 1;
        let first = self.task.seq + 1;
        let events: Vec<Event> =
            bodies.into_iter().map(|b| self.task.apply_now(b, self.now)).collect();
        let events = (first..).zip(&events).map(|(seq, e)| encode(seq, e)).collect();
        Write::Advance { from, row: Row::from(&self.task), events, with: None }
    }
}

pub(super) fn assigned() -> event::Body {
    let (worker, worker_name) = ("w".into(), "w-1".into());
    event::Body::Assigned(Assigned { attempt: 1, worker, worker_name, ..Default::default() })
}

pub(super) fn completed() -> event::Body {
    event::Body::Ended(Ended { state: TaskState::Completed as i32, ..Ended::default() })
}

pub(super) fn artifact(text: &str) -> event::Body {
    let content = Some(Content::Text(text.into()));
    let parts = vec![Part { content, ..Part::default() }];
    let artifact = Artifact { artifact_id: "a".into(), parts, ..Artifact::default() };
    event::Body::Artifact(ArtifactWritten {
        artifact: Some(artifact),
        append: true,
        last_chunk: false,
    })
}

pub(super) async fn commit(store: &dyn Store, writes: Vec<Write>) -> Vec<Result<(), WriteError>> {
    store.commit(writes).await.unwrap()
}

pub(super) async fn a_task_reads_back_as_it_was_written(store: &dyn Store) {
    let (mut life, insert) = Life::insert("echo", "c", 1000);
    let step = life.advance(vec![assigned(), artifact("x"), artifact("y"), completed()]);
    assert_eq!(commit(store, vec![insert, step]).await, [Ok(()), Ok(())]);
    let stored = store.task(life.task.id, Scope::default()).await.unwrap().unwrap();
    assert_eq!(stored.task, life.task);
    assert!(store.task(TaskId::new(), Scope::default()).await.unwrap().is_none());
}

pub(super) async fn of_two_transitions_from_one_version_the_first_wins(store: &dyn Store) {
    let (mut life, insert) = Life::insert("echo", "c", 1000);
    let mut rival = Life { task: life.task.clone(), now: 1000 };
    let won = life.advance(vec![assigned()]);
    let lost = rival.advance(vec![completed()]);
    let (mut other, other_insert) = Life::insert("echo", "c", 1000);
    let other_step = other.advance(vec![completed()]);
    let again = insert.clone();
    let batch = vec![insert, won, lost, again, other_insert, other_step];
    let conflict = || Err(WriteError::Conflict);
    assert_eq!(
        commit(store, batch).await,
        [Ok(()), Ok(()), conflict(), conflict(), Ok(()), Ok(())],
        "a refused write fails alone"
    );
    assert_eq!(store.task(life.task.id, Scope::default()).await.unwrap().unwrap().task, life.task);
    assert_eq!(
        store.task(other.task.id, Scope::default()).await.unwrap().unwrap().task,
        other.task
    );
}

pub(super) async fn nothing_follows_an_end(store: &dyn Store) {
    let (mut life, insert) = Life::insert("echo", "c", 1000);
    let end = life.advance(vec![completed()]);
    assert_eq!(commit(store, vec![insert, end]).await, [Ok(()), Ok(())]);
    let ended = life.task.clone();
    let more = life.advance(vec![artifact("x")]);
    assert_eq!(commit(store, vec![more]).await, [Err(WriteError::Conflict)]);
    assert_eq!(store.task(ended.id, Scope::default()).await.unwrap().unwrap().task, ended);
}

pub(super) async fn events_are_read_from_any_place(store: &dyn Store) {
    let (mut life, insert) = Life::insert("echo", "c", 1000);
    let step = life.advance((0..10).map(|n| artifact(&n.to_string())).collect());
    commit(store, vec![insert, step]).await;
    let id = life.task.id;
    let seqs = |events: Vec<super::StoredEvent>| events.iter().map(|e| e.seq).collect::<Vec<_>>();
    assert_eq!(seqs(store.events(id, 0, 100).await.unwrap()), (1..=11).collect::<Vec<_>>());
    assert_eq!(seqs(store.events(id, 4, 3).await.unwrap()), [5, 6, 7]);
    assert!(store.events(id, 11, 10).await.unwrap().is_empty());
}

pub(super) async fn an_erased_task_never_was(store: &dyn Store) {
    let (life, insert) = Life::insert("echo", "c", 1000);
    let (id, from) = (life.task.id, life.task.version);
    let wrong = Write::Erase { id, from: from + 1, key: None };
    let right = Write::Erase { id, from, key: None };
    let expected = [Ok(()), Err(WriteError::Conflict), Ok(())];
    assert_eq!(commit(store, vec![insert, wrong, right]).await, expected);
    assert!(store.task(id, Scope::default()).await.unwrap().is_none());
    assert!(store.events(id, 0, 10).await.unwrap().is_empty());
}

pub(super) async fn late_reports_are_counted(store: &dyn Store) {
    let (life, insert) = Life::insert("echo", "c", 1000);
    let id = life.task.id;
    commit(store, vec![insert, Write::CountLate { id }, Write::CountLate { id }]).await;
    assert_eq!(store.task(id, Scope::default()).await.unwrap().unwrap().late, 2);
}

pub(super) async fn a_list_is_filtered_ordered_and_paged(store: &dyn Store) {
    let mut lives = Vec::new();
    for n in 0..25 {
        let agent = if n % 2 == 0 { "even" } else { "odd" };
        let (mut life, insert) = Life::insert(agent, &format!("c{}", n % 3), 1000 + n);
        commit(store, vec![insert]).await;
        if n % 5 == 0 {
            let step = life.advance(vec![artifact("big"), completed()]);
            commit(store, vec![step]).await;
        }
        lives.push(life.task);
    }
    let all = Filter { limit: 10, ..Filter::default() };
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(Filter { after, ..all.clone() }).await.unwrap();
        // An insert between two pages moves nothing.
        let (_, insert) = Life::insert("even", "c9", 9000);
        commit(store, vec![insert]).await;
        seen.extend(page.tasks.iter().map(|t| t.id));
        after = page.tasks.last().map(|t| Cursor { status_at: t.status_at, id: t.id });
        if !page.more {
            break;
        }
    }
    let mut expected: Vec<_> = lives.iter().map(|t| (t.status_at, t.id)).collect();
    expected.sort_by(|a, b| b.cmp(a));
    assert_eq!(seen, expected.iter().map(|e| e.1).collect::<Vec<_>>());

    let scope = Scope { agent: Some("odd".into()), ..Scope::default() };
    let odd = Filter { scope, limit: 100, ..Filter::default() };
    assert_eq!(store.list(odd).await.unwrap().total, 12);
    let done = Filter { state: Some(TaskState::Completed), limit: 2, ..Filter::default() };
    let page = store.list(done.clone()).await.unwrap();
    assert_eq!((page.tasks.len(), page.more, page.total), (2, true, 5));
    assert!(
        Confirmed::of(&page.tasks[0]).to_a2a(None, true).artifacts.is_empty(),
        "not read unless asked for"
    );
    let page = store.list(Filter { artifacts: true, ..done }).await.unwrap();
    assert_eq!(Confirmed::of(&page.tasks[0]).to_a2a(None, true).artifacts.len(), 1);
    let context = Filter { context_id: Some("c1".into()), limit: 100, ..Filter::default() };
    assert_eq!(store.list(context).await.unwrap().total, 8);
    let recent = Filter { status_from: Some(1020), limit: 100, ..Filter::default() };
    let page = store.list(recent).await.unwrap();
    assert!(page.tasks.iter().all(|t| t.status_at >= 1020) && page.total >= 5);
}

pub(super) async fn recovery_finds_what_has_not_ended(store: &dyn Store) {
    let (mut running, insert) = Life::insert("echo", "c", 1000);
    let step = running.advance(vec![assigned()]);
    let (mut done, insert_done) = Life::insert("echo", "c", 1000);
    let end = done.advance(vec![completed()]);
    let (queued, insert_queued) = Life::insert("echo", "c", 1000);
    commit(store, vec![insert, step, insert_done, end, insert_queued]).await;
    let mut found = store.recover().await.unwrap();
    found.retain(|t| [running.task.id, done.task.id, queued.task.id].contains(&t.id));
    found.sort_by_key(|t| t.id);
    let mut expected = vec![running.task, queued.task];
    expected.sort_by_key(|t| t.id);
    assert_eq!(found, expected);
}

pub(super) async fn agents_are_remembered_as_last_offered(store: &dyn Store) {
    let offer = |max_attempts| AgentOffer { name: "x".into(), max_attempts, ..Default::default() };
    let writes = [1, 2].map(|n| Write::Offer { offer: Box::new(offer(n)), at: n.into() });
    commit(store, writes.into()).await;
    let all = async || store.agents(None).await.unwrap();
    let x = |offered| Remembered { offer: offer(2), changed: 2, offered };
    assert_eq!(all().await, [x(2)]);
    let y = AgentOffer { name: "y".into(), ..AgentOffer::default() };
    commit(store, vec![Write::Offer { offer: Box::new(y), at: 3 }]).await;
    for at in [9, 7] {
        commit(store, vec![Write::Offered { names: vec!["x".into(), "z".into()], at }]).await;
    }
    assert_eq!(store.agents(Some("x".into())).await.unwrap(), [x(9)]);
    assert_eq!((all().await.len(), store.agents(Some("z".into())).await.unwrap().len()), (2, 0));
}

pub(super) async fn agents_are_forgotten_unless_they_are_offered_or_have_live_tasks(
    store: &dyn Store,
) {
    let names: Vec<String> = ["live", "new", "old", "older"].map(str::to_owned).into();
    for (name, at) in names.iter().zip([1, 9, 2, 1]) {
        let offer = AgentOffer { name: name.clone(), ..AgentOffer::default() };
        commit(store, vec![Write::Offer { offer: Box::new(offer), at }]).await;
    }
    let (mut life, insert) = Life::insert_of("ann", "live", "c", 1000);
    commit(store, vec![insert]).await;
    let forget = async |before| {
        let (names, gone) = (names.clone(), Tally::default());
        commit(store, vec![Write::ForgetAgents { names, before, gone: gone.clone() }]).await;
        let left = store.agents(None).await.unwrap();
        (gone.get(), left.into_iter().map(|a| a.offer.name).collect::<Vec<_>>())
    };
    assert_eq!(forget(1).await.0, 0);
    assert_eq!(forget(5).await, (2, vec!["live".to_owned(), "new".to_owned()]));
    let end = life.advance(vec![assigned(), completed()]);
    commit(store, vec![end]).await;
    assert_eq!(forget(5).await, (1, vec!["new".to_owned()]));
    assert_eq!(forget(10).await, (1, vec![]));
}

pub(super) async fn what_is_out_of_scope_is_not_there(store: &dyn Store) {
    let mut ids = Vec::new();
    for (whose, agent) in [("ann", "echo"), ("ann", "sum"), ("ben", "echo"), ("ben", "sum")] {
        let (life, insert) = Life::insert_of(whose, agent, "shared", 1000);
        commit(store, vec![insert]).await;
        ids.push(life.task.id);
    }
    let scope = |agent: Option<&str>, agents: &[&str]| Scope {
        principal: Some("ann".into()),
        agent: agent.map(str::to_owned),
        agents: agents.iter().map(|a| (*a).to_owned()).collect(),
    };
    let cases = [
        (Scope::default(), vec![0, 1, 2, 3]),
        (scope(None, &[]), vec![0, 1]),
        (scope(Some("sum"), &[]), vec![1]),
        (scope(None, &["echo"]), vec![0]),
        (scope(None, &["echo", "sum", "x"]), vec![0, 1]),
        (scope(Some("sum"), &["echo"]), vec![]),
    ];
    for (scope, expected) in cases {
        let context_id = Some("shared".to_owned());
        let filter = Filter { scope: scope.clone(), context_id, limit: 100, ..Filter::default() };
        let page = store.list(filter).await.unwrap();
        let mut listed: Vec<_> = page.tasks.iter().map(|t| t.id).collect();
        listed.sort();
        let expected: Vec<_> = expected.into_iter().map(|n: usize| ids[n]).collect();
        assert_eq!((&listed, page.total), (&expected, expected.len()), "{scope:?}");
        for id in &ids {
            let found = store.task(*id, scope.clone()).await.unwrap();
            assert_eq!(found.is_some(), expected.contains(id), "{scope:?}");
        }
    }
}

pub(super) fn key(key: &str, task_id: TaskId, created: Millis) -> KeyRow {
    let name = KeyName { principal: LOCAL.into(), agent: "echo".into(), key: key.into() };
    KeyRow { name, task_id, digest: [7; 32], reply: None, created }
}

pub(super) fn with_key(write: Write, key: KeyRow) -> Write {
    let with = Some(Box::new(Extras { key: Some(key), ..Extras::default() }));
    match write {
        Write::Insert { row, events, .. } => Write::Insert { row, events, with },
        Write::Advance { from, row, events, .. } => Write::Advance { from, row, events, with },
        other => other,
    }
}

pub(super) async fn a_key_is_written_with_its_step_or_not_at_all(store: &dyn Store) {
    let (mut life, insert) = Life::insert("echo", "c", 1000);
    let mut rival = Life { task: life.task.clone(), now: 1000 };
    let id = life.task.id;
    let first = with_key(insert, key("first", id, 1000));
    let won = with_key(life.advance(vec![assigned()]), key("won", id, 1001));
    let lost = with_key(rival.advance(vec![completed()]), key("lost", id, 1001));
    commit(store, vec![first, won, lost]).await;
    let found = async |name: &str, since| store.key(key(name, id, 0).name, since).await.unwrap();
    assert_eq!(found("first", 1000).await, Some(key("first", id, 1000)));
    assert_eq!(found("won", 0).await, Some(key("won", id, 1001)));
    assert_eq!(found("lost", 0).await, None, "its step was refused");
    assert_eq!(found("first", 1001).await, None, "it is older than that");
    let other = KeyName { principal: "ann".into(), ..key("first", id, 0).name };
    assert_eq!(store.key(other, 0).await.unwrap(), None, "a key is its principal's");
}

pub(super) async fn a_key_keeps_the_message_of_an_erased_task(store: &dyn Store) {
    let (life, insert) = Life::insert("echo", "c", 1000);
    let (id, from) = (life.task.id, life.task.version);
    let told = KeyRow { reply: Some("hello".into()), ..key("k", id, 1000) };
    let erase = Write::Erase { id, from, key: Some(Box::new(told.clone())) };
    commit(store, vec![with_key(insert, key("k", id, 1000)), erase]).await;
    assert_eq!(store.key(told.name.clone(), 0).await.unwrap(), Some(told));
}

pub(super) async fn old_keys_are_forgotten_in_batches(store: &dyn Store) {
    assert_eq!(store.oldest_key().await.unwrap(), None);
    for n in 0..5 {
        let (life, insert) = Life::insert("echo", "c", 1000);
        let key = key(&n.to_string(), life.task.id, 1000 + n);
        commit(store, vec![with_key(insert, key)]).await;
    }
    let mut left = Vec::new();
    for _ in 0..3 {
        commit(store, vec![Write::ForgetKeys { before: 1004, limit: 2 }]).await;
        left.push(store.oldest_key().await.unwrap().unwrap());
    }
    assert_eq!(left, [1002, 1004, 1004], "two at once, and none that is young enough");
}

pub(super) async fn a_key_of_another_task_refuses_the_step(store: &dyn Store) {
    let now = crate::clock::now();
    let (first, one) = Life::insert("echo", "c", 1000);
    let (second, two) = Life::insert("echo", "c", 1000);
    let (one, two) =
        (with_key(one, key("k", first.task.id, now)), with_key(two, key("k", second.task.id, now)));
    assert_eq!(commit(store, vec![one, two]).await, [Ok(()), Err(WriteError::Conflict)]);
    assert!(store.task(second.task.id, Scope::default()).await.unwrap().is_none());
    let found = store.key(key("k", first.task.id, now).name, 0).await.unwrap();
    assert_eq!(found.map(|key| key.task_id), Some(first.task.id));
}

pub(super) async fn a_child_needs_a_parent_that_lives(store: &dyn Store) {
    let (mut parent, insert) = Life::insert("echo", "c", 1000);
    let id = parent.task.id;
    let child = || child_of(id).1;
    let end = parent.advance(vec![completed()]);
    let batch = vec![child(), insert, child(), end, child()];
    let conflict = || Err(WriteError::Conflict);
    let expected = [conflict(), Ok(()), Ok(()), Ok(()), conflict()];
    assert_eq!(commit(store, batch).await, expected);
    assert_eq!(store.children(id, Scope::default(), 9).await.unwrap().len(), 1);
}

/// One test of each name on each store.
macro_rules! suite {
    ($($test:ident)*) => {
        mod on_sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    let (_keep, store) = super::sqlite();
                    super::$test(&store).await;
                }
            )*
        }

        mod on_postgres {
            $(
                #[tokio::test]
                async fn $test() {
                    let database = super::Database::make().await;
                    super::$test(&database.open().await).await;
                }
            )*
        }
    };
}

fn sqlite() -> (tempfile::TempDir, Sqlite) {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&dir.path().join("t.db")).unwrap();
    (dir, store)
}

suite! {
    a_task_reads_back_as_it_was_written
    of_two_transitions_from_one_version_the_first_wins
    nothing_follows_an_end
    events_are_read_from_any_place
    an_erased_task_never_was
    late_reports_are_counted
    a_list_is_filtered_ordered_and_paged
    recovery_finds_what_has_not_ended
    agents_are_remembered_as_last_offered
    agents_are_forgotten_unless_they_are_offered_or_have_live_tasks
    what_is_out_of_scope_is_not_there
    a_key_is_written_with_its_step_or_not_at_all
    a_key_keeps_the_message_of_an_erased_task
    old_keys_are_forgotten_in_batches
    children_come_in_order_within_scope_and_limit
    pushes_come_with_a_task_and_go_with_it
    a_push_keeps_its_place
    pushes_are_paged_bounded_and_deleted
    everybodys_tasks_are_found_by_what_they_are
    a_row_remembers_the_root_of_its_failure
    pages_of_everybodys_tasks_stand_still_while_more_come
    a_story_is_read_in_parts_within_scope
    activity_counts_what_began_and_how_it_ended
    failures_are_counted_once_and_their_tasks_each
    ended_tasks_expire_with_everything_that_is_kept_of_them
    tasks_are_walked_by_age
    a_worker_id_stays_bound_to_its_first_credential
    of_two_credentials_that_introduce_one_id_one_wins
    credential_binds_a_limited_number_of_worker_ids
    a_key_of_another_task_refuses_the_step
    a_child_needs_a_parent_that_lives
}
