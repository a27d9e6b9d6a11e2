//! PostgreSQL for tests: databases of their own on the server that `tests/run` has started, and
//! servers of their own for tests that restart them. What is in a database it does not know.

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

/// Where the server is that tests share.
const SERVER: &str = "FAULTLINE_TEST_POSTGRES";
/// What meshes keep their tasks in that did not ask for something else.
const STORE: &str = "FAULTLINE_TEST_STORE";
/// In the directory of a mesh: the URL of the database that goes with it.
const NOTE: &str = "database";

/// Where a mesh keeps its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A file in the directory of the mesh.
    Sqlite,
    /// A fresh database on the server that all tests share.
    Postgres,
    /// A fresh database on a server that is only there for this mesh, and so may be restarted.
    OwnPostgres,
}

/// What whoever runs the tests says: SQLite, unless `FAULTLINE_TEST_STORE=postgres`.
impl Default for Store {
    fn default() -> Self {
        match env::var(STORE).as_deref() {
            Err(_) | Ok("" | "sqlite") => Self::Sqlite,
            Ok("postgres") => Self::Postgres,
            Ok(other) => panic!("{STORE} is sqlite or postgres, not '{other}'"),
        }
    }
}

/// The store of a mesh that has this directory: the same one for as long as the test runs.
pub fn store_in(dir: &Path) -> String {
    if Store::default() == Store::Sqlite {
        return format!("sqlite:{}", dir.join("faultline.db").display());
    }
    let note = dir.join(NOTE);
    if let Ok(url) = fs::read_to_string(&note) {
        return url;
    }
    let url = Database::shared().keep();
    fs::write(note, &url).expect("a file can be written");
    url
}

/// An empty database. Dropped, it is gone soon, whoever is still connected to it.
#[derive(Debug)]
pub struct Database {
    server: String,
    name: String,
    url: String,
}

impl Database {
    /// On the server that tests share.
    pub fn shared() -> Self {
        let server = env::var(SERVER).unwrap_or_else(|_| {
            panic!(
                "this test needs PostgreSQL and {SERVER} is not set: run tests/run, or \
                 eval \"$(tests/postgres env)\" once and then this test again"
            )
        });
        Self::on(&server)
    }

    /// On this one.
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

    /// For whoever can hold on to nothing but the URL: it goes when the thread of the test does.
    pub fn keep(self) -> String {
        thread_local! {
            static KEPT: RefCell<Vec<Database>> = const { RefCell::new(Vec::new()) };
        }
        let url = self.url.clone();
        KEPT.with_borrow_mut(|kept| kept.push(self));
        url
    }

    /// Where it listens itself.
    pub fn address(&self) -> SocketAddr {
        let (_, rest) = self.url.split_once('@').expect("it names a user");
        let (address, _) = rest.split_once('/').expect("it names a database");
        address.parse().expect("it names an address")
    }

    /// How it is reached by way of another address.
    pub fn url_via(&self, address: SocketAddr) -> String {
        self.url.replace(&self.address().to_string(), &address.to_string())
    }

    /// What a statement prints, without ornaments.
    pub fn ask(&self, sql: &str) -> String {
        psql(&self.url, sql).unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Nobody waits for it: the server writes all it has to disk first. One that is gone has
        // taken the database along.
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let mut command = asking(&self.server, &drop);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.spawn();
    }
}

fn psql(url: &str, sql: &str) -> Result<String, String> {
    run(&mut asking(url, sql)).map_err(|e| format!("'{sql}': {e}"))
}

fn asking(url: &str, sql: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, url]);
    command
}

/// A server that belongs to one test. Dropped, it is gone with all it kept.
#[derive(Debug)]
pub struct Server {
    url: String,
    dir: TempDir,
}

impl Server {
    pub fn start() -> Self {
        // Its user may not be ours, and must get there.
        let dir = tempfile::Builder::new().prefix("faultline-postgres-").tempdir_in("/tmp");
        let dir = dir.expect("there is room for a temporary directory");
        let url = script(&["start".as_ref(), dir.path().as_ref()]);
        Self { url, dir }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// In order, or as a crash; either way it is back where it was, and has answered.
    pub async fn restart(&self, crash: bool) {
        let mode = if crash { "immediate" } else { "fast" };
        let dir = self.dir.path().to_owned();
        let was = self.url.clone();
        let restarted = tokio::task::spawn_blocking(move || {
            let url = script(&["restart".as_ref(), dir.as_ref(), mode.as_ref()]);
            assert_eq!(url, was, "it is found again");
        });
        restarted.await.expect("it can be restarted");
    }

    pub fn stop(&self) {
        script(&["stop".as_ref(), self.dir.path().as_ref()]);
    }

    /// After `stop`.
    pub fn start_again(&self) {
        let url = script(&["start".as_ref(), self.dir.path().as_ref()]);
        assert_eq!(url, self.url, "it is found again");
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
    async fn a_database_is_fresh_outlives_a_crash_of_its_server_and_is_gone_when_it_is_dropped() {
        let server = Server::start();
        let one = Database::on(server.url());
        let other = Database::on(server.url());
        one.ask("CREATE TABLE kept (it int); INSERT INTO kept VALUES (7)");
        assert_eq!(other.ask("SELECT count(*) FROM pg_tables WHERE tablename = 'kept'"), "0");
        server.restart(true).await;
        assert_eq!(one.ask("SELECT it FROM kept"), "7");
        server.stop();
        assert!(psql(one.url(), "SELECT 1").is_err());
        server.start_again();
        assert_eq!(one.ask("SELECT it FROM kept"), "7");
        let count = "SELECT count(*) FROM pg_database WHERE datname LIKE 'faultline_test_%'";
        assert_eq!(other.ask(count), "2");
        drop(one);
        until("it is gone", SOON, async || (other.ask(count) == "1").then_some(())).await;
    }
}
