//! Bearer token that expires: fetched on first use, cached, and fetched again once per call when
//! the server rejects it.

use std::{error::Error as StdError, fmt, pin::Pin, sync::Arc};

use faultline_proto::{Failure, reason, v1::Plane};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use parking_lot::{Mutex, MutexGuard};
use tonic::Code;

use crate::transport::retry::Fault;

type BoxError = Box<dyn StdError + Send + Sync>;
type TokenFuture = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

/// The token source of a client, if it has one. Clones share the cached token.
#[derive(Clone, Default)]
pub(crate) struct Bearer(Option<Arc<TokenSource>>);

struct TokenSource {
    fetch: Box<dyn Fn() -> TokenFuture + Send + Sync>,
    cached: Mutex<Option<HeaderValue>>,
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Bearer(***)" } else { "Bearer(None)" })
    }
}

impl TokenSource {
    fn cached(&self) -> MutexGuard<'_, Option<HeaderValue>> {
        self.cached.lock()
    }

    async fn token(&self) -> Result<HeaderValue, Fault> {
        if let Some(cached) = self.cached().clone() {
            return Ok(cached);
        }
        let token = (self.fetch)().await.map_err(|error| {
            let failure = Failure::new(&reason::UNAVAILABLE).with_plane(Plane::Transport);
            let text = "there is no token to call the server with";
            Fault::unsent(failure.because(text).privately(error.to_string()))
        })?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            let text = "the token to call the server with cannot be sent";
            Fault::unsent(Failure::new(&reason::INVALID_ARGUMENT).because(text))
        })?;
        value.set_sensitive(true);
        *self.cached() = Some(value.clone());
        Ok(value)
    }
}

impl Bearer {
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn from<F>(fetch: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        let fetch = Box::new(move || -> TokenFuture { Box::pin(fetch()) });
        Self(Some(Arc::new(TokenSource { fetch, cached: Mutex::default() })))
    }

    /// Adds the token to the headers of a call.
    pub(crate) async fn put(&self, headers: &mut HeaderMap) -> Result<(), Fault> {
        if let Some(source) = &self.0 {
            headers.insert(AUTHORIZATION, source.token().await?);
        }
        Ok(())
    }

    /// Makes the call, and repeats it once with a new token when the server rejected the token: a
    /// call without authentication was not executed.
    pub(crate) async fn run<T, F>(&self, call: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        match (call().await, &self.0) {
            (Err(fault), Some(source)) if fault.failure.code() == Code::Unauthenticated => {
                source.cached().take();
                call().await
            }
            (done, _) => done,
        }
    }
}
