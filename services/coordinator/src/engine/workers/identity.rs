//! Worker ids belong to the credential that introduced them. The store knows the binding, so that
//! it holds at every coordinator and after a restart; memory repeats it for workers that are here.

use std::sync::Arc;

use faultline_chassis::credential::{Binding, Identity};
use faultline_proto::{Failure, id::WorkerId};

use crate::{
    calls::roles::denied,
    clock::now,
    engine::core::{Core, State},
    error::Error,
    task::Millis,
};

/// How long an id stays bound after the last coordinator knew its worker.
const KEPT: Millis = 7 * 24 * 60 * 60 * 1000;

impl Core {
    /// Refuses an id that another credential introduced. Before anything is done for the worker:
    /// with its id come its tasks.
    pub(crate) async fn introduce(&self, id: WorkerId, identity: &Identity) -> Result<(), Failure> {
        let bound = self.store.introduce(id, identity.binding(), now()).await;
        match bound.map_err(Error::from)? == identity.binding() {
            true => Ok(()),
            false => Err(taken(id, identity)),
        }
    }

    /// From time to time: the bindings of workers that are known here stay.
    pub(crate) async fn keep_introduced(self: &Arc<Self>) {
        let known: Vec<_> = self.lock().registry.workers.keys().copied().collect();
        let now = now();
        if let Err(error) = self.store.keep_introduced(known, now, now - KEPT).await {
            tracing::warn!(%error, "the bindings of worker ids were not renewed");
        }
    }
}

impl State {
    /// The same by what is known here.
    pub(crate) fn check_bound(&self, id: WorkerId, identity: &Identity) -> Result<(), Failure> {
        let bound = self.registry.workers.get(&id).and_then(|worker| worker.binding);
        match bound.is_none_or(|bound| bound == identity.binding()) {
            true => Ok(()),
            false => Err(taken(id, identity)),
        }
    }

    pub(crate) fn bind(&mut self, id: WorkerId, binding: Binding) {
        if let Some(worker) = self.registry.workers.get_mut(&id) {
            worker.binding = Some(binding);
        }
    }

    /// Whether a call with this credential may speak for an attempt on this worker.
    pub(crate) fn check_runs_for(&self, worker: &str, binding: Binding) -> Result<(), Error> {
        let worker = worker.parse::<WorkerId>().ok();
        let worker = worker.and_then(|id| self.registry.workers.get(&id));
        match worker.and_then(|worker| worker.binding) {
            Some(bound) if bound == binding => Ok(()),
            Some(_) => Err(Error::AttemptOver),
            // Since this start it has not attached: it is to call again when it has.
            None => Err(Error::NotOwner),
        }
    }
}

fn taken(id: WorkerId, identity: &Identity) -> Failure {
    denied(format!(
        "the worker id {id} was introduced with another credential than '{}': use an id of its own \
         for each worker process (a restarted worker has a new one)",
        identity.name()
    ))
}
