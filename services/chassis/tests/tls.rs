//! TLS and the mesh's token over real sockets: accepted connections, and the errors of refused
//! ones.
#![allow(clippy::unwrap_used)]

mod puppet;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use axum::{Router, routing::get};
use faultline_chassis::{
    Drain, MeshConfig, Secret,
    client::{Channel, Dial},
    credential::{Credentials, Port},
    dial::{self, Connector},
    limits,
    server::{self, CredentialLayer, Listener},
    tls::{Files, Trust},
};
use faultline_proto::{
    Failure, reason,
    v1::{AgentsRequest, AgentsResponse, mesh_client::MeshClient},
};
use futures::FutureExt;
use http::{Uri, Version};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, Response};
use tower::ServiceExt;

/// A certificate for this machine, its key, and the CA that issued it, each in a file.
struct Identity {
    dir: TempDir,
}

impl Identity {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        std::fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        std::fs::write(dir.path().join("cert.pem"), cert.pem()).unwrap();
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn files(&self) -> Files {
        Files { cert: self.path("cert.pem"), key: self.path("key.pem") }
    }

    fn trust(&self) -> Trust {
        Trust::with_ca(Some(&self.path("ca.pem"))).unwrap()
    }
}

async fn serve(router: Router, tls: Option<&Files>) -> (SocketAddr, Drain) {
    serve_at("127.0.0.1:0", router, tls).await
}

async fn serve_at(at: &str, router: Router, tls: Option<&Files>) -> (SocketAddr, Drain) {
    let listener = Listener::bind(at.parse().unwrap(), tls).await.unwrap();
    let addr = listener.addr();
    let drain = Drain::new();
    tokio::spawn(server::serve(listener, router, drain.clone(), Duration::from_millis(50)));
    (addr, drain)
}

fn hello() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// The HTTP version and the body of the response.
async fn fetch(connector: Connector, url: String) -> (Version, String) {
    let client: Client<_, axum::body::Body> =
        Client::builder(TokioExecutor::new()).build(connector);
    let answer = client.get(url.parse().unwrap()).await.unwrap();
    let version = answer.version();
    let body = axum::body::to_bytes(axum::body::Body::new(answer.into_body()), 1024).await.unwrap();
    (version, String::from_utf8(body.to_vec()).unwrap())
}

async fn dial(connector: Connector, url: &str) -> Result<(), dial::Error> {
    connector.oneshot(url.parse::<Uri>().unwrap()).await.map(drop)
}

#[tokio::test]
async fn both_http_versions_work_over_tls() {
    let ours = Identity::new();
    let (addr, _drain) = serve(hello(), Some(&ours.files())).await;
    let connector = || Connector::new(ours.trust());
    for url in [format!("https://{addr}/"), format!("https://localhost:{}/", addr.port())] {
        let any = fetch(connector(), url.clone()).await;
        assert_eq!(any, (Version::HTTP_2, "hello".to_owned()), "the better one is chosen");
        let old = fetch(connector().http1_only(), url).await;
        assert_eq!(old, (Version::HTTP_11, "hello".to_owned()));
    }
}

#[tokio::test]
async fn untrusted_certificate_is_refused_with_its_reason() {
    let ours = Identity::new();
    let other = Identity::new();
    let (addr, _drain) = serve(hello(), Some(&ours.files())).await;
    let url = format!("https://{addr}/");
    let refused = dial(Connector::new(other.trust()), &url).await.unwrap_err().to_string();
    let expected = "the certificate of 127.0.0.1 cannot be trusted: \
                it was not issued by a CA that is trusted here";
    assert_eq!(refused, expected);
    assert!(dial(Connector::new(Trust::system()), &url).await.is_err());

    // The certificate is for 127.0.0.1 only.
    let (elsewhere, _drain) = serve_at("127.0.0.2:0", hello(), Some(&ours.files())).await;
    let url = format!("https://{elsewhere}/");
    let refused = dial(Connector::new(ours.trust()), &url).await;
    assert!(matches!(refused, Err(dial::Error::Untrusted { .. })), "{refused:?}");

    // The TLS problem must be reported, not an unreachable peer.
    let address = format!("https://{addr}");
    let channel =
        Channel::lazy(&Dial { address, ca: Some(other.path("ca.pem")), ..Dial::default() });
    let failure = agents(channel.unwrap()).await.unwrap_err();
    assert_eq!((failure.code(), failure.public_message.as_str()), (Code::Unavailable, expected));
}

#[tokio::test]
async fn chosen_address_is_dialled_and_the_certificate_is_verified_for_the_name() {
    let ours = Identity::new();
    let router = puppet::agents(async |_| Ok(AgentsResponse::default()));
    let (addr, _drain) = serve(router.layer(server::GuardLayer), Some(&ours.files())).await;
    // No server listens at the port of the name, and the other name does not exist.
    for (host, is_ours) in [("localhost:1", true), ("elsewhere.invalid:1", false)] {
        let address = format!("https://{host}");
        let ca = Some(ours.path("ca.pem"));
        let dial = Dial { address, ca, at: Some(addr), ..Dial::default() };
        let answer = agents(Channel::lazy(&dial).unwrap()).await;
        assert_eq!(answer.is_ok(), is_ours, "{host}: {answer:?}");
        if let Err(failure) = answer {
            assert!(failure.public_message.contains("cannot be trusted"), "{failure}");
        }
    }
}

#[tokio::test]
async fn unusable_files_are_named_with_their_problem() {
    let ours = Identity::new();
    let other = Identity::new();
    let problem = |cert: PathBuf, key: PathBuf| {
        let error = Files { cert, key }.acceptor().err().unwrap().to_string();
        error.replace(&format!("{}/", ours.dir.path().display()), "")
    };
    let good = ours.files();
    assert_eq!(problem(ours.path("none.pem"), good.key.clone()), "cannot read 'none.pem'");
    let swapped = problem(good.key.clone(), good.cert.clone());
    assert_eq!(swapped, "'key.pem' holds no certificate: it must be PEM and have one");
    let no_key = problem(good.cert.clone(), good.cert.clone());
    assert_eq!(no_key, "'cert.pem' holds no private key: it must be PEM and have one");
    let half = problem(good.cert.clone(), PathBuf::new());
    assert_eq!(half, "TLS needs both `cert` and `key`: name a PEM file each");
    let foreign = problem(good.cert, other.path("key.pem"));
    assert!(foreign.contains("is not the key of 'cert.pem'"), "{foreign}");
    std::fs::write(ours.path("torn.pem"), "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
    let torn = Trust::with_ca(Some(&ours.path("torn.pem"))).unwrap_err().to_string();
    assert!(torn.contains("torn.pem' is not good PEM: "), "{torn}");
}

#[tokio::test]
async fn plain_http_on_a_tls_port_and_tls_on_a_plain_port_are_closed() {
    let ours = Identity::new();
    let (encrypted, _drain) = serve(hello(), Some(&ours.files())).await;
    let mut stream = TcpStream::connect(encrypted).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let closed = timeout(Duration::from_secs(2), stream.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "the connection stays open");
    assert!(!answer.starts_with(b"HTTP"));

    let (plain, _drain) = serve(hello(), None).await;
    let refused = dial(Connector::new(ours.trust()), &format!("https://{plain}/")).await;
    assert!(matches!(refused, Err(dial::Error::NotTls { .. })), "{refused:?}");
    assert_eq!(fetch(Connector::new(ours.trust()), format!("http://{plain}/")).await.1, "hello");
}

async fn is_cut(mut stream: impl AsyncRead + Unpin) -> bool {
    let bound = limits::HEADER_READ_TIMEOUT + Duration::from_secs(5);
    timeout(bound, stream.read_to_end(&mut Vec::new())).await.is_ok()
}

#[tokio::test]
async fn silent_client_times_out_before_and_after_its_handshake() {
    let ours = Identity::new();
    let (addr, _drain) = serve(hello(), Some(&ours.files())).await;
    let silent = TcpStream::connect(addr).await.unwrap();
    let mut waits = vec![is_cut(silent).boxed()];
    for connector in [Connector::new(ours.trust()).http1_only(), Connector::new(ours.trust())] {
        for sent in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n"] {
            let url: Uri = format!("https://{addr}/").parse().unwrap();
            let mut stream = connector.clone().oneshot(url).await.unwrap().into_inner();
            stream.write_all(sent).await.unwrap();
            stream.flush().await.unwrap();
            waits.push(is_cut(stream).boxed());
        }
    }
    let cut = futures::future::join_all(waits).await;
    assert_eq!(cut, [true; 7], "one TCP, then three on HTTP/1.1 and three on HTTP/2");
}

async fn agents(channel: Channel) -> Result<AgentsResponse, Failure> {
    let answer = MeshClient::new(channel).agents(AgentsRequest::default()).await;
    answer.map(Response::into_inner).map_err(Failure::from)
}

#[tokio::test]
async fn missing_token_is_refused_with_the_setting_to_change() {
    let ours = Identity::new();
    let secret = |text: &str| Some(Secret::new(text).unwrap());
    let router = puppet::agents(async |_| Ok(AgentsResponse::default()));
    let health = Router::new()
        .route("/grpc.health.v1.Health/Check", get(async || "open"))
        .route("/open/x", get(async || "open"));
    let mesh = MeshConfig { token: secret("hunter2"), ..MeshConfig::default() };
    let port = Port { listen: ([127, 0, 0, 1], 0).into(), shared_store: false };
    let known = Credentials::load(&mesh, port).unwrap();
    let layer = CredentialLayer::new(known, &["/open/"], |_, _| Ok(()));
    let router = router.merge(health).layer(layer);
    let (addr, _drain) = serve(router.layer(server::GuardLayer), Some(&ours.files())).await;
    let call = async |token| {
        let ca = Some(ours.path("ca.pem"));
        let dial = Dial { address: format!("https://{addr}"), ca, token, ..Dial::default() };
        agents(Channel::lazy(&dial).unwrap()).await
    };
    assert!(call(secret("hunter2")).await.is_ok());
    for (token, problem) in [
        (None, "the call carries no token: set `token` in [mesh]"),
        (secret("hunter3"), "the coordinator knows no such token: set `token` in [mesh]"),
        (secret("hunter22"), "the coordinator knows no such token: set `token` in [mesh]"),
    ] {
        let failure = call(token).await.unwrap_err();
        assert_eq!(failure.row(), &reason::UNAUTHENTICATED);
        assert!(failure.public_message.starts_with(problem), "{failure}");
        assert!(failure.public_message.contains("FAULTLINE_MESH__TOKEN"), "{failure}");
        assert!(!failure.id.is_empty(), "the details travel");
    }
    for open in ["/grpc.health.v1.Health/Check", "/open/x"] {
        let probe = format!("https://{addr}{open}");
        assert_eq!(fetch(Connector::new(ours.trust()), probe).await.1, "open");
    }
}

#[tokio::test]
async fn invalid_dial_is_refused_before_dialling() {
    let problem = |dial: Dial| Channel::lazy(&dial).unwrap_err().to_string();
    let at = |address: &str| Dial { address: address.to_owned(), ..Dial::default() };
    for bad in ["", "http://a b", "ftp://x:1", "unix:///tmp/x"] {
        assert!(problem(at(bad)).starts_with("not an address to dial: "), "{bad}");
    }
    let ca = Some(PathBuf::from("/nonexistent/ca.pem"));
    let no_ca = problem(Dial { ca, ..at("https://x:1") });
    assert_eq!(no_ca, "no CA to verify 'https://x:1' with");
}
