//! A wire between two processes that can be cut while both of them live, and stay cut.

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

/// Whoever connects to `address` talks to the target, as far as the wire lets them.
#[derive(Debug)]
pub struct CuttableProxy {
    pub address: SocketAddr,
    condition: watch::Sender<Condition>,
    _accepting: AbortOnDropHandle<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Condition {
    /// How often everything under way was lost.
    cuts: u64,
    passes: Passes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Passes {
    #[default]
    All,
    /// Connections are closed as soon as they are there.
    NoConnection,
    /// Nothing is closed, and nothing arrives.
    NoByte,
}

impl CuttableProxy {
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let condition = watch::Sender::new(Condition::default());
        let watching = condition.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, target, watching.subscribe()));
            }
        });
        Self { address, condition, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Everything under way on it is lost; a new connection works at once.
    pub fn cut(&self) {
        self.condition.send_modify(|now| now.cuts += 1);
    }

    /// Everything under way on it is lost, and there are no new connections until it is healed.
    pub fn sever(&self) {
        self.condition.send_modify(|now| {
            *now = Condition { cuts: now.cuts + 1, passes: Passes::NoConnection };
        });
    }

    /// Nothing passes until it is healed, and nobody is told: what is sent meanwhile arrives then.
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
        // A target that is away looks like a connection that closes at once.
        let far = TcpStream::connect(target).await.ok()?;
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (near_in, near_out) = near.into_split();
        let (far_in, far_out) = far.into_split();
        let there = pump(near_in, far_out, condition.clone());
        let back = pump(far_in, near_out, condition);
        tokio::try_join!(there, back).ok()
    };
    tokio::select! {
        _ = carried => {}
        _ = cut.wait_for(|now| now.cuts != cuts) => {}
    }
}

/// Ends when one side has said all it had to say; fails when a side breaks.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut condition: watch::Receiver<Condition>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await;
        // The end of a connection is a message like any other.
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

    /// Says back what it is told.
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

    async fn say(stream: &mut TcpStream) -> io::Result<u8> {
        stream.write_u8(7).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn a_wire_that_is_cut_works_again_at_once_and_one_that_is_severed_when_it_is_healed() {
        let wire = CuttableProxy::to(echo().await).await;
        let mut first = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(say(&mut first).await.unwrap(), 7);
        wire.cut();
        assert!(timeout(SOON, say(&mut first)).await.unwrap().is_err());
        let mut second = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(say(&mut second).await.unwrap(), 7);
        wire.sever();
        assert!(timeout(SOON, say(&mut second)).await.unwrap().is_err());
        let mut third = TcpStream::connect(wire.address).await.unwrap();
        assert!(timeout(SOON, say(&mut third)).await.unwrap().is_err());
        wire.heal();
        let mut fourth = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(say(&mut fourth).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_wire_that_is_stalled_is_silent_and_loses_nothing() {
        let wire = CuttableProxy::to(echo().await).await;
        let mut stream = TcpStream::connect(wire.address).await.unwrap();
        assert_eq!(say(&mut stream).await.unwrap(), 7);
        wire.stall();
        stream.write_u8(8).await.unwrap();
        assert!(timeout(A_MOMENT, stream.read_u8()).await.is_err());
        wire.heal();
        assert_eq!(timeout(SOON, stream.read_u8()).await.unwrap().unwrap(), 8);
    }
}
