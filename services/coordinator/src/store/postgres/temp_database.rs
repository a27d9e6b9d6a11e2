//! Temporary databases for `faultline bench`: created empty, dropped with their owner.

use std::thread;

use deadpool_postgres::ClientWrapper;
use tokio::runtime::Builder;

use super::{OpenError, address::Address, connect, schema::refused};

/// Dropped, it is gone, whoever is still connected to it.
pub struct Database {
    server: String,
    name: String,
    url: String,
}

impl Database {
    /// At the server of this URL, whose user must be allowed to.
    pub async fn create(server: &str) -> Result<Self, OpenError> {
        let name = format!("faultline_bench_{:016x}", rand::random::<u64>());
        let (base, query) = server.split_once('?').unwrap_or((server, ""));
        let host = base.rsplit_once('/').filter(|(host, _)| host.contains("://"));
        let Some((host, _)) = host.filter(|(host, _)| !host.ends_with('/')) else {
            return Err(OpenError::Url { what: "it names no database to begin with".to_owned() });
        };
        let url = match query {
            "" => format!("{host}/{name}"),
            query => format!("{host}/{name}?{query}"),
        };
        run(server, &format!("CREATE DATABASE {name}")).await?;
        Ok(Self { server: server.to_owned(), name, url })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Of the process of the server that a connection has there.
    pub async fn process_id(&self) -> Result<u32, OpenError> {
        let (client, shown) = reach(&self.url).await?;
        let found = client.query_one("SELECT pg_backend_pid()", &[]).await;
        let id: i32 = found.and_then(|row| row.try_get(0)).map_err(|e| refused(e, &shown))?;
        Ok(id.unsigned_abs())
    }

    /// Sweeps and measures every table, as the server does by itself now and then, and puts it on
    /// the disk, if the user may ask for that.
    pub async fn settle(&self) -> Result<(), OpenError> {
        run(&self.url, "VACUUM (ANALYZE)").await?;
        let _ = run(&self.url, "CHECKPOINT").await;
        Ok(())
    }
}

async fn reach(url: &str) -> Result<(ClientWrapper, String), OpenError> {
    let address = Address::parse(url)?;
    let client = connect(&address).await.map_err(|problem| {
        let shown = address.shown.clone();
        OpenError::Connect { shown, problem }
    })?;
    // Tables of any size are swept here.
    let sql = "SET statement_timeout = 0";
    client.batch_execute(sql).await.map_err(|e| refused(e, &address.shown))?;
    Ok((client, address.shown))
}

async fn run(url: &str, sql: &str) -> Result<(), OpenError> {
    let (client, shown) = reach(url).await?;
    client.batch_execute(sql).await.map_err(|e| refused(e, &shown))
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // A process does not wait for its threads at exit, so the drop waits here.
        let dropping = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            // A server that is gone has taken it along.
            let _ = runtime.block_on(run(&server, &drop));
            std::io::Result::Ok(())
        });
        let _ = dropping.join();
    }
}
