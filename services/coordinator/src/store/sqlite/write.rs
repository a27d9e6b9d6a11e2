//! The write side: one thread, one connection, one commit a batch (group commit).

use faultline_proto::id::TaskId;
use prost::Message;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use crate::store::{
    Extras, KeyRow, Row, StoredEvent, Write, WriteError, Written,
    sqlite::{push, read::ALIVE},
};
use crate::{clock::now, store::key_retention};

pub(super) struct Batch {
    pub(super) writes: Vec<Write>,
    pub(super) done: oneshot::Sender<Written>,
}

pub(super) fn write_loop(mut connection: Connection, lease: i64, mut queue: mpsc::Receiver<Batch>) {
    while let Some(Batch { writes, done }) = queue.blocking_recv() {
        let count = writes.len();
        let written = commit(&mut connection, lease, writes).unwrap_or_else(|error| {
            let failed = WriteError::Unavailable(error.to_string());
            vec![Err(failed); count]
        });
        let _ = done.send(written);
    }
}

fn commit(
    connection: &mut Connection,
    lease: i64,
    writes: Vec<Write>,
) -> rusqlite::Result<Written> {
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
        Write::Insert { row, events, with } => {
            let fits = has_parent(tx, &row)? && is_free(tx, with.as_deref(), row.id)?;
            let applied = fits && insert(tx, lease, &row)?;
            append(tx, applied, row.id, events)?;
            add_extras(tx, applied, with)
        }
        // There are no others.
        Write::Queue { .. } => Ok(true),
        Write::Advance { from, row, events, with }
        | Write::CompareAndSwap { from, row, events, with } => {
            let fits = is_free(tx, with.as_deref(), row.id)?;
            let applied = fits && advance(tx, lease, from, &row)?;
            append(tx, applied, row.id, events)?;
            add_extras(tx, applied, with)
        }
        Write::Erase { id, from, key } => {
            let erased = tx
                .prepare_cached("DELETE FROM tasks WHERE id = ?1 AND version = ?2 AND owner = ?3")?
                .execute(params![id.as_bytes(), from, lease])?;
            if erased == 1 {
                forget(tx, id)?;
                key.map_or(Ok(()), |key| put_key(tx, &key))?;
            }
            Ok(erased == 1)
        }
        Write::CountLate { id } => {
            let sql = "UPDATE tasks SET late = late + 1 WHERE id = ?1";
            tx.prepare_cached(sql)?.execute(params![id.as_bytes()])?;
            Ok(true)
        }
        Write::Offer { offer, at } => {
            let sql = "INSERT INTO agents (name, offer, seen_ms, offered_ms)
                VALUES (?1, ?2, ?3, ?3)
                ON CONFLICT (name) DO UPDATE SET offer = ?2, seen_ms = ?3, offered_ms = ?3";
            tx.prepare_cached(sql)?.execute(params![offer.name, offer.encode_to_vec(), at])?;
            Ok(true)
        }
        Write::Offered { names, at } => {
            let sql = "UPDATE agents SET offered_ms = MAX(offered_ms, ?2) WHERE name = ?1";
            let mut statement = tx.prepare_cached(sql)?;
            for name in names {
                statement.execute(params![name, at])?;
            }
            Ok(true)
        }
        Write::ForgetAgents { names, before, gone } => {
            let sql = format!(
                "DELETE FROM agents WHERE name = ?1 AND offered_ms < ?2
                    AND NOT EXISTS (SELECT 1 FROM tasks WHERE agent = ?1 AND ({ALIVE}))"
            );
            let (mut statement, mut count) = (tx.prepare_cached(&sql)?, 0);
            for name in names {
                count += statement.execute(params![name, before])? as u64;
            }
            gone.set(count);
            Ok(true)
        }
        Write::ForgetKeys { before, limit } => {
            let sql = "DELETE FROM keys WHERE (principal, agent, key) IN
                (SELECT principal, agent, key FROM keys WHERE created_ms < ?1 LIMIT ?2)";
            tx.prepare_cached(sql)?.execute(params![before, limit])?;
            Ok(true)
        }
        Write::Expire { ids, gone } => {
            let mut count = 0;
            for id in ids {
                count += u64::from(expire(tx, id)?);
            }
            gone.set(count);
            Ok(true)
        }
        Write::Push(write) => push::apply(tx, write),
    }
}

fn insert(tx: &Transaction<'_>, lease: i64, row: &Row) -> rusqlite::Result<bool> {
    let sql = "INSERT OR IGNORE INTO tasks (id, agent, context_id, state, version, owner, seq,
            attempt, reported, worker, created_ms, status_ms, principal, parent)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
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
        row.principal,
        row.parent.as_ref().map(TaskId::as_bytes),
    ])?;
    note_failure(tx, inserted == 1, row)
}

fn advance(tx: &Transaction<'_>, lease: i64, from: u64, row: &Row) -> rusqlite::Result<bool> {
    let sql = "UPDATE tasks SET state = ?1, version = ?2, seq = ?3, attempt = ?4, reported = ?5,
            worker = ?6, status_ms = ?7
        WHERE id = ?8 AND version = ?9 AND owner = ?10
            AND (state = 1 OR state = 2 OR state = 6 OR state = 8)";
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
    note_failure(tx, advanced == 1, row)
}

/// Whether the parent of the task is active.
fn has_parent(tx: &Transaction<'_>, row: &Row) -> rusqlite::Result<bool> {
    let Some(parent) = row.parent else { return Ok(true) };
    let sql = format!("SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ?1 AND ({ALIVE}))");
    tx.prepare_cached(&sql)?.query_row(params![parent.as_bytes()], |r| r.get(0))
}

/// Its key, if it brings one, is no other task's, unless that was too long ago.
fn is_free(tx: &Transaction<'_>, with: Option<&Extras>, id: TaskId) -> rusqlite::Result<bool> {
    let Some(KeyRow { name, .. }) = with.and_then(|extras| extras.key.as_ref()) else {
        return Ok(true);
    };
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM keys WHERE principal = ?1 AND agent = ?2
        AND key = ?3 AND task_id <> ?4 AND created_ms >= ?5)";
    let wanted =
        params![name.principal, name.agent, name.key, id.as_bytes(), now() - key_retention()];
    tx.prepare_cached(sql)?.query_row(wanted, |r| r.get(0))
}

/// Deletes the rows that belong to a task.
fn forget(tx: &Transaction<'_>, id: TaskId) -> rusqlite::Result<()> {
    let sql = "DELETE FROM events WHERE task_id = ?1";
    tx.prepare_cached(sql)?.execute(params![id.as_bytes()])?;
    push::erase(tx, id)
}

/// Once more what was seen when it was chosen: it has ended, and nobody can join it again.
fn expire(tx: &Transaction<'_>, id: TaskId) -> rusqlite::Result<bool> {
    let sql = format!(
        "DELETE FROM tasks WHERE id = ?1 AND NOT ({ALIVE})
         AND NOT EXISTS (SELECT 1 FROM tasks AS above WHERE above.id = tasks.parent AND ({ALIVE}))"
    );
    let is_gone = tx.prepare_cached(&sql)?.execute(params![id.as_bytes()])? == 1;
    if is_gone {
        forget(tx, id)?;
        let sql = "DELETE FROM keys WHERE task_id = ?1";
        tx.prepare_cached(sql)?.execute(params![id.as_bytes()])?;
    }
    Ok(is_gone)
}

/// A step of its own for the few that failed: three more columns in those above would cost every
/// task a sixth more here.
fn note_failure(tx: &Transaction<'_>, applied: bool, row: &Row) -> rusqlite::Result<bool> {
    if let Some(key) = row.failure.as_deref().filter(|_| applied) {
        let sql = "UPDATE tasks SET reason = ?1, origin = ?2, failure_id = ?3 WHERE id = ?4";
        let id = row.id.as_bytes();
        tx.prepare_cached(sql)?.execute(params![key.reason, key.origin, key.id, id])?;
    }
    Ok(applied)
}

fn append(
    tx: &Transaction<'_>,
    applied: bool,
    id: TaskId,
    events: Vec<StoredEvent>,
) -> rusqlite::Result<()> {
    if applied && !events.is_empty() {
        let sql = "INSERT INTO events (task_id, seq, kind, body) VALUES (?1, ?2, ?3, ?4)";
        let mut statement = tx.prepare_cached(sql)?;
        for event in events {
            let kind = event.kind as i32;
            statement.execute(params![id.as_bytes(), event.seq, kind, &event.body[..]])?;
        }
    }
    Ok(())
}

fn add_extras(
    tx: &Transaction<'_>,
    applied: bool,
    with: Option<Box<Extras>>,
) -> rusqlite::Result<bool> {
    if let Some(extras) = with.filter(|_| applied) {
        extras.key.map_or(Ok(()), |key| put_key(tx, &key))?;
        extras.pushes.iter().try_for_each(|row| push::set(tx, row))?;
    }
    Ok(applied)
}

/// One that is there already has expired, or is told its reply.
fn put_key(tx: &Transaction<'_>, row: &KeyRow) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO keys
            (principal, agent, key, task_id, digest, reply, created_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    tx.prepare_cached(sql)?.execute(params![
        row.name.principal,
        row.name.agent,
        row.name.key,
        row.task_id.as_bytes(),
        row.digest,
        row.reply.as_deref(),
        row.created,
    ])?;
    Ok(())
}
