//! Registry of known agents: its bounds, its expiry, and the removal of an agent by an operator. An
//! agent stays while a worker offers it or a task of it lives. The store decides whether an agent
//! may go, so that coordinators on one store agree.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use faultline_chassis::limits;
use faultline_proto::v1::{AgentOffer, RemoveAgentRequest, RemoveAgentResponse};
use prost::Message;
use tokio::sync::oneshot;

use crate::{
    Config,
    calls::caller::Caller,
    clock::now,
    engine::{
        core::{Core, State},
        effect::Effect,
    },
    error::{Error, refuse},
    store::{Remembered, Tally, Write},
    task::Millis,
};

const HOUR_MS: Millis = 60 * 60 * 1000;
/// The longest interval between two sweeps of the agent registry.
const INTERVAL_MAX: Duration = Duration::from_secs(60 * 60);
/// Agents forgotten in one commit.
const AT_ONCE: usize = 100;

impl Config {
    /// Retention of unoffered agents; `None`: for ever.
    fn agents_kept(&self) -> Option<Millis> {
        let hours = Millis::try_from(self.forget_agents_after_hours).unwrap_or(Millis::MAX);
        (hours > 0).then(|| hours.saturating_mul(HOUR_MS))
    }

    /// The sweep interval: a small part of the retention, so that an offered agent never expires.
    pub(crate) fn agents_interval(&self) -> Duration {
        let kept = self.agents_kept().and_then(|ms| u64::try_from(ms / 8).ok());
        kept.map_or(INTERVAL_MAX, Duration::from_millis).min(INTERVAL_MAX)
    }
}

impl Core {
    /// Records the agents that are offered here, and forgets agents whose retention has passed.
    pub(crate) async fn forget_agents(&self) {
        let now = now();
        let before = self.config.agents_kept().map(|kept| now.saturating_sub(kept));
        let gone = Tally::default();
        let (done, forgotten) = oneshot::channel();
        let names = self.change(|state| {
            if state.closed.is_some() {
                return Vec::new();
            }
            let offered =
                state.registry.agents.iter().filter(|(_, agent)| !agent.workers.is_empty());
            let offered: Vec<_> = offered.map(|(name, _)| name.clone()).collect();
            if !offered.is_empty() {
                state.commit_write(Write::Offered { names: offered, at: now }, Vec::new());
            }
            let Some(before) = before else { return Vec::new() };
            let mut names = state.unused_since(before);
            names.truncate(AT_ONCE);
            if !names.is_empty() {
                let then = Effect::Run(Box::new(move || _ = done.send(())));
                let (gone, names) = (gone.clone(), names.clone());
                state.commit_write(Write::ForgetAgents { names, before, gone }, vec![then]);
            }
            names
        });
        if names.is_empty() || forgotten.await.is_err() {
            return;
        }
        match self.drop_forgotten(names).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "forgot agents that no worker offers"),
            Err(error) => tracing::warn!(%error, "sweep of agents that no worker offers failed"),
        }
    }

    /// Removes an agent for an operator.
    pub(crate) async fn remove_agent(
        &self,
        request: RemoveAgentRequest,
        caller: &Caller,
    ) -> Result<RemoveAgentResponse, Error> {
        caller.check_operates()?;
        let name = request.name;
        self.load_unknown_agent(&name).await?;
        let gone = Tally::default();
        let (done, removed) = oneshot::channel();
        self.change(|state| {
            state.check_open()?;
            state.check_removable(&name)?;
            let then = Effect::Run(Box::new(move || _ = done.send(())));
            let (names, before, gone) = (vec![name.clone()], Millis::MAX, gone.clone());
            state.commit_write(Write::ForgetAgents { names, before, gone }, vec![then]);
            Ok::<_, Error>(())
        })?;
        removed.await.map_err(|_| Error::unanswered())?;
        if gone.get() == 0 && !self.store.agents(Some(name.clone())).await?.is_empty() {
            return Err(has_tasks(name));
        }
        self.drop_forgotten(vec![name.clone()]).await?;
        tracing::info!(agent = name, operator = caller.principal, "an operator removed an agent");
        Ok(RemoveAgentResponse {})
    }

    /// Evicts agents that were deleted from the store, and returns their number.
    async fn drop_forgotten(&self, names: Vec<String>) -> Result<usize, Error> {
        let known = self.store.agents(None).await?;
        let known: HashSet<_> = known.into_iter().map(|known| known.offer.name).collect();
        let gone: Vec<_> = names.into_iter().filter(|name| !known.contains(name)).collect();
        self.change(|state| gone.iter().for_each(|name| state.drop_agent(name)));
        Ok(gone.len())
    }
}

impl State {
    /// Whether these offers fit the bounds of the registry.
    pub(crate) fn check_agents(&self, offers: &[AgentOffer]) -> Result<(), Error> {
        self.check_agent_count(offers)?;
        self.check_offer_bytes(offers)
    }

    /// Bounds the memory for cards. Offers that are known already, or shrink, are always accepted.
    fn check_offer_bytes(&self, offers: &[AgentOffer]) -> Result<(), Error> {
        let agents = &self.registry.agents;
        let is_known =
            |offer: &AgentOffer| agents.get(&offer.name).is_some_and(|known| known.offer == *offer);
        if offers.iter().all(is_known) {
            return Ok(());
        }
        let mut bytes: HashMap<_, _> =
            agents.iter().map(|(name, agent)| (name, agent.offer.encoded_len())).collect();
        let (before, most) = (bytes.values().sum::<usize>(), limits::OFFERS_BYTES_MAX);
        bytes.extend(offers.iter().map(|offer| (&offer.name, offer.encoded_len())));
        let after = bytes.values().sum::<usize>();
        if after <= most || after <= before {
            return Ok(());
        }
        let what = format!(
            "the cards of all agents would take {after} bytes, at most {most}: shorten the \
             descriptions and examples of the largest, or remove agents that nobody offers with \
             `faultline agents remove NAME`"
        );
        Err(refuse("hello.agents.card", what).into())
    }

    fn check_agent_count(&self, offers: &[AgentOffer]) -> Result<(), Error> {
        let agents = &self.registry.agents;
        let names: HashSet<_> = offers.iter().map(|offer| &offer.name).collect();
        let new = names.iter().filter(|name| !agents.contains_key(**name)).count();
        let (known, most) = (agents.len(), limits::AGENTS_MAX);
        if new == 0 || known + new <= most {
            return Ok(());
        }
        let what = format!(
            "{new} agents that are new here, where {known} are known and at most {most} may be: \
             offer fewer, or remove some that nobody offers with `faultline agents remove NAME`"
        );
        Err(refuse("hello.agents", what).into())
    }

    fn check_removable(&self, name: &str) -> Result<(), Error> {
        let agent = || name.to_owned();
        let Some(known) = self.registry.agents.get(name) else {
            return Err(Error::AgentNotFound(agent()));
        };
        let workers = known.workers.len() + self.registry.peer_load.workers_of(name) as usize;
        if workers > 0 {
            let s = if workers == 1 { "" } else { "s" };
            let what = format!(
                "{workers} worker{s} offer{} it: stop them first, or they would offer it again",
                if workers == 1 { "s" } else { "" }
            );
            return Err(Error::AgentInUse { agent: agent(), what });
        }
        if self.tasks.values().any(|active| active.pending().agent == name) {
            Err(has_tasks(agent()))
        } else {
            Ok(())
        }
    }

    /// Agents without a worker since `before` and without a task here.
    fn unused_since(&self, before: Millis) -> Vec<String> {
        let registry = &self.registry;
        let old = registry.agents.iter().filter(|(name, agent)| {
            agent.workers.is_empty()
                && agent.offered < before
                && registry.peer_load.workers_of(name) == 0
        });
        let mut old: Vec<_> = old.map(|(name, _)| name.clone()).collect();
        if !old.is_empty() {
            let active: HashSet<_> =
                self.tasks.values().map(|active| active.pending().agent.as_str()).collect();
            old.retain(|name| !active.contains(name.as_str()));
        }
        old
    }

    /// Removes an agent that the store has forgotten. A worker that attached meanwhile offers it
    /// again.
    fn drop_agent(&mut self, name: &str) {
        let Some(agent) = self.registry.agents.get(name) else { return };
        if agent.workers.is_empty() {
            drop(self.registry.agents.remove(name))
        } else {
            let write = Write::Offer { offer: Box::new(agent.offer.clone()), at: agent.changed };
            self.commit_write(write, Vec::new());
        }
    }

    /// Reconciles the agents with the store after another coordinator offered or forgot some.
    pub(crate) fn reconcile_agents(&mut self, known: Vec<Remembered>) {
        let names: HashSet<_> = known.iter().map(|known| known.offer.name.clone()).collect();
        known.into_iter().for_each(|known| self.registry.restore(known));
        let agents = self.registry.agents.keys();
        let gone: Vec<_> = agents.filter(|name| !names.contains(*name)).cloned().collect();
        if gone.is_empty() {
            return;
        }
        let active: HashSet<_> =
            self.tasks.values().map(|active| active.pending().agent.clone()).collect();
        gone.iter().filter(|name| !active.contains(*name)).for_each(|name| self.drop_agent(name));
    }
}

fn has_tasks(agent: String) -> Error {
    let what = "it has live tasks: wait until they end, or cancel them".to_owned();
    Error::AgentInUse { agent, what }
}

#[cfg(test)]
mod tests;
