//! TCP proxy that records every byte a server sends, for searches of answers for private text.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

/// Forwards connections at `address` to the target and records the answers.
#[derive(Debug)]
pub struct RecordingProxy {
    pub address: SocketAddr,
    recorded: Arc<Mutex<Vec<u8>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl RecordingProxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let recorded = Arc::default();
        let recording = Arc::clone(&recorded);
        let accepting = tokio::spawn(async move {
            // Connections end with the proxy.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, target, Arc::clone(&recording)));
            }
        });
        Self { address, recorded, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// All bytes that the server has sent so far, over all connections.
    pub fn recorded(&self) -> Vec<u8> {
        self.recorded.lock().clone()
    }
}

async fn carry(near: TcpStream, target: SocketAddr, recorded: Arc<Mutex<Vec<u8>>>) {
    // An unreachable target looks like a connection that closes at once.
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (mut client, answers) = near.into_split();
    let (mut server, requests) = far.into_split();
    let mut requests = requests;
    let forward = async {
        let _ = copy(&mut client, &mut requests).await;
        let _ = requests.shutdown().await;
    };
    tokio::join!(forward, record(&mut server, answers, &recorded));
}

async fn record(
    from: &mut (impl AsyncRead + Unpin),
    mut to: impl AsyncWrite + Unpin,
    recorded: &Mutex<Vec<u8>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        recorded.lock().extend_from_slice(&buffer[..n]);
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
