//! Conformance tests of the expiry of ended tasks; part of `conformance`.

use faultline_proto::{
    id::TaskId,
    v1::{Parent, Submitted},
};

use super::{
    Aged, Row, Scope, Store, Tally, Write,
    conformance::{Life, assigned, commit, completed, key, with_key},
    encode,
};
use crate::task::Task;

const FIRST: [u8; 16] = [0; 16];
const LAST: [u8; 16] = [255; 16];

pub(super) fn child_of(parent: TaskId) -> (Life, Write) {
    let above = Parent { task_id: parent.to_string(), ..Parent::default() };
    let submitted = Submitted { parent: Some(above), ..Submitted::default() };
    let (task, event) = Task::submit(TaskId::new(), "echo", "c".into(), submitted, 1000);
    let (row, events) = (Row::from(&task), vec![encode(1, &event)]);
    (Life { task, now: 1000 }, Write::Insert { row, events, with: None })
}

async fn there(store: &dyn Store, life: &Life) -> bool {
    store.task(life.task.id, Scope::default()).await.unwrap().is_some()
}

pub(super) async fn ended_tasks_expire_with_everything_that_is_kept_of_them(store: &dyn Store) {
    let (mut done, insert) = Life::insert("echo", "c", 1000);
    let name = key("k", done.task.id, 1000);
    let insert = with_key(insert, name.clone());
    let end = done.advance(vec![completed()]);
    let (mut parent, insert_parent) = Life::insert("echo", "c", 1000);
    let (mut child, insert_child) = child_of(parent.task.id);
    let end_child = child.advance(vec![completed()]);
    let (running, insert_running) = Life::insert("echo", "c", 1000);
    let batch = vec![insert, end, insert_parent, insert_child, end_child, insert_running];
    assert!(commit(store, batch).await.iter().all(Result::is_ok));
    let ids = [&done, &parent, &child, &running].map(|life| life.task.id).to_vec();
    let (gone, later) = (Tally::default(), Tally::default());
    let expire = |gone: &Tally| Write::Expire { ids: ids.clone(), gone: gone.clone() };
    assert_eq!(commit(store, vec![expire(&gone), expire(&later)]).await, [Ok(()), Ok(())]);
    assert_eq!((gone.get(), later.get()), (1, 0), "only what was there is counted");
    assert!(!there(store, &done).await);
    assert!(store.events(done.task.id, 0, 9).await.unwrap().is_empty());
    assert_eq!(store.key(name.name, 0).await.unwrap(), None);
    assert!(there(store, &child).await, "its parent may join it again");
    assert!(there(store, &parent).await && there(store, &running).await, "they live");
    let end = parent.advance(vec![completed()]);
    assert_eq!(commit(store, vec![end, expire(&gone)]).await, [Ok(()), Ok(())]);
    assert_eq!(gone.get(), 2);
    assert_eq!(commit(store, vec![expire(&gone)]).await, [Ok(())], "what is gone is no mistake");
    assert_eq!(gone.get(), 0);
    assert!(!there(store, &parent).await && !there(store, &child).await);
    assert!(there(store, &running).await);
}

pub(super) async fn tasks_are_walked_by_age(store: &dyn Store) {
    let mut lives = Vec::new();
    for n in 0..5 {
        let (mut life, insert) = Life::insert("echo", "c", 1000 + n);
        let end = if n == 2 { assigned() } else { completed() };
        let step = life.advance(vec![end]);
        commit(store, vec![insert, step]).await;
        lives.push(life.task);
    }
    let (mut child, insert) = child_of(lives[2].id);
    let end = child.advance(vec![completed()]);
    commit(store, vec![insert, end]).await;
    lives.push(child.task);
    let aged = |task: &Task, ended| {
        let (id, agent, events) = (task.id, "echo".into(), task.seq);
        Aged { id, agent, ended, events }
    };
    let (first, last) = (TaskId::from_bytes(FIRST), TaskId::from_bytes(LAST));
    let page = store.aged(first, last, 3).await.unwrap();
    let expected =
        [aged(&lives[0], Some(1000)), aged(&lives[1], Some(1001)), aged(&lives[2], None)];
    assert_eq!(page, expected);
    let page = store.aged(page[2].id, last, 9).await.unwrap();
    let (four, five) = (aged(&lives[3], Some(1003)), aged(&lives[4], Some(1004)));
    assert_eq!(page, [four, five, aged(&lives[5], None)], "nor one whose parent lives");
    assert!(store.aged(first, lives[0].id, 9).await.unwrap().is_empty());
}
