//! Supervision of the background loops: when one of them ends, the coordinator ends too, so that a
//! process supervisor restarts it.

use std::sync::Arc;

use futures::future::select_all;
use tokio_util::task::AbortOnDropHandle;

use crate::{background::sweep, engine::core::Core, error::StartError};

/// The running loops; dropping it ends them all.
pub(crate) struct Loops(Vec<Loop>);

struct Loop {
    name: &'static str,
    /// The loop has nothing to do while the coordinator leaves.
    stops_first: bool,
    task: AbortOnDropHandle<()>,
}

impl Loop {
    fn spawn(
        name: &'static str,
        stops_first: bool,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self { name, stops_first, task: AbortOnDropHandle::new(tokio::spawn(work)) }
    }

    /// The result of a loop that ended without an abort.
    async fn ended(&mut self) -> Result<(), StartError> {
        let how = match (&mut self.task).await {
            Ok(()) => "ended",
            Err(error) if error.is_panic() => "panicked",
            Err(_) => return Ok(()),
        };
        Err(StartError::Broken { name: self.name, how })
    }
}

impl Loops {
    pub(crate) fn start(core: &Arc<Core>) -> Self {
        let own = || Arc::clone(core);
        let write = {
            let core = own();
            async move { core.write().await }
        };
        let mut loops = vec![
            Loop::spawn("writer", false, write),
            Loop::spawn("sweeper", true, sweep::run(own())),
            Loop::spawn("timekeeper", true, own().run_timers()),
        ];
        if core.store.cluster().is_some() {
            loops.push(Loop::spawn("neighbour", false, own().run_cluster()));
        }
        Self(loops)
    }

    /// Waits until a loop ends, which is a failure.
    pub(crate) async fn broken(&mut self) -> StartError {
        match select_all(self.0.iter_mut().map(|one| Box::pin(one.ended()))).await.0 {
            Err(broken) => broken,
            // The runtime shuts down, and this task with it.
            Ok(()) => std::future::pending().await,
        }
    }

    /// Stops the loops that must not run while the coordinator leaves: workers that it detaches
    /// itself are not lost.
    pub(crate) fn stop_for_drain(&self) {
        self.0.iter().filter(|one| one.stops_first).for_each(|one| one.task.abort());
    }

    /// Ends the loops. An error: one of them had ended by itself.
    pub(crate) async fn end(mut self) -> Result<(), StartError> {
        self.0.iter().for_each(|one| one.task.abort());
        let mut all = Ok(());
        for one in &mut self.0 {
            all = all.and(one.ended().await);
        }
        all
    }
}
