//! A bearer token that expires: had when it is first needed, and had anew, once for each call, when
//! the server does not take it any more.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use faultline_proto::{Failure, reason, v1::Plane};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tonic::Code;

use crate::transport::retry::Fault;

type BoxError = Box<dyn StdError + Send + Sync>;
type Having = Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>>;

/// Where the tokens of a client come from, if they come from anywhere. Clones share what is held.
#[derive(Clone, Default)]
pub(crate) struct Bearer(Option<Arc<Source>>);

struct Source {
    have: Box<dyn Fn() -> Having + Send + Sync>,
    held: Mutex<Option<HeaderValue>>,
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Bearer(***)" } else { "Bearer(None)" })
    }
}

impl Source {
    fn held(&self) -> MutexGuard<'_, Option<HeaderValue>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn token(&self) -> Result<HeaderValue, Fault> {
        if let Some(held) = self.held().clone() {
            return Ok(held);
        }
        let token = (self.have)().await.map_err(|error| {
            let failure = Failure::new(&reason::UNAVAILABLE).with_plane(Plane::Transport);
            let text = "there is no token to call the server with";
            Fault::unsent(failure.because(text).privately(error.to_string()))
        })?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
            let text = "the token to call the server with cannot be sent";
            Fault::unsent(Failure::new(&reason::INVALID_ARGUMENT).because(text))
        })?;
        value.set_sensitive(true);
        *self.held() = Some(value.clone());
        Ok(value)
    }
}

impl Bearer {
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn from<F>(have: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, BoxError>> + Send + 'static,
    {
        let have = Box::new(move || -> Having { Box::pin(have()) });
        Self(Some(Arc::new(Source { have, held: Mutex::default() })))
    }

    /// Into the headers of a call.
    pub(crate) async fn put(&self, headers: &mut HeaderMap) -> Result<(), Fault> {
        if let Some(source) = &self.0 {
            headers.insert(AUTHORIZATION, source.token().await?);
        }
        Ok(())
    }

    /// Makes the call, and once more with another token when the server refused this one: whoever
    /// is refused so has not been served.
    pub(crate) async fn run<T, F>(&self, call: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        match (call().await, &self.0) {
            (Err(fault), Some(source)) if fault.failure.code() == Code::Unauthenticated => {
                source.held().take();
                call().await
            }
            (done, _) => done,
        }
    }
}
