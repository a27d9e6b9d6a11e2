//! Binding of worker ids to the credential that introduced them. The store holds the binding for
//! all coordinators; memory caches it for attached workers.

use std::{sync::Arc, time::Duration};

use faultline_chassis::{
    credential::{Binding, Identity},
    limits,
};
use faultline_proto::{Failure, id::WorkerId, reason};

use crate::{
    calls::roles::denied,
    clock::now,
    engine::core::{Core, State},
    error::Error,
    store::BindingQuota,
    task::Millis,
};

/// Retry hint for a credential with too many worker ids.
const RETRY_AFTER: Duration = Duration::from_secs(60);

impl Core {
    /// Binds a worker id to the credential that introduces it. Refuses an id of another credential,
    /// and more ids than a credential may have. Runs before anything else is done for the worker,
    /// because the tasks of a worker come with its id.
    pub(crate) async fn introduce(&self, id: WorkerId, identity: &Identity) -> Result<(), Failure> {
        let now = now();
        let max = limits::WORKER_IDS_PER_CREDENTIAL_MAX;
        let quota = BindingQuota { max, stale_before: now - millis(limits::WORKER_ID_STALE) };
        let bound = self.store.introduce(id, identity.binding(), now, quota).await;
        match bound.map_err(Error::from)? {
            Some(bound) if bound == identity.binding() => Ok(()),
            Some(_) => Err(taken(id, identity)),
            None => Err(too_many(identity)),
        }
    }

    /// Renews the bindings of known workers, periodically.
    pub(crate) async fn keep_introduced(self: &Arc<Self>) {
        let known: Vec<_> = self.lock().registry.workers.keys().copied().collect();
        let now = now();
        let before = now - millis(limits::WORKER_ID_KEPT);
        if let Err(error) = self.store.keep_introduced(known, now, before).await {
            tracing::warn!(%error, "the bindings of worker ids were not renewed");
        }
    }
}

impl State {
    /// Checks the binding against memory.
    pub(crate) fn check_bound(&self, id: WorkerId, identity: &Identity) -> Result<(), Failure> {
        let bound = self.registry.workers.get(&id).and_then(|worker| worker.binding);
        if bound.is_none_or(|bound| bound == identity.binding()) {
            Ok(())
        } else {
            Err(taken(id, identity))
        }
    }

    pub(crate) fn bind(&mut self, id: WorkerId, binding: Binding) {
        if let Some(worker) = self.registry.workers.get_mut(&id) {
            worker.binding = Some(binding);
        }
    }

    /// Whether a call with this credential may act for an attempt on this worker.
    pub(crate) fn check_runs_for(&self, worker: &str, binding: Binding) -> Result<(), Error> {
        let worker = worker.parse::<WorkerId>().ok();
        let worker = worker.and_then(|id| self.registry.workers.get(&id));
        match worker.and_then(|worker| worker.binding) {
            Some(bound) if bound == binding => Ok(()),
            Some(_) => Err(Error::AttemptOver),
            // The worker has not attached since this start: the call may be repeated once it has.
            None => Err(Error::NotOwner),
        }
    }
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

fn too_many(identity: &Identity) -> Failure {
    let (name, most) = (identity.name(), limits::WORKER_IDS_PER_CREDENTIAL_MAX);
    Failure::new(&reason::RESOURCE_EXHAUSTED)
        .because(format!(
            "hello.workerId: the credential '{name}' has introduced {most} worker ids within the \
             last hour, and may introduce no more: keep one id for each worker process, or give \
             each pool of workers a [[mesh.credential]] of its own"
        ))
        .with_violation("hello.workerId", "keep one id for each worker process")
        .with_retryable(true)
        .with_retry_after(RETRY_AFTER)
}

fn taken(id: WorkerId, identity: &Identity) -> Failure {
    denied(format!(
        "the worker id {id} was introduced with another credential than '{}': use an id of its own \
         for each worker process (a restarted worker has a new one)",
        identity.name()
    ))
}
