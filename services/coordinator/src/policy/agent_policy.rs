//! The effective policy of an agent: the operator's configuration first, then the agent's
//! offer, then the default. Also validates the configured values at startup.

use std::time::Duration;

use faultline_chassis::limits;
use faultline_proto::{
    id::check_agent_name,
    v1::{AgentOffer, agent_offer},
};

use crate::{
    Config, OnWorkerLost,
    error::StartError,
    policy::{circuit_breaker, retry},
};

/// The shortest lease.
const LEASE_MS_MIN: u64 = 500;

/// The effective policy of one agent. Computed when a worker offers the agent, held by the registry
/// under the state lock, and replaced by the next offer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    /// For tasks of callers.
    pub(crate) retry: retry::RetryRules,
    /// For tasks that another agent gave it.
    pub(crate) delegated_retries: u32,
    pub(crate) budget: retry::Allowance,
    pub(crate) breaker: circuit_breaker::BreakerRules,
    /// How long a task may be active.
    pub(crate) timeout: Option<Duration>,
    /// Tasks that may wait for a slot.
    pub(crate) queue_max: usize,
    /// Tasks that may compute at once, over all workers.
    pub(crate) slots_max: Option<u32>,
    /// Losses of a worker that end a task.
    pub(crate) losses_max: u32,
    /// Stand-ins, best first.
    pub(crate) failover: Vec<String>,
}

impl Policy {
    pub(crate) fn of(config: &Config, offer: &AgentOffer) -> Self {
        let own = config.agents.get(&offer.name);
        let cap = own.and_then(|p| p.retry_cap_ms).unwrap_or(config.retry_cap_ms);
        let base = own.and_then(|p| p.retry_base_ms).unwrap_or(config.retry_base_ms).min(cap);
        let open = own.and_then(|p| p.breaker_open_ms).unwrap_or(config.breaker_open_ms);
        let failures = own.and_then(|p| p.breaker_failures).unwrap_or(config.breaker_failures);
        let retries = own.and_then(|p| p.retries).or(offer.retries).unwrap_or(config.retries);
        let delegated = own.and_then(|p| p.delegated_retries);
        Self {
            retry: retry::RetryRules {
                retries,
                base: Duration::from_millis(base),
                cap: Duration::from_millis(cap),
            },
            // Retries that are off are off for delegated calls, too.
            delegated_retries: delegated.unwrap_or(config.delegated_retries.min(retries)),
            budget: retry::Allowance {
                max: own.and_then(|p| p.retry_budget).unwrap_or(config.retry_budget),
                ratio: own.and_then(|p| p.retry_budget_ratio).unwrap_or(config.retry_budget_ratio),
            },
            timeout: Some(own.and_then(|p| p.timeout_ms).unwrap_or(offer.timeout_ms))
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis),
            breaker: circuit_breaker::BreakerRules { failures, open: Duration::from_millis(open) },
            queue_max: own.and_then(|p| p.queue_max).unwrap_or(config.queue_max),
            slots_max: own.and_then(|p| p.slots_max),
            losses_max: losses_max(config, offer),
            failover: own.map(|p| p.failover.clone()).unwrap_or_default(),
        }
    }

    pub(crate) fn retry_rules(&self, delegated: bool) -> retry::RetryRules {
        let retries = if delegated { self.delegated_retries } else { self.retry.retries };
        retry::RetryRules { retries, ..self.retry }
    }
}

/// How many losses end a task of this agent.
fn losses_max(config: &Config, offer: &AgentOffer) -> u32 {
    let policy = config.agents.get(&offer.name);
    let fail = match policy.and_then(|p| p.on_worker_lost) {
        Some(word) => word == OnWorkerLost::Fail,
        None => offer.on_worker_lost() == agent_offer::OnWorkerLost::Fail,
    };
    let offered = Some(offer.max_attempts).filter(|n| *n > 0);
    let own = policy.and_then(|p| p.max_attempts).or(offered);
    if fail { 1 } else { own.unwrap_or(config.max_attempts).max(1) }
}

impl Config {
    /// Rejects values that make no sense, and names the key.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        check(
            None,
            &Checked {
                retry_base_ms: Some(self.retry_base_ms),
                retry_cap_ms: Some(self.retry_cap_ms),
                retry_budget_ratio: Some(self.retry_budget_ratio),
                breaker_open_ms: Some(self.breaker_open_ms),
                queue_max: Some(self.queue_max),
                slots_max: None,
            },
        )?;
        if self.retry_base_ms > self.retry_cap_ms {
            let what = format!("at most retry_cap_ms, which is {}", self.retry_cap_ms);
            return Err(bad(None, "retry_base_ms", what));
        }
        if self.lease_ms < LEASE_MS_MIN {
            let what = format!("at least {LEASE_MS_MIN}: shorter ones end while a disk is busy");
            return Err(bad(None, "lease_ms", what));
        }
        if self.store_connections == 0 {
            return Err(bad(None, "store_connections", "at least 1"));
        }
        if self.keep_ended_hours == Some(0) {
            return Err(bad(None, "keep_ended_hours", "at least 1; leave it out to keep all"));
        }
        for (name, own) in &self.agents {
            let name = Some(name.as_str());
            check(
                name,
                &Checked {
                    retry_base_ms: own.retry_base_ms,
                    retry_cap_ms: own.retry_cap_ms,
                    retry_budget_ratio: own.retry_budget_ratio,
                    breaker_open_ms: own.breaker_open_ms,
                    queue_max: own.queue_max,
                    slots_max: own.slots_max,
                },
            )?;
            for other in &own.failover {
                if check_agent_name(other).is_err() {
                    return Err(bad(name, "failover", format!("'{other}' is no agent's name")));
                }
                if Some(other.as_str()) == name {
                    return Err(bad(name, "failover", "an agent cannot stand in for itself"));
                }
            }
        }
        Ok(())
    }
}

/// Keys that stand both for all agents and for one.
struct Checked {
    retry_base_ms: Option<u64>,
    retry_cap_ms: Option<u64>,
    retry_budget_ratio: Option<f64>,
    breaker_open_ms: Option<u64>,
    queue_max: Option<usize>,
    slots_max: Option<u32>,
}

fn check(agent: Option<&str>, keys: &Checked) -> Result<(), StartError> {
    let longest = limits::RETRY_BACKOFF_MAX.as_millis() as u64;
    let times = [
        ("retry_base_ms", keys.retry_base_ms),
        ("retry_cap_ms", keys.retry_cap_ms),
        ("breaker_open_ms", keys.breaker_open_ms),
    ];
    for (key, value) in times {
        if value.is_some_and(|ms| !(1..=longest).contains(&ms)) {
            return Err(bad(agent, key, format!("1 to {longest}")));
        }
    }
    if keys.retry_budget_ratio.is_some_and(|ratio| !(0.0..=1.0).contains(&ratio)) {
        return Err(bad(agent, "retry_budget_ratio", "0 to 1"));
    }
    if keys.queue_max.is_some_and(|n| !(1..=limits::AGENT_QUEUE_MAX).contains(&n)) {
        return Err(bad(agent, "queue_max", format!("1 to {}", limits::AGENT_QUEUE_MAX)));
    }
    match keys.slots_max {
        Some(0) => Err(bad(agent, "slots_max", "at least 1; leave it out for no limit")),
        _ => Ok(()),
    }
}

fn bad(agent: Option<&str>, key: &str, what: impl Into<String>) -> StartError {
    let key = match agent {
        Some(agent) => format!("coordinator.agents.{agent}.{key}"),
        None => format!("coordinator.{key}"),
    };
    StartError::Key { key, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentPolicy, testing::offer};

    fn with(own: AgentPolicy) -> Config {
        Config { agents: [("a".to_owned(), own)].into(), ..Config::default() }
    }

    #[test]
    fn operator_setting_overrides_agent_and_default() {
        let says = |retries| AgentOffer { retries, ..offer("a") };
        let operator = with(AgentPolicy { retries: Some(7), ..AgentPolicy::default() });
        assert_eq!(Policy::of(&operator, &says(Some(5))).retry.retries, 7);
        assert_eq!(Policy::of(&Config::default(), &says(Some(5))).retry.retries, 5);
        assert_eq!(Policy::of(&Config::default(), &says(None)).retry.retries, 3);
    }

    #[test]
    fn the_defaults_are_three_retries_and_one_below_another_agent() {
        let policy = Policy::of(&Config::default(), &offer("a"));
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(30));
        assert_eq!(policy.retry_rules(false), retry::RetryRules { retries: 3, base, cap });
        assert_eq!(policy.retry_rules(true), retry::RetryRules { retries: 1, base, cap });
        assert_eq!(policy.breaker, circuit_breaker::BreakerRules { failures: 3, open: cap });
        let never = AgentOffer { retries: Some(0), ..offer("a") };
        assert_eq!(Policy::of(&Config::default(), &never).retry_rules(true).retries, 0);
    }

    #[test]
    fn invalid_policy_names_its_key() {
        let one = |own| with(own);
        let table = [
            (Config { retry_cap_ms: 0, ..Config::default() }, "coordinator.retry_cap_ms"),
            (Config { retry_base_ms: 40_000, ..Config::default() }, "coordinator.retry_base_ms"),
            (
                Config { retry_budget_ratio: f64::NAN, ..Config::default() },
                "coordinator.retry_budget_ratio",
            ),
            (Config { queue_max: 0, ..Config::default() }, "coordinator.queue_max"),
            (Config { lease_ms: 499, ..Config::default() }, "coordinator.lease_ms"),
            (Config { store_connections: 0, ..Config::default() }, "coordinator.store_connections"),
            (
                Config { keep_ended_hours: Some(0), ..Config::default() },
                "coordinator.keep_ended_hours",
            ),
            (
                one(AgentPolicy { slots_max: Some(0), ..AgentPolicy::default() }),
                "coordinator.agents.a.slots_max",
            ),
            (
                one(AgentPolicy { failover: vec!["a".into()], ..AgentPolicy::default() }),
                "coordinator.agents.a.failover",
            ),
            (
                one(AgentPolicy { failover: vec!["A B".into()], ..AgentPolicy::default() }),
                "coordinator.agents.a.failover",
            ),
        ];
        for (config, key) in table {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(key), "{error} names {key}");
        }
        assert!(Config::default().check().is_ok());
    }
}
