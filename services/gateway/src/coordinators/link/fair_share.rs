//! Fairness between callers: a limit of calls in flight per caller. A call counts until the
//! coordinator has answered it, also after its caller has left.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use faultline_chassis::server::{self, QuotaPermit, Resource};
use faultline_proto::{Failure, reason, v1::Caller};

use crate::coordinators::link::interruption::RETRY_AFTER;

/// The shares of all callers: by principal, or by address for callers without a token.
#[derive(Debug, Default)]
pub(crate) struct CallShares {
    principals: HashMap<String, Arc<AtomicUsize>>,
    max: usize,
}

/// One call in the share of a caller, released on drop.
#[derive(Debug)]
pub(super) enum HeldShare {
    Principal(Arc<AtomicUsize>),
    Address { _taken: Option<QuotaPermit> },
}

impl CallShares {
    /// At most `max` calls for each of these principals.
    pub(crate) fn new<'a>(principals: impl Iterator<Item = &'a str>, max: usize) -> Self {
        let principals = principals.map(|name| (name.to_owned(), Arc::default())).collect();
        Self { principals, max }
    }

    pub(super) fn acquire(&self, caller: &Caller) -> Result<HeldShare, Failure> {
        let Some(calls) = self.principals.get(&caller.principal) else {
            return Ok(HeldShare::Address { _taken: server::acquire(Resource::Call)? });
        };
        if calls.fetch_add(1, Relaxed) >= self.max {
            calls.fetch_sub(1, Relaxed);
            let max = self.max;
            return Err(Failure::new(&reason::RATE_LIMITED)
                .because(format!("too many calls of one caller at once: it may have {max}"))
                .with_retry_after(RETRY_AFTER));
        }
        Ok(HeldShare::Principal(Arc::clone(calls)))
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        if let HeldShare::Principal(calls) = self {
            calls.fetch_sub(1, Relaxed);
        }
    }
}
