//! The PostgreSQL that a section runs on: databases of its own there, and what the server itself
//! takes of this machine, if it is on it.

use std::time::Duration;

use anyhow::Context;
use faultline_coordinator::Database;

use crate::cmd::bench::chain::process::Stat;

pub(crate) const HELP: &str = "\
The server may be any at which the user may create databases; what is made there goes again. From a
checkout, `tests/postgres start /tmp/pg` starts one and prints its URL; `tests/postgres stop
/tmp/pg` stops it.";

/// An empty database that goes with it, and the server behind it.
pub(crate) struct Postgres {
    database: Database,
    /// The parent of all its processes; `None`: not on this machine.
    server: Option<u32>,
}

impl Postgres {
    pub(crate) async fn on(server: &str) -> anyhow::Result<Self> {
        let made = Database::create(server).await;
        let database = made.context("cannot make a database for the bench")?;
        let session = database.process_id().await.context("no word from the database")?;
        let server = Stat::of(session).filter(|stat| stat.name.starts_with("postgres"));
        Ok(Self { database, server: server.map(|stat| stat.parent) })
    }

    pub(crate) fn url(&self) -> &str {
        self.database.url()
    }

    /// What PostgreSQL would do by itself after a while, and had done long before the store were as
    /// full as the bench makes it.
    pub(crate) async fn settle(&self) -> anyhow::Result<()> {
        self.database.settle().await.context("cannot vacuum the database of the bench")
    }

    /// CPU time of the whole server so far.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let server = self.server?;
        let itself = Stat::of(server)?;
        let children = Stat::all().filter(|(_, stat)| stat.parent == server);
        Some(itself.own + itself.ended + children.map(|(_, stat)| stat.own).sum::<Duration>())
    }
}
