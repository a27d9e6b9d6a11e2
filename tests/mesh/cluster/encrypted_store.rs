//! A database that is reached over a network: it asks for TLS and a password, and the coordinator
//! asks who it is.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use faultline_chassis::{MeshConfig, Secret};
use faultline_tests::{
    postgres::{Database, Server},
    task::{self, COMPLETED},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

const USER: &str = "mesh";
const PASSWORD: &str = "of-a-test";

/// A server with a certificate for `localhost`, which lets nobody in by any other way.
struct Guarded {
    database: Database,
    /// Has to outlive its database.
    _server: Server,
    files: TempDir,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).expect("no names are fine names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key can be made");
    CertifiedIssuer::self_signed(params, key).expect("it signs itself")
}

impl Guarded {
    fn start() -> Self {
        let files = tempfile::tempdir_in("/tmp").expect("there is room for a temporary directory");
        // The server's user may not be ours, and has to read what is its.
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(files.path(), mode).expect("it is ours");
        let ca = authority();
        let other = authority();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &ca).expect("it is signed");
        let server = Server::start();
        let database = Database::on(server.url());
        let rules = "hostssl all mesh all scram-sha-256\nhost all postgres all trust\n";
        for (name, text) in [
            ("ca.pem", ca.pem()),
            ("other.pem", other.pem()),
            ("server.crt", cert.pem()),
            ("server.key", key.serialize_pem()),
            ("pg_hba.conf", rules.to_owned()),
        ] {
            fs::write(files.path().join(name), text).expect("a file can be written");
        }
        let from = files.path().display();
        let install = "install -m 600 server.crt server.key pg_hba.conf";
        database.query(&format!(
            "COPY (SELECT) TO PROGRAM 'to=$PWD && cd {from} && {install} \"$to\"'"
        ));
        database.query(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"));
        database.query(&format!("ALTER DATABASE {} OWNER TO {USER}", database.name()));
        database.query("ALTER SYSTEM SET ssl = on");
        database.query("SELECT pg_reload_conf()");
        Self { database, _server: server, files }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn url(&self, host: &str, query: &str) -> String {
        let port = self.database.address().port();
        let name = self.database.name();
        format!("postgres://{USER}:{PASSWORD}@{host}:{port}/{name}?{query}")
    }

    /// Verifies against this file.
    fn verifying(&self, host: &str, roots: &str) -> String {
        let roots = self.file(roots);
        self.url(host, &format!("sslmode=verify-full&sslrootcert={}", roots.display()))
    }
}

async fn refused(store: String) -> String {
    let config = faultline_coordinator::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        store,
        mesh: MeshConfig { in_process_token: Some(Secret::random()), ..MeshConfig::default() },
        ..faultline_coordinator::Config::default()
    };
    let error = config.bind().await.err().expect("it must not start");
    let said = error.to_string();
    assert!(!said.contains(PASSWORD), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_proves_who_it_is_is_used_over_tls_alone() {
    let guarded = Guarded::start();
    for store in
        [guarded.verifying("localhost", "ca.pem"), guarded.url("localhost", "sslmode=require")]
    {
        let running = crate::start_with(|config| config.coordinator.store = store).await;
        let sent = running.script.send("chunk one; ask more?").await;
        let done =
            running.rpc.call("SendMessage", faultline_tests::rpc::answer(task::id(&sent), "yes"));
        let done = done.await.expect("it is asked")["task"].clone();
        assert_eq!(task::state(&done), COMPLETED, "{done}");
        let connections = guarded.database.query(
            "SELECT bool_and(ssl) AND count(*) >= 3 FROM pg_stat_ssl \
             JOIN pg_stat_activity USING (pid) WHERE usename = 'mesh'",
        );
        assert_eq!(connections, "t", "those that write, read and listen are all encrypted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_who_the_url_trusts_is_refused_by_name() {
    let guarded = Guarded::start();
    let said = refused(guarded.verifying("127.0.0.1", "ca.pem")).await;
    assert!(said.contains("certificate not valid for name"), "{said}");
    let said = refused(guarded.verifying("localhost", "other.pem")).await;
    assert!(said.contains("invalid peer certificate"), "{said}");
    let said = refused(guarded.url("localhost", "sslmode=verify-full")).await;
    assert!(said.contains("UnknownIssuer"), "what the system trusts does not know it: {said}");
    let said = refused(guarded.url("localhost", "sslmode=disable")).await;
    assert!(said.contains("no encryption"), "{said}");
    let wrong = guarded.verifying("localhost", "ca.pem").replace(PASSWORD, "guessed");
    let said = refused(wrong).await;
    assert!(said.contains("password authentication failed"), "{said}");
}
