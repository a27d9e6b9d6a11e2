//! A cache of agent cards, so that anonymous requests do not reach a coordinator each. Requests for
//! the same card share one call (single flight), which continues when its clients leave.

use std::{collections::HashMap, sync::Arc, time::Duration};

use faultline_chassis::{
    limits,
    server::{self, Resource},
};
use faultline_proto::{
    Failure,
    id::check_agent_name,
    v1::{Agent, AgentsRequest, Caller, call, reply},
};
use futures::{FutureExt, future::BoxFuture, future::Shared};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use crate::{
    coordinators::{link, pool::Pool},
    protocol::validate,
};

/// An agent, or `None` for an agent that does not exist.
type CachedAgent = Option<Arc<Agent>>;
type SharedFetch = Shared<BoxFuture<'static, Result<CachedAgent, Failure>>>;

/// The entries by name, empty for the default agent, behind one lock. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct CardCache(Arc<Mutex<HashMap<String, Entry>>>);

/// The last known state of one agent, and the fetch that is running for it.
#[derive(Default)]
struct Entry {
    known: Option<(Instant, CachedAgent)>,
    fetch: Option<SharedFetch>,
}

impl Entry {
    fn younger_than(&self, age: Duration) -> Option<CachedAgent> {
        let (at, found) = self.known.as_ref()?;
        (at.elapsed() < age).then(|| found.clone())
    }

    fn fresh(&self) -> Option<CachedAgent> {
        // Absence is cached shorter than a card: a worker may offer the agent soon.
        let is_there = self.known.as_ref().is_some_and(|(_, found)| found.is_some());
        self.younger_than(if is_there { limits::CARD_TTL } else { limits::CARD_MISSING_TTL })
    }
}

impl CardCache {
    /// The agent of this name, or the default agent.
    pub(crate) async fn find(
        &self,
        pool: &Pool,
        name: Option<&str>,
    ) -> Result<CachedAgent, Failure> {
        // An invalid name belongs to no agent.
        if name.is_some_and(|name| check_agent_name(name).is_err()) {
            return Ok(None);
        }
        let fetch = {
            let mut entries = self.entries();
            let entry = entries.get(name.unwrap_or_default());
            if let Some(found) = entry.and_then(Entry::fresh) {
                return Ok(found);
            }
            // A fetch that has ended and is still stored has panicked.
            let running = |fetch: &SharedFetch| fetch.peek().is_none();
            match entry.and_then(|entry| entry.fetch.clone()).filter(running) {
                Some(fetch) => fetch,
                None => match self.fetch(pool, name) {
                    Ok(fetch) => {
                        make_room(&mut entries);
                        let name = name.unwrap_or_default().to_owned();
                        entries.entry(name).or_default().fetch = Some(fetch.clone());
                        fetch
                    }
                    // Too many fetches are running: a stale card is better than none.
                    Err(failure) => {
                        let cache =
                            entry.and_then(|entry| entry.younger_than(limits::CARD_STALE_TTL));
                        return cache.ok_or(failure);
                    }
                },
            }
        };
        fetch.await
    }

    /// Starts a call whose answer is cached, also if all its clients leave.
    fn fetch(&self, pool: &Pool, name: Option<&str>) -> Result<SharedFetch, Failure> {
        let taken = server::acquire(Resource::CardFetch)?;
        let cache = self.clone();
        let pool = pool.clone();
        let name = name.map(str::to_owned);
        let fetching = tokio::spawn(async move {
            let asked = timeout(limits::CARD_FETCH_TIMEOUT, ask(&pool, name.as_deref())).await;
            let found = asked.unwrap_or_else(|_| Err(link::unreachable()));
            cache.put(&name.unwrap_or_default(), &found);
            drop(taken);
            found
        });
        let fetching = async move { fetching.await.unwrap_or_else(|_| Err(link::unreachable())) };
        Ok(fetching.boxed().shared())
    }

    fn put(&self, name: &str, found: &Result<CachedAgent, Failure>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(name) else { return };
        entry.fetch = None;
        if let Ok(found) = found {
            entry.known = Some((Instant::now(), found.clone()));
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // No code that can panic runs under the lock.
        self.0.lock()
    }
}

/// Evicts entries at the bound: agents that do not exist first, then all.
fn make_room(entries: &mut HashMap<String, Entry>) {
    if entries.len() < limits::CARDS_CACHED_MAX {
        return;
    }
    let is_there =
        |entry: &Entry| entry.younger_than(limits::CARD_STALE_TTL).is_some_and(|f| f.is_some());
    entries.retain(|_, entry| entry.fetch.is_some() || is_there(entry));
    if entries.len() >= limits::CARDS_CACHED_MAX {
        entries.retain(|_, entry| entry.fetch.is_some());
    }
}

async fn ask(pool: &Pool, name: Option<&str>) -> Result<CachedAgent, Failure> {
    let asked = name.unwrap_or_default().to_owned();
    let only_default = name.is_none();
    let request = AgentsRequest { name: asked, only_default };
    let answer = pool.call(Caller::default(), call::Body::Agents(request)).await?;
    let agents = match answer.body {
        reply::Body::Agents(response) => response.agents,
        _ => return Err(validate::unexpected_reply()),
    };
    let meant = |agent: &Agent| name.map_or(agent.is_default, |name| agent.name == name);
    Ok(agents.into_iter().find(meant).map(Arc::new))
}
