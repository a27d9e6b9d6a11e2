//! Name resolution of coordinators: the system's resolver, or a function that replaces it in tests.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use tokio::net::lookup_host;

/// Resolves a host name to socket addresses. Cheap to clone.
#[derive(Clone)]
pub struct Resolver(Arc<Look>);

type Look = dyn Fn(&str, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

impl Resolver {
    /// A resolver that calls `look`.
    pub fn new<F, A>(look: F) -> Self
    where
        F: Fn(&str, u16) -> A + Send + Sync + 'static,
        A: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        Self(Arc::new(move |name, port| look(name, port).boxed()))
    }

    pub(crate) fn resolve(
        &self,
        name: &str,
        port: u16,
    ) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        (self.0)(name, port)
    }

    pub(crate) fn system() -> Self {
        Self::new(|name, port| {
            let name = name.to_owned();
            async move { Ok(lookup_host((name, port)).await?.collect()) }
        })
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// Equality is identity.
impl PartialEq for Resolver {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Resolver {}
