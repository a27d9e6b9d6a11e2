//! Push configurations in SQLite: rows with a position in the events of their task.

use faultline_chassis::limits;
use faultline_proto::{a2a::TaskPushNotificationConfig, id::TaskId};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use crate::store::{PushKey, PushRow, PushWrite, ReadError, sqlite::read::unavailable};

pub(super) fn apply(tx: &Transaction<'_>, write: PushWrite) -> rusqlite::Result<bool> {
    match write {
        PushWrite::Set(row) => {
            let fits = fits(tx, &row.key)?;
            if fits {
                set(tx, &row)?;
            }
            return Ok(fits);
        }
        PushWrite::Sent { key, seq, done } => {
            let sql = "UPDATE pushes SET sent_seq = max(sent_seq, ?3), done = done OR ?4
                WHERE task_id = ?1 AND id = ?2";
            let key = (key.task.as_bytes(), &key.id);
            tx.prepare_cached(sql)?.execute(params![key.0, key.1, seq, done])?;
        }
        PushWrite::Delete(key) => {
            let sql = "DELETE FROM pushes WHERE task_id = ?1 AND id = ?2";
            tx.prepare_cached(sql)?.execute(params![key.task.as_bytes(), key.id])?;
        }
    }
    Ok(true)
}

/// The task is there and has a place for it.
fn fits(tx: &Transaction<'_>, key: &PushKey) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ?1)
        AND (EXISTS (SELECT 1 FROM pushes WHERE task_id = ?1 AND id = ?2)
            OR (SELECT COUNT(*) FROM pushes WHERE task_id = ?1) < ?3)";
    let most = limits::PUSH_CONFIGS_MAX;
    tx.prepare_cached(sql)?.query_row(params![key.task.as_bytes(), key.id, most], |r| r.get(0))
}

pub(super) fn set(tx: &Transaction<'_>, row: &PushRow) -> rusqlite::Result<()> {
    let sql = "INSERT INTO pushes (task_id, id, config, sent_seq, done) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (task_id, id) DO UPDATE SET config = excluded.config,
            sent_seq = CASE WHEN done THEN excluded.sent_seq ELSE sent_seq END,
            done = done AND excluded.done";
    let (key, config) = (&row.key, row.config.encode_to_vec());
    tx.prepare_cached(sql)?
        .execute(params![key.task.as_bytes(), key.id, config, row.sent, row.done])
        .map(drop)
}

pub(super) fn erase(tx: &Transaction<'_>, task: TaskId) -> rusqlite::Result<()> {
    let sql = "DELETE FROM pushes WHERE task_id = ?1";
    tx.prepare_cached(sql)?.execute(params![task.as_bytes()]).map(drop)
}

pub(super) fn one(c: &Connection, key: &PushKey) -> Result<Option<PushRow>, ReadError> {
    let sql = "SELECT task_id, id, config, sent_seq, done FROM pushes
        WHERE task_id = ?1 AND id = ?2";
    let found = c
        .prepare_cached(sql)
        .and_then(|mut s| s.query_row(params![key.task.as_bytes(), key.id], row).optional());
    found.map_err(unavailable)?.map(decode).transpose()
}

pub(super) fn page(
    c: &Connection,
    task: TaskId,
    after: &str,
    limit: usize,
) -> Result<Vec<PushRow>, ReadError> {
    let sql = "SELECT task_id, id, config, sent_seq, done FROM pushes
        WHERE task_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
    let found = c.prepare_cached(sql).and_then(|mut s| {
        s.query_map(params![task.as_bytes(), after, limit], row)?.collect::<Result<Vec<_>, _>>()
    });
    found.map_err(unavailable)?.into_iter().map(decode).collect()
}

pub(super) fn unfinished(c: &Connection) -> Result<Vec<PushKey>, ReadError> {
    let key = |r: &Row<'_>| Ok(PushKey { task: TaskId::from_bytes(r.get(0)?), id: r.get(1)? });
    let found = c
        .prepare("SELECT task_id, id FROM pushes WHERE done = 0")
        .and_then(|mut s| s.query_map([], key)?.collect::<Result<Vec<_>, _>>());
    found.map_err(unavailable)
}

/// A row, its configuration still encoded.
type Raw = (PushKey, Vec<u8>, u64, bool);

fn row(r: &Row<'_>) -> rusqlite::Result<Raw> {
    let key = PushKey { task: TaskId::from_bytes(r.get(0)?), id: r.get(1)? };
    Ok((key, r.get(2)?, r.get(3)?, r.get(4)?))
}

fn decode((key, config, sent, done): Raw) -> Result<PushRow, ReadError> {
    let task = key.task;
    let damaged = |e: prost::DecodeError| ReadError::Damaged { id: task, what: e.to_string() };
    let config = TaskPushNotificationConfig::decode(config.as_slice()).map_err(damaged)?;
    Ok(PushRow { key, config, sent, done })
}
