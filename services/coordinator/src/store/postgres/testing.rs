//! A database for each test, on the PostgreSQL of `FAULTLINE_TEST_POSTGRES`.

use std::time::Duration;

use deadpool_postgres::Object;
use faultline_proto::id::TaskId;
use tokio_postgres::{Client, NoTls};

use super::{Postgres, Settings, read::uuid};

/// Where the server is.
const SERVER: &str = "FAULTLINE_TEST_POSTGRES";

/// Dropped with whoever holds it.
pub(crate) struct Database {
    server: String,
    name: String,
}

impl Database {
    pub(crate) async fn make() -> Self {
        let server = std::env::var(SERVER).unwrap_or_else(|_| {
            panic!("{SERVER} is not set: run `tests/run`, or `tests/postgres start` and set it")
        });
        let name = format!("faultline_test_{:016x}", rand::random::<u64>());
        let client = connect(&server).await;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self { server, name }
    }

    /// Of this database.
    pub(crate) fn url(&self) -> String {
        let (server, query) = self.server.split_once('?').unwrap_or((&self.server, ""));
        let (host, _) = server.rsplit_once('/').expect("the server's URL ends in a database");
        format!("{host}/{}?{query}", self.name)
    }

    pub(crate) async fn open(&self) -> Postgres {
        self.open_for(Duration::from_secs(60)).await
    }

    pub(crate) async fn open_for(&self, lease: Duration) -> Postgres {
        Postgres::open(&self.url(), Settings { lease, connections: 4 }).await.unwrap()
    }

    /// The time of this store's lease has come.
    pub(crate) async fn lapse(&self, store: &Postgres) {
        let sql = "UPDATE leases SET expires = clock_timestamp() WHERE id = $1";
        assert_eq!(self.client().await.execute(sql, &[&store.shared.lease()]).await.unwrap(), 1);
    }

    /// Beside any store.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await
    }
}

impl Postgres {
    /// A connection like those it reads with, in the middle of a transaction that holds this task.
    pub(crate) async fn stuck_with(&self, task: TaskId) -> Object {
        let client = self.shared.pool.get().await.unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        let sql = "SELECT 1 FROM tasks WHERE id = $1 FOR NO KEY UPDATE";
        assert_eq!(client.query(sql, &[&uuid(&task)]).await.unwrap().len(), 1);
        client
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // Tests end without waiting for what they spawned, so it waits for itself.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let drop = format!("DROP DATABASE {name} WITH (FORCE)");
                let _ = connect(&server).await.batch_execute(&drop).await;
            });
        });
        let _ = dropped.join();
    }
}
