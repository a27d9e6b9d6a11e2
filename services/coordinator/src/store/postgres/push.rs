//! Reads of push configurations in PostgreSQL.

use deadpool_postgres::{GenericClient, Object};
use faultline_proto::{a2a::TaskPushNotificationConfig, id::TaskId};
use prost::Message;
use tokio_postgres::{Error, Row as Record};

use crate::store::{
    PushKey, PushRow, ReadError,
    postgres::read::{id, text, unavailable, uuid},
};

pub(super) async fn one(c: &Object, key: &PushKey) -> Result<Option<PushRow>, ReadError> {
    let sql = "SELECT task_id, id, config, sent_seq, done FROM pushes
        WHERE task_id = $1 AND id = $2";
    let found = async {
        let statement = c.prepare_cached(sql).await?;
        c.query_opt(&statement, &[&uuid(&key.task), &key.id.as_bytes()]).await
    };
    found.await.map_err(unavailable)?.as_ref().map(row).transpose()
}

pub(super) async fn page(
    c: &Object,
    task: TaskId,
    after: &str,
    limit: usize,
) -> Result<Vec<PushRow>, ReadError> {
    let sql = "SELECT task_id, id, config, sent_seq, done FROM pushes
        WHERE task_id = $1 AND id > $2 ORDER BY id LIMIT $3";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = async {
        let statement = c.prepare_cached(sql).await?;
        c.query(&statement, &[&uuid(&task), &after.as_bytes(), &limit]).await
    };
    found.await.map_err(unavailable)?.iter().map(row).collect()
}

pub(super) async fn is_of(c: &Object, me: i64, key: &PushKey) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pushes
        WHERE task_id = $1 AND id = $2 AND owner = $3 AND NOT done)";
    let statement = c.prepare_cached(sql).await?;
    c.query_one(&statement, &[&uuid(&key.task), &key.id.as_bytes(), &me]).await?.try_get(0)
}

/// Those that nobody with a good lease sees to are seen to by `me` from here on. What was `me`'s
/// already is told too if `all`.
pub(super) async fn take(
    c: &impl GenericClient,
    me: i64,
    all: bool,
) -> Result<Vec<PushKey>, Error> {
    let sql = "UPDATE pushes SET owner = $1 WHERE NOT done AND ((owner = $1 AND $2)
            OR NOT EXISTS (SELECT 1 FROM leases WHERE id = owner AND expires > now()))
        RETURNING task_id, id";
    let statement = c.prepare_cached(sql).await?;
    let found = c.query(&statement, &[&me, &all]).await?;
    found.iter().map(|r| Ok(PushKey { task: id(r, 0)?, id: text(r, 1)? })).collect()
}

fn row(r: &Record) -> Result<PushRow, ReadError> {
    let task = id(r, 0).map_err(unavailable)?;
    let damaged = |e: prost::DecodeError| ReadError::Damaged { id: task, what: e.to_string() };
    let config: &[u8] = r.try_get(2).map_err(unavailable)?;
    let sent: i64 = r.try_get(3).map_err(unavailable)?;
    Ok(PushRow {
        key: PushKey { task, id: text(r, 1).map_err(unavailable)? },
        config: TaskPushNotificationConfig::decode(config).map_err(damaged)?,
        sent: sent as u64,
        done: r.try_get(4).map_err(unavailable)?,
    })
}
