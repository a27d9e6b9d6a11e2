//! A wire between two processes that can be cut while both of them live.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

/// Whoever connects to `address` talks to the target, until the wire is cut.
#[derive(Debug)]
pub struct Wire {
    pub address: SocketAddr,
    cuts: watch::Sender<()>,
    _accepting: AbortOnDropHandle<()>,
}

impl Wire {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let cuts = watch::Sender::new(());
        let watching = cuts.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, target, watching.subscribe()));
            }
        });
        Self { address, cuts, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Everything under way on it is lost; a new connection works at once.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }
}

async fn carry(mut near: TcpStream, target: SocketAddr, mut cut: watch::Receiver<()>) {
    // A target that is away looks like a connection that closes at once.
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = cut.changed() => {}
    }
}
