//! Bindings of worker ids in PostgreSQL. One statement decides between coordinators that bind
//! the same id at once.

use deadpool_postgres::{GenericClient, Object};
use faultline_chassis::credential::Binding;
use faultline_proto::id::WorkerId;
use tokio_postgres::{
    Error,
    types::{ToSql, Type},
};

use crate::{store::BindingQuota, task::Millis};

pub(super) async fn introduce(
    c: &Object,
    worker: WorkerId,
    to: Binding,
    at: Millis,
    quota: BindingQuota,
) -> Result<Option<Binding>, Error> {
    if let Some(bound) = bind(c, worker, to, at, quota).await? {
        return Ok(Some(bound));
    }
    let sql = "DELETE FROM workers WHERE id IN (SELECT id FROM workers
        WHERE binding = $1 AND seen_ms < $2 ORDER BY id FOR UPDATE SKIP LOCKED)";
    match c.execute(sql, &[&to.as_slice(), &quota.stale_before]).await? {
        0 => Ok(None),
        _ => bind(c, worker, to, at, quota).await,
    }
}

/// The binding in force; `None`: the id is new and the credential has no room for it.
async fn bind(
    c: &Object,
    worker: WorkerId,
    to: Binding,
    at: Millis,
    quota: BindingQuota,
) -> Result<Option<Binding>, Error> {
    // A row that is there keeps its binding; it is written all the same, to be returned.
    let sql = "INSERT INTO workers (id, binding, seen_ms) SELECT $1, $2, $3
        WHERE EXISTS (SELECT FROM workers WHERE id = $1)
            OR (SELECT count(*) FROM (SELECT FROM workers WHERE binding = $2 LIMIT $4) AS own) < $4
        ON CONFLICT (id)
        DO UPDATE SET seen_ms = CASE WHEN workers.binding = excluded.binding
            THEN greatest(workers.seen_ms, excluded.seen_ms) ELSE workers.seen_ms END
        RETURNING binding";
    let types = [Type::BYTEA, Type::BYTEA, Type::INT8, Type::INT8];
    let statement = c.prepare_typed_cached(sql, &types).await?;
    let worker = worker.to_string();
    let max = i64::try_from(quota.max).unwrap_or(i64::MAX);
    let values: [&(dyn ToSql + Sync); 4] = [&worker.as_bytes(), &to.as_slice(), &at, &max];
    let Some(row) = c.query_opt(&statement, &values).await? else { return Ok(None) };
    let stored: &[u8] = row.try_get(0)?;
    // A binding of another length matches no credential.
    Ok(Some(Binding::try_from(stored).unwrap_or_default()))
}

pub(super) async fn keep(
    c: &Object,
    workers: &[WorkerId],
    at: Millis,
    before: Millis,
) -> Result<(), Error> {
    let names: Vec<Vec<u8>> = workers.iter().map(|id| id.to_string().into_bytes()).collect();
    // In one order, so that two coordinators do not wait for one another.
    let sql = "UPDATE workers SET seen_ms = greatest(seen_ms, $2) WHERE id IN
        (SELECT id FROM workers WHERE id = ANY($1) ORDER BY id FOR UPDATE)";
    c.execute(sql, &[&names, &at]).await?;
    let sql = "DELETE FROM workers WHERE id IN
        (SELECT id FROM workers WHERE seen_ms < $1 ORDER BY id FOR UPDATE SKIP LOCKED)";
    c.execute(sql, &[&before]).await?;
    Ok(())
}
