//! The write side: one connection, one transaction a batch (group commit). Rows are locked in
//! the order of their ids (no deadlock), decided in `plan`, and written by pipelined
//! statements.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;
use faultline_proto::id::TaskId;
use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, join_all, try_join_all},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_postgres::{Error, error::SqlState, types::ToSql};
use uuid::Uuid;

use crate::store::{
    KeyName, Notice, Write, WriteError, Written,
    postgres::{
        Shared, fault_injection,
        plan::{Found, Held, Known, Needs, Plan, decide},
        read::{text, uuid},
        said,
        statements::{self as sql, Columns},
    },
};
use crate::{clock::now, store::key_retention, task::is_final};

/// A batch that gets no answer for so long is lost.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often a batch is tried that only lost a race against another coordinator.
const TRIES: usize = 5;
/// Statements that travel at once, each after the last.
const AT_ONCE: usize = 30;
/// A batch that waits for a row lock is tried again before it fails: the server terminates a
/// stalled holder meanwhile. Every statement finds its rows by their keys, whatever the planner
/// thinks of the size of the tables.
const SESSION: &str = "SET synchronous_commit = on; SET lock_timeout = '5s';
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

pub(super) enum Order {
    Commit {
        writes: Vec<Write>,
        done: oneshot::Sender<Written>,
    },
    /// Gives the lease back. Nothing is written after it.
    Leave {
        done: oneshot::Sender<()>,
    },
}

pub(super) async fn write_loop(shared: Arc<Shared>, mut orders: mpsc::Receiver<Order>) {
    let (mut connection, mut left) = (None, false);
    while let Some(order) = orders.recv().await {
        match order {
            Order::Commit { writes, done } => {
                let count = writes.len();
                let written = match left {
                    true => Err("the lease was given back".to_owned()),
                    false => write(&shared, &mut connection, writes).await,
                };
                let failed = |why| vec![Err(WriteError::Unavailable(why)); count];
                let _ = done.send(written.unwrap_or_else(failed));
            }
            Order::Leave { done } => {
                left = true;
                shared.leave().await;
                let _ = done.send(());
            }
        }
    }
}

/// Why a transaction did not come about.
enum Failed {
    /// Somebody else was there first: look again.
    LostRace,
    Broken(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let raced = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::UNIQUE_VIOLATION,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        match error.code() {
            Some(code) if raced.contains(code) => Failed::LostRace,
            _ => Failed::Broken(said(&error)),
        }
    }
}

async fn write(
    shared: &Shared,
    connection: &mut Option<ClientWrapper>,
    writes: Vec<Write>,
) -> Result<Written, String> {
    let mut why = "it lost every race against other coordinators".to_owned();
    for attempt in 0..TRIES {
        // Taken out, so that a cancelled write leaves no connection in mid-transaction.
        let client = match connection.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => connect(shared).await?,
        };
        let tried = timeout(ANSWER_MAX, transact(shared, &client, &writes, attempt > 0)).await;
        let failed = match tried {
            Ok(Ok((written, notices))) => {
                *connection = Some(client);
                notices.into_iter().for_each(|notice| shared.tell(notice));
                return Ok(written);
            }
            Ok(Err(failed)) => failed,
            Err(_) => Failed::Broken(format!("no answer in {ANSWER_MAX:?}")),
        };
        match failed {
            Failed::LostRace
                if timeout(ANSWER_MAX, client.batch_execute("ROLLBACK")).await.is_ok() =>
            {
                *connection = Some(client);
            }
            Failed::LostRace => {}
            Failed::Broken(problem) => {
                why = problem;
                break;
            }
        }
    }
    Err(why)
}

async fn connect(shared: &Shared) -> Result<ClientWrapper, String> {
    let connected = timeout(ANSWER_MAX, async {
        let client = shared.connect().await?;
        let ready = async {
            client.batch_execute(SESSION).await?;
            // All of them: one that is prepared at its first use runs behind its batch's COMMIT.
            try_join_all(sql::WRITES.map(|sql| client.prepare_cached(sql))).await
        };
        ready.await.map_err(|e| said(&e))?;
        Ok(client)
    });
    match connected.await {
        Ok(connected) => connected,
        Err(_) => Err(format!("no connection in {ANSWER_MAX:?}")),
    }
}

/// One try.
async fn transact(
    shared: &Shared,
    client: &ClientWrapper,
    writes: &[Write],
    again: bool,
) -> Result<(Written, Vec<Notice>), Failed> {
    let me = shared.lease();
    let needs = Needs::of(writes, again);
    let known = match needs.nothing() {
        true => Known::default(),
        false => look(client, &needs).await?,
    };
    let plan = decide(
        writes.to_vec(),
        me,
        fault_injection::get().unfenced,
        now() - key_retention(),
        known,
    );
    let notices = notices(&plan);
    let columns = Columns::of(&plan, me);
    let mut steps = Vec::new();
    if needs.nothing() {
        steps.push(simply(client, "BEGIN"));
    }
    steps.extend(columns.statements().into_iter().map(|(sql, with)| run(client, sql, with)));
    steps.push(simply(client, "COMMIT"));
    let (mut steps, mut done) = (steps.into_iter().peekable(), Vec::new());
    while steps.peek().is_some() {
        done.extend(join_all(steps.by_ref().take(AT_ONCE)).await);
    }
    // Statements after an error fail because of it, so the first error is the cause.
    let counts = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    // From the end: the commit, before it what expired, and before that which agents did.
    let expired = plan.expire.iter().rev().map(|(_, gone)| gone);
    let forgotten = plan.forget_agents.iter().rev().map(|(_, _, gone)| gone);
    for (gone, count) in expired.chain(forgotten).zip(counts.into_iter().rev().skip(1)) {
        gone.set(count);
    }
    Ok((plan.written.clone(), notices))
}

/// How many rows it concerned.
type Step<'a> = BoxFuture<'a, Result<u64, Error>>;

fn simply<'a>(client: &'a ClientWrapper, sql: &'static str) -> Step<'a> {
    client.batch_execute(sql).map_ok(|()| 0).boxed()
}

fn run<'a>(
    client: &'a ClientWrapper,
    sql: &'static str,
    with: Vec<&'a (dyn ToSql + Sync)>,
) -> Step<'a> {
    async move {
        let statement = client.prepare_cached(sql).await?;
        client.execute(&statement, &with).await
    }
    .boxed()
}

/// Begins the transaction and locks the rows of the batch.
async fn look(client: &ClientWrapper, needs: &Needs) -> Result<Known, Failed> {
    let ids = |ids: &BTreeSet<TaskId>| ids.iter().map(uuid).collect::<Vec<Uuid>>();
    let (tasks, pushes) = (ids(&needs.tasks), ids(&needs.pushes));
    let part = |of: fn(&(String, String, String)) -> &str| {
        needs.keys.iter().map(|name| of(name).as_bytes()).collect::<Vec<_>>()
    };
    let keys = (part(|n| &n.0), part(|n| &n.1), part(|n| &n.2));
    let (lock_tasks, lock_keys, see_pushes) = (
        client.prepare_cached(sql::LOCK_TASKS).await?,
        client.prepare_cached(sql::LOCK_KEYS).await?,
        client.prepare_cached(sql::SEE_PUSHES).await?,
    );
    let (these, theirs): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 1]) =
        ([&tasks], [&pushes]);
    let wanted: [&(dyn ToSql + Sync); 3] = [&keys.0, &keys.1, &keys.2];
    // Polled in this order, and so sent in it: without waiting, but one after the other.
    let (begun, tasks, keys, pushes) = tokio::join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query(&lock_tasks, &these),
        async {
            match needs.keys.is_empty() {
                true => Ok(Vec::new()),
                false => client.query(&lock_keys, &wanted).await,
            }
        },
        async {
            match needs.pushes.is_empty() {
                true => Ok(Vec::new()),
                false => client.query(&see_pushes, &theirs).await,
            }
        },
    );
    begun?;
    let mut known = Known::default();
    for row in tasks? {
        let state = faultline_proto::a2a::TaskState::try_from(row.try_get::<_, i32>(3)?);
        let found = Found {
            version: row.try_get::<_, i64>(1)? as u64,
            owner: row.try_get(2)?,
            alive: !is_final(state.unwrap_or_default()),
        };
        known.tasks.insert(TaskId::from_bytes(row.try_get::<_, Uuid>(0)?.into_bytes()), found);
    }
    for row in keys? {
        let (principal, agent, key) = (text(&row, 0)?, text(&row, 1)?, text(&row, 2)?);
        let task = TaskId::from_bytes(row.try_get::<_, Uuid>(3)?.into_bytes());
        let held = Held { task, created: row.try_get(4)? };
        known.keys.insert(KeyName { principal, agent, key }, held);
    }
    for row in pushes? {
        let task = TaskId::from_bytes(row.try_get::<_, Uuid>(0)?.into_bytes());
        known.pushes.entry(task).or_default().insert(text(&row, 1)?);
    }
    Ok(known)
}

/// The notices for the other coordinators.
fn notices(plan: &Plan) -> Vec<Notice> {
    let changed: Vec<_> = plan
        .tasks
        .iter()
        .filter(|(_, change)| change.row.is_some() || change.erased())
        .map(|(id, _)| *id)
        .collect();
    let queued: BTreeSet<_> =
        plan.tasks.values().filter_map(|change| change.queued.clone().flatten()).collect();
    let mut notices = Vec::new();
    if !changed.is_empty() {
        notices.push(Notice::Changed(changed));
    }
    if !queued.is_empty() {
        notices.push(Notice::Queued(queued.into_iter().collect()));
    }
    if !plan.offers.is_empty() || !plan.forget_agents.is_empty() {
        notices.push(Notice::Offered);
    }
    notices
}
