//! The reading side: rows and events, folded into tasks.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use faultline_chassis::limits;
use faultline_proto::{a2a::TaskState, id::TaskId, v1};
use prost::Message;
use rusqlite::{Connection, OpenFlags, params};

use super::super::{Filter, Kind, Page, ReadError, Row, StoredEvent};
use crate::task::Task;

/// Reader connections kept for reuse; more are opened when more read at once.
const READERS_KEPT: usize = 4;

/// In the words of the index over just these, which SQLite takes only then.
pub(super) const ALIVE: &str = "state = 1 OR state = 2 OR state = 6 OR state = 8";

pub(super) const COLUMNS: &str =
    "id, agent, context_id, state, version, seq, attempt, reported, worker,
    created_ms, status_ms";

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
    })
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
    let read = |r: &rusqlite::Row<'_>| {
        let kind = match r.get::<_, i32>(1)? {
            1 => Kind::Artifact,
            2 => Kind::Checkpoint,
            _ => Kind::Plain,
        };
        Ok(StoredEvent { seq: r.get(0)?, kind, body: Bytes::from(r.get::<_, Vec<u8>>(2)?) })
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    c.prepare_cached(&sql)?.query_map(params![id.as_bytes(), after, limit], read)?.collect()
}

/// The task is what its events say; the row adds what they do not.
pub(super) fn fold(c: &Connection, row: Row, all: bool) -> Result<Task, ReadError> {
    let damaged = |what: String| ReadError::Damaged { id: row.id, what };
    let stored = events(c, row.id, 0, usize::MAX, all).map_err(unavailable)?;
    let mut task = Task::blank(row.id, row.agent, row.context_id, row.created);
    for event in stored {
        let decoded = v1::Event::decode(event.body).map_err(|e| damaged(e.to_string()))?;
        task.apply(&decoded);
    }
    if all && (task.seq != row.seq || task.state != row.state) {
        return Err(damaged(format!("its row says {:?} at {}", row.state, row.seq)));
    }
    task.version = row.version;
    task.seq = row.seq;
    task.reported = row.reported;
    Ok(task)
}

pub(super) fn list(c: &Connection, filter: &Filter) -> Result<Page, ReadError> {
    let mut wheres = vec!["1 = 1"];
    let mut values: Vec<(&str, Box<dyn rusqlite::ToSql>)> = Vec::new();
    if let Some(agent) = &filter.agent {
        wheres.push("agent = :agent");
        values.push((":agent", Box::new(agent.clone())));
    }
    if let Some(context) = &filter.context_id {
        wheres.push("context_id = :context");
        values.push((":context", Box::new(context.clone())));
    }
    if let Some(state) = filter.state {
        wheres.push("state = :state");
        values.push((":state", Box::new(state as i32)));
    }
    if let Some(from) = filter.status_from {
        wheres.push("status_ms >= :from");
        values.push((":from", Box::new(from)));
    }
    let total = {
        let sql = format!("SELECT COUNT(*) FROM tasks WHERE {}", wheres.join(" AND "));
        query_one(c, &sql, &values).map_err(unavailable)?
    };
    if let Some(cursor) = filter.after {
        wheres.push("(status_ms, id) < (:after_ms, :after_id)");
        values.push((":after_ms", Box::new(cursor.status_at)));
        values.push((":after_id", Box::new(*cursor.id.as_bytes())));
    }
    let sql = format!(
        "SELECT {COLUMNS} FROM tasks WHERE {} ORDER BY status_ms DESC, id DESC LIMIT {}",
        wheres.join(" AND "),
        filter.limit + 1
    );
    let mut rows = c
        .prepare_cached(&sql)
        .and_then(|mut s| s.query_map(&*named(&values), row)?.collect::<Result<Vec<_>, _>>())
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

fn named<'a>(
    values: &'a [(&'a str, Box<dyn rusqlite::ToSql>)],
) -> Vec<(&'a str, &'a dyn rusqlite::ToSql)> {
    values.iter().map(|(name, value)| (*name, value.as_ref())).collect()
}

fn query_one(
    c: &Connection,
    sql: &str,
    values: &[(&str, Box<dyn rusqlite::ToSql>)],
) -> rusqlite::Result<usize> {
    c.prepare_cached(sql)?.query_row(&*named(values), |r| r.get(0))
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
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open().map_err(unavailable)?,
        };
        let done = work(&connection);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
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
