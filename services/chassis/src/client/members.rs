//! Service discovery of the coordinators. Each configured address is a socket address, which is one
//! member, or a host name, which stands for as many members as it resolves to. Names are resolved
//! again and again, so members come and go. This module does not check whether a member is up.

use std::{
    collections::HashSet,
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use super::{CannotDial, Channel};
use crate::{auth::mesh_config::MeshConfig, limits, net::dial};

pub use crate::net::resolver::Resolver;

/// One coordinator: its configured address, and a socket address of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    target: usize,
    at: Option<SocketAddr>,
}

impl Member {
    /// The socket address, if it is known before dialling.
    pub fn at(&self) -> Option<SocketAddr> {
        self.at
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => at.fmt(f),
            None => write!(f, "address {}", self.target + 1),
        }
    }
}

/// The coordinators of one mesh as known now. [`Members::run`] updates them. Cheap to clone; all
/// clones share their state.
#[derive(Clone)]
pub struct Members(Arc<Inner>);

struct Inner {
    names: Resolver,
    targets: Vec<Target>,
    listed: watch::Sender<Vec<Member>>,
    look: Notify,
}

/// One configured address.
struct Target {
    channel: Channel,
    host: String,
    port: u16,
    /// A host name resolves to any number of members.
    is_name: bool,
}

impl Members {
    /// The members of `addresses`, separated by commas.
    pub fn new(mesh: &MeshConfig, addresses: &str) -> Result<Self, CannotDial> {
        let each = addresses.split(',').map(str::trim).filter(|address| !address.is_empty());
        let targets = each.map(|address| Target::new(mesh, address)).collect::<Result<Vec<_>, _>>();
        let targets = targets?;
        if targets.is_empty() {
            return Err(CannotDial::Address(addresses.to_owned()));
        }
        let names = mesh.resolver.clone().unwrap_or_else(Resolver::system);
        let members = Self(Arc::new(Inner {
            names,
            targets,
            listed: watch::Sender::new(Vec::new()),
            look: Notify::new(),
        }));
        members.publish(&vec![Vec::new(); members.0.targets.len()]);
        Ok(members)
    }

    /// The current members and every change.
    pub fn watch(&self) -> watch::Receiver<Vec<Member>> {
        self.0.listed.subscribe()
    }

    pub fn now(&self) -> Vec<Member> {
        self.0.listed.borrow().clone()
    }

    /// A connection to one member. The first call opens it.
    pub fn channel(&self, member: &Member) -> Channel {
        let target = &self.0.targets[member.target];
        match member.at.filter(|_| target.is_name) {
            Some(at) => target.channel.at(at),
            None => target.channel.anew(),
        }
    }

    /// A connection to the first configured address, for a caller that may use any coordinator.
    pub fn first(&self) -> Channel {
        self.0.targets[0].channel.anew()
    }

    /// Host and port of the first configured address, for the attributes of spans.
    pub fn peer(&self) -> (String, Option<u16>) {
        self.0.targets[0].channel.peer()
    }

    /// Triggers a name resolution soon, for example after a lost connection: its peer may be gone
    /// for good.
    pub fn refresh(&self) {
        self.0.look.notify_one();
    }

    /// Resolves the names again and again, for as long as the future is polled.
    pub async fn run(self) {
        let mut found = vec![Vec::new(); self.0.targets.len()];
        let mut failure_logged = vec![false; found.len()];
        if !self.0.targets.iter().any(|target| target.is_name) {
            return std::future::pending().await;
        }
        loop {
            for (index, target) in self.0.targets.iter().enumerate().filter(|(_, t)| t.is_name) {
                match self.resolve(target).await {
                    Ok(addresses) => {
                        found[index] = addresses;
                        failure_logged[index] = false;
                    }
                    // A failed resolution removes no member: only a connection shows whether one is
                    // up.
                    Err(error) => {
                        if !std::mem::replace(&mut failure_logged[index], true) {
                            let name = &target.host;
                            tracing::warn!(name, %error, "cannot resolve a coordinator's name");
                        }
                    }
                }
            }
            self.publish(&found);
            // A connection that is lost repeatedly must not trigger resolutions without a pause.
            sleep(limits::MEMBERS_REFRESH_PAUSE).await;
            let _ = timeout(limits::MEMBERS_REFRESH_INTERVAL, self.0.look.notified()).await;
        }
    }

    async fn resolve(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
        let resolved = self.0.names.resolve(&target.host, target.port);
        timeout(limits::CONNECT_TIMEOUT, resolved).await?
    }

    /// Publishes the members that the names resolved to. The same address twice is one member.
    fn publish(&self, found: &[Vec<SocketAddr>]) {
        let mut seen = HashSet::new();
        let mut listed = Vec::new();
        for (index, (target, found)) in self.0.targets.iter().zip(found).enumerate() {
            let mut found: Vec<_> = if target.is_name {
                found.iter().copied().map(Some).collect()
            } else {
                vec![target.fixed()]
            };
            found.sort_unstable();
            let new = found.into_iter().filter(|at| at.is_none_or(|at| seen.insert(at)));
            listed.extend(new.map(|at| Member { target: index, at }));
        }
        listed.truncate(limits::MEMBERS_MAX);
        self.0.listed.send_if_modified(|now| {
            let has_changed = *now != listed;
            *now = listed;
            has_changed
        });
    }
}

impl Target {
    fn new(mesh: &MeshConfig, address: &str) -> Result<Self, CannotDial> {
        let channel = Channel::lazy(&mesh.dial(address))?;
        let uri = channel.uri();
        let host = uri.host().map_or("", dial::bare).to_owned();
        let port = dial::port(uri);
        // An in-process network has no host names: dialling such a name fails.
        let is_name = mesh.network.is_none() && host.parse::<IpAddr>().is_err();
        Ok(Self { channel, host, port, is_name })
    }

    fn fixed(&self) -> Option<SocketAddr> {
        self.host.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, self.port))
    }
}

#[cfg(test)]
mod tests;
