//! PostgreSQL, for several coordinators on one store. One connection writes batches (group
//! commit), a pool serves reads, one connection listens for notifications.

mod address;
mod fault_injection;
mod lease;
mod notice;
mod plan;
mod push;
mod read;
mod schema;
mod statements;
mod temp_database;
mod tls;
mod view;
mod workers;
mod write;

#[cfg(test)]
pub(crate) mod testing;

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use deadpool_postgres::{
    ClientWrapper, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime,
};
use faultline_chassis::credential::Binding;
use faultline_proto::{
    id::{TaskId, WorkerId},
    v1,
};
use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};
use tokio_postgres::types::ToSql;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::address::without_password;
pub use self::temp_database::Database;
use self::{address::Address, read::unavailable, write::Order};
use super::{
    Aged, BindingQuota, Buckets, Cluster, Cursor, Filter, KeyName, KeyRow, Notice, Page, PushKey,
    PushRow, ReadError, Reading, Remembered, Row, Rows, Scope, SigningSecret, Store, Stored,
    StoredEvent, Story, Wanted, Write, Written,
};
use crate::task::{Millis, Task};

/// A read that gets no answer for so long has failed.
const READ_MAX: Duration = Duration::from_secs(10);
/// The same for reading everything that lives.
const RECOVER_MAX: Duration = Duration::from_secs(120);
/// So long may a read wait for a connection.
const POOL_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the store's URL: {what}")]
    Url { what: String },
    #[error(transparent)]
    Tls(#[from] faultline_chassis::tls::Error),
    #[error("cannot connect to {shown}: {problem}")]
    Connect { shown: String, problem: String },
    #[error("{shown} was written by a newer faultline (schema {found}, this one knows {known})")]
    Newer { shown: String, found: usize, known: usize },
    #[error(
        "{shown} does not let this user do what a store needs: {problem} (it must own its tables, \
         or be allowed to create them)"
    )]
    Rights { shown: String, problem: String },
    #[error("{shown}: {problem}")]
    Failed { shown: String, problem: String },
}

/// How it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// For how long a sign of life counts.
    pub(crate) lease: Duration,
    /// Connections for reading.
    pub(crate) connections: usize,
}

pub(crate) struct Postgres {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    incoming: Mutex<Option<mpsc::Receiver<Notice>>>,
    secret: SigningSecret,
    /// It listens until the store is gone.
    _listener: AbortOnDropHandle<()>,
}

/// State that all parts of the store share.
struct Shared {
    address: Address,
    pool: Pool,
    /// Of one connection, so that the lease waits for no reader.
    lease_pool: Pool,
    lease: AtomicI64,
    lease_ms: i64,
    /// Good leases beside ours, when last looked.
    others: AtomicI64,
    outgoing: mpsc::Sender<Notice>,
    /// There was no room for a notice.
    unsaid: AtomicBool,
}

impl Shared {
    fn lease(&self) -> i64 {
        self.lease.load(Relaxed)
    }

    fn set_lease(&self, lease: i64, others: i64) {
        self.lease.store(lease, Relaxed);
        self.set_others(others);
    }

    fn others(&self) -> i64 {
        self.others.load(Relaxed)
    }

    fn set_others(&self, others: i64) {
        self.others.store(others, Relaxed);
    }

    fn tell(&self, notice: Notice) {
        if self.others() > 0 && self.outgoing.try_send(notice).is_err() {
            self.unsaid.store(true, Relaxed);
        }
    }

    /// A connection outside the pool.
    async fn connect(&self) -> Result<ClientWrapper, String> {
        connect(&self.address).await
    }

    async fn leave(&self) {
        if let Ok(client) = self.pool.get().await {
            let me = self.lease();
            let with: [&(dyn ToSql + Sync); 1] = [&me];
            let gone = client.execute("DELETE FROM leases WHERE id = $1", &with);
            if timeout(READ_MAX, gone).await.is_ok_and(|gone| gone.is_ok()) {
                self.say_now(Notice::Left).await;
            }
        }
    }
}

async fn connect(address: &Address) -> Result<ClientWrapper, String> {
    let (client, connection) = address.connect().await?;
    // Users of the client notice its end.
    let driver = tokio::spawn(async move { drop(connection.await) });
    Ok(ClientWrapper::new(client, driver))
}

/// An error of the database in its own words, without the parts that carry data.
fn said(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

impl Postgres {
    pub(crate) async fn open(url: &str, settings: Settings) -> Result<Self, OpenError> {
        let address = Address::parse(url)?;
        let shown = address.shown.clone();
        let mut client = connect(&address).await.map_err(|problem| {
            let shown = shown.clone();
            OpenError::Connect { shown, problem }
        })?;
        schema::migrate(&mut client, &shown).await?;
        let refused = |e| schema::refused(e, &shown);
        let secret = schema::secret(&client).await.map_err(refused)?;
        let lease_ms = settings.lease.as_millis() as i64;
        let tx = client.transaction().await.map_err(refused)?;
        let lease = lease::new(&tx, lease_ms).await.map_err(refused)?;
        tx.commit().await.map_err(refused)?;
        let of = |connections| {
            pool(&address, connections).map_err(|problem| {
                let shown = shown.clone();
                OpenError::Failed { shown, problem }
            })
        };
        let (pool, lease_pool) = (of(settings.connections)?, of(1)?);
        let (outgoing, to_tell) = mpsc::channel(notice::WAITING_MAX);
        let (heard, incoming) = mpsc::channel(notice::WAITING_MAX);
        let (orders, queue) = mpsc::channel(1);
        let shared = Arc::new(Shared {
            address,
            pool,
            lease_pool,
            lease: AtomicI64::new(lease),
            lease_ms,
            others: AtomicI64::new(0),
            outgoing,
            unsaid: AtomicBool::new(false),
        });
        tokio::spawn(write::write_loop(Arc::clone(&shared), queue));
        tokio::spawn(notice::tell_loop(Arc::downgrade(&shared), to_tell));
        let listener = tokio::spawn(notice::listen_loop(Arc::downgrade(&shared), heard));
        Ok(Self {
            shared,
            orders,
            incoming: Mutex::new(Some(incoming)),
            secret,
            _listener: AbortOnDropHandle::new(listener),
        })
    }

    fn read<'a, T: Send + 'a>(
        &'a self,
        work: impl for<'c> FnOnce(&'c mut Object) -> Reading<'c, T> + Send + 'a,
    ) -> Reading<'a, T> {
        self.read_within(READ_MAX, &self.shared.pool, work)
    }

    fn read_within<'a, T: Send + 'a>(
        &'a self,
        most: Duration,
        pool: &'a Pool,
        work: impl for<'c> FnOnce(&'c mut Object) -> Reading<'c, T> + Send + 'a,
    ) -> Reading<'a, T> {
        async move {
            let (end, late) = (Instant::now() + most, || format!("no answer in {most:?}"));
            let late = || ReadError::Unavailable(late());
            let connected = timeout_at(end, pool.get()).await.map_err(|_| late())?;
            let mut client = connected.map_err(|e| ReadError::Unavailable(why(&e)))?;
            let done = timeout_at(end, work(&mut client)).await;
            done.unwrap_or_else(|_| {
                // Fails everything that still waits for it.
                drop(Object::take(client));
                Err(late())
            })
        }
        .boxed()
    }

    /// The same for statements of the lease.
    fn with<'a, T: Send + 'a>(
        &'a self,
        work: impl for<'c> FnOnce(Arc<Shared>, &'c mut Object) -> Reading<'c, T> + Send + 'a,
    ) -> Reading<'a, T> {
        let shared = Arc::clone(&self.shared);
        self.read(move |c| work(shared, c))
    }
}

fn why(error: &deadpool_postgres::PoolError) -> String {
    match error {
        deadpool_postgres::PoolError::Backend(error) => said(error),
        other => other.to_string(),
    }
}

fn pool(address: &Address, connections: usize) -> Result<Pool, String> {
    let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(address.config.clone(), address.tls.clone(), config);
    let pool = Pool::builder(manager)
        .max_size(connections)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_WAIT_MAX))
        .create_timeout(Some(POOL_WAIT_MAX));
    pool.build().map_err(|e| e.to_string())
}

impl Store for Postgres {
    fn cluster(&self) -> Option<&dyn Cluster> {
        Some(self)
    }

    fn secret(&self) -> &SigningSecret {
        &self.secret
    }

    fn commit(&self, writes: Vec<Write>) -> oneshot::Receiver<Written> {
        let (done, written) = oneshot::channel();
        // A dropped sender answers the receiver; there is room for the one batch under way.
        let _ = self.orders.try_send(Order::Commit { writes, done });
        written
    }

    fn task(&self, id: TaskId, scope: Scope) -> Reading<'_, Option<Stored>> {
        self.with(move |s, c| async move { read::task(c, id, &scope, s.lease()).await }.boxed())
    }

    fn events(&self, id: TaskId, after: u64, limit: usize) -> Reading<'_, Vec<StoredEvent>> {
        self.read(move |c| read::events(c, id, after, limit).map(to_read).boxed())
    }

    fn list(&self, filter: Filter) -> Reading<'_, Page> {
        self.read(move |c| async move { read::list(c, &filter).await }.boxed())
    }

    fn children(&self, id: TaskId, scope: Scope, limit: usize) -> Reading<'_, Vec<v1::Child>> {
        self.read(move |c| async move { view::children(c, id, &scope, limit).await }.boxed())
    }

    fn tasks(&self, wanted: Wanted, after: Option<Cursor>, limit: usize) -> Reading<'_, Rows> {
        self.read(move |c| async move { view::tasks(c, &wanted, after, limit).await }.boxed())
    }

    fn rows(&self, ids: Vec<TaskId>) -> Reading<'_, Vec<Row>> {
        self.read(move |c| async move { view::rows(c, &ids).await }.boxed())
    }

    fn story(
        &self,
        id: TaskId,
        scope: Scope,
        after: u64,
        limit: usize,
    ) -> Reading<'_, Option<Story>> {
        self.read(move |c| async move { view::story(c, id, &scope, after, limit).await }.boxed())
    }

    fn activity(&self, over: Buckets) -> Reading<'_, Vec<v1::AgentActivity>> {
        self.read(move |c| view::activity(c, over).map(to_read).boxed())
    }

    fn failures(&self, over: Buckets) -> Reading<'_, Vec<v1::FailureCount>> {
        self.read(move |c| view::failures(c, over).map(to_read).boxed())
    }

    fn recover(&self) -> Reading<'_, Vec<Task>> {
        let shared = Arc::clone(&self.shared);
        self.read_within(RECOVER_MAX, &self.shared.pool, move |c| {
            async move { shared.begin(c).await }.boxed()
        })
    }

    fn agents(&self, only: Option<String>) -> Reading<'_, Vec<Remembered>> {
        self.read(move |c| read::agents(c, only).boxed())
    }

    fn key(&self, name: KeyName, since: Millis) -> Reading<'_, Option<KeyRow>> {
        self.read(move |c| read::key(c, name, since).boxed())
    }

    fn oldest_key(&self) -> Reading<'_, Option<Millis>> {
        self.read(move |c| read::oldest_key(c).map(to_read).boxed())
    }

    fn aged(&self, after: TaskId, before: TaskId, limit: usize) -> Reading<'_, Vec<Aged>> {
        self.read(move |c| view::aged(c, after, before, limit).map(to_read).boxed())
    }

    fn push(&self, key: PushKey) -> Reading<'_, Option<PushRow>> {
        self.read(move |c| async move { push::one(c, &key).await }.boxed())
    }

    fn pushes(&self, task: TaskId, after: String, limit: usize) -> Reading<'_, Vec<PushRow>> {
        self.read(move |c| async move { push::page(c, task, &after, limit).await }.boxed())
    }

    fn unfinished_pushes(&self) -> Reading<'_, Vec<PushKey>> {
        let me = self.shared.lease();
        self.read(move |c| async move { to_read(push::take(c, me, true).await) }.boxed())
    }

    fn introduce(
        &self,
        worker: WorkerId,
        to: Binding,
        at: Millis,
        quota: BindingQuota,
    ) -> Reading<'_, Option<Binding>> {
        self.read(move |c| workers::introduce(c, worker, to, at, quota).map(to_read).boxed())
    }

    fn keep_introduced(&self, known: Vec<WorkerId>, at: Millis, before: Millis) -> Reading<'_, ()> {
        self.read(move |c| {
            async move { to_read(workers::keep(c, &known, at, before).await) }.boxed()
        })
    }
}

fn to_read<T>(result: Result<T, tokio_postgres::Error>) -> Result<T, ReadError> {
    result.map_err(unavailable)
}

impl Cluster for Postgres {
    fn beat(&self, here: v1::Presence) -> Reading<'_, Vec<v1::Presence>> {
        let (shared, pool) = (Arc::clone(&self.shared), &self.shared.lease_pool);
        // There must be time for another one, on a connection that is not stuck.
        let lease = Duration::from_millis(self.shared.lease_ms.unsigned_abs());
        let most = (lease / 3).max(Duration::from_secs(1)).min(lease / 2);
        self.read_within(most, pool, move |c| async move { shared.beat(c, here).await }.boxed())
    }

    fn take_over(&self, limit: usize) -> Reading<'_, Vec<Task>> {
        self.with(move |s, c| async move { s.take_over(c, limit).await }.boxed())
    }

    fn take_over_pushes(&self) -> Reading<'_, Vec<PushKey>> {
        self.with(move |s, c| async move { to_read(s.take_over_pushes(c).await) }.boxed())
    }

    fn sees_to(&self, key: PushKey) -> Reading<'_, bool> {
        self.with(move |s, c| async move { to_read(push::is_of(c, s.lease(), &key).await) }.boxed())
    }

    fn adopt(&self, worker: WorkerId) -> Reading<'_, Vec<Task>> {
        self.with(move |s, c| async move { s.adopt(c, worker).await }.boxed())
    }

    fn claim(&self, agent: String, limit: usize) -> Reading<'_, Vec<Task>> {
        self.with(move |s, c| async move { s.claim(c, &agent, limit).await }.boxed())
    }

    fn owned(&self) -> Reading<'_, Vec<(TaskId, u64)>> {
        self.with(move |s, c| async move { to_read(s.owned(c).await) }.boxed())
    }

    fn tell(&self, notice: Notice) {
        self.shared.tell(notice);
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        async move {
            let (done, left) = oneshot::channel();
            // Behind the batch that is under way.
            if self.orders.send(Order::Leave { done }).await.is_ok() {
                let _ = left.await;
            }
        }
        .boxed()
    }

    fn notices(&self) -> mpsc::Receiver<Notice> {
        let taken = self.incoming.lock().take();
        // A second call gets an empty channel.
        taken.unwrap_or_else(|| mpsc::channel(1).1)
    }
}
