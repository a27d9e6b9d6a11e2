//! SQLite, embedded. One thread writes batches (group commit, synced to disk); readers have
//! connections of their own and never wait for the writer. A lock file excludes a second
//! coordinator.

mod children;
mod files;
mod push;
mod read;
mod view;
mod workers;
mod write;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use faultline_chassis::credential::Binding;
use faultline_proto::{
    id::{TaskId, WorkerId},
    v1,
};
use futures::FutureExt;
use parking_lot::Mutex;
use prost::Message;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::{mpsc, oneshot};

use self::{
    read::{ALIVE, COLUMNS, Readers, events, fold, key, list, row, unavailable},
    write::{Batch, write_loop},
};
use super::{
    Aged, BindingQuota, Buckets, Cluster, Cursor, Filter, KeyName, KeyRow, Page, PushKey, PushRow,
    ReadError, Reading, Remembered, Row, Rows, Scope, SigningSecret, Store, Stored, StoredEvent,
    Story, Wanted, Write, Written, migrations::STEPS,
};
use crate::task::{Millis, Task};

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: cannot be opened: {source}")]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} is in use by another coordinator: stop that one, or name another store")]
    InUse { path: PathBuf },
    #[error("{path} was written by a newer faultline (schema {found}, this one knows {known})")]
    Newer { path: PathBuf, found: usize, known: usize },
}

pub(crate) struct Sqlite {
    /// Until it is dropped; the writer ends with it.
    writer: Option<mpsc::Sender<Batch>>,
    thread: Option<thread::JoinHandle<()>>,
    readers: Arc<Readers>,
    secret: SigningSecret,
    _lock: File,
}

impl Sqlite {
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let sqlite = |source| OpenError::Sqlite { path: path.to_owned(), source };
        files::make(path)?;
        let lock = files::lock(path)?;
        let mut connection = Connection::open(path).map_err(sqlite)?;
        prepare(&connection).map_err(sqlite)?;
        migrate(&mut connection, path)?;
        let lease = new_lease(&connection).map_err(sqlite)?;
        let secret = secret(&connection).map_err(sqlite)?;
        let (writer, queue) = mpsc::channel(1);
        let file = |source| OpenError::File { path: path.to_owned(), source };
        let thread = thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || write_loop(connection, lease, queue))
            .map_err(file)?;
        let readers = Readers { path: path.to_owned(), idle: Mutex::default() };
        let (writer, thread) = (Some(writer), Some(thread));
        Ok(Self { writer, thread, readers: Arc::new(readers), secret, _lock: lock })
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

    /// A second write connection, for rare and short writes.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reading<'_, T> {
        let path = self.readers.path.clone();
        async move {
            let written = move || workers::open(&path).and_then(|mut c| work(&mut c));
            let done = tokio::task::spawn_blocking(written).await;
            let done = done.map_err(|e| ReadError::Unavailable(e.to_string()))?;
            done.map_err(unavailable)
        }
        .boxed()
    }

    /// Several reads of the same moment.
    fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Reading<'_, T> {
        self.read(|c| c.unchecked_transaction().and_then(|tx| work(&tx)).map_err(unavailable))
    }
}

/// Waits for the writer to close the database, so that the lock goes only after that.
impl Drop for Sqlite {
    fn drop(&mut self) {
        self.writer = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -4096)?;
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
    let sql = format!("UPDATE tasks SET owner = ?1 WHERE {ALIVE}");
    connection.execute(&sql, params![lease])?;
    Ok(lease)
}

/// The one that is there, or a new one.
fn secret(connection: &Connection) -> rusqlite::Result<SigningSecret> {
    let made: SigningSecret = rand::random();
    let sql = "INSERT OR IGNORE INTO meta (name, value) VALUES ('secret', ?1)";
    connection.execute(sql, params![made])?;
    connection.query_row("SELECT value FROM meta WHERE name = 'secret'", [], |r| r.get(0))
}

impl Store for Sqlite {
    /// The lock on its file keeps others out.
    fn cluster(&self) -> Option<&dyn Cluster> {
        None
    }

    fn secret(&self) -> &SigningSecret {
        &self.secret
    }

    fn commit(&self, writes: Vec<Write>) -> oneshot::Receiver<Written> {
        let (done, written) = oneshot::channel();
        // A dropped sender answers the receiver; there is room for the one batch under way.
        if let Some(writer) = &self.writer {
            let _ = writer.try_send(Batch { writes, done });
        }
        written
    }

    fn task(&self, id: TaskId, scope: Scope) -> Reading<'_, Option<Stored>> {
        self.read(move |c| {
            let tx = c.unchecked_transaction().map_err(unavailable)?;
            let found = tx
                .prepare_cached(&format!("SELECT {COLUMNS}, late FROM tasks WHERE id = ?1"))
                .and_then(|mut s| {
                    s.query_row(params![id.as_bytes()], |r| Ok((row(r)?, r.get::<_, u32>("late")?)))
                        .optional()
                })
                .map_err(unavailable)?;
            // Before its events are read, or the time taken would tell that it is there.
            let found = found.filter(|(row, _)| scope.contains(row));
            let Some((row, late)) = found else { return Ok(None) };
            Ok(Some(Stored { task: fold(&tx, row, true)?, late, ours: true }))
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

    fn children(&self, id: TaskId, scope: Scope, limit: usize) -> Reading<'_, Vec<v1::Child>> {
        self.read(move |c| children::of(c, id, &scope, limit))
    }

    fn tasks(&self, wanted: Wanted, after: Option<Cursor>, limit: usize) -> Reading<'_, Rows> {
        self.look(move |c| view::tasks(c, &wanted, after, limit))
    }

    fn rows(&self, ids: Vec<TaskId>) -> Reading<'_, Vec<Row>> {
        self.look(move |c| view::rows(c, ids))
    }

    fn story(
        &self,
        id: TaskId,
        scope: Scope,
        after: u64,
        limit: usize,
    ) -> Reading<'_, Option<Story>> {
        self.look(move |c| view::story(c, id, &scope, after, limit))
    }

    fn activity(&self, over: Buckets) -> Reading<'_, Vec<v1::AgentActivity>> {
        self.look(move |c| view::activity(c, over))
    }

    fn failures(&self, over: Buckets) -> Reading<'_, Vec<v1::FailureCount>> {
        self.look(move |c| view::failures(c, over))
    }

    fn recover(&self) -> Reading<'_, Vec<Task>> {
        self.read(move |c| {
            let tx = c.unchecked_transaction().map_err(unavailable)?;
            let sql = format!("SELECT {COLUMNS} FROM tasks WHERE {ALIVE}");
            let rows = tx
                .prepare(&sql)
                .and_then(|mut s| s.query_map([], row)?.collect::<Result<Vec<_>, _>>())
                .map_err(unavailable)?;
            rows.into_iter().map(|row| fold(&tx, row, true)).collect()
        })
    }

    fn agents(&self, only: Option<String>) -> Reading<'_, Vec<Remembered>> {
        self.read(move |c| {
            let sql = "SELECT offer, seen_ms, offered_ms FROM agents
                WHERE ?1 IS NULL OR name = ?1 ORDER BY name";
            let rows = c
                .prepare(sql)
                .and_then(|mut s| {
                    let row =
                        |r: &rusqlite::Row<'_>| Ok((r.get::<_, Vec<u8>>(0)?, r.get(1)?, r.get(2)?));
                    s.query_map([only], row)?.collect::<Result<Vec<_>, _>>()
                })
                .map_err(unavailable)?;
            let offers = rows.into_iter().map(|(blob, changed, offered)| {
                let offer = v1::AgentOffer::decode(blob.as_slice())?;
                Ok::<_, prost::DecodeError>(Remembered { offer, changed, offered })
            });
            offers.collect::<Result<_, _>>().map_err(|e| ReadError::Unavailable(e.to_string()))
        })
    }

    fn key(&self, name: KeyName, since: Millis) -> Reading<'_, Option<KeyRow>> {
        self.read(move |c| key(c, name, since).map_err(unavailable))
    }

    fn oldest_key(&self) -> Reading<'_, Option<Millis>> {
        self.read(move |c| {
            let oldest = "SELECT MIN(created_ms) FROM keys";
            c.query_row(oldest, [], |r| r.get(0)).map_err(unavailable)
        })
    }

    fn aged(&self, after: TaskId, before: TaskId, limit: usize) -> Reading<'_, Vec<Aged>> {
        self.look(move |c| view::aged(c, after, before, limit))
    }

    fn push(&self, key: PushKey) -> Reading<'_, Option<PushRow>> {
        self.read(move |c| push::one(c, &key))
    }

    fn pushes(&self, task: TaskId, after: String, limit: usize) -> Reading<'_, Vec<PushRow>> {
        self.read(move |c| push::page(c, task, &after, limit))
    }

    fn unfinished_pushes(&self) -> Reading<'_, Vec<PushKey>> {
        self.read(push::unfinished)
    }

    fn introduce(
        &self,
        worker: WorkerId,
        to: Binding,
        at: Millis,
        quota: BindingQuota,
    ) -> Reading<'_, Option<Binding>> {
        self.write(move |c| workers::introduce(c, worker, to, at, quota))
    }

    fn keep_introduced(
        &self,
        workers: Vec<WorkerId>,
        at: Millis,
        before: Millis,
    ) -> Reading<'_, ()> {
        self.write(move |c| workers::keep(c, &workers, at, before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_coordinator_on_sqlite_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let first = Sqlite::open(&path).unwrap();
        assert!(matches!(Sqlite::open(&path), Err(OpenError::InUse { .. })));
        drop(first);
        assert!(Sqlite::open(&path).is_ok());
    }

    #[test]
    fn newer_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        drop(Sqlite::open(&path).unwrap());
        let raw = Connection::open(&path).unwrap();
        raw.pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(Sqlite::open(&path), Err(OpenError::Newer { found: 99, .. })));
    }

    #[tokio::test]
    async fn task_without_a_principal_becomes_local() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let raw = Connection::open(&path).unwrap();
        raw.execute_batch(STEPS[0]).unwrap();
        raw.pragma_update(None, "user_version", 1).unwrap();
        let id = TaskId::new();
        let submitted = v1::event::Body::Submitted(v1::Submitted::default());
        let event = v1::Event { body: Some(submitted), ..v1::Event::default() };
        raw.execute(
            "INSERT INTO tasks VALUES (?1, 'echo', 'c', 1, 1, 1, 1, 0, 0, '', 5, 5, 0)",
            params![id.as_bytes()],
        )
        .unwrap();
        let body = event.encode_to_vec();
        let insert = "INSERT INTO events VALUES (?1, 1, 0, ?2)";
        raw.execute(insert, params![id.as_bytes(), body]).unwrap();
        drop(raw);
        let store = Sqlite::open(&path).unwrap();
        let mut alive = store.recover().await.unwrap();
        let mut task = alive.pop().expect("it goes on");
        task.version += 1;
        let (row, events, with) = (super::super::Row::from(&task), Vec::new(), None);
        let goes_on = Write::Advance { from: 1, row, events, with };
        assert_eq!(store.commit(vec![goes_on]).await.unwrap(), [Ok(())]);
        let of = |whose: &str| Scope { principal: Some(whose.into()), ..Scope::default() };
        let stored = store.task(id, of("local")).await.unwrap().expect("it is there");
        assert_eq!(stored.task.principal, "local", "and says so itself");
        let listed = store.list(Filter { scope: of("local"), limit: 9, ..Filter::default() });
        assert_eq!(listed.await.unwrap().total, 1);
        assert!(store.task(id, of("ann")).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn task_from_an_older_schema_continues_and_may_delegate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let raw = Connection::open(&path).unwrap();
        STEPS[..2].iter().for_each(|step| raw.execute_batch(step).unwrap());
        raw.pragma_update(None, "user_version", 2).unwrap();
        let id = TaskId::new();
        raw.execute(
            "INSERT INTO tasks VALUES (?1, 'echo', 'c', 1, 1, 1, 1, 0, 0, '', 5, 5, 3, 'ann')",
            params![id.as_bytes()],
        )
        .unwrap();
        let submitted = v1::Submitted { principal: "ann".into(), ..v1::Submitted::default() };
        let body = Some(v1::event::Body::Submitted(submitted.clone()));
        let event = v1::Event { body, ..v1::Event::default() }.encode_to_vec();
        let insert = "INSERT INTO events VALUES (?1, 1, 0, ?2)";
        raw.execute(insert, params![id.as_bytes(), event]).unwrap();
        drop(raw);
        let store = Sqlite::open(&path).unwrap();
        let task = store.recover().await.unwrap().pop().expect("it goes on");
        assert_eq!((task.id, task.parent.as_ref(), task.version), (id, None, 1));
        let stored = store.task(id, Scope::default()).await.unwrap().unwrap();
        assert_eq!(stored.late, 3);
        let parent = v1::Parent { task_id: id.to_string(), ..v1::Parent::default() };
        let submitted = v1::Submitted { parent: Some(parent), ..submitted };
        let (child, event) = Task::submit(TaskId::new(), "echo", "c".into(), submitted, 1);
        let (row, events) =
            (super::super::Row::from(&child), vec![super::super::encode(1, &event)]);
        let insert = Write::Insert { row, events, with: None };
        assert_eq!(store.commit(vec![insert]).await.unwrap(), [Ok(())]);
        let secret = *store.secret();
        drop(store);
        let store = Sqlite::open(&path).unwrap();
        assert_eq!(*store.secret(), secret, "tokens outlive a restart");
        assert_ne!(secret, [0; 32]);
        let raw = Connection::open(&path).unwrap();
        let children = "SELECT id FROM tasks WHERE parent = ?1";
        let found: [u8; 16] =
            raw.query_row(children, params![id.as_bytes()], |r| r.get(0)).unwrap();
        assert_eq!(TaskId::from_bytes(found), child.id);
        let plan: String = raw
            .query_row(&format!("EXPLAIN QUERY PLAN {children}"), params![id.as_bytes()], |r| {
                r.get(3)
            })
            .unwrap();
        assert!(plan.contains("tasks_by_parent"), "{plan}");
    }

    #[test]
    fn commit_is_synced_when_it_returns() {
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
