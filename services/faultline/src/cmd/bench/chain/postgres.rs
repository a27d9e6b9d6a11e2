//! The PostgreSQL server of a section: a temporary database on it, and the CPU time of the server
//! if it runs on this machine.

use std::time::Duration;

use anyhow::Context;
use faultline_coordinator::Database;

use crate::cmd::bench::chain::process::Stat;

pub(crate) const HELP: &str = "\
The server may be any on which the user may create databases; they are deleted at the end. From a
checkout, `tests/postgres start /tmp/pg` starts one and prints its URL; `tests/postgres stop
/tmp/pg` stops it.";

/// A temporary database, deleted on drop, and the process of its server.
pub(crate) struct Postgres {
    database: Database,
    /// The process id of the server's main process; `None`: not on this machine.
    server: Option<u32>,
}

impl Postgres {
    pub(crate) async fn on(server: &str) -> anyhow::Result<Self> {
        let made = Database::create(server).await;
        let database = made.context("cannot make a database for the bench")?;
        let session = database.process_id().await.context("the database does not answer")?;
        let server = Stat::of(session).filter(|stat| stat.name.starts_with("postgres"));
        Ok(Self { database, server: server.map(|stat| stat.parent) })
    }

    pub(crate) fn url(&self) -> &str {
        self.database.url()
    }

    /// Vacuums and analyses the database, as PostgreSQL's autovacuum would have done while the
    /// store grew.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        self.database.settle().await.context("cannot vacuum the database of the bench")
    }

    /// The CPU time of all processes of the server.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let server = self.server?;
        let itself = Stat::of(server)?;
        let children = Stat::all().filter(|(_, stat)| stat.parent == server);
        Some(itself.own + itself.ended + children.map(|(_, stat)| stat.own).sum::<Duration>())
    }
}
