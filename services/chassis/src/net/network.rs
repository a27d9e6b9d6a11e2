//! An in-process network: connections between the services of one process without sockets of the
//! machine. Addresses have the usual form, so no other code depends on the kind of network. Each
//! test can have a network of its own, and tests that run in parallel share no port.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::either::Either;

use crate::limits;

/// An in-process network. Cheap to clone; clones are the same network.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<Ports>>);

/// The listeners by address. Changed by binding and by dropping a listener, under the network's
/// mutex.
#[derive(Debug, Default)]
struct Ports {
    open: HashMap<SocketAddr, mpsc::Sender<DuplexStream>>,
    /// The last port given to a listener on port 0.
    last: u16,
}

/// A connection on the machine's network or on an in-process network.
pub(crate) type Wire = Either<TcpStream, DuplexStream>;

/// A listening socket on either network.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Inside(Inside),
}

/// A listener on an in-process network. Dropping it frees its address.
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
        let mut ports = self.ports();
        let any = address.port() == 0;
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

    /// Connects to the listener at `address` and returns the client's end.
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

/// Equality is identity.
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
    /// Without a network it binds on the machine's.
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

    /// The next connection, and the peer's address. An in-process connection has the address of the
    /// listener.
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
    async fn connection_reaches_the_listener_of_its_own_network_only() {
        let one = Network::new();
        let other = Network::new();
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
    async fn address_is_bound_once_and_freed_with_its_listener() {
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
