//! The loops that a coordinator lives by, and what becomes of it when one of them ends: it ends
//! too, so that whoever watches over the process starts it again. What they do is their own
//! business.

use std::sync::Arc;

use futures::future::select_all;
use tokio_util::task::AbortOnDropHandle;

use crate::{background::sweep, engine::core::Core, error::StartError};

/// Dropped, they all end.
pub(crate) struct Loops(Vec<Loop>);

struct Loop {
    name: &'static str,
    /// It has nothing to do for a coordinator that leaves.
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

    /// How it ended, if not by our hand.
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
            Loop::spawn("timekeeper", true, own().keep_time()),
        ];
        if core.store.cluster().is_some() {
            loops.push(Loop::spawn("neighbour", false, own().keep_cluster()));
        }
        Self(loops)
    }

    /// Waits for one of them to end, which none should.
    pub(crate) async fn broken(&mut self) -> StartError {
        match select_all(self.0.iter_mut().map(|one| Box::pin(one.ended()))).await.0 {
            Err(broken) => broken,
            // The runtime ends, and we with it.
            Ok(()) => std::future::pending().await,
        }
    }

    /// The coordinator leaves: workers that it cuts off itself are not lost.
    pub(crate) fn rest(&self) {
        self.0.iter().filter(|one| one.stops_first).for_each(|one| one.task.abort());
    }

    /// Ends them. An error: one of them had ended by itself.
    pub(crate) async fn end(mut self) -> Result<(), StartError> {
        self.0.iter().for_each(|one| one.task.abort());
        let mut all = Ok(());
        for one in &mut self.0 {
            all = all.and(one.ended().await);
        }
        all
    }
}
