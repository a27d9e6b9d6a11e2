//! TLS from PEM files: the certificate of a listener and the roots of a client. The crypto provider
//! is named here, never taken from a default of the process.

mod no_verify;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::CryptoProvider};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, ServerName,
    pem::{self, PemObject},
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use tokio_rustls::client::TlsStream;

/// The protocols that ALPN offers.
pub(crate) const H2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// The certificate of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Files {
    /// PEM: the certificate, then its intermediate certificates.
    pub cert: PathBuf,
    /// PEM: the private key of the first certificate.
    pub key: PathBuf,
}

/// The file that cannot be used, and the problem.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("TLS needs both `cert` and `key`: name a PEM file each")]
    Half,
    #[error("cannot read '{}'", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("'{}' holds no {what}: it must be PEM and have one", path.display())]
    Missing { path: PathBuf, what: &'static str },
    #[error("'{}' is not good PEM: {problem}", path.display())]
    Malformed { path: PathBuf, problem: String },
    #[error("'{}' is not the key of '{}', or one of them cannot be used: {problem}",
            key.display(), cert.display())]
    Pair { cert: PathBuf, key: PathBuf, problem: String },
}

impl Files {
    /// The TLS acceptor of a listener, with HTTP/2 and HTTP/1.1 by ALPN.
    pub fn acceptor(&self) -> Result<TlsAcceptor, Error> {
        if self.cert.as_os_str().is_empty() || self.key.as_os_str().is_empty() {
            return Err(Error::Half);
        }
        let certs = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|e| unusable(&self.key, "private key", e))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3");
        let config = builder.with_no_client_auth().with_single_cert(certs, key);
        let mut config = config.map_err(|e| Error::Pair {
            cert: self.cert.clone(),
            key: self.key.clone(),
            problem: e.to_string(),
        })?;
        config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The root certificates that a peer's certificate must lead to.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// None: the system's roots.
    only: Option<Arc<RootCertStore>>,
    /// Accepts any certificate.
    no_verify: bool,
}

impl Trust {
    /// The roots of this machine; `SSL_CERT_FILE` and `SSL_CERT_DIR` override them. They are read
    /// when a peer is first verified.
    pub fn system() -> Self {
        Self::default()
    }

    /// Only the certificates in `ca`; without it, the system's roots.
    pub fn with_ca(ca: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = ca else { return Ok(Self::system()) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots
                .add(certificate)
                .map_err(|e| Error::Malformed { path: path.to_owned(), problem: e.to_string() })?;
        }
        Ok(Self { only: Some(Arc::new(roots)), no_verify: false })
    }

    /// Accepts any certificate, for databases with a self-signed one. The traffic is encrypted, but
    /// an active attacker can read it.
    pub fn no_verify() -> Self {
        Self { only: None, no_verify: true }
    }

    /// Encrypts an established stream, for protocols that begin in plain text (STARTTLS).
    pub fn connector(&self) -> Connector {
        Connector(TlsConnector::from(Arc::new(self.client(&[]))))
    }

    /// The client configuration that trusts these roots and offers `protocols`.
    pub(crate) fn client(&self, protocols: &[&[u8]]) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider speaks TLS 1.2 and 1.3");
        let builder = if self.no_verify {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(no_verify::NoVerify(provider())))
        } else {
            builder.with_root_certificates(self.only.clone().unwrap_or_else(system_roots))
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        config
    }
}

/// A TLS client for established streams.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl Connector {
    /// `host` is the name that the peer's certificate must have.
    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Read once: a system has more than a hundred root certificates.
fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, unusable) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let errors = found.errors;
            tracing::warn!(?errors, "this system has no root certificates: no peer can be trusted");
        }
        tracing::debug!(added, unusable, "read the root certificates of the system");
        Arc::new(roots)
    };
    Arc::clone(ROOTS.get_or_init(read))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bad = |e| unusable(path, "certificate", e);
    let found = CertificateDer::pem_file_iter(path).map_err(bad)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(bad)?;
    if found.is_empty() { Err(bad(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn unusable(path: &Path, what: &'static str, error: pem::Error) -> Error {
    let path = path.to_owned();
    match error {
        pem::Error::Io(source) => Error::Unreadable { path, source },
        pem::Error::NoItemsFound => Error::Missing { path, what },
        other => Error::Malformed { path, problem: other.to_string() },
    }
}
