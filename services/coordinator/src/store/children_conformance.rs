//! Conformance tests of the children of a task; part of `conformance`.

use faultline_proto::{
    a2a::TaskState,
    id::TaskId,
    v1::{Child, Parent, Submitted},
};

use super::{Row, Scope, Store, Write, encode};
use crate::task::Task;

fn insert(whose: &str, agent: &str, parent: Option<Parent>) -> (TaskId, Write) {
    let principal = whose.to_owned();
    let submitted = Submitted { principal, parent, ..Submitted::default() };
    let (task, event) = Task::submit(TaskId::new(), agent, "c".into(), submitted, 1000);
    let events = vec![encode(1, &event)];
    (task.id, Write::Insert { row: Row::from(&task), events, with: None })
}

pub(super) async fn children_come_in_order_within_scope_and_limit(store: &dyn Store) {
    let (root, write) = insert("ann", "plan", None);
    let mut writes = vec![write];
    let mut expected = Vec::new();
    for (n, agent) in ["search", "sum", "search"].into_iter().enumerate() {
        let (key, detached) = (n.to_string(), n == 1);
        let above = Parent { task_id: root.to_string(), key: key.clone(), depth: 1, detached };
        let (id, write) = insert("ann", agent, Some(above));
        // Behind the younger ones: the order is that of their start, not of their writing.
        writes.insert(1, write);
        let (task_id, agent) = (id.to_string(), agent.to_owned());
        expected.push(Child { task_id, agent, key, detached, state: TaskState::Submitted as i32 });
    }
    let below = Parent { task_id: expected[0].task_id.clone(), key: "0".into(), ..<_>::default() };
    let (grandchild, write) = insert("ann", "sum", Some(below));
    writes.push(write);
    assert!(store.commit(writes).await.unwrap().iter().all(Result::is_ok));

    let all = |limit| store.children(root, Scope::default(), limit);
    assert_eq!(all(10).await.unwrap(), expected);
    assert_eq!(all(2).await.unwrap(), expected[..2]);
    let nobody = store.children(grandchild, Scope::default(), 10);
    assert_eq!(nobody.await.unwrap(), []);
    let of = |whose: &str, agents: &[&str]| Scope {
        principal: Some(whose.to_owned()),
        agents: agents.iter().map(|a| (*a).to_owned()).collect(),
        ..Scope::default()
    };
    assert_eq!(store.children(root, of("ann", &[]), 10).await.unwrap(), expected);
    assert_eq!(store.children(root, of("ben", &[]), 10).await.unwrap(), []);
    let some = store.children(root, of("ann", &["sum"]), 10).await.unwrap();
    assert_eq!(some, expected[1..2]);
}
