//! Schema migrations of PostgreSQL, forward only. Text is stored as bytes: callers may send
//! NUL, which `TEXT` refuses, and bytes sort alike under every collation.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::{Error, error::SqlState};

use crate::store::{SigningSecret, postgres::OpenError};

/// The key of the advisory lock that a migration holds; an arbitrary number of this project.
const LOCK: i64 = 0x6661_756c_746c;

/// Submitted, working and waiting, in the words of the indices over just these.
pub(super) const ALIVE: &str = "state IN (1, 2, 6, 8)";
/// Failed, cancelled and rejected.
pub(super) const UNWELL: &str = "state IN (4, 5, 7)";

pub(super) const STEPS: &[&str] = &[FIRST, WORKERS, OFFERED, WORKERS_BY_BINDING];

/// Which credential introduced a worker's id.
const WORKERS: &str = "
    CREATE TABLE workers (
        id BYTEA PRIMARY KEY,
        binding BYTEA NOT NULL,
        seen_ms BIGINT NOT NULL
    );
";

/// When a worker last offered an agent. Agents that no worker offers for long are forgotten.
const OFFERED: &str = "
    ALTER TABLE agents ADD COLUMN offered_ms BIGINT NOT NULL
        DEFAULT (extract(epoch FROM now()) * 1000)::bigint;
";

/// How many worker ids a credential has bound, and which of them are stale.
const WORKERS_BY_BINDING: &str = "
    CREATE INDEX workers_by_binding ON workers (binding, seen_ms);
";

const FIRST: &str = "
    CREATE TABLE leases (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        started TIMESTAMPTZ NOT NULL DEFAULT now(),
        expires TIMESTAMPTZ NOT NULL,
        presence BYTEA NOT NULL DEFAULT ''
    );
    CREATE TABLE agents (
        name BYTEA PRIMARY KEY,
        offer BYTEA NOT NULL,
        seen_ms BIGINT NOT NULL
    );
    -- Room on each page for the next version of its rows: a stream of artifacts then touches no
    -- index. Dead rows are swept early, because the indices over what lives are read all the time.
    CREATE TABLE tasks (
        id UUID PRIMARY KEY,
        agent BYTEA NOT NULL,
        context_id BYTEA NOT NULL,
        state INTEGER NOT NULL,
        version BIGINT NOT NULL,
        owner BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        attempt BIGINT NOT NULL,
        reported BIGINT NOT NULL,
        worker BYTEA NOT NULL,
        created_ms BIGINT NOT NULL,
        status_ms BIGINT NOT NULL,
        principal BYTEA NOT NULL,
        late BIGINT NOT NULL DEFAULT 0,
        parent UUID,
        queued BYTEA,
        reason BYTEA,
        origin BYTEA,
        failure_id BYTEA
    ) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
    CREATE INDEX tasks_alive ON tasks (status_ms, id) WHERE state IN (1, 2, 6, 8);
    CREATE INDEX tasks_by_owner ON tasks (owner) WHERE state IN (1, 2, 6, 8);
    CREATE INDEX tasks_by_worker ON tasks (worker) WHERE state IN (1, 2, 6, 8);
    CREATE INDEX tasks_queued ON tasks (queued, id) WHERE queued IS NOT NULL;
    -- Agent and state are here so that counting stays in the index.
    CREATE INDEX tasks_by_principal ON tasks (principal, status_ms, id, agent, state);
    CREATE INDEX tasks_by_context ON tasks (principal, context_id, status_ms, id);
    CREATE INDEX tasks_by_parent ON tasks (parent, id) WHERE parent IS NOT NULL;
    CREATE INDEX tasks_unwell ON tasks (status_ms, id) INCLUDE (state, principal)
        WHERE state IN (4, 5, 7);
    CREATE TABLE events (
        task_id UUID NOT NULL,
        seq BIGINT NOT NULL,
        kind SMALLINT NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (task_id, seq)
    );
    CREATE TABLE keys (
        principal BYTEA NOT NULL,
        agent BYTEA NOT NULL,
        key BYTEA NOT NULL,
        task_id UUID NOT NULL,
        digest BYTEA NOT NULL,
        reply BYTEA,
        created_ms BIGINT NOT NULL,
        PRIMARY KEY (principal, agent, key)
    );
    CREATE INDEX keys_by_age ON keys (created_ms);
    CREATE INDEX keys_by_task ON keys (task_id);
    CREATE TABLE pushes (
        task_id UUID NOT NULL,
        id BYTEA NOT NULL,
        config BYTEA NOT NULL,
        sent_seq BIGINT NOT NULL,
        done BOOLEAN NOT NULL,
        owner BIGINT NOT NULL,
        PRIMARY KEY (task_id, id)
    );
    CREATE INDEX pushes_unfinished ON pushes (owner) WHERE NOT done;
";

/// Takes every step that is missing. Several coordinators may start at once: one of them migrates,
/// the others wait for it and find it done.
pub(super) async fn migrate(client: &mut ClientWrapper, shown: &str) -> Result<(), OpenError> {
    let failed = |e: Error| refused(e, shown);
    // A step through many tasks takes as long as it takes, and so does another's.
    client.batch_execute("SET statement_timeout = 0").await.map_err(failed)?;
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await.map_err(failed)?;
    let done = steps(client, shown).await;
    let _ = client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await;
    done
}

async fn steps(client: &mut ClientWrapper, shown: &str) -> Result<(), OpenError> {
    let failed = |e: Error| refused(e, shown);
    // Looked for first: who may not create tables may still use them.
    let there = client.query_one("SELECT to_regclass('meta') IS NOT NULL", &[]).await;
    if !there.map_err(failed)?.get::<_, bool>(0) {
        let meta = "CREATE TABLE meta (name TEXT PRIMARY KEY, value BYTEA NOT NULL)";
        client.batch_execute(meta).await.map_err(failed)?;
    }
    let sql = "SELECT convert_from(value, 'UTF8')::bigint FROM meta WHERE name = 'schema'";
    let row = client.query_opt(sql, &[]).await.map_err(failed)?;
    let found = row.map_or(0, |row| row.get::<_, i64>(0)) as usize;
    if found > STEPS.len() {
        let shown = shown.to_owned();
        return Err(OpenError::Newer { shown, found, known: STEPS.len() });
    }
    for (at, step) in STEPS.iter().enumerate().skip(found) {
        let tx = client.transaction().await.map_err(failed)?;
        tx.batch_execute(step).await.map_err(failed)?;
        let sql = "INSERT INTO meta (name, value) VALUES ('schema', convert_to($1, 'UTF8'))
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        tx.execute(sql, &[&(at + 1).to_string()]).await.map_err(failed)?;
        tx.commit().await.map_err(failed)?;
    }
    Ok(())
}

/// The one that is there, or a new one: the first to write it decides.
pub(super) async fn secret(client: &ClientWrapper) -> Result<SigningSecret, Error> {
    let made: SigningSecret = rand::random();
    let sql = "INSERT INTO meta (name, value) VALUES ('secret', $1) ON CONFLICT DO NOTHING";
    client.execute(sql, &[&made.as_slice()]).await?;
    let row = client.query_one("SELECT value FROM meta WHERE name = 'secret'", &[]).await?;
    let mut secret = SigningSecret::default();
    let stored: &[u8] = row.try_get(0)?;
    let length = stored.len().min(secret.len());
    secret[..length].copy_from_slice(&stored[..length]);
    Ok(secret)
}

/// The error of a statement that the database refused during the migration.
pub(super) fn refused(error: Error, shown: &str) -> OpenError {
    let shown = shown.to_owned();
    let problem = super::said(&error);
    match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => OpenError::Rights { shown, problem },
        _ => OpenError::Failed { shown, problem },
    }
}
