//! The statements of a batch: the plan as arrays of columns, because a statement takes arrays
//! and not rows.

use faultline_proto::id::TaskId;
use prost::Message;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::store::{
    PushKey, PushRow, Row,
    postgres::{
        fault_injection,
        plan::{Change, Plan, PushStep},
        read::uuid,
    },
};

pub(super) const LOCK_TASKS: &str = "SELECT id, version, owner, state FROM tasks
    WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE";
pub(super) const LOCK_KEYS: &str =
    "SELECT keys.principal, keys.agent, keys.key, keys.task_id, keys.created_ms
    FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS a (principal, agent, key)
    JOIN keys USING (principal, agent, key) ORDER BY 1, 2, 3 FOR UPDATE OF keys";
pub(super) const SEE_PUSHES: &str = "SELECT task_id, id FROM pushes WHERE task_id = ANY($1)";

const INSERT: &str = "INSERT INTO tasks (owner, id, state, version, seq, attempt, reported, worker,
        status_ms, queued, late, reason, origin, failure_id,
        agent, context_id, created_ms, principal, parent)
    SELECT $1, a.* FROM unnest($2::uuid[], $3::int4[], $4::int8[], $5::int8[], $6::int8[],
        $7::int8[], $8::bytea[], $9::int8[], $10::bytea[], $11::int8[], $12::bytea[],
        $13::bytea[], $14::bytea[], $15::bytea[], $16::bytea[], $17::int8[], $18::bytea[],
        $19::uuid[]) AS a";
const UPDATE: &str = "UPDATE tasks SET state = a.state, version = a.version, seq = a.seq,
        attempt = a.attempt, reported = a.reported, worker = a.worker, status_ms = a.status_ms,
        queued = a.queued, late = tasks.late + a.late,
        reason = COALESCE(a.reason, tasks.reason), origin = COALESCE(a.origin, tasks.origin),
        failure_id = COALESCE(a.failure_id, tasks.failure_id)
    FROM unnest($1::uuid[], $2::int4[], $3::int8[], $4::int8[], $5::int8[], $6::int8[],
        $7::bytea[], $8::int8[], $9::bytea[], $10::int8[], $11::bytea[], $12::bytea[],
        $13::bytea[]) AS a (id, state, version, seq, attempt, reported, worker, status_ms,
        queued, late, reason, origin, failure_id)
    WHERE tasks.id = a.id";
/// Updates of columns that are no step of the task.
const TOUCH: &str = "UPDATE tasks SET late = tasks.late + a.late,
        queued = COALESCE(a.queued, tasks.queued)
    FROM unnest($1::uuid[], $2::int8[], $3::bytea[]) AS a (id, late, queued)
    WHERE tasks.id = a.id";
const ERASE: &str = "DELETE FROM tasks WHERE id = ANY($1)";
const ERASE_EVENTS: &str = "DELETE FROM events WHERE task_id = ANY($1)";
const APPEND: &str = "INSERT INTO events (task_id, seq, kind, body)
    SELECT * FROM unnest($1::uuid[], $2::int8[], $3::int2[], $4::bytea[])";
const OVERWRITE: &str = "INSERT INTO events (task_id, seq, kind, body)
    SELECT * FROM unnest($1::uuid[], $2::int8[], $3::int2[], $4::bytea[])
    ON CONFLICT (task_id, seq) DO UPDATE SET kind = EXCLUDED.kind, body = EXCLUDED.body";
const NEW_KEYS: &str =
    "INSERT INTO keys (principal, agent, key, task_id, digest, reply, created_ms)
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::uuid[], $5::bytea[],
        $6::bytea[], $7::int8[])";
const OLD_KEYS: &str = "UPDATE keys SET task_id = a.task_id, digest = a.digest, reply = a.reply,
        created_ms = a.created_ms
    FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::uuid[], $5::bytea[], $6::bytea[],
        $7::int8[]) AS a (principal, agent, key, task_id, digest, reply, created_ms)
    WHERE (keys.principal, keys.agent, keys.key) = (a.principal, a.agent, a.key)";
const SET_PUSH: &str = "INSERT INTO pushes (task_id, id, config, sent_seq, done, owner)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (task_id, id) DO UPDATE SET config = excluded.config, owner = excluded.owner,
        sent_seq = CASE WHEN pushes.done THEN excluded.sent_seq ELSE pushes.sent_seq END,
        done = pushes.done AND excluded.done";
const SENT_PUSH: &str = "UPDATE pushes SET sent_seq = GREATEST(sent_seq, $3), done = done OR $4
    WHERE task_id = $1 AND id = $2 AND owner = $5";
const DELETE_PUSH: &str = "DELETE FROM pushes WHERE task_id = $1 AND id = $2";
const ERASE_PUSHES: &str = "DELETE FROM pushes WHERE task_id = $1";
const OFFER: &str = "INSERT INTO agents (name, offer, seen_ms, offered_ms)
    SELECT name, offer, at, at FROM unnest($1::bytea[], $2::bytea[], $3::int8[])
        AS a (name, offer, at)
    ON CONFLICT (name) DO UPDATE SET offer = excluded.offer, seen_ms = excluded.seen_ms,
        offered_ms = excluded.offered_ms";
/// In the order of names, as every statement here: two coordinators cannot deadlock.
const OFFERED: &str = "UPDATE agents SET offered_ms = GREATEST(offered_ms, $2) WHERE name IN
    (SELECT name FROM agents WHERE name = ANY($1::bytea[]) ORDER BY name FOR UPDATE)";
const FORGET_AGENTS: &str = "DELETE FROM agents WHERE offered_ms < $2 AND name IN
        (SELECT name FROM agents WHERE name = ANY($1::bytea[]) ORDER BY name FOR UPDATE)
    AND NOT EXISTS (SELECT 1 FROM tasks
        WHERE tasks.agent = agents.name AND tasks.state IN (1, 2, 6, 8))";
const FORGET: &str = "DELETE FROM keys WHERE ctid = ANY (ARRAY(SELECT ctid FROM keys
    WHERE created_ms < $1 ORDER BY created_ms LIMIT $2 FOR UPDATE SKIP LOCKED))";
/// Once more what was seen when they were chosen: it has ended, and nobody can join it again.
const EXPIRE: &str = "WITH gone AS (
        DELETE FROM tasks WHERE id = ANY($1) AND state NOT IN (1, 2, 6, 8)
            AND NOT EXISTS (SELECT 1 FROM tasks AS above
                WHERE above.id = tasks.parent AND above.state IN (1, 2, 6, 8))
        RETURNING id),
    events AS (DELETE FROM events WHERE task_id IN (SELECT id FROM gone)),
    pushes AS (DELETE FROM pushes WHERE task_id IN (SELECT id FROM gone)),
    keys AS (DELETE FROM keys WHERE task_id IN (SELECT id FROM gone))
    SELECT id FROM gone";

/// All of them, prepared when a connection is made: one that is prepared when it is first used
/// would be run behind the COMMIT that is sent with it.
pub(super) const WRITES: [&str; 21] = [
    LOCK_TASKS,
    LOCK_KEYS,
    SEE_PUSHES,
    INSERT,
    UPDATE,
    TOUCH,
    ERASE,
    ERASE_EVENTS,
    APPEND,
    OVERWRITE,
    NEW_KEYS,
    OLD_KEYS,
    SET_PUSH,
    SENT_PUSH,
    DELETE_PUSH,
    ERASE_PUSHES,
    OFFER,
    OFFERED,
    FORGET_AGENTS,
    FORGET,
    EXPIRE,
];

type Bytes<'a> = Vec<&'a [u8]>;
type Maybe<'a> = Vec<Option<&'a [u8]>>;

/// Columns of tasks.
#[derive(Default)]
struct Tasks<'a> {
    id: Vec<Uuid>,
    state: Vec<i32>,
    version: Vec<i64>,
    seq: Vec<i64>,
    attempt: Vec<i64>,
    reported: Vec<i64>,
    worker: Bytes<'a>,
    status: Vec<i64>,
    queued: Maybe<'a>,
    late: Vec<i64>,
    reason: Maybe<'a>,
    origin: Maybe<'a>,
    failure: Maybe<'a>,
    agent: Bytes<'a>,
    context: Bytes<'a>,
    created: Vec<i64>,
    principal: Bytes<'a>,
    parent: Vec<Option<Uuid>>,
}

impl<'a> Tasks<'a> {
    fn push(&mut self, row: &'a Row, change: &'a Change) {
        let failure = row.failure.as_deref();
        self.id.push(uuid(&row.id));
        self.state.push(row.state as i32);
        self.version.push(row.version as i64);
        self.seq.push(row.seq as i64);
        self.attempt.push(row.attempt.into());
        self.reported.push(row.reported.into());
        self.worker.push(row.worker.as_bytes());
        self.status.push(row.status_at);
        self.queued.push(queued(change));
        self.late.push(change.late);
        self.reason.push(failure.map(|f| f.reason.as_bytes()));
        self.origin.push(failure.map(|f| f.origin.as_bytes()));
        self.failure.push(failure.map(|f| f.id.as_bytes()));
        self.agent.push(row.agent.as_bytes());
        self.context.push(row.context_id.as_bytes());
        self.created.push(row.created);
        self.principal.push(row.principal.as_bytes());
        self.parent.push(row.parent.as_ref().map(uuid));
    }

    /// In the order of both statements.
    fn columns(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.id,
            &self.state,
            &self.version,
            &self.seq,
            &self.attempt,
            &self.reported,
            &self.worker,
            &self.status,
            &self.queued,
            &self.late,
            &self.reason,
            &self.origin,
            &self.failure,
        ]
    }
}

fn queued(change: &Change) -> Option<&[u8]> {
    change.queued.as_ref()?.as_ref().map(String::as_bytes)
}

/// The columns of the idempotency keys that a batch inserts: one array each, for one statement.
#[derive(Default)]
struct Keys<'a> {
    principal: Bytes<'a>,
    agent: Bytes<'a>,
    key: Bytes<'a>,
    task: Vec<Uuid>,
    digest: Bytes<'a>,
    reply: Maybe<'a>,
    created: Vec<i64>,
}

impl Keys<'_> {
    fn columns(&self) -> Vec<&(dyn ToSql + Sync)> {
        let Self { principal, agent, key, task, digest, reply, created } = self;
        vec![principal, agent, key, task, digest, reply, created]
    }
}

/// One step of a push configuration, as parameters.
enum Push<'a> {
    Set { key: (Uuid, &'a [u8]), config: Vec<u8>, sent: i64, done: bool },
    Sent { key: (Uuid, &'a [u8]), seq: i64, done: bool },
    Delete { key: (Uuid, &'a [u8]) },
    Erase { task: Uuid },
}

fn place(key: &PushKey) -> (Uuid, &[u8]) {
    (uuid(&key.task), key.id.as_bytes())
}

/// A plan as parameters.
#[derive(Default)]
pub(super) struct Columns<'a> {
    me: i64,
    inserted: Tasks<'a>,
    updated: Tasks<'a>,
    touched: (Vec<Uuid>, Vec<i64>, Maybe<'a>),
    erased: Vec<Uuid>,
    events: (Vec<Uuid>, Vec<i64>, Vec<i16>, Bytes<'a>),
    new_keys: Keys<'a>,
    old_keys: Keys<'a>,
    pushes: Vec<Push<'a>>,
    offers: (Bytes<'a>, Vec<Vec<u8>>, Vec<i64>),
    offered: Vec<(Bytes<'a>, i64)>,
    forget_agents: Vec<(Bytes<'a>, i64)>,
    forget: Vec<(i64, i64)>,
    expire: Vec<Vec<Uuid>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(plan: &'a Plan, me: i64) -> Self {
        let mut all = Self { me, ..Self::default() };
        for (id, change) in &plan.tasks {
            all.task(id, change);
        }
        for (id, event) in &plan.events {
            all.events.0.push(uuid(id));
            all.events.1.push(event.seq as i64);
            all.events.2.push(event.kind as i16);
            all.events.3.push(&event.body);
        }
        let mut keys: Vec<_> = plan.keys.values().collect();
        keys.sort_by_key(|(row, _)| (&row.name.principal, &row.name.agent, &row.name.key));
        for (row, there) in keys {
            let to = if *there { &mut all.old_keys } else { &mut all.new_keys };
            to.principal.push(row.name.principal.as_bytes());
            to.agent.push(row.name.agent.as_bytes());
            to.key.push(row.name.key.as_bytes());
            to.task.push(uuid(&row.task_id));
            to.digest.push(&row.digest);
            to.reply.push(row.reply.as_deref());
            to.created.push(row.created);
        }
        all.pushes.extend(plan.pushes.iter().map(|step| match step {
            PushStep::Set(PushRow { key, config, sent, done }) => Push::Set {
                key: place(key),
                config: config.encode_to_vec(),
                sent: *sent as i64,
                done: *done,
            },
            PushStep::Sent { key, seq, done } => {
                Push::Sent { key: place(key), seq: *seq as i64, done: *done }
            }
            PushStep::Delete(key) => Push::Delete { key: place(key) },
            PushStep::Erase(task) => Push::Erase { task: uuid(task) },
        }));
        for (name, (offer, at)) in &plan.offers {
            all.offers.0.push(name.as_bytes());
            all.offers.1.push(offer.encode_to_vec());
            all.offers.2.push(*at);
        }
        let bytes = |names: &'a [String]| names.iter().map(String::as_bytes).collect::<Vec<_>>();
        all.offered.extend(plan.offered.iter().map(|(names, at)| (bytes(names), *at)));
        let forgotten = plan.forget_agents.iter();
        all.forget_agents.extend(forgotten.map(|(names, before, _)| (bytes(names), *before)));
        let most = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
        all.forget.extend(plan.forget.iter().map(|(before, limit)| (*before, most(*limit))));
        all.expire.extend(plan.expire.iter().map(|(ids, _)| ids.iter().map(uuid).collect()));
        all
    }

    fn task(&mut self, id: &TaskId, change: &'a Change) {
        match &change.row {
            _ if change.erased() => self.erased.push(uuid(id)),
            Some(row) if change.inserted() => self.inserted.push(row, change),
            Some(row) => self.updated.push(row, change),
            None if change.was && (change.late > 0 || change.queued.is_some()) => {
                self.touched.0.push(uuid(id));
                self.touched.1.push(change.late);
                self.touched.2.push(queued(change));
            }
            None => {}
        }
    }

    /// The statements in the order of their execution, with their parameters.
    pub(super) fn statements(&self) -> Vec<(&'static str, Vec<&(dyn ToSql + Sync)>)> {
        let mut all: Vec<(&'static str, Vec<&(dyn ToSql + Sync)>)> = Vec::new();
        if !self.inserted.id.is_empty() {
            let new = &self.inserted;
            let mut with: Vec<&(dyn ToSql + Sync)> = vec![&self.me];
            with.extend(new.columns());
            with.extend::<[&(dyn ToSql + Sync); 5]>([
                &new.agent,
                &new.context,
                &new.created,
                &new.principal,
                &new.parent,
            ]);
            all.push((INSERT, with));
        }
        if !self.updated.id.is_empty() {
            all.push((UPDATE, self.updated.columns()));
        }
        if !self.touched.0.is_empty() {
            all.push((TOUCH, vec![&self.touched.0, &self.touched.1, &self.touched.2]));
        }
        if !self.erased.is_empty() {
            all.push((ERASE, vec![&self.erased]));
            all.push((ERASE_EVENTS, vec![&self.erased]));
        }
        if !self.events.0.is_empty() {
            let (task, seq, kind, body) = &self.events;
            let append = if fault_injection::get().unfenced { OVERWRITE } else { APPEND };
            all.push((append, vec![task, seq, kind, body]));
        }
        if !self.new_keys.key.is_empty() {
            all.push((NEW_KEYS, self.new_keys.columns()));
        }
        if !self.old_keys.key.is_empty() {
            all.push((OLD_KEYS, self.old_keys.columns()));
        }
        all.extend(self.pushes.iter().map(|push| self.push(push)));
        if !self.offers.0.is_empty() {
            all.push((OFFER, vec![&self.offers.0, &self.offers.1, &self.offers.2]));
        }
        for (names, at) in &self.offered {
            all.push((OFFERED, vec![names, at]));
        }
        for (before, limit) in &self.forget {
            all.push((FORGET, vec![before, limit]));
        }
        // The last: how many each of them concerned is asked for.
        for (names, before) in &self.forget_agents {
            all.push((FORGET_AGENTS, vec![names, before]));
        }
        for ids in &self.expire {
            all.push((EXPIRE, vec![ids]));
        }
        all
    }

    fn push<'b>(&'b self, push: &'b Push<'a>) -> (&'static str, Vec<&'b (dyn ToSql + Sync)>) {
        match push {
            Push::Set { key, config, sent, done } => {
                (SET_PUSH, vec![&key.0, &key.1, config, sent, done, &self.me])
            }
            Push::Sent { key, seq, done } => (SENT_PUSH, vec![&key.0, &key.1, seq, done, &self.me]),
            Push::Delete { key } => (DELETE_PUSH, vec![&key.0, &key.1]),
            Push::Erase { task } => (ERASE_PUSHES, vec![task]),
        }
    }
}
