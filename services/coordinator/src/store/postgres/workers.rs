//! Bindings of worker ids in PostgreSQL. One statement decides between coordinators that are told
//! of the same id at once.

use deadpool_postgres::{GenericClient, Object};
use faultline_chassis::credential::Binding;
use faultline_proto::id::WorkerId;
use tokio_postgres::Error;

use crate::task::Millis;

pub(super) async fn introduce(
    c: &Object,
    worker: WorkerId,
    to: Binding,
    at: Millis,
) -> Result<Binding, Error> {
    // A row that is there keeps its binding; it is written all the same, to be returned.
    let sql = "INSERT INTO workers (id, binding, seen_ms) VALUES ($1, $2, $3) ON CONFLICT (id)
        DO UPDATE SET seen_ms = CASE WHEN workers.binding = excluded.binding
            THEN greatest(workers.seen_ms, excluded.seen_ms) ELSE workers.seen_ms END
        RETURNING binding";
    let statement = c.prepare_cached(sql).await?;
    let worker = worker.to_string();
    let row = c.query_one(&statement, &[&worker.as_bytes(), &to.as_slice(), &at]).await?;
    let stored: &[u8] = row.try_get(0)?;
    // A binding of another length matches no credential.
    Ok(Binding::try_from(stored).unwrap_or_default())
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
