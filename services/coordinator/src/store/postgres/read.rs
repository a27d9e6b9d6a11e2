//! The read side: rows and events, folded into tasks. A task and its events are read in one
//! statement or one read-only transaction, so they are of one moment.

use bytes::Bytes;
use deadpool_postgres::{Object, Transaction};
use faultline_chassis::limits;
use faultline_proto::{a2a::TaskState, id::TaskId, v1};
use prost::Message;
use tokio_postgres::{
    Error, IsolationLevel, Row as Record,
    types::{ToSql, Type},
};
use uuid::Uuid;

use crate::store::{
    Cursor, FailureKey, Filter, KeyName, KeyRow, Kind, Page, ReadError, Remembered, Row, Scope,
    Stored, StoredEvent, postgres::said, replay,
};
use crate::task::{Millis, Task};

pub(super) const COLUMNS: &str =
    "tasks.id, tasks.agent, tasks.context_id, tasks.state, tasks.version, tasks.seq,
    tasks.attempt, tasks.reported, tasks.worker, tasks.created_ms, tasks.status_ms,
    tasks.principal, tasks.parent, tasks.reason, tasks.origin, tasks.failure_id";

/// Of one task each, in order.
const BODIES: &str = "ARRAY(SELECT body FROM events WHERE task_id = tasks.id ORDER BY seq)";
/// Without what may be left out.
const SOME_BODIES: &str =
    "ARRAY(SELECT body FROM events WHERE task_id = tasks.id AND kind = 0 ORDER BY seq)";

pub(super) fn unavailable(error: Error) -> ReadError {
    ReadError::Unavailable(said(&error))
}

pub(super) fn uuid(id: &TaskId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

pub(super) fn id(record: &Record, at: usize) -> Result<TaskId, Error> {
    Ok(TaskId::from_bytes(record.try_get::<_, Uuid>(at)?.into_bytes()))
}

pub(super) fn text(record: &Record, at: usize) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(record.try_get(at)?).into_owned())
}

/// The columns in their order.
pub(super) fn row(r: &Record) -> Result<Row, Error> {
    let count = |at| r.try_get::<_, i64>(at).map(|n| n.max(0) as u64);
    Ok(Row {
        id: id(r, 0)?,
        agent: text(r, 1)?,
        context_id: text(r, 2)?,
        state: TaskState::try_from(r.try_get::<_, i32>(3)?).unwrap_or(TaskState::Unspecified),
        version: count(4)?,
        seq: count(5)?,
        attempt: count(6)? as u32,
        reported: count(7)? as u32,
        worker: text(r, 8)?,
        created: r.try_get(9)?,
        status_at: r.try_get(10)?,
        principal: text(r, 11)?,
        parent: r.try_get::<_, Option<Uuid>>(12)?.map(|id| TaskId::from_bytes(id.into_bytes())),
        failure: match r.try_get::<_, Option<&[u8]>>(13)? {
            None => None,
            Some(_) => {
                let (reason, origin, id) = (text(r, 13)?, text(r, 14)?, text(r, 15)?);
                Some(Box::new(FailureKey { reason, origin, id }))
            }
        },
    })
}

/// A record of `COLUMNS` and the bodies behind them.
fn folded(record: &Record, all: bool) -> Result<Task, ReadError> {
    let bodies: Vec<&[u8]> = record.try_get(16).map_err(unavailable)?;
    replay(row(record).map_err(unavailable)?, bodies, all)
}

pub(super) async fn task(
    c: &Object,
    of: TaskId,
    scope: &Scope,
    me: i64,
) -> Result<Option<Stored>, ReadError> {
    let sql = format!(
        "SELECT {COLUMNS}, {BODIES}, late, owner FROM tasks WHERE id = $1
            AND ($2::bytea IS NULL OR principal = $2) AND ($3::bytea IS NULL OR agent = $3)
            AND (cardinality($4::bytea[]) = 0 OR agent = ANY($4))"
    );
    let agents: Vec<_> = scope.agents.iter().map(String::as_bytes).collect();
    let (principal, agent) = (
        scope.principal.as_ref().map(String::as_bytes),
        scope.agent.as_ref().map(String::as_bytes),
    );
    let found = async {
        let statement = c.prepare_cached(&sql).await?;
        c.query_opt(&statement, &[&uuid(&of), &principal, &agent, &agents]).await
    };
    let Some(record) = found.await.map_err(unavailable)? else { return Ok(None) };
    let late: i64 = record.try_get(17).map_err(unavailable)?;
    let owner: i64 = record.try_get(18).map_err(unavailable)?;
    Ok(Some(Stored { task: folded(&record, true)?, late: late as u32, ours: owner == me }))
}

pub(super) fn event(record: &Record) -> Result<StoredEvent, Error> {
    let kind = match record.try_get::<_, i16>(1)? {
        1 => Kind::Artifact,
        2 => Kind::Checkpoint,
        _ => Kind::Plain,
    };
    let body = Bytes::from(record.try_get::<_, Vec<u8>>(2)?);
    Ok(StoredEvent { seq: record.try_get::<_, i64>(0)? as u64, kind, body })
}

pub(super) async fn events(
    c: &Object,
    of: TaskId,
    after: u64,
    limit: usize,
) -> Result<Vec<StoredEvent>, Error> {
    let sql = "SELECT seq, kind, body FROM events WHERE task_id = $1 AND seq > $2
        ORDER BY seq LIMIT $3";
    let statement = c.prepare_cached(sql).await?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = c.query(&statement, &[&uuid(&of), &after, &limit]).await?;
    found.iter().map(event).collect()
}

/// Several reads of the same moment.
pub(super) async fn moment(c: &mut Object) -> Result<Transaction<'_>, ReadError> {
    let begun = c.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    begun.read_only(true).start().await.map_err(unavailable)
}

pub(super) async fn list(c: &mut Object, filter: &Filter) -> Result<Page, ReadError> {
    let tx = moment(c).await?;
    let mut wanted = Conditions::of(filter);
    let count = format!(
        "SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE {} LIMIT {}) AS counted",
        wanted.sql(),
        limits::LIST_TOTAL_MAX
    );
    let counted = tx.query_typed(&count, &wanted.values()).await.map_err(unavailable)?;
    let total: i64 = counted.first().map_or(Ok(0), |r| r.try_get(0)).map_err(unavailable)?;
    if let Some(cursor) = filter.after {
        wanted.after(cursor);
    }
    // Artifacts may be large: then the events of each task are read by themselves, and no more
    // than a page takes.
    let bodies = if filter.artifacts { "ARRAY[]::bytea[]" } else { SOME_BODIES };
    let sql = format!(
        "SELECT {COLUMNS}, {bodies} FROM (SELECT id AS found FROM tasks WHERE {}
            ORDER BY status_ms DESC, id DESC LIMIT {}) AS page
         JOIN tasks ON id = found ORDER BY status_ms DESC, id DESC",
        wanted.sql(),
        filter.limit + 1
    );
    let mut records = tx.query_typed(&sql, &wanted.values()).await.map_err(unavailable)?;
    let mut more = records.len() > filter.limit;
    records.truncate(filter.limit);
    let (count, mut bytes, mut tasks) = (records.len(), 0, Vec::new());
    for record in records {
        let task = match filter.artifacts {
            true => fold_one(&tx, row(&record).map_err(unavailable)?).await?,
            false => folded(&record, false)?,
        };
        bytes += task.artifact_bytes();
        tasks.push(task);
        if bytes > limits::PAGE_BYTES_MAX {
            more |= tasks.len() < count;
            break;
        }
    }
    Ok(Page { tasks, more, total: total as usize })
}

async fn fold_one(tx: &Transaction<'_>, row: Row) -> Result<Task, ReadError> {
    let sql = "SELECT body FROM events WHERE task_id = $1 ORDER BY seq";
    let found = async {
        let statement = tx.prepare_cached(sql).await?;
        tx.query(&statement, &[&uuid(&row.id)]).await
    };
    let found = found.await.map_err(unavailable)?;
    let bodies = found.iter().map(|r| r.try_get::<_, &[u8]>(0)).collect::<Result<Vec<_>, _>>();
    replay(row, bodies.map_err(unavailable)?, true)
}

/// Tasks at once, with all their events. Those that cannot be read are left out.
pub(super) async fn fold_all(
    tx: &Transaction<'_>,
    records: Vec<Record>,
) -> Result<Vec<Task>, ReadError> {
    /// The number of tasks with events in memory at once.
    const AT_ONCE: usize = 500;
    let sql = "SELECT task_id, body FROM events WHERE task_id = ANY($1) ORDER BY task_id, seq";
    let statement = tx.prepare_cached(sql).await.map_err(unavailable)?;
    let mut rows = records.iter().map(row).collect::<Result<Vec<_>, _>>().map_err(unavailable)?;
    rows.sort_by_key(|row| row.id);
    let mut tasks = Vec::with_capacity(rows.len());
    while !rows.is_empty() {
        let part: Vec<_> = rows.drain(..rows.len().min(AT_ONCE)).collect();
        let ids: Vec<_> = part.iter().map(|row| uuid(&row.id)).collect();
        let found = tx.query(&statement, &[&ids]).await.map_err(unavailable)?;
        let mut found = found.iter().peekable();
        for row in part {
            let mut bodies = Vec::new();
            while let Some(event) = found.next_if(|r| id(r, 0).is_ok_and(|id| id == row.id)) {
                bodies.push(event.try_get::<_, &[u8]>(1).map_err(unavailable)?);
            }
            match replay(row, bodies, true) {
                Ok(task) => tasks.push(task),
                // Nobody can go on with it, and everybody else's must not wait for it.
                Err(damaged) => {
                    tracing::error!(error = %damaged, "skipped a corrupt task during recovery")
                }
            }
        }
    }
    Ok(tasks)
}

pub(super) async fn agents(c: &Object, only: Option<String>) -> Result<Vec<Remembered>, ReadError> {
    let sql = "SELECT offer, seen_ms, offered_ms FROM agents
        WHERE $1::bytea IS NULL OR name = $1 ORDER BY name";
    let only = only.as_ref().map(|name| name.as_bytes());
    let found = c.query(sql, &[&only]).await.map_err(unavailable)?;
    let offers = found.iter().map(|r| {
        let offer = r.try_get::<_, &[u8]>(0).map_err(unavailable)?;
        let damaged = |e: prost::DecodeError| ReadError::Unavailable(e.to_string());
        Ok(Remembered {
            offer: v1::AgentOffer::decode(offer).map_err(damaged)?,
            changed: r.try_get(1).map_err(unavailable)?,
            offered: r.try_get(2).map_err(unavailable)?,
        })
    });
    offers.collect()
}

pub(super) async fn key(
    c: &Object,
    name: KeyName,
    since: Millis,
) -> Result<Option<KeyRow>, ReadError> {
    let sql = "SELECT task_id, digest, reply, created_ms FROM keys
        WHERE principal = $1 AND agent = $2 AND key = $3 AND created_ms >= $4";
    let found = async {
        let statement = c.prepare_cached(sql).await?;
        let (principal, agent) = (name.principal.as_bytes(), name.agent.as_bytes());
        let with: [&(dyn ToSql + Sync); 4] = [&principal, &agent, &name.key.as_bytes(), &since];
        let Some(r) = c.query_opt(&statement, &with).await? else { return Ok(None) };
        let reply = r.try_get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from);
        Ok(Some((id(&r, 0)?, r.try_get::<_, Vec<u8>>(1)?, reply, r.try_get(3)?)))
    };
    let Some((task_id, digest, reply, created)) = found.await.map_err(unavailable)? else {
        return Ok(None);
    };
    let damaged = |_| ReadError::Damaged { id: task_id, what: "a digest of its key".to_owned() };
    let digest = digest.try_into().map_err(damaged)?;
    Ok(Some(KeyRow { name, task_id, digest, reply, created }))
}

pub(super) async fn oldest_key(c: &Object) -> Result<Option<Millis>, Error> {
    c.query_one("SELECT MIN(created_ms) FROM keys", &[]).await?.try_get(0)
}

type Value = Box<dyn ToSql + Send + Sync>;

/// The conditions of a query, with a value for each parameter.
#[derive(Default)]
pub(super) struct Conditions {
    wheres: Vec<String>,
    values: Vec<(Value, Type)>,
}

impl Conditions {
    pub(super) fn within(scope: &Scope) -> Self {
        let mut wanted = Self::default();
        if let Some(principal) = &scope.principal {
            wanted.text("principal = ", principal);
        }
        if let Some(agent) = &scope.agent {
            wanted.text("agent = ", agent);
        }
        if !scope.agents.is_empty() {
            let agents: Vec<_> = scope.agents.iter().map(|a| a.as_bytes().to_vec()).collect();
            let mark = wanted.mark(Box::new(agents), Type::BYTEA_ARRAY);
            wanted.must(format!("agent = ANY({mark})"));
        }
        wanted
    }

    fn of(filter: &Filter) -> Self {
        let Filter { scope, context_id, state, status_from, .. } = filter;
        // Few tasks live and few end badly, and both have an index of their own. That over all
        // tasks of a principal must look like none, or it is walked from end to end for them.
        let few = context_id.is_none() && state.is_some_and(|s| s != TaskState::Completed);
        let principal = scope.principal.as_ref().filter(|_| few);
        let mut wanted = match principal {
            None => Self::within(scope),
            Some(_) => Self::within(&Scope { principal: None, ..scope.clone() }),
        };
        if let Some(principal) = principal {
            wanted.text("principal || ''::bytea = ", principal);
        }
        if let Some(context) = context_id {
            wanted.text("context_id = ", context);
        }
        if let Some(state) = *state {
            // In words, so that the index over just these may be used.
            wanted.must(format!("state = {}", state as i32));
        }
        if let Some(from) = *status_from {
            wanted.number("status_ms >= ", from);
        }
        wanted
    }

    fn mark(&mut self, value: Value, of: Type) -> String {
        self.values.push((value, of));
        format!("${}", self.values.len())
    }

    pub(super) fn text(&mut self, condition: &str, value: &str) {
        let mark = self.mark(Box::new(value.as_bytes().to_vec()), Type::BYTEA);
        self.must(format!("{condition}{mark}"));
    }

    pub(super) fn number(&mut self, condition: &str, value: i64) {
        let mark = self.mark(Box::new(value), Type::INT8);
        self.must(format!("{condition}{mark}"));
    }

    pub(super) fn id(&mut self, condition: &str, value: TaskId) {
        let mark = self.mark(Box::new(uuid(&value)), Type::UUID);
        self.must(format!("{condition}{mark}"));
    }

    /// Without a value.
    pub(super) fn must(&mut self, condition: String) {
        self.wheres.push(condition);
    }

    pub(super) fn after(&mut self, cursor: Cursor) {
        let at = self.mark(Box::new(cursor.status_at), Type::INT8);
        let id = self.mark(Box::new(uuid(&cursor.id)), Type::UUID);
        self.must(format!("(status_ms, id) < ({at}, {id})"));
    }

    pub(super) fn sql(&self) -> String {
        match self.wheres.is_empty() {
            true => "TRUE".to_owned(),
            false => self.wheres.join(" AND "),
        }
    }

    pub(super) fn values(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.values
            .iter()
            .map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone()))
            .collect()
    }
}
