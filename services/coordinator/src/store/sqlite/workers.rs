//! Bindings of worker ids in SQLite, written on a connection of their own: a worker attaches
//! rarely, and its binding is needed before anything else.

use std::{path::Path, time::Duration};

use faultline_chassis::credential::Binding;
use faultline_proto::id::WorkerId;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use crate::{store::BindingQuota, task::Millis};

/// For a short transaction. The writer begins its own with a write lock, so either waits for the
/// other, and neither meets a snapshot that has become old.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

pub(super) fn introduce(
    connection: &mut Connection,
    worker: WorkerId,
    to: Binding,
    at: Millis,
    quota: BindingQuota,
) -> rusqlite::Result<Option<Binding>> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let worker = worker.to_string();
    let bound = "SELECT binding FROM workers WHERE id = ?1";
    let bound = tx.query_row(bound, params![worker], |row| row.get(0)).optional()?;
    if bound.is_none() && !has_room(&tx, to, quota)? {
        return Ok(None);
    }
    let sql = "INSERT INTO workers (id, binding, seen_ms) VALUES (?1, ?2, ?3) ON CONFLICT (id)
        DO UPDATE SET seen_ms = max(seen_ms, excluded.seen_ms) WHERE binding = excluded.binding";
    tx.execute(sql, params![worker, to, at])?;
    tx.commit()?;
    Ok(Some(bound.unwrap_or(to)))
}

/// Whether the credential may bind one more id. Drops its stale bindings if not.
fn has_room(tx: &Transaction<'_>, of: Binding, quota: BindingQuota) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM (SELECT 1 FROM workers WHERE binding = ?1 LIMIT ?2)";
    let bound: usize = tx.query_row(sql, params![of, quota.max], |row| row.get(0))?;
    if bound < quota.max {
        return Ok(true);
    }
    let sql = "DELETE FROM workers WHERE binding = ?1 AND seen_ms < ?2";
    Ok(tx.execute(sql, params![of, quota.stale_before])? > 0)
}

pub(super) fn keep(
    connection: &mut Connection,
    workers: &[WorkerId],
    at: Millis,
    before: Millis,
) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for worker in workers {
        let sql = "UPDATE workers SET seen_ms = max(seen_ms, ?2) WHERE id = ?1";
        tx.execute(sql, params![worker.to_string(), at])?;
    }
    tx.execute("DELETE FROM workers WHERE seen_ms < ?1", params![before])?;
    tx.commit()
}
