//! Operator queries in PostgreSQL. Every query walks one index in its order: active tasks,
//! tasks that did not complete, or all tasks by principal.

use std::pin::pin;

use deadpool_postgres::{GenericClient, Object, Transaction};
use faultline_chassis::limits;
use faultline_proto::{a2a::TaskState, id::TaskId, v1};
use futures::TryStreamExt;
use tokio_postgres::Error;

use crate::store::{
    Aged, Buckets, Cursor, ReadError, Row, Rows, Scope, Story, Wanted,
    postgres::{
        read::{COLUMNS, Conditions, event, id, moment, row, text, unavailable, uuid},
        schema::{ALIVE, UNWELL},
    },
    queries::{Activity, Failures, Walk, child},
};
use crate::task::{Millis, is_final};

/// Everybody who has tasks: one step in the index for each.
const WHOSE: &str = "WITH RECURSIVE whose (name) AS (
        (SELECT principal FROM tasks ORDER BY principal LIMIT 1)
        UNION ALL
        SELECT (SELECT principal FROM tasks WHERE principal > name ORDER BY principal LIMIT 1)
        FROM whose WHERE name IS NOT NULL)";

pub(super) async fn tasks(
    c: &mut Object,
    wanted: &Wanted,
    after: Option<Cursor>,
    limit: usize,
) -> Result<Rows, ReadError> {
    let tx = moment(c).await?;
    let mut found = Vec::new();
    let by_principal = Walk::of(wanted) == Walk::ByPrincipal && wanted.principal.is_none();
    match by_principal {
        false => found = places(&tx, wanted, after, limit + 1).await.map_err(unavailable)?,
        // So many of each are enough, whoever has the newest.
        true => {
            let sql = format!("{WHOSE} SELECT name FROM whose WHERE name IS NOT NULL");
            for whose in tx.query(&sql, &[]).await.map_err(unavailable)? {
                let name = text(&whose, 0).map_err(unavailable)?;
                let one = Wanted { principal: Some(name), ..wanted.clone() };
                found.extend(places(&tx, &one, after, limit + 1).await.map_err(unavailable)?);
            }
            found.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let ids: Vec<_> = found.into_iter().map(|(_, id)| id).collect();
    Ok(Rows { rows: rows_in(&tx, &ids).await.map_err(unavailable)?, more })
}

pub(super) async fn rows(c: &mut Object, ids: &[TaskId]) -> Result<Vec<Row>, ReadError> {
    // One statement is of one moment by itself.
    rows_in(&*c, ids).await.map_err(unavailable)
}

/// Those of these tasks that there are, in this order.
async fn rows_in(c: &impl GenericClient, ids: &[TaskId]) -> Result<Vec<Row>, Error> {
    let sql = format!(
        "SELECT {COLUMNS} FROM unnest($1::uuid[]) WITH ORDINALITY AS wanted (found, place)
         JOIN tasks ON id = found ORDER BY place"
    );
    let ids: Vec<_> = ids.iter().map(uuid).collect();
    let statement = c.prepare_cached(&sql).await?;
    c.query(&statement, &[&ids]).await?.iter().map(row).collect()
}

async fn places(
    tx: &Transaction<'_>,
    wanted: &Wanted,
    after: Option<Cursor>,
    limit: usize,
) -> Result<Vec<(Millis, TaskId)>, Error> {
    let (sql, all) = places_sql(wanted, after, limit);
    let found = tx.query_typed(&sql, &all.values()).await?;
    found.iter().map(|r| Ok((r.try_get(0)?, id(r, 1)?))).collect()
}

fn places_sql(wanted: &Wanted, after: Option<Cursor>, limit: usize) -> (String, Conditions) {
    let mut all = Conditions::within(&Scope {
        principal: wanted.principal.clone(),
        agent: wanted.agent.clone(),
        agents: Vec::new(),
    });
    match Walk::of(wanted) {
        Walk::Alive => all.must(ALIVE.to_owned()),
        Walk::Unwell => all.must(UNWELL.to_owned()),
        Walk::ByPrincipal => {}
    }
    if !wanted.states.is_empty() {
        // Numbers of our own, so they need no quoting.
        let states: Vec<_> = wanted.states.iter().map(|s| (*s as i32).to_string()).collect();
        all.must(format!("state IN ({})", states.join(", ")));
    }
    wanted.reason.iter().for_each(|reason| all.text("reason = ", reason));
    wanted.origin.iter().for_each(|origin| all.text("origin = ", origin));
    wanted.from.into_iter().for_each(|from| all.number("status_ms >= ", from));
    wanted.to.into_iter().for_each(|to| all.number("status_ms < ", to));
    if wanted.roots {
        all.must("parent IS NULL".to_owned());
    }
    if let Some(cursor) = after {
        all.after(cursor);
    }
    let sql = format!(
        "SELECT status_ms, id FROM tasks WHERE {} ORDER BY status_ms DESC, id DESC LIMIT {limit}",
        all.sql()
    );
    (sql, all)
}

/// `None`: there is no such task in scope.
pub(super) async fn story(
    c: &mut Object,
    of: TaskId,
    scope: &Scope,
    after: u64,
    limit: usize,
) -> Result<Option<Story>, ReadError> {
    let tx = moment(c).await?;
    let found = rows_in(&tx, &[of]).await.map_err(unavailable)?;
    if !found.iter().any(|row| scope.contains(row)) {
        return Ok(None);
    }
    let sql = "SELECT seq, kind, body FROM events WHERE task_id = $1 AND seq > $2
        ORDER BY seq LIMIT $3";
    /// Read at once, so that a page that is large ends without much that is read in vain.
    const AT_ONCE: usize = 8;
    let statement = tx.prepare_cached(sql).await.map_err(unavailable)?;
    let (mut events, mut bytes) = (Vec::new(), 0);
    loop {
        let last = events.last().map_or(after, |event: &super::super::StoredEvent| event.seq);
        // Twice as many each time: small events are many, and large ones few.
        let most = (limit + 1 - events.len()).min(AT_ONCE.max(events.len()));
        let (last, many) = (i64::try_from(last).unwrap_or(i64::MAX), most as i64);
        let found = tx.query(&statement, &[&uuid(&of), &last, &many]).await;
        let found = found.map_err(unavailable)?;
        for record in &found {
            if events.len() == limit || bytes > limits::PAGE_BYTES_MAX {
                return Ok(Some(Story { events, more: true }));
            }
            let event = event(record).map_err(unavailable)?;
            bytes += event.body.len();
            events.push(event);
        }
        if found.len() < most {
            return Ok(Some(Story { events, more: false }));
        }
    }
}

/// Ids tell when tasks began, so the one index tells both ends.
const ACTIVITY: &str = "SELECT agent, state, status_ms, id
    FROM whose CROSS JOIN LATERAL (SELECT agent, state, status_ms, id FROM tasks
        WHERE principal = name AND status_ms >= $1 ORDER BY status_ms DESC, id DESC) AS theirs
    WHERE name IS NOT NULL";

pub(super) async fn activity(c: &Object, over: Buckets) -> Result<Vec<v1::AgentActivity>, Error> {
    let mut seen = Activity::over(over);
    let statement = c.prepare_cached(&format!("{WHOSE} {ACTIVITY}")).await?;
    let mut found = pin!(c.query_raw(&statement, [over.from]).await?);
    while let Some(r) = found.try_next().await? {
        let agent = String::from_utf8_lossy(r.try_get(0)?);
        let state = TaskState::try_from(r.try_get::<_, i32>(1)?).unwrap_or_default();
        seen.add(&agent, state, r.try_get(2)?, id(&r, 3)?);
    }
    Ok(seen.agents())
}

const FAILURES: &str = "SELECT status_ms, id, reason, origin, failure_id FROM tasks
    WHERE state IN (4, 5, 7) AND state = 4 AND reason IS NOT NULL AND status_ms >= $1
    ORDER BY status_ms DESC, id DESC";

pub(super) async fn failures(c: &Object, over: Buckets) -> Result<Vec<v1::FailureCount>, Error> {
    let mut seen = Failures::over(over);
    let statement = c.prepare_cached(FAILURES).await?;
    let mut found = pin!(c.query_raw(&statement, [over.from]).await?);
    while let Some(r) = found.try_next().await? {
        seen.add(r.try_get(0)?, id(&r, 1)?, (text(&r, 2)?, text(&r, 3)?), &text(&r, 4)?);
    }
    Ok(seen.kinds())
}

/// The key of a child is in its first event.
pub(super) async fn children(
    c: &Object,
    parent: TaskId,
    scope: &Scope,
    limit: usize,
) -> Result<Vec<v1::Child>, ReadError> {
    let mut wanted = Conditions::within(scope);
    wanted.id("parent = ", parent);
    let sql = format!(
        "SELECT {COLUMNS}, (SELECT body FROM events WHERE task_id = tasks.id AND seq = 1)
         FROM tasks WHERE {} ORDER BY id LIMIT {limit}",
        wanted.sql()
    );
    let found = c.query_typed(&sql, &wanted.values()).await.map_err(unavailable)?;
    let children = found.iter().map(|r| {
        let first: Option<&[u8]> = r.try_get(16).map_err(unavailable)?;
        child(row(r).map_err(unavailable)?, first.unwrap_or_default())
    });
    children.collect()
}

pub(super) async fn aged(
    c: &Object,
    after: TaskId,
    before: TaskId,
    limit: usize,
) -> Result<Vec<Aged>, Error> {
    let sql = format!(
        "SELECT id, agent, state, status_ms,
            EXISTS (SELECT 1 FROM tasks AS above WHERE above.id = tasks.parent AND above.{ALIVE}),
            seq
         FROM tasks WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3"
    );
    let statement = c.prepare_cached(&sql).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = c.query(&statement, &[&uuid(&after), &uuid(&before), &limit]).await?;
    let aged = found.iter().map(|r| {
        let state = TaskState::try_from(r.try_get::<_, i32>(2)?).unwrap_or_default();
        let over = is_final(state) && !r.try_get::<_, bool>(4)?;
        let ended = over.then_some(r.try_get(3)?);
        let events = r.try_get::<_, i64>(5)? as u64;
        Ok(Aged { id: id(r, 0)?, agent: text(r, 1)?, ended, events })
    });
    aged.collect()
}
