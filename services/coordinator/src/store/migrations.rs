//! Schema migrations of SQLite, forward only. Each entry is one step; a database that is newer
//! than the binary is refused.

pub(crate) const STEPS: &[&str] = &[
    "
    CREATE TABLE leases (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        started_ms INTEGER NOT NULL
    );
    CREATE TABLE agents (
        name TEXT PRIMARY KEY,
        offer BLOB NOT NULL,
        seen_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE tasks (
        id BLOB PRIMARY KEY,
        agent TEXT NOT NULL,
        context_id TEXT NOT NULL,
        state INTEGER NOT NULL,
        version INTEGER NOT NULL,
        owner INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        reported INTEGER NOT NULL,
        worker TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        status_ms INTEGER NOT NULL,
        late INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE INDEX tasks_by_status ON tasks (status_ms, id);
    CREATE INDEX tasks_by_context ON tasks (context_id);
    -- Submitted, working and waiting: few, whatever the size of the table. Not `state IN (…)`,
    -- for which every update would build a temporary table to look it up in.
    CREATE INDEX tasks_alive ON tasks (state)
        WHERE state = 1 OR state = 2 OR state = 6 OR state = 8;
    CREATE TABLE events (
        task_id BLOB NOT NULL,
        seq INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (task_id, seq)
    ) WITHOUT ROWID;
",
    "
    ALTER TABLE tasks ADD COLUMN principal TEXT NOT NULL DEFAULT 'local';
    DROP INDEX tasks_by_status;
    DROP INDEX tasks_by_context;
    -- Nobody lists but their own. Agent and state are here so that counting stays in the index.
    CREATE INDEX tasks_by_principal ON tasks (principal, status_ms, id, agent, state);
    CREATE INDEX tasks_by_context ON tasks (principal, context_id);
    CREATE TABLE keys (
        principal TEXT NOT NULL,
        agent TEXT NOT NULL,
        key TEXT NOT NULL,
        task_id BLOB NOT NULL,
        digest BLOB NOT NULL,
        reply BLOB,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (principal, agent, key)
    ) WITHOUT ROWID;
    CREATE INDEX keys_by_age ON keys (created_ms);
    CREATE TABLE pushes (
        task_id BLOB NOT NULL,
        id TEXT NOT NULL,
        config BLOB NOT NULL,
        sent_seq INTEGER NOT NULL,
        done INTEGER NOT NULL,
        PRIMARY KEY (task_id, id)
    ) WITHOUT ROWID;
    CREATE INDEX pushes_unfinished ON pushes (done) WHERE done = 0;
",
    "
    ALTER TABLE tasks ADD COLUMN parent BLOB;
    -- Most tasks have none, and cost nothing here.
    CREATE INDEX tasks_by_parent ON tasks (parent) WHERE parent IS NOT NULL;
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value BLOB NOT NULL
    ) WITHOUT ROWID;
",
    "
    ALTER TABLE tasks ADD COLUMN reason TEXT;
    ALTER TABLE tasks ADD COLUMN origin TEXT;
    ALTER TABLE tasks ADD COLUMN failure_id TEXT;
    -- Failed, cancelled and rejected: for operators, who look for these by time. Tasks that go
    -- well, which are nearly all, cost nothing here.
    CREATE INDEX tasks_unwell ON tasks (status_ms, id, state, reason, origin, failure_id)
        WHERE state = 4 OR state = 5 OR state = 7;
",
    "
    -- A task that is forgotten takes its keys with it.
    CREATE INDEX keys_by_task ON keys (task_id);
",
    "
    -- Which credential introduced a worker's id.
    CREATE TABLE workers (
        id TEXT PRIMARY KEY,
        binding BLOB NOT NULL,
        seen_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
",
    "
    -- When a worker last offered it: agents that nobody offers for long are forgotten.
    ALTER TABLE agents ADD COLUMN offered_ms INTEGER NOT NULL DEFAULT 0;
    UPDATE agents SET offered_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;
",
    "
    -- How many worker ids a credential has bound, and which of them are stale.
    CREATE INDEX workers_by_binding ON workers (binding, seen_ms);
",
];
