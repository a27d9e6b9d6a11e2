//! Operator queries in SQLite. Every query walks one index in its order: active tasks, tasks
//! that did not complete, or all tasks by principal. There is no index over the times of all
//! tasks, because each task would pay for it.

use faultline_chassis::limits;
use faultline_proto::{a2a::TaskState, id::TaskId, v1};
use rusqlite::{Connection, OptionalExtension, params, params_from_iter, types::Value};

use crate::store::{
    Aged, Cursor, Row, Scope, StoredEvent,
    queries::{Activity, Buckets, Failures, Rows, Story, Walk, Wanted},
    sqlite::read::{ALIVE, COLUMNS, Conditions, event, row},
};
use crate::task::{Millis, is_final};

/// Failed, cancelled and rejected, in the words of the index over just these.
const UNWELL: &str = "state = 4 OR state = 5 OR state = 7";

/// Everybody who has tasks: one step in the index for each.
const WHOSE: &str = "WITH RECURSIVE whose (name) AS (
        SELECT MIN(principal) FROM tasks
        UNION ALL
        SELECT (SELECT MIN(principal) FROM tasks WHERE principal > name) FROM whose
        WHERE name IS NOT NULL)";

pub(super) fn tasks(
    c: &Connection,
    wanted: &Wanted,
    after: Option<Cursor>,
    limit: usize,
) -> rusqlite::Result<Rows> {
    let mut found = Vec::new();
    let by_principal = Walk::of(wanted) == Walk::ByPrincipal && wanted.principal.is_none();
    match by_principal {
        false => found = places(c, wanted, after, limit + 1)?,
        // So many of each are enough, whoever has the newest.
        true => {
            for name in principals(c)? {
                let one = Wanted { principal: Some(name), ..wanted.clone() };
                found.extend(places(c, &one, after, limit + 1)?);
            }
            found.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    Ok(Rows { rows: rows(c, found.into_iter().map(|(_, id)| id))?, more })
}

/// Those of these tasks that there are.
pub(super) fn rows(
    c: &Connection,
    ids: impl IntoIterator<Item = TaskId>,
) -> rusqlite::Result<Vec<Row>> {
    let mut statement = c.prepare_cached(&format!("SELECT {COLUMNS} FROM tasks WHERE id = ?1"))?;
    let found =
        ids.into_iter().map(|id| statement.query_row(params![id.as_bytes()], row).optional());
    found.filter_map(Result::transpose).collect()
}

fn principals(c: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = format!("{WHOSE} SELECT name FROM whose WHERE name IS NOT NULL");
    c.prepare_cached(&sql)?.query_map([], |r| r.get(0))?.collect()
}

impl Walk {
    /// Where to look, and what must be said for the index to be used.
    fn sql(self) -> (&'static str, Option<&'static str>) {
        match self {
            Walk::Alive => ("tasks_alive", Some(ALIVE)),
            Walk::Unwell => ("tasks_unwell", Some(UNWELL)),
            Walk::ByPrincipal => ("tasks_by_principal", None),
        }
    }
}

fn places(
    c: &Connection,
    wanted: &Wanted,
    after: Option<Cursor>,
    limit: usize,
) -> rusqlite::Result<Vec<(Millis, TaskId)>> {
    let (sql, values) = places_sql(wanted, after, limit);
    let place = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, TaskId::from_bytes(r.get(1)?)));
    c.prepare_cached(&sql)?.query_map(params_from_iter(&values), place)?.collect()
}

fn places_sql(wanted: &Wanted, after: Option<Cursor>, limit: usize) -> (String, Vec<Value>) {
    let (index, must) = Walk::of(wanted).sql();
    let mut all = Conditions::within(&Scope {
        principal: wanted.principal.clone(),
        agent: wanted.agent.clone(),
        agents: Vec::new(),
    });
    must.into_iter().for_each(|must| all.must(format!("({must})")));
    if !wanted.states.is_empty() {
        // Numbers of our own, so they need no quoting.
        let states: Vec<_> = wanted.states.iter().map(|s| (*s as i32).to_string()).collect();
        all.must(format!("state IN ({})", states.join(", ")));
    }
    wanted.reason.iter().for_each(|reason| all.add("reason = ?", reason.clone()));
    wanted.origin.iter().for_each(|origin| all.add("origin = ?", origin.clone()));
    wanted.from.into_iter().for_each(|from| all.add("status_ms >= ?", from));
    wanted.to.into_iter().for_each(|to| all.add("status_ms < ?", to));
    if wanted.roots {
        all.must("parent IS NULL".to_owned());
    }
    if let Some(cursor) = after {
        all.after(cursor);
    }
    let sql = format!(
        "SELECT status_ms, id FROM tasks INDEXED BY {index} WHERE {}
         ORDER BY status_ms DESC, id DESC LIMIT {limit}",
        all.sql()
    );
    (sql, all.values)
}

/// `None`: there is no such task in scope.
pub(super) fn story(
    c: &Connection,
    id: TaskId,
    scope: &Scope,
    after: u64,
    limit: usize,
) -> rusqlite::Result<Option<Story>> {
    if !rows(c, [id])?.iter().any(|row| scope.contains(row)) {
        return Ok(None);
    }
    let sql = "SELECT seq, kind, body FROM events WHERE task_id = ?1 AND seq > ?2 ORDER BY seq";
    let mut statement = c.prepare_cached(sql)?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let mut found = statement.query(params![id.as_bytes(), after])?;
    let (mut events, mut bytes) = (Vec::<StoredEvent>::new(), 0);
    while let Some(row) = found.next()? {
        if events.len() == limit || bytes > limits::PAGE_BYTES_MAX {
            return Ok(Some(Story { events, more: true }));
        }
        let event = event(row)?;
        bytes += event.body.len();
        events.push(event);
    }
    Ok(Some(Story { events, more: false }))
}

/// Ids tell when tasks began, so the one index tells both ends.
const ACTIVITY: &str = "SELECT agent, state, status_ms, id
    FROM whose CROSS JOIN tasks INDEXED BY tasks_by_principal ON principal = name
    WHERE name IS NOT NULL AND status_ms >= ?1";

pub(super) fn activity(c: &Connection, over: Buckets) -> rusqlite::Result<Vec<v1::AgentActivity>> {
    let mut seen = Activity::over(over);
    let mut statement = c.prepare_cached(&format!("{WHOSE} {ACTIVITY}"))?;
    let mut found = statement.query(params![over.from])?;
    while let Some(row) = found.next()? {
        let state = TaskState::try_from(row.get::<_, i32>(1)?).unwrap_or_default();
        let id = TaskId::from_bytes(row.get(3)?);
        seen.add(row.get_ref(0)?.as_str()?, state, row.get(2)?, id);
    }
    Ok(seen.agents())
}

const FAILURES: &str = "SELECT status_ms, id, reason, origin, failure_id
    FROM tasks INDEXED BY tasks_unwell
    WHERE (state = 4 OR state = 5 OR state = 7)
        AND state = 4 AND reason IS NOT NULL AND status_ms >= ?1
    ORDER BY status_ms DESC, id DESC";

pub(super) fn failures(c: &Connection, over: Buckets) -> rusqlite::Result<Vec<v1::FailureCount>> {
    let mut seen = Failures::over(over);
    let mut statement = c.prepare_cached(FAILURES)?;
    let mut found = statement.query(params![over.from])?;
    while let Some(row) = found.next()? {
        let (id, kind) = (TaskId::from_bytes(row.get(1)?), (row.get(2)?, row.get(3)?));
        seen.add(row.get(0)?, id, kind, row.get_ref(4)?.as_str()?);
    }
    Ok(seen.kinds())
}

pub(super) fn aged(
    c: &Connection,
    after: TaskId,
    before: TaskId,
    limit: usize,
) -> rusqlite::Result<Vec<Aged>> {
    let sql = format!(
        "SELECT id, agent, state, status_ms,
            EXISTS (SELECT 1 FROM tasks AS above WHERE above.id = tasks.parent AND ({ALIVE})),
            seq
         FROM tasks WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3"
    );
    let aged = |r: &rusqlite::Row<'_>| {
        let state = TaskState::try_from(r.get::<_, i32>(2)?).unwrap_or_default();
        let over = is_final(state) && !r.get::<_, bool>(4)?;
        let ended = over.then_some(r.get(3)?);
        let (id, events) = (TaskId::from_bytes(r.get(0)?), r.get(5)?);
        Ok(Aged { id, agent: r.get(1)?, ended, events })
    };
    let within = params![after.as_bytes(), before.as_bytes(), limit];
    c.prepare_cached(&sql)?.query_map(within, aged)?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::migrations::STEPS;

    fn plan(sql: &str, values: &[Value]) -> String {
        let c = Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| c.execute_batch(step).unwrap());
        let mut statement = c.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = statement.query_map(params_from_iter(values), |r| r.get(3)).unwrap();
        steps.collect::<Result<Vec<String>, _>>().unwrap().join("\n")
    }

    #[test]
    fn every_list_walks_an_index_in_its_order() {
        let some = |text: &str| Some(text.to_owned());
        let any = Wanted { from: Some(1), to: Some(9), ..Wanted::default() };
        let after = Some(Cursor { status_at: 5, id: TaskId::new() });
        let ann = Wanted { principal: some("ann"), roots: true, ..any.clone() };
        let failed = Wanted { states: vec![TaskState::Failed], ..any.clone() };
        let reason = Wanted { reason: some("INTERNAL"), agent: some("a"), ..any.clone() };
        let origin = Wanted { origin: some("a"), roots: true, ..any.clone() };
        for (wanted, walk) in [
            (&ann, "SEARCH tasks USING INDEX tasks_by_principal (principal=? AND status_ms>?"),
            (&failed, "SEARCH tasks USING COVERING INDEX tasks_unwell (status_ms>?"),
            (&reason, "SEARCH tasks USING INDEX tasks_unwell (status_ms>?"),
            (&origin, "SEARCH tasks USING INDEX tasks_unwell (status_ms>?"),
        ] {
            for after in [None, after] {
                let (sql, values) = places_sql(wanted, after, 10);
                let plan = plan(&sql, &values);
                assert!(plan.contains(walk), "{wanted:?}: {plan}");
                assert!(!plan.contains("B-TREE"), "{wanted:?}: {plan}");
            }
        }
        // Few live, so these are sorted.
        let alive = Wanted { states: vec![TaskState::Working], ..any };
        let (sql, values) = places_sql(&alive, None, 10);
        assert!(plan(&sql, &values).contains("USING INDEX tasks_alive"), "{}", plan(&sql, &values));
    }

    #[test]
    fn numbers_come_out_of_an_index_alone() {
        let from = [Value::from(5)];
        let activity = plan(&format!("{WHOSE} {ACTIVITY}"), &from);
        let walk = "tasks USING COVERING INDEX tasks_by_principal (principal=? AND status_ms>?)";
        assert!(activity.contains(walk), "{activity}");
        assert!(
            activity.contains("(principal>?)") && !activity.contains("SCAN tasks"),
            "{activity}"
        );
        let failures = plan(FAILURES, &from);
        let walk = "SEARCH tasks USING COVERING INDEX tasks_unwell (status_ms>?)";
        assert!(failures.contains(walk) && !failures.contains("B-TREE"), "{failures}");
    }
}
