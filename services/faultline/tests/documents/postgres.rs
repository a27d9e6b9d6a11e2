//! The PostgreSQL server of the tests, for blocks that need one. It is the server that `tests/run`
//! starts, or that of `eval "$(tests/postgres env)"`; without it these blocks are not run.

use std::{env, process::Command};

/// The environment variable with the URL of the server.
const SERVER: &str = "FAULTLINE_TEST_POSTGRES";

/// A role and a database of the same fresh name, created by the statements of the test. A drop
/// deletes both.
pub(crate) struct Database {
    server: String,
    pub(crate) name: String,
}

impl Database {
    /// A fresh name. `None`: no server is configured.
    pub(crate) fn planned() -> Option<Self> {
        let server = env::var(SERVER).ok().filter(|url| !url.is_empty())?;
        Some(Self { server, name: format!("faultline_documents_{:016x}", rand()) })
    }

    /// Creates the database without a role of its own.
    pub(crate) fn created() -> Option<Self> {
        let database = Self::planned()?;
        let created = database.run(&format!("CREATE DATABASE {}", database.name));
        created.unwrap_or_else(|error| panic!("{error}"));
        Some(database)
    }

    /// The URL of the database for this user; an empty name stands for the user of the server's
    /// URL.
    pub(crate) fn url(&self, user: &str) -> String {
        let (base, _) = self.server.rsplit_once('/').expect("the URL names a database");
        let (scheme, at) = base.split_once("://").expect("the URL has a scheme");
        let (own, host) = at.rsplit_once('@').unwrap_or(("", at));
        let user = if user.is_empty() { own } else { user };
        format!("{scheme}://{user}@{host}/{}", self.name)
    }

    /// Runs statements one by one, as the user of the server's URL, up to the first that fails.
    pub(crate) fn run(&self, sql: &str) -> Result<(), String> {
        let mut psql = Command::new("psql");
        let output = psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, &self.server]);
        let output = output.output().map_err(|error| format!("psql does not start: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("{sql}: {}", String::from_utf8_lossy(&output.stderr)))
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.run(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        let _ = self.run(&format!("DROP ROLE IF EXISTS {}", self.name));
    }
}

/// A random number, so that runs of the tests do not share a name.
fn rand() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
