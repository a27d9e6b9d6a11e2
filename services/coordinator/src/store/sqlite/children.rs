//! Children of a task in SQLite, from the index over parents, without folding a task.

use faultline_proto::{id::TaskId, v1};
use rusqlite::{Connection, params_from_iter, types::Value};

use crate::store::{
    ReadError, Scope,
    queries::child,
    sqlite::read::{COLUMNS, Conditions, row, unavailable},
};

/// Ids sort by the time they were made, and the index by id: the first so many are read, and no
/// more than those. The key of a child is in its first event.
const FIRST_EVENT: &str = "(SELECT body FROM events WHERE task_id = tasks.id AND seq = 1) AS first";

pub(super) fn of(
    c: &Connection,
    parent: TaskId,
    scope: &Scope,
    limit: usize,
) -> Result<Vec<v1::Child>, ReadError> {
    let mut wanted = Conditions::within(scope);
    wanted.add("parent = ?", Value::from(parent.as_bytes().to_vec()));
    let rows = c
        .prepare_cached(&sql(&wanted, limit))
        .and_then(|mut s| {
            let read = |r: &rusqlite::Row<'_>| Ok((row(r)?, r.get::<_, Option<Vec<u8>>>("first")?));
            s.query_map(params_from_iter(&wanted.values), read)?.collect::<Result<Vec<_>, _>>()
        })
        .map_err(unavailable)?;
    rows.into_iter().map(|(row, first)| child(row, &first.unwrap_or_default())).collect()
}

fn sql(wanted: &Conditions, limit: usize) -> String {
    let wanted = wanted.sql();
    format!(
        "SELECT {COLUMNS}, {FIRST_EVENT} FROM tasks INDEXED BY tasks_by_parent
         WHERE {wanted} ORDER BY id LIMIT {limit}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::migrations::STEPS;

    #[test]
    fn children_are_found_without_reading_other_tasks_or_sorting() {
        let c = Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| c.execute_batch(step).unwrap());
        let principal = Some("ann".to_owned());
        for scope in [Scope::default(), Scope { principal, ..Scope::default() }] {
            let mut wanted = Conditions::within(&scope);
            wanted.add("parent = ?", Value::from(vec![0; 16]));
            let sql = format!("EXPLAIN QUERY PLAN {}", sql(&wanted, 10));
            let mut statement = c.prepare(&sql).unwrap();
            let steps =
                statement.query_map(params_from_iter(&wanted.values), |r| r.get(3)).unwrap();
            let plan = steps.collect::<Result<Vec<String>, _>>().unwrap().join("\n");
            assert!(plan.contains("USING INDEX tasks_by_parent (parent=?)"), "{plan}");
            assert!(!plan.contains("B-TREE"), "{plan}");
        }
    }
}
