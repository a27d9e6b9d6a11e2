//! The identity of a caller and its authorization: a task belongs to the principal that started
//! it, and does not exist for any other principal.

use crate::store::KeyName;
use faultline_proto::id::TaskId;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use faultline_chassis::{TraceContext, limits};
use faultline_proto::v1::{self, AgentOffer};
use tokio::time::Instant;

use crate::{error::Error, policy::capabilities, store::Scope, task::LOCAL};

/// A call of one link: link and call id.
pub(crate) type CallKey = (u64, u64);

/// The caller of an operation and the options of the call.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) principal: String,
    /// The agents it may use; empty: all of them.
    pub(crate) agents: Vec<String>,
    /// It was given no list of agents, so those for drills are not among them.
    pub(crate) without_drills: bool,
    /// May look at everybody's tasks through the operators' view.
    pub(crate) operates: bool,
    pub(crate) extensions: Extensions,
    /// Makes a send safe to repeat; empty: none was given.
    pub(crate) idempotency_key: String,
    /// The trace of the hop that serves the call; a new task becomes its child.
    pub(crate) trace: TraceContext,
    /// Until when the caller waits.
    pub(crate) deadline: Option<Instant>,
    /// Active time that a task started by this call may take.
    pub(crate) task_timeout: Option<Duration>,
    /// Its task is cancelled so long after the caller went away; `None`: it goes on.
    pub(crate) cancel_after: Option<Duration>,
    /// For a caller that may give up.
    pub(crate) call: Option<CallKey>,
    /// The attempt that calls, where an agent does.
    pub(crate) calling: Option<Box<CallingAttempt>>,
}

impl From<v1::Caller> for Caller {
    fn from(asked: v1::Caller) -> Self {
        let patience =
            (asked.timeout_ms > 0).then(|| Duration::from_millis(asked.timeout_ms.into()));
        Self {
            principal: match asked.principal.is_empty() {
                true => LOCAL.to_owned(),
                false => asked.principal,
            },
            agents: asked.agents,
            without_drills: asked.without_drills,
            operates: asked.operates,
            extensions: Extensions::declared(asked.extensions),
            idempotency_key: asked.idempotency_key,
            trace: TraceContext::read(&asked.traceparent, &asked.tracestate),
            deadline: patience.map(|patience| Instant::now() + patience),
            task_timeout: (asked.task_timeout_ms > 0)
                .then(|| Duration::from_millis(asked.task_timeout_ms)),
            cancel_after: asked.cancel_after_ms.map(|ms| Duration::from_millis(ms.into())),
            call: None,
            calling: None,
        }
    }
}

impl Caller {
    /// Said before the agent is looked up, so that it does not tell whether there is one.
    pub(crate) fn check_agent(&self, agent: &str) -> Result<(), Error> {
        match self.agents.is_empty() || self.agents.iter().any(|name| name == agent) {
            true => Ok(()),
            false => Err(Error::Denied(agent.to_owned())),
        }
    }

    /// An agent for drills injects faults on demand: a token uses it if it names it.
    pub(crate) fn check_drill(&self, offer: &AgentOffer) -> Result<(), Error> {
        match self.without_drills && offer.drill {
            true => Err(Error::Drill(offer.name.clone())),
            false => Ok(()),
        }
    }

    /// Checks the scope for tasks of all principals.
    pub(crate) fn check_operates(&self) -> Result<(), Error> {
        if self.operates { Ok(()) } else { Err(Error::NoOperator) }
    }

    /// Its own tasks, of this tenant if one is named.
    pub(crate) fn scope(&self, tenant: &str) -> Scope {
        Scope {
            principal: Some(self.principal.clone()),
            agent: (!tenant.is_empty()).then(|| tenant.to_owned()),
            agents: self.agents.clone(),
        }
    }

    /// Whether a send of this caller can be repeated without being done twice.
    pub(crate) fn has_key(&self) -> bool {
        !self.idempotency_key.is_empty() || self.calling.is_some()
    }

    pub(crate) fn check_key(&self) -> Result<(), Error> {
        if self.idempotency_key.len() > limits::KEY_BYTES_MAX {
            let what = format!("at most {} bytes", limits::KEY_BYTES_MAX);
            return Err(Error::Invalid { field: "Idempotency-Key", what });
        }
        Ok(())
    }
}

/// The extensions that a client declared, and which of them turned out to be in force once the
/// agent was known. Whoever answers the call reads them. Empty, it costs nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extensions(Option<Arc<Declared>>);

#[derive(Debug)]
struct Declared {
    uris: Vec<String>,
    active: OnceLock<Vec<String>>,
}

impl Extensions {
    fn declared(uris: Vec<String>) -> Self {
        let declared = |uris| Arc::new(Declared { uris, active: OnceLock::new() });
        Self((!uris.is_empty()).then(|| declared(uris)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn uris(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |declared| &declared.uris)
    }

    /// The agent is known now: those that its card lists too are in force.
    pub(crate) fn activate(&self, offer: &AgentOffer) {
        if let Some(declared) = &self.0 {
            declared.active.get_or_init(|| capabilities::common_extensions(offer, &declared.uris));
        }
    }

    pub(crate) fn active(&self) -> Vec<String> {
        let active = self.0.as_ref().and_then(|declared| declared.active.get());
        active.cloned().unwrap_or_default()
    }
}

/// The attempt that makes a call.
#[derive(Clone, Debug)]
pub(crate) struct CallingAttempt {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    pub(crate) context_id: String,
    pub(crate) key: String,
    pub(crate) detached: bool,
}

impl CallingAttempt {
    /// Beside the keys of sends, which all name an agent.
    pub(crate) fn key_name(&self, principal: &str, answers: bool) -> Result<KeyName, Error> {
        if self.key.is_empty() {
            let what = "name the child: the same name finds it again".to_owned();
            return Err(Error::Invalid { field: "faultline-key", what });
        }
        let what = if answers { "answer" } else { "child" };
        let key = format!("{what}:{}:{}", self.task, self.key);
        Ok(KeyName { principal: principal.to_owned(), agent: String::new(), key })
    }
}
