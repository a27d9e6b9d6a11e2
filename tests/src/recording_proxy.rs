//! A wire that listens: everything a server said to anybody, byte for byte.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

/// Whoever connects to `address` talks to the target and is overheard.
#[derive(Debug)]
pub struct RecordingProxy {
    pub address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl RecordingProxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let heard = Arc::default();
        let hearing = Arc::clone(&heard);
        let accepting = tokio::spawn(async move {
            // Connections end with the tap.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, target, Arc::clone(&hearing)));
            }
        });
        Self { address, heard, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// All that the server said so far, of all connections.
    pub fn recorded(&self) -> Vec<u8> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn carry(near: TcpStream, target: SocketAddr, heard: Arc<Mutex<Vec<u8>>>) {
    // A target that is away looks like a connection that closes at once.
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (mut client, answers) = near.into_split();
    let (mut server, requests) = far.into_split();
    let mut requests = requests;
    let asked = async {
        let _ = copy(&mut client, &mut requests).await;
        let _ = requests.shutdown().await;
    };
    tokio::join!(asked, overhear(&mut server, answers, &heard));
}

async fn overhear(
    from: &mut (impl AsyncRead + Unpin),
    mut to: impl AsyncWrite + Unpin,
    heard: &Mutex<Vec<u8>>,
) {
    let mut piece = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut piece).await {
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..n]);
        if to.write_all(&piece[..n]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
