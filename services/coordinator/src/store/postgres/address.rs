//! The URL of the database, parsed. The password is sent to the database only; errors name the
//! host and nothing else.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use faultline_chassis::tls::Trust;
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use tokio_postgres::{
    Client, Config, Connection, Socket,
    config::{Host, SslMode},
};

use super::{
    OpenError, said,
    tls::{Encrypted, Tls},
};

/// Until a connection stands.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long sent data may stay unacknowledged before the connection counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Between signs of life on a connection that says nothing.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Timeouts of the server: an abandoned statement ends, and a session that stalls in a transaction
/// releases its row locks before the leases of other coordinators end.
const BOUNDS: &str = "-c statement_timeout=10s -c idle_in_transaction_session_timeout=3s";
/// Every question here has an index that answers it in its order, and stops there. Before the
/// tables are analysed the planner guesses, and would rather collect all of a principal's tasks.
/// Planner settings: tables without an index have a few rows. JIT compilation would take a thousand
/// times as long as their scan.
const PLANS: &str = "-c enable_bitmapscan=off -c enable_seqscan=off -c jit=off";

/// Why a connection may fail that did before TLS was required.
const DEFAULT_HINT: &str = " (sslmode is verify-full for a database on another machine: give \
    sslrootcert=PATH for a certificate authority of your own, or set sslmode in the URL)";

#[derive(Clone)]
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) tls: Tls,
    /// As it may be shown.
    pub(super) shown: String,
    /// Nothing was said of TLS, and the database is on another machine.
    verifies_by_default: bool,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let bad = |what: String| OpenError::Url { what };
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut verify, mut roots, mut kept) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "sslmode" => verify = Some(value.to_owned()),
                "sslrootcert" => {
                    let path = percent_decode_str(value).decode_utf8_lossy().into_owned();
                    roots = Some(PathBuf::from(path));
                }
                _ => kept.push(pair),
            }
        }
        let rest = match kept.is_empty() {
            true => base.to_owned(),
            false => format!("{base}?{}", kept.join("&")),
        };
        // Its own error may quote what it read.
        let parsed = rest.parse::<Config>();
        let mut config = parsed.map_err(|_| {
            bad("not understood; say postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned())
        })?;
        if config.get_hosts().is_empty() {
            return Err(bad("it names no host".to_owned()));
        }
        // Hosts are shown, so half a password must not pass for one.
        if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(h) if h.contains('@'))) {
            return Err(bad("an '@' in a user or a password is written %40".to_owned()));
        }
        let default = if is_local(&config) { "prefer" } else { "verify-full" };
        let mode = verify.as_deref().unwrap_or(default);
        let encrypt = match mode {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            "require" | "verify-full" => SslMode::Require,
            other => {
                let known = "disable, prefer, require or verify-full";
                return Err(bad(format!("sslmode is '{other}': say {known}")));
            }
        };
        // As psql does: a certificate is verified where that is asked for, or where it is said
        // against what.
        let trust = match (mode, &roots) {
            ("verify-full", _) | (_, Some(_)) => Trust::with_ca(roots.as_deref())?,
            _ => Trust::no_verify(),
        };
        let options = format!("{} {BOUNDS} {PLANS}", config.get_options().unwrap_or_default());
        config
            .ssl_mode(encrypt)
            .options(options.trim_start())
            .application_name("faultline")
            .connect_timeout(CONNECT_MAX)
            .tcp_user_timeout(SILENCE_MAX)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE)
            .keepalives_retries(2);
        let shown = shown(&config);
        let verifies_by_default = verify.is_none() && mode == "verify-full";
        Ok(Self { config, tls: Tls(trust.connector()), shown, verifies_by_default })
    }

    /// A connection of its own, outside the pool.
    pub(super) async fn connect(
        &self,
    ) -> Result<(Client, Connection<Socket, Encrypted<Socket>>), String> {
        // The driver's own bound is for the socket alone: a peer may take it and say nothing.
        match timeout(CONNECT_MAX, self.config.connect(self.tls.clone())).await {
            Ok(connected) => connected.map_err(|e| match self.verifies_by_default {
                true => format!("{}{DEFAULT_HINT}", said(&e)),
                false => said(&e),
            }),
            Err(_) => Err(format!("no answer in {CONNECT_MAX:?}")),
        }
    }
}

/// The database is on this machine: what is sent to it crosses no network.
fn is_local(config: &Config) -> bool {
    let is_loopback = |address: &IpAddr| address.to_canonical().is_loopback();
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|a| is_loopback(&a))
        }
        #[cfg(unix)]
        Host::Unix(_) => true,
    })
}

fn shown(config: &Config) -> String {
    let ports = config.get_ports();
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        }
    });
    let hosts: Vec<_> = hosts.collect();
    format!("postgres://{}/{}", hosts.join(","), config.get_dbname().unwrap_or_default())
}

/// A store's URL with stars for its password: what is printed of it. What cannot be taken apart is
/// not printed at all.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    if !["postgres", "postgresql"].contains(&scheme) {
        return url.to_owned();
    }
    // The last `@`: a password may have an unescaped one, and a `?` too; a host has neither.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => match user.split_once(':') {
            Some((user, _)) => (format!("{user}:***@"), rest),
            None => (format!("{user}@"), rest),
        },
        None => (String::new(), rest),
    };
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let key = pair.split_once('=').map_or(pair, |(key, _)| key);
        let key = percent_decode_str(key).decode_utf8_lossy();
        if key == "password" { "password=***".to_owned() } else { pair.to_owned() }
    });
    let pairs: Vec<_> = pairs.collect();
    let mark = if pairs.is_empty() { "" } else { "?" };
    format!("{scheme}://{user}{base}{mark}{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use faultline_chassis::tls::Files;

    use super::*;

    #[test]
    fn database_password_is_never_printed() {
        for (url, shown) in [
            ("postgres://ann:hunter2@db:5432/f", "postgres://ann:***@db:5432/f"),
            ("postgresql://ann:hun@ter2@db/f", "postgresql://ann:***@db/f"),
            ("postgres://ann:hun?ter2@db/f", "postgres://ann:***@db/f"),
            ("postgres://ann:hun/ter2@db/f", "postgres://ann:***@db/f"),
            ("postgres://ann@db/f?sslmode=require", "postgres://ann@db/f?sslmode=require"),
            ("postgres://db/f?user=a&password=hunter2", "postgres://db/f?user=a&password=***"),
            ("postgres://db/f?p%61ssword=hunter2", "postgres://db/f?password=***"),
            ("sqlite:a:b@c.db", "sqlite:a:b@c.db"),
        ] {
            assert_eq!(without_password(url), shown);
            let known = Address::parse(url).map(|a| a.shown).unwrap_or_else(|e| e.to_string());
            assert!(!known.contains("ter2"), "{known}");
        }
    }

    #[test]
    fn sslmode_defaults_to_verify_full_for_hosts_that_are_not_local() {
        for (url, encrypt, verifies) in [
            ("postgres://ann@localhost/f", SslMode::Prefer, false),
            ("postgres://ann@127.0.0.1:5433/f", SslMode::Prefer, false),
            ("postgres://ann@[::1]/f", SslMode::Prefer, false),
            ("postgres://ann@%2Frun%2Fpostgresql/f", SslMode::Prefer, false),
            ("postgres:///f?host=/run/postgresql", SslMode::Prefer, false),
            ("postgres://localhost,127.0.0.2/f", SslMode::Prefer, false),
            ("postgres://ann@db/f", SslMode::Require, true),
            ("postgres://ann@10.0.0.7/f", SslMode::Require, true),
            ("postgres://localhost,db/f", SslMode::Require, true),
            ("postgres://localhost.example/f", SslMode::Require, true),
            ("postgres://localhost/f?hostaddr=10.0.0.7", SslMode::Require, true),
            ("postgres://db/f?sslmode=disable", SslMode::Disable, false),
            ("postgres://db/f?sslmode=prefer", SslMode::Prefer, false),
            ("postgres://localhost/f?sslmode=verify-full", SslMode::Require, false),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(address.config.get_ssl_mode(), encrypt, "{url}");
            assert_eq!(address.verifies_by_default, verifies, "{url}");
        }
    }

    /// Whether a TLS handshake succeeds with a server whose certificate nobody trusts.
    async fn accepts_any_certificate(url: &str, server: &Files) -> bool {
        let connector = Address::parse(url).unwrap().tls.0;
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let acceptor = server.acceptor().unwrap();
        let served = tokio::spawn(async move { acceptor.accept(theirs).await.is_ok() });
        let connected = connector.connect("db.example", ours).await;
        drop(served);
        connected.is_ok()
    }

    #[tokio::test]
    async fn verify_full_rejects_an_untrusted_certificate() {
        let scratch = tempfile::TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed(["db.example".to_owned()]).unwrap();
        let server =
            Files { cert: scratch.path().join("cert.pem"), key: scratch.path().join("key.pem") };
        std::fs::write(&server.cert, made.cert.pem()).unwrap();
        std::fs::write(&server.key, made.signing_key.serialize_pem()).unwrap();
        for (url, accepts) in [
            ("postgres://db.example/f", false),
            ("postgres://10.0.0.7/f", false),
            ("postgres://localhost,db.example/f", false),
            ("postgres://db.example/f?sslmode=verify-full", false),
            ("postgres://localhost/f?sslmode=verify-full", false),
            ("postgres://db.example/f?sslmode=require", true),
            ("postgres://localhost/f", true),
        ] {
            assert_eq!(accepts_any_certificate(url, &server).await, accepts, "{url}");
        }
        let trusting = format!("postgres://db.example/f?sslrootcert={}", server.cert.display());
        assert!(accepts_any_certificate(&trusting, &server).await, "its own authority is trusted");
    }

    #[test]
    fn invalid_database_url_is_rejected() {
        let refused = |url| Address::parse(url).map(|_| ()).unwrap_err().to_string();
        assert!(refused("postgres://db/f?sslmode=maybe").contains("verify-full"));
        assert!(refused("postgres:///f").contains("no host"));
        assert!(refused("postgres://db/f?sslrootcert=/nowhere.pem").contains("/nowhere.pem"));
        for mode in ["disable", "prefer", "require", "verify-full"] {
            assert!(Address::parse(&format!("postgres://db/f?sslmode={mode}")).is_ok());
        }
    }
}
