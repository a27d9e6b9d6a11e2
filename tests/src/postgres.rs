//! PostgreSQL for tests: a fresh database per mesh on the shared server that `tests/run` starts,
//! and private servers for tests that restart the server. Knows nothing of the schema.

use std::{
    cell::RefCell,
    env,
    ffi::OsStr,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Variable with the URL of the shared server.
const SERVER: &str = "FAULTLINE_TEST_POSTGRES";
/// Variable with the default store of a mesh.
const STORE: &str = "FAULTLINE_TEST_STORE";
/// File in the directory of a mesh with the URL of its database.
const NOTE: &str = "database";

/// The kind of store that a mesh uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A file in the directory of the mesh.
    Sqlite,
    /// A fresh database on the server that all tests share.
    Postgres,
    /// A fresh database on a private server, which the test may restart.
    OwnPostgres,
}

/// SQLite, or PostgreSQL with `FAULTLINE_TEST_STORE=postgres`.
impl Default for Store {
    fn default() -> Self {
        match env::var(STORE).as_deref() {
            Err(_) | Ok("" | "sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("{STORE} is sqlite or postgres, not '{other}'"),
        }
    }
}

/// The store of the mesh in this directory: the same one for the whole test.
pub fn store_in(dir: &Path) -> String {
    if Store::default() == Store::Sqlite {
        return format!("sqlite:{}", dir.join("faultline.db").display());
    }
    let note = dir.join(NOTE);
    if let Ok(url) = fs::read_to_string(&note) {
        return url;
    }
    let url = Database::shared().keep_for_thread();
    fs::write(note, &url).expect("a file can be written");
    url
}

/// An empty database of one test. The drop deletes it, despite open connections.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
    url: String,
}

impl Database {
    /// Creates a database on the shared server.
    pub fn shared() -> Self {
        let server = env::var(SERVER).unwrap_or_else(|_| {
            panic!(
                "this test needs PostgreSQL and {SERVER} is not set: run tests/run, or \
                 eval \"$(tests/postgres env)\" once and then this test again"
            )
        });
        Self::on(&server)
    }

    /// Creates a database on this server.
    pub fn on(server: &str) -> Self {
        let name = format!("faultline_test_{:032x}", rand::random::<u128>());
        psql(server, &format!("CREATE DATABASE {name}")).unwrap_or_else(|e| panic!("{e}"));
        let (host, _) = server.rsplit_once('/').expect("the URL of a server names a database");
        let url = format!("{host}/{name}");
        Self { server: server.to_owned(), name, url }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Keeps the database until the thread of the test ends, and returns its URL.
    pub fn keep_for_thread(self) -> String {
        thread_local! {
            static KEPT: RefCell<Vec<Database>> = const { RefCell::new(Vec::new()) };
        }
        let url = self.url.clone();
        KEPT.with_borrow_mut(|kept| kept.push(self));
        url
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        let (_, rest) = self.url.split_once('@').expect("the URL has a user");
        let (address, _) = rest.split_once('/').expect("the URL has a database");
        address.parse().expect("the URL has an address")
    }

    /// The URL with another address, such as that of a proxy.
    pub fn url_via(&self, address: SocketAddr) -> String {
        self.url.replace(&self.address().to_string(), &address.to_string())
    }

    /// Runs a statement and returns its plain output.
    pub fn query(&self, sql: &str) -> String {
        psql(&self.url, sql).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // In the background, because the server flushes to disk first. A stopped server has
        // deleted its databases.
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let mut command = psql_command(&self.server, &drop);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.spawn();
    }
}

fn psql(url: &str, sql: &str) -> Result<String, String> {
    run(&mut psql_command(url, sql)).map_err(|e| format!("'{sql}': {e}"))
}

fn psql_command(url: &str, sql: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, url]);
    command
}

/// A private server of one test. The drop stops it and deletes its data.
#[derive(Debug)]
pub struct Server {
    url: String,
    dir: TempDir,
}

impl Server {
    pub fn start() -> Self {
        // The server may run as another user, which must reach its directory.
        let dir = tempfile::Builder::new().prefix("faultline-postgres-").tempdir_in("/tmp");
        let dir = dir.expect("there is room for a temporary directory");
        let url = script(&["start".as_ref(), dir.path().as_ref()]);
        Self { url, dir }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Restarts the server after a shutdown or a crash, and waits until it answers on its old URL.
    pub async fn restart(&self, crash: bool) {
        let mode = if crash { "immediate" } else { "fast" };
        let dir = self.dir.path().to_owned();
        let was = self.url.clone();
        let restarted = tokio::task::spawn_blocking(move || {
            let url = script(&["restart".as_ref(), dir.as_ref(), mode.as_ref()]);
            assert_eq!(url, was, "the URL stays");
        });
        restarted.await.expect("the server restarts");
    }

    pub fn stop(&self) {
        script(&["stop".as_ref(), self.dir.path().as_ref()]);
    }

    /// Starts the server after [`stop`](Self::stop).
    pub fn start_again(&self) {
        let url = script(&["start".as_ref(), self.dir.path().as_ref()]);
        assert_eq!(url, self.url, "the URL stays");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stop: [&OsStr; 2] = ["stop".as_ref(), self.dir.path().as_ref()];
        let _ = run(Command::new(SCRIPT).args(stop));
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/postgres");

fn script(args: &[&OsStr]) -> String {
    run(Command::new(SCRIPT).args(args)).unwrap_or_else(|e| panic!("{e}"))
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{until, wait::SOON};

    #[tokio::test]
    async fn database_is_fresh_survives_a_server_crash_and_is_deleted_on_drop() {
        let server = Server::start();
        let first = Database::on(server.url());
        let second = Database::on(server.url());
        first.query("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)");
        assert_eq!(second.query("SELECT count(*) FROM pg_tables WHERE tablename = 'kept'"), "0");
        server.restart(true).await;
        assert_eq!(first.query("SELECT n FROM kept"), "7");
        server.stop();
        assert!(psql(first.url(), "SELECT 1").is_err());
        server.start_again();
        assert_eq!(first.query("SELECT n FROM kept"), "7");
        let count = "SELECT count(*) FROM pg_database WHERE datname LIKE 'faultline_test_%'";
        assert_eq!(second.query(count), "2");
        drop(first);
        until("the database is deleted", SOON, async || (second.query(count) == "1").then_some(()))
            .await;
    }
}
