//! Conformance tests of push configurations; part of `conformance`.

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{Message, TaskPushNotificationConfig},
    id::TaskId,
    v1::Submitted,
};

use super::{Extras, PushKey, PushRow, PushWrite, Row, Store, Write, WriteError, encode};
use crate::task::Task;

pub(super) fn push(task: TaskId, id: &str, sent: u64) -> PushRow {
    let url = format!("https://example.org/{id}");
    let config = TaskPushNotificationConfig { url, id: id.into(), ..Default::default() };
    PushRow { key: PushKey { task, id: id.into() }, config, sent, done: false }
}

fn set(row: &PushRow) -> Write {
    Write::Push(PushWrite::Set(row.clone()))
}

fn sent(row: &PushRow, seq: u64, done: bool) -> Write {
    Write::Push(PushWrite::Sent { key: row.key.clone(), seq, done })
}

/// A task with these configurations from the start.
async fn submit(store: &dyn Store, pushes: impl FnOnce(TaskId) -> Vec<PushRow>) -> Task {
    let (id, principal) = (TaskId::new(), "local".to_owned());
    let (context, message) = ("c".to_owned(), Some(Message::default()));
    let submitted = Submitted { message, principal, ..Submitted::default() };
    let (task, event) = Task::submit(id, "echo", context, submitted, 1);
    let with = Some(Box::new(Extras { key: None, pushes: pushes(id) }));
    let insert = Write::Insert { row: Row::from(&task), events: vec![encode(1, &event)], with };
    assert_eq!(commit(store, vec![insert]).await, [Ok(())]);
    task
}

async fn commit(store: &dyn Store, writes: Vec<Write>) -> Vec<Result<(), WriteError>> {
    store.commit(writes).await.unwrap()
}

async fn read(store: &dyn Store, row: &PushRow) -> Option<PushRow> {
    store.push(row.key.clone()).await.unwrap()
}

async fn is_unfinished(store: &dyn Store, row: &PushRow) -> bool {
    store.unfinished_pushes().await.unwrap().contains(&row.key)
}

pub(super) async fn pushes_come_with_a_task_and_go_with_it(store: &dyn Store) {
    let task = submit(store, |id| vec![push(id, "a", 0), push(id, "b", 0)]).await;
    let (a, b) = (push(task.id, "a", 0), push(task.id, "b", 0));
    assert_eq!(store.pushes(task.id, String::new(), 9).await.unwrap(), [a.clone(), b]);
    let erase = Write::Erase { id: task.id, from: task.version, key: None };
    assert_eq!(commit(store, vec![erase, set(&a)]).await, [Ok(()), Err(WriteError::Conflict)]);
    assert_eq!(read(store, &a).await, None, "not even one that came too late is left");
    assert!(!is_unfinished(store, &a).await);
}

pub(super) async fn a_push_keeps_its_place(store: &dyn Store) {
    let task = submit(store, |_| Vec::new()).await;
    let first = push(task.id, "a", 1);
    commit(store, vec![set(&first), sent(&first, 5, false), sent(&first, 3, false)]).await;
    let moved = PushRow { sent: 5, ..first.clone() };
    assert_eq!(read(store, &first).await, Some(moved), "it never goes back");
    assert!(is_unfinished(store, &first).await);
    let mut second = push(task.id, "a", 9);
    second.config.url = "https://example.org/other".into();
    commit(store, vec![set(&second)]).await;
    let heir = PushRow { sent: 5, ..second.clone() };
    assert_eq!(read(store, &first).await, Some(heir), "what the old one owed, the new one owes");
    commit(store, vec![sent(&first, 6, true)]).await;
    assert!(!is_unfinished(store, &first).await);
    commit(store, vec![set(&second)]).await;
    assert_eq!(read(store, &first).await, Some(second), "one that was over begins anew");
}

pub(super) async fn pushes_are_paged_bounded_and_deleted(store: &dyn Store) {
    let task = submit(store, |_| Vec::new()).await;
    let most = limits::PUSH_CONFIGS_MAX;
    let rows: Vec<_> = (0..=most).map(|n| push(task.id, &format!("{n:02}"), 0)).collect();
    let written = commit(store, rows.iter().map(set).collect()).await;
    assert_eq!(written.iter().filter(|w| w.is_ok()).count(), most);
    assert_eq!(written[most], Err(WriteError::Conflict));
    assert_eq!(commit(store, vec![set(&rows[0])]).await, [Ok(())], "a replacement needs no place");
    let page = store.pushes(task.id, "03".into(), 2).await.unwrap();
    assert_eq!(page, rows[4..6]);
    let delete = || Write::Push(PushWrite::Delete(rows[4].key.clone()));
    let again = vec![delete(), delete(), sent(&rows[4], 7, false), set(&rows[most])];
    assert_eq!(commit(store, again).await, [Ok(()), Ok(()), Ok(()), Ok(())]);
    assert_eq!(read(store, &rows[4]).await, None);
}
