//! The read side: rows and events, folded into tasks.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use faultline_chassis::limits;
use faultline_proto::{a2a::TaskState, id::TaskId};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params, params_from_iter, types::Value};

use crate::store::{
    Cursor, FailureKey, Filter, KeyName, KeyRow, Kind, Page, ReadError, Row, Scope, StoredEvent,
    replay,
};
use crate::task::{Millis, Task};

/// Reader connections kept for reuse; more are opened when more read at once.
const READERS_KEPT: usize = 4;

/// In the words of the index over just these, which SQLite takes only then.
pub(super) const ALIVE: &str = "state = 1 OR state = 2 OR state = 6 OR state = 8";

pub(super) const COLUMNS: &str =
    "id, agent, context_id, state, version, seq, attempt, reported, worker,
    created_ms, status_ms, principal, parent, reason, origin, failure_id";

pub(super) fn row(r: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row {
        id: TaskId::from_bytes(r.get(0)?),
        agent: r.get(1)?,
        context_id: r.get(2)?,
        state: TaskState::try_from(r.get::<_, i32>(3)?).unwrap_or(TaskState::Unspecified),
        version: r.get(4)?,
        seq: r.get(5)?,
        attempt: r.get(6)?,
        reported: r.get(7)?,
        worker: r.get(8)?,
        created: r.get(9)?,
        status_at: r.get(10)?,
        principal: r.get(11)?,
        parent: r.get::<_, Option<_>>(12)?.map(TaskId::from_bytes),
        failure: match r.get(13)? {
            None => None,
            Some(reason) => {
                Some(Box::new(FailureKey { reason, origin: r.get(14)?, id: r.get(15)? }))
            }
        },
    })
}

pub(super) fn event(r: &rusqlite::Row<'_>) -> rusqlite::Result<StoredEvent> {
    let kind = match r.get::<_, i32>(1)? {
        1 => Kind::Artifact,
        2 => Kind::Checkpoint,
        _ => Kind::Plain,
    };
    Ok(StoredEvent { seq: r.get(0)?, kind, body: Bytes::from(r.get::<_, Vec<u8>>(2)?) })
}

pub(super) fn events(
    c: &Connection,
    id: TaskId,
    after: u64,
    limit: usize,
    all: bool,
) -> rusqlite::Result<Vec<StoredEvent>> {
    let kinds = if all { "" } else { "AND kind = 0" };
    let sql = format!(
        "SELECT seq, kind, body FROM events WHERE task_id = ?1 AND seq > ?2 {kinds}
         ORDER BY seq LIMIT ?3"
    );
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    c.prepare_cached(&sql)?.query_map(params![id.as_bytes(), after, limit], event)?.collect()
}

pub(super) fn fold(c: &Connection, row: Row, all: bool) -> Result<Task, ReadError> {
    let stored = events(c, row.id, 0, usize::MAX, all).map_err(unavailable)?;
    replay(row, stored.into_iter().map(|event| event.body), all)
}

pub(super) fn key(
    c: &Connection,
    name: KeyName,
    since: Millis,
) -> rusqlite::Result<Option<KeyRow>> {
    let sql = "SELECT task_id, digest, reply, created_ms FROM keys
        WHERE principal = ?1 AND agent = ?2 AND key = ?3 AND created_ms >= ?4";
    let mut statement = c.prepare_cached(sql)?;
    let wanted = params![name.principal, name.agent, name.key, since];
    let found = statement.query_row(wanted, |r| {
        let (task_id, digest) = (TaskId::from_bytes(r.get(0)?), r.get(1)?);
        Ok((task_id, digest, r.get::<_, Option<Vec<u8>>>(2)?, r.get(3)?))
    });
    Ok(found.optional()?.map(|(task_id, digest, reply, created)| KeyRow {
        name,
        task_id,
        digest,
        reply: reply.map(Bytes::from),
        created,
    }))
}

pub(super) fn list(c: &Connection, filter: &Filter) -> Result<Page, ReadError> {
    let mut wanted = Conditions::of(filter);
    let (must, most) = (wanted.sql(), limits::LIST_TOTAL_MAX);
    let sql = format!("SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE {must} LIMIT {most})");
    let total = c
        .prepare_cached(&sql)
        .and_then(|mut s| s.query_row(params_from_iter(&wanted.values), |r| r.get(0)))
        .map_err(unavailable)?;
    if let Some(cursor) = filter.after {
        wanted.after(cursor);
    }
    let sql = page_sql(filter, &wanted);
    let mut rows = c
        .prepare_cached(&sql)
        .and_then(|mut s| {
            s.query_map(params_from_iter(&wanted.values), row)?.collect::<Result<Vec<_>, _>>()
        })
        .map_err(unavailable)?;
    let mut more = rows.len() > filter.limit;
    rows.truncate(filter.limit);
    let (count, mut bytes, mut tasks) = (rows.len(), 0, Vec::new());
    for row in rows {
        let task = fold(c, row, filter.artifacts)?;
        bytes += task.artifact_bytes();
        tasks.push(task);
        if bytes > limits::PAGE_BYTES_MAX {
            more |= tasks.len() < count;
            break;
        }
    }
    Ok(Page { tasks, more, total })
}

/// One page, and one task more if there is one. First the ids, for which looking into an index is
/// enough; then the rows of just those. A context is small, whatever SQLite may think of it.
fn page_sql(filter: &Filter, wanted: &Conditions) -> String {
    let source = match (&filter.scope.principal, &filter.context_id) {
        (Some(_), Some(_)) => "tasks INDEXED BY tasks_by_context",
        _ => "tasks",
    };
    let (wanted, limit) = (wanted.sql(), filter.limit + 1);
    format!(
        "SELECT {COLUMNS} FROM (SELECT id AS found FROM {source} WHERE {wanted}
            ORDER BY status_ms DESC, id DESC LIMIT {limit})
         JOIN tasks ON id = found ORDER BY status_ms DESC, id DESC"
    )
}

/// The conditions of a query, with a value for each `?`.
#[derive(Default)]
pub(super) struct Conditions {
    wheres: Vec<String>,
    pub(super) values: Vec<Value>,
}

impl Conditions {
    pub(super) fn within(scope: &Scope) -> Self {
        let mut wanted = Self::default();
        if let Some(principal) = &scope.principal {
            wanted.add("principal = ?", principal.clone());
        }
        if let Some(agent) = &scope.agent {
            wanted.add("agent = ?", agent.clone());
        }
        if !scope.agents.is_empty() {
            let marks = vec!["?"; scope.agents.len()].join(", ");
            wanted.wheres.push(format!("agent IN ({marks})"));
            wanted.values.extend(scope.agents.iter().cloned().map(Value::from));
        }
        wanted
    }

    fn of(filter: &Filter) -> Self {
        let Filter { scope, context_id, state, status_from, .. } = filter;
        let mut wanted = Self::within(scope);
        if let Some(context) = context_id {
            wanted.add("context_id = ?", context.clone());
        }
        if let Some(state) = *state {
            wanted.add("state = ?", state as i32);
        }
        if let Some(from) = *status_from {
            wanted.add("status_ms >= ?", from);
        }
        wanted
    }

    pub(super) fn add(&mut self, condition: &str, value: impl Into<Value>) {
        self.must(condition.to_owned());
        self.values.push(value.into());
    }

    /// Without a value.
    pub(super) fn must(&mut self, condition: String) {
        self.wheres.push(condition);
    }

    pub(super) fn after(&mut self, cursor: Cursor) {
        self.add("(status_ms, id) < (?, ?)", cursor.status_at);
        self.values.push(Value::from(cursor.id.as_bytes().to_vec()));
    }

    pub(super) fn sql(&self) -> String {
        match self.wheres.is_empty() {
            true => "TRUE".to_owned(),
            false => self.wheres.join(" AND "),
        }
    }
}

pub(super) fn unavailable(error: rusqlite::Error) -> ReadError {
    ReadError::Unavailable(error.to_string())
}

/// Read-only connections, made when needed.
pub(super) struct Readers {
    pub(super) path: PathBuf,
    pub(super) idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open().map_err(unavailable)?,
        };
        let done = work(&connection);
        let mut idle = self.idle.lock();
        if idle.len() < READERS_KEPT {
            idle.push(connection);
        }
        done
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::migrations::STEPS;

    fn plan(filter: &Filter) -> String {
        let c = Connection::open_in_memory().unwrap();
        STEPS.iter().for_each(|step| c.execute_batch(step).unwrap());
        let wanted = Conditions::of(filter);
        let sql = format!("EXPLAIN QUERY PLAN {}", page_sql(filter, &wanted));
        let mut statement = c.prepare(&sql).unwrap();
        let steps = statement.query_map(params_from_iter(&wanted.values), |r| r.get(3)).unwrap();
        steps.collect::<Result<Vec<String>, _>>().unwrap().join("\n")
    }

    #[test]
    fn a_list_reads_only_what_it_shows() {
        let principal = Some("ann".to_owned());
        let own = Scope { principal: principal.clone(), ..Scope::default() };
        let agents = vec!["a".to_owned(), "b".to_owned()];
        let some = Scope { principal, agent: Some("a".into()), agents };
        let by_time = "SEARCH tasks USING COVERING INDEX tasks_by_principal (principal=?";
        for scope in [own.clone(), some] {
            let state = Some(TaskState::Working);
            let filter = Filter { scope, state, limit: 50, ..Filter::default() };
            assert!(plan(&filter).contains(by_time), "{}", plan(&filter));
            let recent = Filter { status_from: Some(1), ..filter };
            assert!(plan(&recent).contains(by_time), "{}", plan(&recent));
        }
        let context = Filter { scope: own, context_id: Some("c".into()), ..Filter::default() };
        let by_context = "USING INDEX tasks_by_context (principal=? AND context_id=?)";
        assert!(plan(&context).contains(by_context), "{}", plan(&context));
    }
}
