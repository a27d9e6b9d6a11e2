//! TCP proxy between two live processes that can reset connections, refuse them, or stall them:
//! network partitions for tests.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

const BUFFER_BYTES: usize = 16 * 1024;

/// Forwards connections at `address` to the target. Stops accepting when dropped.
#[derive(Debug)]
pub struct CuttableProxy {
    pub address: SocketAddr,
    condition: watch::Sender<Condition>,
    _accepting: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    /// Number of cuts so far; an increase closes every open connection.
    cuts: u64,
    passes: Passes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Passes {
    #[default]
    All,
    /// New connections are closed at once.
    NoConnection,
    /// Connections stay open and carry no bytes.
    NoByte,
}

impl CuttableProxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let condition = watch::Sender::new(Condition::default());
        let watching = condition.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, target, watching.subscribe()));
            }
        });
        Self { address, condition, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Closes every open connection; a new connection works at once.
    pub fn cut(&self) {
        self.condition.send_modify(|now| now.cuts += 1);
    }

    /// Closes every open connection and refuses new connections until [`heal`](Self::heal).
    pub fn sever(&self) {
        self.condition.send_modify(|now| {
            *now = Condition { cuts: now.cuts + 1, passes: Passes::NoConnection };
        });
    }

    /// Holds all bytes back until [`heal`](Self::heal), without closing a connection; bytes sent
    /// meanwhile arrive then.
    pub fn stall(&self) {
        self.condition.send_modify(|now| now.passes = Passes::NoByte);
    }

    pub fn heal(&self) {
        self.condition.send_modify(|now| now.passes = Passes::All);
    }
}

async fn carry(near: TcpStream, target: SocketAddr, mut condition: watch::Receiver<Condition>) {
    let cuts = condition.borrow_and_update().cuts;
    let mut cut = condition.clone();
    let carried = async {
        let now = condition.wait_for(|now| now.passes != Passes::NoByte).await.ok()?.passes;
        if now == Passes::NoConnection {
            return None;
        }
        // An unreachable target looks like a connection that closes at once.
        let far = TcpStream::connect(target).await.ok()?;
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (near_in, near_out) = near.into_split();
        let (far_in, far_out) = far.into_split();
        let requests = pump(near_in, far_out, condition.clone());
        let answers = pump(far_in, near_out, condition);
        tokio::try_join!(requests, answers).ok()
    };
    tokio::select! {
        _ = carried => {}
        _ = cut.wait_for(|now| now.cuts != cuts) => {}
    }
}

/// Copies bytes until end of file; fails when either side breaks.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut condition: watch::Receiver<Condition>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await;
        // A stalled proxy holds back the end of file as well.
        let _ = condition.wait_for(|now| now.passes != Passes::NoByte).await;
        match read? {
            0 => return to.shutdown().await,
            length => to.write_all(&buffer[..length]).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const A_MOMENT: Duration = Duration::from_millis(100);

    /// An echo server.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn echo_byte(stream: &mut TcpStream) -> io::Result<u8> {
        stream.write_u8(7).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn cut_proxy_accepts_new_connections_and_severed_proxy_only_after_heal() {
        let proxy = CuttableProxy::to(echo().await).await;
        let mut first = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echo_byte(&mut first).await.unwrap(), 7);
        proxy.cut();
        assert!(timeout(SOON, echo_byte(&mut first)).await.unwrap().is_err());
        let mut second = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echo_byte(&mut second).await.unwrap(), 7);
        proxy.sever();
        assert!(timeout(SOON, echo_byte(&mut second)).await.unwrap().is_err());
        let mut third = TcpStream::connect(proxy.address).await.unwrap();
        assert!(timeout(SOON, echo_byte(&mut third)).await.unwrap().is_err());
        proxy.heal();
        let mut fourth = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echo_byte(&mut fourth).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn stalled_proxy_delivers_all_bytes_after_heal() {
        let proxy = CuttableProxy::to(echo().await).await;
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echo_byte(&mut stream).await.unwrap(), 7);
        proxy.stall();
        stream.write_u8(8).await.unwrap();
        assert!(timeout(A_MOMENT, stream.read_u8()).await.is_err());
        proxy.heal();
        assert_eq!(timeout(SOON, stream.read_u8()).await.unwrap().unwrap(), 8);
    }
}
