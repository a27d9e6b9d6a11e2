//! Leases, and tasks that change owners. A lease is valid while its row exists and has not
//! expired by the clock of the database. An expired lease is deleted before its tasks are taken
//! over, so it cannot be renewed meanwhile.

use deadpool_postgres::{Object, Transaction};
use faultline_proto::{
    id::{TaskId, WorkerId},
    v1::Presence,
};
use prost::Message;
use tokio_postgres::{Error, types::ToSql};

use crate::store::{
    Notice, PushKey, ReadError,
    postgres::{
        Shared, push,
        read::{COLUMNS, fold_all, id, moment, unavailable, uuid},
        schema::ALIVE,
    },
};
use crate::task::Task;

/// So many milliseconds from now.
const LATER: &str = "clock_timestamp() + $1 * INTERVAL '1 millisecond'";

/// A new one, which nothing belongs to yet.
pub(super) async fn new(tx: &Transaction<'_>, lease_ms: i64) -> Result<i64, Error> {
    let sql = format!("INSERT INTO leases (expires) VALUES ({LATER}) RETURNING id");
    tx.query_one(&sql, &[&(lease_ms as f64)]).await?.try_get(0)
}

/// Tasks that change hands in one transaction, for which whoever wants to stop or answer one of
/// them waits, and that are read in one: then nobody does.
const AT_ONCE: usize = 256;

/// Those that another is just burying are left to it: it may take long over what they had. One's
/// own is for others to bury.
async fn bury(tx: &Transaction<'_>, me: i64) -> Result<(), Error> {
    let sql = "DELETE FROM leases WHERE id IN (SELECT id FROM leases
        WHERE expires <= clock_timestamp() AND id <> $1 FOR UPDATE SKIP LOCKED)";
    tx.execute(sql, &[&me]).await.map(drop)
}

/// Owners of active tasks without a lease: one step in the index for each owner.
async fn dead(tx: &Transaction<'_>, me: i64) -> Result<Vec<i64>, Error> {
    let sql = format!(
        "WITH RECURSIVE owners (id) AS (
            (SELECT owner FROM tasks WHERE {ALIVE} ORDER BY owner LIMIT 1)
            UNION ALL
            SELECT (SELECT owner FROM tasks WHERE {ALIVE} AND owner > owners.id
                ORDER BY owner LIMIT 1) FROM owners WHERE owners.id IS NOT NULL)
         SELECT id FROM owners WHERE id IS NOT NULL AND id <> $1
            AND NOT EXISTS (SELECT 1 FROM leases WHERE leases.id = owners.id)"
    );
    let statement = tx.prepare_cached(&sql).await?;
    tx.query(&statement, &[&me]).await?.iter().map(|r| r.try_get(0)).collect()
}

/// Makes tasks ours that fulfil a condition, in order. What another holds just now is waited for,
/// unless it is to be left out.
async fn seize(
    tx: &Transaction<'_>,
    which: &str,
    then: &str,
    with: &[&(dyn ToSql + Sync)],
) -> Result<Vec<TaskId>, Error> {
    let sql = format!(
        "WITH found AS (SELECT id AS taken FROM tasks WHERE {which})
         UPDATE tasks SET owner = $1{then} FROM found WHERE id = taken RETURNING id"
    );
    let statement = tx.prepare_cached(&sql).await?;
    tx.query(&statement, with).await?.iter().map(|r| id(r, 0)).collect()
}

impl Shared {
    /// Begins anew: another lease, and with it everything that no other coordinator has. What was
    /// ours before is ours without a moment in which others could take it; it is read after that.
    pub(super) async fn begin(&self, c: &mut Object) -> Result<Vec<Task>, ReadError> {
        let (me, others) = self.succeed(c).await.map_err(unavailable)?;
        self.set_lease(me, others);
        let owned = self.owned(c).await.map_err(unavailable)?;
        let mut tasks = self.read_owned(c, owned.into_iter().map(|(id, _)| id).collect()).await?;
        loop {
            let taken = self.seize_dead(c, AT_ONCE).await.map_err(unavailable)?;
            let all = taken.len() < AT_ONCE;
            tasks.extend(self.read_owned(c, taken).await?);
            if all {
                self.tell_moved(&tasks);
                return Ok(tasks);
            }
        }
    }

    /// Another lease instead of ours, and how many there are beside it.
    async fn succeed(&self, c: &mut Object) -> Result<(i64, i64), Error> {
        let (tx, before) = (c.transaction().await?, self.lease());
        let me = new(&tx, self.lease_ms).await?;
        tx.execute("DELETE FROM leases WHERE id = $1", &[&before]).await?;
        // Of many tasks, and there is no other way to go on.
        tx.batch_execute("SET LOCAL statement_timeout = '100s'").await?;
        let which = format!("{ALIVE} AND owner = $2 ORDER BY id FOR NO KEY UPDATE");
        seize(&tx, &which, "", &[&me, &before]).await?;
        // Still under way are only those of the lease that this one follows.
        let sql = "UPDATE pushes SET owner = $1 WHERE NOT done AND owner = $2";
        tx.execute(sql, &[&me, &before]).await?;
        let others = "SELECT COUNT(*) FROM leases WHERE id <> $1";
        let others = tx.query_one(others, &[&me]).await?.try_get(0)?;
        tx.commit().await?;
        Ok((me, others))
    }

    /// Those of these tasks that are ours, each as it is at one moment. Nobody has to wait for
    /// that, however long it takes: they are ours already. The lease is kept meanwhile.
    async fn read_owned(&self, c: &mut Object, ids: Vec<TaskId>) -> Result<Vec<Task>, ReadError> {
        // The lease is so new that the planner thinks nobody has it, and would read all it has.
        let sql = format!(
            "SELECT {COLUMNS} FROM tasks WHERE id = ANY($1) AND {ALIVE} AND owner + 0 = $2"
        );
        let mut tasks = Vec::with_capacity(ids.len());
        for part in ids.chunks(AT_ONCE) {
            let part: Vec<_> = part.iter().map(uuid).collect();
            let tx = moment(c).await?;
            let found = async {
                let statement = tx.prepare_cached(&sql).await?;
                tx.query(&statement, &[&part, &self.lease()]).await
            };
            tasks.extend(fold_all(&tx, found.await.map_err(unavailable)?).await?);
            tx.commit().await.map_err(unavailable)?;
            if part.len() == AT_ONCE {
                self.renew(c).await?;
            }
        }
        Ok(tasks)
    }

    /// Its time begins again: reading many tasks may take longer than it lasts.
    async fn renew(&self, c: &Object) -> Result<(), ReadError> {
        let sql = format!("UPDATE leases SET expires = {LATER} WHERE id = $2");
        let renewed = c.execute(&sql, &[&(self.lease_ms as f64), &self.lease()]).await;
        match renewed.map_err(unavailable)? {
            0 => Err(ReadError::Lapsed),
            _ => Ok(()),
        }
    }

    pub(super) async fn beat(
        &self,
        c: &Object,
        here: Presence,
    ) -> Result<Vec<Presence>, ReadError> {
        let me = self.lease();
        let sql = format!(
            "UPDATE leases SET expires = {LATER}, presence = $2
             WHERE id = $3 AND expires > clock_timestamp()"
        );
        let (ms, here) = (self.lease_ms as f64, here.encode_to_vec());
        let renewed = async {
            let statement = c.prepare_cached(&sql).await?;
            c.execute(&statement, &[&ms, &here, &me]).await
        };
        if renewed.await.map_err(unavailable)? == 0 {
            return Err(ReadError::Lapsed);
        }
        let sql = "SELECT presence FROM leases WHERE id <> $1 AND expires > clock_timestamp()
            ORDER BY id";
        let found = async {
            let statement = c.prepare_cached(sql).await?;
            c.query(&statement, &[&me]).await
        };
        let found = found.await.map_err(unavailable)?;
        self.set_others(found.len() as i64);
        let others = found.iter().map(|r| {
            let presence: &[u8] = r.try_get(0).map_err(unavailable)?;
            // Of a newer version, perhaps; it counts as one that has said nothing yet.
            Ok(Presence::decode(presence).unwrap_or_default())
        });
        others.collect()
    }

    pub(super) async fn take_over(
        &self,
        c: &mut Object,
        limit: usize,
    ) -> Result<Vec<Task>, ReadError> {
        let taken = self.seize_dead(c, limit).await.map_err(unavailable)?;
        self.moved(c, taken).await
    }

    /// Tasks of owners without a lease that no other transaction has locked.
    async fn seize_dead(&self, c: &mut Object, limit: usize) -> Result<Vec<TaskId>, Error> {
        let (tx, me) = (c.transaction().await?, self.lease());
        bury(&tx, me).await?;
        let from = dead(&tx, me).await?;
        let which = format!(
            "{ALIVE} AND owner = ANY($2) ORDER BY id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED"
        );
        let taken = match from.is_empty() {
            true => Vec::new(),
            false => seize(&tx, &which, "", &[&me, &from, &most(limit)]).await?,
        };
        tx.commit().await?;
        Ok(taken)
    }

    pub(super) async fn take_over_pushes(&self, c: &mut Object) -> Result<Vec<PushKey>, Error> {
        let tx = c.transaction().await?;
        bury(&tx, self.lease()).await?;
        let taken = push::take(&tx, self.lease(), false).await?;
        tx.commit().await?;
        Ok(taken)
    }

    pub(super) async fn adopt(
        &self,
        c: &mut Object,
        worker: WorkerId,
    ) -> Result<Vec<Task>, ReadError> {
        let adopted = async {
            let tx = c.transaction().await?;
            let which = format!("{ALIVE} AND worker = $2 ORDER BY id FOR NO KEY UPDATE");
            let worker = worker.to_string();
            let found = seize(&tx, &which, "", &[&self.lease(), &worker.as_bytes()]).await?;
            tx.commit().await?;
            Ok(found)
        };
        let adopted = adopted.await.map_err(unavailable)?;
        self.moved(c, adopted).await
    }

    pub(super) async fn claim(
        &self,
        c: &mut Object,
        agent: &str,
        limit: usize,
    ) -> Result<Vec<Task>, ReadError> {
        let claimed = async {
            let tx = c.transaction().await?;
            // It waits no longer, or two that have a worker would take it from one another.
            let which = format!(
                "{ALIVE} AND queued = $2 AND owner <> $1 ORDER BY id LIMIT $3
                 FOR NO KEY UPDATE SKIP LOCKED"
            );
            let with: [&(dyn ToSql + Sync); 3] = [&self.lease(), &agent.as_bytes(), &most(limit)];
            let found = seize(&tx, &which, ", queued = NULL", &with).await?;
            tx.commit().await?;
            Ok(found)
        };
        let claimed = claimed.await.map_err(unavailable)?;
        self.moved(c, claimed).await
    }

    pub(super) async fn owned(&self, c: &Object) -> Result<Vec<(TaskId, u64)>, Error> {
        let sql = format!("SELECT id, version FROM tasks WHERE {ALIVE} AND owner = $1");
        let statement = c.prepare_cached(&sql).await?;
        let found = c.query(&statement, &[&self.lease()]).await?;
        found.iter().map(|r| Ok((id(r, 0)?, r.try_get::<_, i64>(1)? as u64))).collect()
    }

    /// Those of these that live, now that they are ours. Should they not be read, they are found by
    /// comparing.
    async fn moved(&self, c: &mut Object, ids: Vec<TaskId>) -> Result<Vec<Task>, ReadError> {
        let tasks = self.read_owned(c, ids).await?;
        self.tell_moved(&tasks);
        Ok(tasks)
    }

    fn tell_moved(&self, tasks: &[Task]) {
        if !tasks.is_empty() {
            self.tell(Notice::Changed(tasks.iter().map(|task| task.id).collect()));
        }
    }
}

fn most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
