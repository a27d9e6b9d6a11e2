//! Authentication and TLS between real processes: certificates, mesh credentials and bearer tokens,
//! and the errors without them.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use bytes::Bytes;
use faultline_chassis::{dial::Connector, tls::Trust};
use http::Request;
use http_body_util::Empty;
use hyper_util::{client::legacy, rt::TokioExecutor};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

const ANY: &str = "127.0.0.1:0";
/// SHA-256 of `hunter2`.
const HUNTER2: &str = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";

/// A directory with a CA, a certificate for 127.0.0.1, and a configuration that uses them.
fn directory() -> TempDir {
    let dir = TempDir::new().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let cert = cert.signed_by(&key, &ca).unwrap();
    let config = format!(
        "[gateway.tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n\
         [coordinator.tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n\
         [mesh]\nca = 'ca.pem'\n\
         [[auth.token]]\nsha256 = '{HUNTER2}'\nprincipal = 'acme'\n"
    );
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("ca.pem", &ca.pem());
    write("cert.pem", &cert.pem());
    write("key.pem", &key.serialize_pem());
    write("faultline.toml", &config);
    dir
}

fn faultline(dir: &Path, mesh_token: Option<&str>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(args).current_dir(dir).env("NO_COLOR", "1").stdin(Stdio::null());
    if let Some(token) = mesh_token {
        command.env("FAULTLINE_MESH__TOKEN", token);
    }
    command
}

fn run(mut command: Command) -> (i32, String, String) {
    let output = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("output is text");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// A service process; a drop kills it, also when a test fails.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The text after `ready` on its first line.
    fn ready(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.strip_prefix("ready") {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("not ready: '{line}': {}", self.log_to_the_end()),
        }
    }

    fn log_to_the_end(&mut self) -> String {
        let mut log = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    }

    /// The first line of its log that contains `word`.
    fn says(&mut self, word: &str) -> String {
        let log = BufReader::new(self.0.stderr.take().unwrap());
        let line = log.lines().map(Result::unwrap).find(|line| line.contains(word));
        line.unwrap_or_else(|| panic!("no log line contains '{word}'"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tls_and_tokens_admit_their_holders_and_explain_refusals() {
    let dir = directory();
    let dir = dir.path();
    let token = Some("the-mesh-knows");
    let mut coordinator = Running::start(faultline(dir, token, &["coordinator", "--listen", ANY]));
    let hub = format!("https://{}", coordinator.ready());

    let args = ["gateway", "--listen", ANY, "--coordinator", &hub];
    let mut gateway = Running::start(faultline(dir, token, &args));
    let args = ["worker", "--coordinator", &hub];
    let mut worker = Running::start(faultline(dir, token, &args));
    let url = gateway.ready();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    worker.ready();

    let send = |more: &[&str]| {
        run(faultline(dir, None, &[&["send", "--gateway", &url, "echo", "hello"], more].concat()))
    };
    let (code, out, err) = send(&["--ca", "ca.pem", "--token", "hunter2"]);
    assert_eq!((code, out.as_str()), (0, "hello\n"), "{err}");
    let (code, _, err) = send(&["--ca", "ca.pem", "--token", "hunter3"]);
    assert_eq!(code, 77, "{err}");
    let (code, _, err) = send(&["--token", "hunter2"]);
    assert_eq!(code, 69, "the certificate is not trusted: {err}");

    // A worker without a valid token exits; a gateway retries and logs the reason.
    for (token, expected) in [
        (None, "the call carries no token: set `token` in [mesh] or FAULTLINE_MESH__TOKEN"),
        (Some("guessed"), "the coordinator knows no such token: set `token` in [mesh]"),
    ] {
        let (code, _, err) = run(faultline(dir, token, &["worker", "--coordinator", &hub]));
        assert_eq!(code, 77, "{err}");
        assert!(err.contains(expected), "{err}");
        let args = ["gateway", "--listen", ANY, "--coordinator", &hub];
        let mut stranger = Running::start(faultline(dir, token, &args));
        let log_line = stranger.says("no connection to the coordinator");
        assert!(log_line.contains(expected), "{log_line}");
    }
    let plain = hub.replace("https", "http");
    let mut stranger = Running::start(faultline(dir, token, &["worker", "--coordinator", &plain]));
    stranger.says("not attached to a coordinator, retrying");
    let mut stranger = faultline(dir, token, &["worker", "--coordinator", &hub]);
    stranger.env("FAULTLINE_MESH__CA", "cert.pem");
    let log_line = Running::start(stranger).says("not attached to a coordinator, retrying");
    assert!(log_line.contains("the certificate of 127.0.0.1 cannot be trusted"), "{log_line}");
}

#[test]
fn up_serves_with_tls_and_tokens() {
    let dir = directory();
    let args = ["up", "--listen", ANY, "--hub", ANY];
    let mut up = Running::start(faultline(dir.path(), Some("the-mesh-knows"), &args));
    let url = up.ready();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let send = ["send", "--gateway", &url, "--ca", "ca.pem", "--token", "hunter2", "echo", "hi"];
    let (code, out, err) = run(faultline(dir.path(), None, &send));
    assert_eq!((code, out.as_str()), (0, "hi\n"), "{err}");
}

#[tokio::test]
async fn tls_responses_have_strict_transport_security() {
    let dir = directory();
    let args = ["up", "--listen", ANY, "--hub", ANY];
    let mut up = Running::start(faultline(dir.path(), None, &args));
    let url = up.ready();
    let trust = Trust::with_ca(Some(&dir.path().join("ca.pem"))).unwrap();
    let client = legacy::Client::builder(TokioExecutor::new()).build(Connector::new(trust));
    for path in ["/healthz", "/nowhere"] {
        let request = Request::get(format!("{url}{path}")).body(Empty::<Bytes>::new()).unwrap();
        let answer = client.request(request).await.unwrap();
        assert_eq!(answer.headers()["strict-transport-security"], "max-age=31536000", "{path}");
    }
}

#[test]
fn up_generates_a_token_that_only_processes_with_its_data_directory_have() {
    let dir = directory();
    let elsewhere = directory();
    let args = ["up", "--listen", ANY, "--hub", ANY, "--data", "data"];
    let mut up = Running::start(faultline(dir.path(), None, &args));
    let url = up.ready();
    let log_line = up.says("  hub  ");
    assert!(log_line.contains("with the token in data/mesh.token"), "{log_line}");
    let hub = log_line.split_whitespace().nth(1).unwrap();
    let hub = format!("https://{hub}");
    let worker = ["worker", "--coordinator", &hub];
    for token in [None, Some("guessed")] {
        let mut stranger = faultline(elsewhere.path(), token, &worker);
        stranger.env("FAULTLINE_MESH__CA", dir.path().join("ca.pem"));
        let (code, _, err) = run(stranger);
        assert_eq!(code, 77, "{err}");
        assert!(err.contains("set `token` in [mesh]") && err.contains("--data"), "{err}");
    }
    let send = ["send", "--gateway", &url, "--ca", "ca.pem", "--token", "hunter2", "echo", "hi"];
    let (code, out, err) = run(faultline(dir.path(), None, &send));
    assert_eq!(
        (code, out.as_str()),
        (0, "hi\n"),
        "the services of the process have the token: {err}"
    );
    let by_flag = [&worker[..], &["--data", "data"]].concat();
    Running::start(faultline(dir.path(), None, &by_flag)).ready();
    let mut by_file = faultline(elsewhere.path(), None, &worker);
    by_file.env("FAULTLINE_MESH__CA", dir.path().join("ca.pem"));
    by_file.env("FAULTLINE_MESH__TOKEN_FILE", dir.path().join("data/mesh.token"));
    Running::start(by_file).ready();
}

/// Three roles in one directory without any configuration, as in the documents.
#[test]
fn three_roles_in_one_directory_find_the_generated_token() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let coordinator = ["coordinator", "--listen", ANY, "--store", "sqlite:mesh.db"];
    let mut first = Running::start(faultline(dir, None, &coordinator));
    let hub = format!("http://{}", first.ready());
    let file = dir.join(".faultline/mesh.token");
    let made = std::fs::read_to_string(&file).unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!((made.len(), mode & 0o777), (65, 0o600));
    let worker = ["worker", "--coordinator", &hub, "--agents", "echo,script"];
    let mut worker = Running::start(faultline(dir, None, &worker));
    let gateway = ["gateway", "--listen", ANY, "--coordinator", &hub];
    let mut gateway = Running::start(faultline(dir, None, &gateway));
    let url = gateway.ready();
    worker.ready();
    let (code, out, err) = run(faultline(dir, None, &["send", "--gateway", &url, "echo", "hi"]));
    assert_eq!((code, out.as_str()), (0, "hi\n"), "{err}");
    drop(first);
    let mut again = Running::start(faultline(dir, None, &coordinator));
    again.ready();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), made, "the next start reuses the token");
    drop(again);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    for args in [&coordinator[..], &["worker", "--coordinator", &hub]] {
        let (code, _, err) = run(faultline(dir, None, args));
        assert_eq!(code, 78, "{err}");
        assert!(err.contains("mode 0644") && err.contains("chmod 600"), "{err}");
    }
}

#[test]
fn public_listeners_without_authentication_are_rejected() {
    let dir = TempDir::new().unwrap();
    let everywhere = "0.0.0.0:0";
    let refused = |token: Option<&str>, args: &[&str], texts: &[&str]| {
        let (code, out, err) = run(faultline(dir.path(), token, args));
        assert_eq!((code, out.as_str()), (78, ""), "{args:?}: {err}");
        assert!(err.contains("can be reached from other machines"), "{args:?}: {err}");
        texts.iter().for_each(|text| assert!(err.contains(text), "{args:?}: {err}"));
    };
    refused(None, &["gateway", "--listen", everywhere], &["[[auth.token]]", "--insecure"]);
    let up = ["up", "--listen", everywhere, "--hub", ANY];
    refused(None, &up, &["[[auth.token]]", "--insecure"]);
    // No flag disables authentication of the coordinator's port, and one token for every role is
    // rejected for a port that other machines can reach.
    let migration = ["[[mesh.credential]]", "docs/migrating-credentials.md"];
    let coordinator = ["coordinator", "--listen", everywhere];
    let up = ["up", "--listen", ANY, "--hub", everywhere, "--insecure"];
    for token in [None, Some("the-mesh-knows")] {
        refused(token, &coordinator, &migration);
        refused(token, &up, &migration);
    }
    let insecure = [&coordinator[..], &["--insecure"]].concat();
    let (code, _, err) = run(faultline(dir.path(), None, &insecure));
    assert!(code == 78 && err.contains("[[mesh.credential]]"), "{err}");

    let digest = format!("[{{ role = 'gateway', sha256 = '{HUNTER2}' }}]");
    let with_digest = |args: &[&str]| {
        let mut command = faultline(dir.path(), None, args);
        command.env("FAULTLINE_MESH__CREDENTIAL", &digest);
        command
    };
    assert!(!Running::start(with_digest(&coordinator)).ready().is_empty());
    let up = ["up", "--listen", everywhere, "--hub", everywhere, "--insecure"];
    assert!(!Running::start(with_digest(&up)).ready().is_empty());
    let up = ["up", "--listen", everywhere, "--hub", ANY, "--insecure"];
    assert!(!Running::start(faultline(dir.path(), None, &up)).ready().is_empty());
}

#[test]
fn coordinators_that_share_a_database_generate_no_token() {
    let dir = TempDir::new().unwrap();
    let mut shared = faultline(dir.path(), None, &["coordinator", "--listen", ANY]);
    shared.env("FAULTLINE_COORDINATOR__STORE", "postgres://me@127.0.0.1:1/mesh");
    let (code, _, err) = run(shared);
    assert_eq!(code, 78, "{err}");
    assert!(err.contains("PostgreSQL") && err.contains("FAULTLINE_MESH__TOKEN"), "{err}");
    assert!(!dir.path().join(".faultline").exists());
}

#[test]
fn missing_tls_files_are_a_configuration_error() {
    let dir = TempDir::new().unwrap();
    let flags = ["--tls-cert", "none.pem", "--tls-key", "none.pem"];
    for role in ["gateway", "coordinator"] {
        let args = [&[role, "--listen", ANY], &flags[..]].concat();
        let (code, _, err) = run(faultline(dir.path(), None, &args));
        assert_eq!(code, 78, "{role}: {err}");
        assert!(err.contains("cannot read 'none.pem'"), "{role}: {err}");
    }
    let args = ["worker", "--coordinator", "https://127.0.0.1:1"];
    let mut worker = faultline(dir.path(), None, &args);
    worker.env("FAULTLINE_MESH__CA", "none.pem");
    let (code, _, err) = run(worker);
    assert_eq!(code, 78, "{err}");
    assert!(err.contains("cannot read 'none.pem'"), "{err}");
}
