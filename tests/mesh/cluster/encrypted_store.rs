//! TLS to PostgreSQL: the server requires TLS and a password, and the coordinator verifies the
//! certificate of the server.

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

/// A server with a certificate for `localhost`, which accepts the user `mesh` over TLS only.
struct TlsServer {
    database: Database,
    /// Outlives its database.
    _server: Server,
    files: TempDir,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).expect("an empty list of names is valid");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key can be made");
    CertifiedIssuer::self_signed(params, key).expect("the authority signs itself")
}

impl TlsServer {
    fn start() -> Self {
        let files = tempfile::tempdir_in("/tmp").expect("there is room for a temporary directory");
        // The server may run as another user, which must read its files.
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(files.path(), mode).expect("the test owns the directory");
        let ca = authority();
        let other = authority();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &ca).expect("the certificate is signed");
        let postgres = Server::start();
        let database = Database::on(postgres.url());
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
        Self { database, _server: postgres, files }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn url(&self, host: &str, query: &str) -> String {
        let port = self.database.address().port();
        let name = self.database.name();
        format!("postgres://{USER}:{PASSWORD}@{host}:{port}/{name}?{query}")
    }

    /// The URL with `sslmode=verify-full` and this root file.
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
    let error = config.bind().await.err().expect("the start is refused");
    let message = error.to_string();
    assert!(!message.contains(PASSWORD), "{message}");
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn verified_store_is_used_over_tls_only() {
    let server = TlsServer::start();
    for store in
        [server.verifying("localhost", "ca.pem"), server.url("localhost", "sslmode=require")]
    {
        let running = crate::start_with(|config| config.coordinator.store = store).await;
        let sent = running.script.send("chunk one; ask more?").await;
        let done =
            running.rpc.call("SendMessage", faultline_tests::rpc::answer(task::id(&sent), "yes"));
        let done = done.await.expect("the question is open")["task"].clone();
        assert_eq!(task::state(&done), COMPLETED, "{done}");
        let connections = server.database.query(
            "SELECT bool_and(ssl) AND count(*) >= 3 FROM pg_stat_ssl \
             JOIN pg_stat_activity USING (pid) WHERE usename = 'mesh'",
        );
        assert_eq!(
            connections, "t",
            "connections for writes, reads and notifications are encrypted"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_with_an_untrusted_certificate_is_refused_with_the_cause() {
    let server = TlsServer::start();
    let message = refused(server.verifying("127.0.0.1", "ca.pem")).await;
    assert!(message.contains("certificate not valid for name"), "{message}");
    let message = refused(server.verifying("localhost", "other.pem")).await;
    assert!(message.contains("invalid peer certificate"), "{message}");
    let message = refused(server.url("localhost", "sslmode=verify-full")).await;
    assert!(
        message.contains("UnknownIssuer"),
        "the system roots do not include the authority: {message}"
    );
    let message = refused(server.url("localhost", "sslmode=disable")).await;
    assert!(message.contains("no encryption"), "{message}");
    let wrong = server.verifying("localhost", "ca.pem").replace(PASSWORD, "guessed");
    let message = refused(wrong).await;
    assert!(message.contains("password authentication failed"), "{message}");
}
