//! A network inside this process: what the machine's is to processes, it is to services that run
//! in one. Addresses mean the same, so nothing above knows which of the two it is on, but they are
//! nobody else's: tests that run side by side cannot meet. Who makes none is on the machine's.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::either::Either;

use crate::limits;

/// Cheap to clone; clones are the same network.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<Ports>>);

/// Who listens where.
#[derive(Debug, Default)]
struct Ports {
    open: HashMap<SocketAddr, mpsc::Sender<DuplexStream>>,
    /// The last that was given to somebody who took any.
    last: u16,
}

/// One connection, by the machine's network or by ours.
pub(crate) type Wire = Either<TcpStream, DuplexStream>;

/// What waits for connections, on either.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Inside(Inside),
}

/// What waits on ours. Its address is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Inside {
    network: Network,
    address: SocketAddr,
    coming: mpsc::Receiver<DuplexStream>,
}

impl Network {
    pub fn new() -> Self {
        Self::default()
    }

    fn bind(&self, mut address: SocketAddr) -> io::Result<Inside> {
        let (mut ports, any) = (self.ports(), address.port() == 0);
        while address.port() == 0 || (any && ports.open.contains_key(&address)) {
            ports.last = ports.last.checked_add(1).ok_or(io::ErrorKind::AddrNotAvailable)?;
            address.set_port(ports.last);
        }
        if ports.open.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (knock, coming) = mpsc::channel(limits::NETWORK_BACKLOG);
        ports.open.insert(address, knock);
        Ok(Inside { network: self.clone(), address, coming })
    }

    /// The near end of a new connection to whoever listens at `address`.
    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let knock = self.ports().open.get(&address).cloned().ok_or_else(refused)?;
        let (near, far) = duplex(limits::NETWORK_BUFFER_BYTES);
        knock.send(far).await.map_err(|_| refused())?;
        Ok(near)
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.0.lock()
    }
}

/// Two are equal when they are one.
impl PartialEq for Network {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Network {}

impl Drop for Inside {
    fn drop(&mut self) {
        self.network.ports().open.remove(&self.address);
    }
}

impl Socket {
    /// On the machine's network when none is given.
    pub(crate) async fn bind(network: Option<&Network>, address: SocketAddr) -> io::Result<Self> {
        match network {
            Some(network) => network.bind(address).map(Socket::Inside),
            None => TcpListener::bind(address).await.map(Socket::Tcp),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            Socket::Tcp(tcp) => tcp.local_addr().expect("a socket that listens has an address"),
            Socket::Inside(inside) => inside.address,
        }
    }

    /// The next connection, and whose it is. Those of our own network come from where they go.
    pub(crate) async fn accept(&mut self) -> io::Result<(Wire, SocketAddr)> {
        match self {
            Socket::Tcp(tcp) => {
                let (stream, peer) = tcp.accept().await?;
                Ok((Either::Left(stream), peer))
            }
            Socket::Inside(inside) => {
                let stream = inside.coming.recv().await.expect("its sender is with the network");
                Ok((Either::Right(stream), inside.address))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[tokio::test]
    async fn whoever_connects_talks_to_whoever_listens_there_and_to_nobody_elsewhere() {
        let (one, other) = (Network::new(), Network::new());
        let mut here = Socket::bind(Some(&one), ANY).await.unwrap();
        let there = Socket::bind(Some(&other), ANY).await.unwrap();
        assert_eq!(here.addr(), there.addr(), "two networks have the same addresses");
        let mut near = one.connect(here.addr()).await.unwrap();
        near.write_all(b"hello").await.unwrap();
        drop(near);
        let (mut far, _) = here.accept().await.unwrap();
        let mut heard = String::new();
        far.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "hello");
    }

    #[tokio::test]
    async fn an_address_is_taken_once_and_free_when_its_listener_has_gone() {
        let network = Network::new();
        let first = Socket::bind(Some(&network), ANY).await.unwrap();
        let address = first.addr();
        let second = Socket::bind(Some(&network), address).await.unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        assert_ne!(Socket::bind(Some(&network), ANY).await.unwrap().addr(), address);
        drop(first);
        let nobody = network.connect(address).await.unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::ConnectionRefused);
        assert!(Socket::bind(Some(&network), address).await.is_ok());
    }
}
