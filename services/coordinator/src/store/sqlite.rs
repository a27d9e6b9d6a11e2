//! SQLite, embedded. One thread writes, batch by batch, with a commit that is on the disk when it
//! returns; readers have connections of their own and never wait for it. A lock file keeps a
//! second coordinator out of the same data.

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use bytes::Bytes;
use faultline_proto::{a2a::TaskState, id::TaskId, v1};
use futures::FutureExt;
use prost::Message;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use tokio::sync::{mpsc, oneshot};

use super::{
    Filter, Kind, Page, ReadError, Reading, Row, Store, Stored, StoredEvent, Write, WriteError,
    Written, migrations::STEPS,
};
use crate::task::Task;

/// Reader connections kept for reuse; more are opened when more read at once.
const READERS_KEPT: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: cannot be opened: {source}")]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} is in use by another coordinator")]
    InUse { path: PathBuf },
    #[error("{path} was written by a newer faultline (schema {found}, this one knows {known})")]
    Newer { path: PathBuf, found: usize, known: usize },
}

pub(crate) struct Sqlite {
    writer: mpsc::Sender<Batch>,
    readers: Arc<Readers>,
    _lock: File,
}

struct Batch {
    writes: Vec<Write>,
    done: oneshot::Sender<Written>,
}

impl Sqlite {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            let file = |source| OpenError::File { path: parent.to_owned(), source };
            std::fs::create_dir_all(parent).map_err(file)?;
        }
        let lock = lock(path)?;
        let mut connection = Connection::open(path).map_err(sqlite)?;
        prepare(&connection).map_err(sqlite)?;
        migrate(&mut connection, path)?;
        let lease = new_lease(&connection).map_err(sqlite)?;
        let (writer, queue) = mpsc::channel(1);
        let file = |source| OpenError::File { path: path.to_owned(), source };
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || write_loop(connection, lease, queue))
            .map_err(file)?;
        let readers = Readers { path: path.to_owned(), idle: Mutex::default() };
        Ok(Self { writer, readers: Arc::new(readers), _lock: lock })
    }

    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, ReadError> + Send + 'static,
    ) -> Reading<'_, T> {
        let readers = Arc::clone(&self.readers);
        async move {
            let done = tokio::task::spawn_blocking(move || readers.with(work)).await;
            done.unwrap_or_else(|e| Err(ReadError::Unavailable(e.to_string())))
        }
        .boxed()
    }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let path = path.with_extension("lock");
    let failed = |source| OpenError::File { path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
    let found: usize =
        connection.pragma_query_value(None, "user_version", |r| r.get(0)).map_err(sqlite)?;
    if found > STEPS.len() {
        return Err(OpenError::Newer { path: path.to_owned(), found, known: STEPS.len() });
    }
    for (at, step) in STEPS.iter().enumerate().skip(found) {
        let tx = connection.transaction().map_err(sqlite)?;
        tx.execute_batch(step).map_err(sqlite)?;
        tx.pragma_update(None, "user_version", at + 1).map_err(sqlite)?;
        tx.commit().map_err(sqlite)?;
    }
    Ok(())
}

/// Each start of a coordinator is a lease of its own; its tasks carry the number.
fn new_lease(connection: &Connection) -> rusqlite::Result<i64> {
    let now = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    connection.execute(&format!("INSERT INTO leases (started_ms) VALUES ({now})"), [])?;
    let lease = connection.last_insert_rowid();
    connection
        .execute("UPDATE tasks SET owner = ?1 WHERE state IN (1, 2, 6, 8)", params![lease])?;
    Ok(lease)
}

fn write_loop(mut connection: Connection, lease: i64, mut queue: mpsc::Receiver<Batch>) {
    while let Some(Batch { writes, done }) = queue.blocking_recv() {
        let count = writes.len();
        let written = commit(&mut connection, lease, writes).unwrap_or_else(|error| {
            let failed = WriteError::Unavailable(error.to_string());
            vec![Err(failed); count]
        });
        let _ = done.send(written);
    }
}

fn commit(connection: &mut Connection, lease: i64, writes: Vec<Write>) -> rusqlite::Result<Written> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut written = Vec::with_capacity(writes.len());
    for write in writes {
        // An error of SQLite ends the whole batch; a refusal only this write.
        let applied = apply(&tx, lease, write)?;
        written.push(if applied { Ok(()) } else { Err(WriteError::Conflict) });
    }
    tx.commit()?;
    Ok(written)
}

fn apply(tx: &Transaction<'_>, lease: i64, write: Write) -> rusqlite::Result<bool> {
    match write {
        Write::Insert { row, events } => {
            let applied = insert(tx, lease, &row)?;
            append(tx, applied, row.id, events)
        }
        Write::Advance { from, row, events } => {
            let applied = advance(tx, lease, from, &row)?;
            append(tx, applied, row.id, events)
        }
        Write::Erase { id, from } => {
            let erased = tx
                .prepare_cached("DELETE FROM tasks WHERE id = ?1 AND version = ?2 AND owner = ?3")?
                .execute(params![id.as_bytes(), from, lease])?;
            if erased == 1 {
                tx.prepare_cached("DELETE FROM events WHERE task_id = ?1")?
                    .execute(params![id.as_bytes()])?;
            }
            Ok(erased == 1)
        }
        Write::CountLate { id } => {
            let sql = "UPDATE tasks SET late = late + 1 WHERE id = ?1";
            tx.prepare_cached(sql)?.execute(params![id.as_bytes()])?;
            Ok(true)
        }
        Write::Offer { offer, at } => {
            let sql = "INSERT INTO agents (name, offer, seen_ms) VALUES (?1, ?2, ?3)
                ON CONFLICT (name) DO UPDATE SET offer = ?2, seen_ms = ?3";
            tx.prepare_cached(sql)?.execute(params![offer.name, offer.encode_to_vec(), at])?;
            Ok(true)
        }
    }
}

fn insert(tx: &Transaction<'_>, lease: i64, row: &Row) -> rusqlite::Result<bool> {
    let sql = "INSERT OR IGNORE INTO tasks (id, agent, context_id, state, version, owner, seq,
            attempt, reported, worker, created_ms, status_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    let inserted = tx.prepare_cached(sql)?.execute(params![
        row.id.as_bytes(),
        row.agent,
        row.context_id,
        row.state as i32,
        row.version,
        lease,
        row.seq,
        row.attempt,
        row.reported,
        row.worker,
        row.created,
        row.status_at,
    ])?;
    Ok(inserted == 1)
}

fn advance(tx: &Transaction<'_>, lease: i64, from: u64, row: &Row) -> rusqlite::Result<bool> {
    let sql = "UPDATE tasks SET state = ?1, version = ?2, seq = ?3, attempt = ?4, reported = ?5,
            worker = ?6, status_ms = ?7
        WHERE id = ?8 AND version = ?9 AND owner = ?10";
    let advanced = tx.prepare_cached(sql)?.execute(params![
        row.state as i32,
        row.version,
        row.seq,
        row.attempt,
        row.reported,
        row.worker,
        row.status_at,
        row.id.as_bytes(),
        from,
        lease,
    ])?;
    Ok(advanced == 1)
}

fn append(
    tx: &Transaction<'_>,
    applied: bool,
    id: TaskId,
    events: Vec<StoredEvent>,
) -> rusqlite::Result<bool> {
    if applied && !events.is_empty() {
        let sql = "INSERT INTO events (task_id, seq, kind, body) VALUES (?1, ?2, ?3, ?4)";
        let mut statement = tx.prepare_cached(sql)?;
        for event in events {
            let kind = event.kind as i32;
            statement.execute(params![id.as_bytes(), event.seq, kind, &event.body[..]])?;
        }
    }
    Ok(applied)
}

impl Store for Sqlite {
    fn commit(&self, writes: Vec<Write>) -> oneshot::Receiver<Written> {
        let (done, written) = oneshot::channel();
        // A dropped sender answers the receiver; there is room for the one batch under way.
        let _ = self.writer.try_send(Batch { writes, done });
        written
    }

    fn task(&self, id: TaskId) -> Reading<'_, Option<Stored>> {
        self.read(move |c| {
            let tx = c.unchecked_transaction().map_err(unavailable)?;
            let found = tx
                .prepare_cached(&format!("SELECT {COLUMNS}, late FROM tasks WHERE id = ?1"))
                .and_then(|mut s| {
                    s.query_row(params![id.as_bytes()], |r| Ok((row(r)?, r.get::<_, u32>(11)?)))
                        .optional()
                })
                .map_err(unavailable)?;
            let Some((row, late)) = found else { return Ok(None) };
            Ok(Some(Stored { task: fold(&tx, row, true)?, late }))
        })
    }

    fn events(&self, id: TaskId, after: u64, limit: usize) -> Reading<'_, Vec<StoredEvent>> {
        self.read(move |c| events(c, id, after, limit, true).map_err(unavailable))
    }

    fn list(&self, filter: Filter) -> Reading<'_, Page> {
        self.read(move |c| {
            let tx = c.unchecked_transaction().map_err(unavailable)?;
            list(&tx, &filter)
        })
    }

    fn recover(&self) -> Reading<'_, Vec<Task>> {
        self.read(move |c| {
            let tx = c.unchecked_transaction().map_err(unavailable)?;
            let sql = format!("SELECT {COLUMNS} FROM tasks WHERE state IN (1, 2, 6, 8)");
            let rows = tx
                .prepare(&sql)
                .and_then(|mut s| s.query_map([], row)?.collect::<Result<Vec<_>, _>>())
                .map_err(unavailable)?;
            rows.into_iter().map(|row| fold(&tx, row, true)).collect()
        })
    }

    fn agents(&self) -> Reading<'_, Vec<v1::AgentOffer>> {
        self.read(move |c| {
            let blobs = c
                .prepare("SELECT offer FROM agents ORDER BY name")
                .and_then(|mut s| {
                    s.query_map([], |r| r.get::<_, Vec<u8>>(0))?.collect::<Result<Vec<_>, _>>()
                })
                .map_err(unavailable)?;
            let offers = blobs.iter().map(|b| v1::AgentOffer::decode(b.as_slice()));
            offers.collect::<Result<_, _>>().map_err(|e| ReadError::Unavailable(e.to_string()))
        })
    }
}

const COLUMNS: &str = "id, agent, context_id, state, version, seq, attempt, reported, worker,
    created_ms, status_ms";

fn row(r: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
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

fn events(
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
fn fold(c: &Connection, row: Row, all: bool) -> Result<Task, ReadError> {
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

fn list(c: &Connection, filter: &Filter) -> Result<Page, ReadError> {
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
        .and_then(|mut s| {
            s.query_map(&*named(&values), row)?.collect::<Result<Vec<_>, _>>()
        })
        .map_err(unavailable)?;
    let more = rows.len() > filter.limit;
    rows.truncate(filter.limit);
    let tasks = rows.into_iter().map(|row| fold(c, row, filter.artifacts));
    Ok(Page { tasks: tasks.collect::<Result<_, _>>()?, more, total })
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

fn unavailable(error: rusqlite::Error) -> ReadError {
    ReadError::Unavailable(error.to_string())
}

/// Read-only connections, made when needed.
struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    fn with<T>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_coordinator_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let first = Sqlite::open(&path).unwrap();
        assert!(matches!(Sqlite::open(&path), Err(OpenError::InUse { .. })));
        drop(first);
        assert!(Sqlite::open(&path).is_ok());
    }

    #[test]
    fn a_newer_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        drop(Sqlite::open(&path).unwrap());
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(Sqlite::open(&path), Err(OpenError::Newer { found: 99, .. })));
    }

    #[test]
    fn a_commit_is_on_the_disk_when_it_returns() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        drop(Sqlite::open(&path).unwrap());
        let raw = Connection::open(&path).unwrap();
        prepare(&raw).unwrap();
        let mode: String = raw.pragma_query_value(None, "journal_mode", |r| r.get(0)).unwrap();
        let sync: i32 = raw.pragma_query_value(None, "synchronous", |r| r.get(0)).unwrap();
        assert_eq!((mode.as_str(), sync), ("wal", 2));
    }
}
