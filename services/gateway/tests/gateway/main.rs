//! Tests of the gateway over real sockets, with a fake coordinator. Each file tests one aspect;
//! `fake` and `client` are shared.

// clippy recognizes tests by their attribute, which shared code does not have.
#![allow(clippy::unwrap_used)]

mod client;
mod fake;

mod callers;
mod cards;
mod console;
mod coordinators;
mod csrf;
mod envelope;
mod errors;
mod grpc;
mod link;
mod malformed;
mod operators;
mod rest;
mod streams;
mod versions;

use std::{net::SocketAddr, time::Duration};

use faultline_chassis::Drain;
use faultline_gateway::Config;
use tokio::task::JoinHandle;

use crate::{client::Client, fake::Fake};

/// The timeout of every wait in a test.
const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway and its fake coordinator, each on a free port.
struct Mesh {
    fake: Fake,
    address: SocketAddr,
    drain: Drain,
    running: JoinHandle<()>,
}

impl Mesh {
    async fn start() -> Self {
        let fake = Fake::start().await;
        let mesh = Self::in_front_of(fake).await;
        mesh.client().await.until_healthy().await;
        mesh
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mesh = Self::configured(Fake::start().await, change).await;
        mesh.client().await.until_healthy().await;
        mesh
    }

    async fn in_front_of(fake: Fake) -> Self {
        Self::configured(fake, |_| {}).await
    }

    async fn configured(fake: Fake, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            coordinator: format!("http://{}", fake.address()),
            ..Config::default()
        };
        change(&mut config);
        let service = config.bind().await.unwrap();
        let address = service.addr();
        let drain = Drain::new();
        let running = tokio::spawn({
            let drain = drain.clone();
            async move { service.run(drain).await.unwrap() }
        });
        Self { fake, address, drain, running }
    }

    async fn client(&self) -> Client {
        Client::connect(self.address).await
    }
}

/// Awaits `work` with a timeout.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("timeout: {what}"))
}
