//! The front door of the mesh: the only service that speaks HTTP and JSON. It turns requests into
//! calls to the coordinator and answers back into JSON; it holds no task and stores nothing.

mod card;
mod error;
mod http;
mod jsonrpc;
mod link;
mod mesh;
mod sse;
mod validate;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use faultline_chassis::{
    Drain,
    client::{BadAddress, Channel},
    limits, server,
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::{card::Public, link::Link};

/// How long before the end of a drain open calls are ended, so that their last words get out.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where clients connect. Default: 127.0.0.1:8080.
    pub listen: SocketAddr,
    /// Where the coordinator is. Default: http://127.0.0.1:8081.
    pub coordinator: String,
    /// What clients call this gateway, as agent cards should say it. Default: the address it
    /// listens on, or the request's Host header when that is a wildcard.
    pub public_url: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            coordinator: "http://127.0.0.1:8081".to_owned(),
            public_url: None,
        }
    }
}

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address} (port 0 takes any free one)")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Coordinator(#[from] BadAddress),
    #[error("not a public URL: '{0}' (say http://HOST or https://HOST/PATH)")]
    PublicUrl(String),
}

/// Bound, but not serving yet.
pub struct Service {
    listener: TcpListener,
    address: SocketAddr,
    coordinator: Channel,
    public: Public,
}

impl Config {
    /// Opens the socket; no traffic yet.
    pub async fn bind(self) -> Result<Service, Error> {
        let coordinator = Channel::lazy(&self.coordinator)?;
        let listen = |source| Error::Listen { address: self.listen, source };
        let listener = TcpListener::bind(self.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let public = Public::new(self.public_url, address).map_err(Error::PublicUrl)?;
        Ok(Service { listener, address, coordinator, public })
    }
}

impl Service {
    /// The address it listens on, with the port it really got.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until drained.
    pub async fn run(self, drain: Drain) -> Result<(), Error> {
        let link = Link::new();
        let _connection = AbortOnDropHandle::new(tokio::spawn(link.clone().run(self.coordinator)));
        let gateway = Gateway { link: link.clone(), public: self.public };
        let router = http::router(Arc::new(gateway));
        let last_words = async {
            drain.signalled().await;
            sleep(limits::DRAIN_TIMEOUT - LAST_WORDS).await;
            link.leave();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server::serve(self.listener, router, drain.clone(), limits::DRAIN_TIMEOUT) => {}
            () = last_words => {}
        }
        Ok(())
    }
}

/// What every request shares.
struct Gateway {
    link: Link,
    public: Public,
}
