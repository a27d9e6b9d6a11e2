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
    InProcess(InProcess),
}

/// A listener on an in-process network. Dropping it frees its address.
#[derive(Debug)]
pub(crate) struct InProcess {
    network: Network,
    address: SocketAddr,
    incoming: mpsc::Receiver<DuplexStream>,
}

impl Network {
    pub fn new() -> Self {
        Self::default()
    }

    fn bind(&self, mut address: SocketAddr) -> io::Result<InProcess> {
        let mut ports = self.ports();
        let any = address.port() == 0;
        while address.port() == 0 || (any && ports.open.contains_key(&address)) {
            ports.last = ports.last.checked_add(1).ok_or(io::ErrorKind::AddrNotAvailable)?;
            address.set_port(ports.last);
        }
        if ports.open.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (connect, incoming) = mpsc::channel(limits::NETWORK_BACKLOG);
        ports.open.insert(address, connect);
        Ok(InProcess { network: self.clone(), address, incoming })
    }

    /// Connects to the listener at `address` and returns the client's end.
    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let connect = self.ports().open.get(&address).cloned().ok_or_else(refused)?;
        let (near, far) = duplex(limits::NETWORK_BUFFER_BYTES);
        connect.send(far).await.map_err(|_| refused())?;
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

impl Drop for InProcess {
    fn drop(&mut self) {
        self.network.ports().open.remove(&self.address);
    }
}

impl Socket {
    /// Without a network it binds on the machine's.
    pub(crate) async fn bind(network: Option<&Network>, address: SocketAddr) -> io::Result<Self> {
        match network {
            Some(network) => network.bind(address).map(Socket::InProcess),
            None => TcpListener::bind(address).await.map(Socket::Tcp),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        match self {
            Socket::Tcp(tcp) => tcp.local_addr().expect("a socket that listens has an address"),
            Socket::InProcess(in_process) => in_process.address,
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
            Socket::InProcess(in_process) => {
                let stream =
                    in_process.incoming.recv().await.expect("its sender is with the network");
                Ok((Either::Right(stream), in_process.address))
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
        let mut listener = Socket::bind(Some(&one), ANY).await.unwrap();
        let other_listener = Socket::bind(Some(&other), ANY).await.unwrap();
        assert_eq!(listener.addr(), other_listener.addr(), "two networks have the same addresses");
        let mut near = one.connect(listener.addr()).await.unwrap();
        near.write_all(b"hello").await.unwrap();
        drop(near);
        let (mut far, _) = listener.accept().await.unwrap();
        let mut received = String::new();
        far.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "hello");
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
        let refused = network.connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(Socket::bind(Some(&network), address).await.is_ok());
    }
}
