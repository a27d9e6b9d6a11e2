//! The live feed of changed tasks for operators. A durable step leaves the id of its task;
//! several times a second the rows of these ids are read once and sent to all watchers
//! (batching, with backpressure by dropping to `missed`).

use crate::engine::change_feed::Changes;
use crate::engine::change_feed::Feed;
use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Weak},
};

use faultline_chassis::limits;
use faultline_proto::{
    id::TaskId,
    v1::{WatchRequest, WatchResponse},
};
use tokio::{
    sync::broadcast::{
        self,
        error::{RecvError, TryRecvError},
    },
    time::{Instant, sleep, sleep_until},
};

use crate::{
    calls::caller::Caller,
    engine::core::Core,
    error::Error,
    operators::queries::wanted,
    store::{Row, Wanted},
};

impl Core {
    pub(crate) fn changes(
        self: &Arc<Self>,
        request: WatchRequest,
        caller: &Caller,
    ) -> Result<Watching, Error> {
        caller.check_operates()?;
        let wanted = wanted(request.filter.unwrap_or_default())?;
        let mut state = self.lock();
        state.check_served()?;
        let changes = self.changed.subscribe();
        if !std::mem::replace(&mut state.feed.watched, true) {
            tokio::spawn(tell(Arc::downgrade(self)));
        }
        Ok(Watching { wanted, changes, due: None })
    }

    /// The changes since the last call, read from the store. `None`: there is no watcher any more.
    async fn look_at_changes(&self) -> Option<Changes> {
        let (ids, missed) = {
            let mut state = self.lock();
            // Under the lock, or somebody could come in between and find nobody to tell.
            if self.changed.receiver_count() == 0 {
                state.feed = Feed::default();
                return None;
            }
            state.feed.take()
        };
        let rows = match ids.is_empty() {
            true => Ok(Vec::new()),
            false => self.store.rows(ids.iter().copied().collect()).await,
        };
        Some(match rows {
            Ok(rows) => {
                let found: HashSet<_> = rows.iter().map(|row| row.id).collect();
                let gone = ids.difference(&found).copied().collect();
                Changes { rows, gone, missed }
            }
            Err(error) => {
                tracing::warn!(%error, "changed tasks cannot be read: watchers get `missed`");
                Changes { rows: Vec::new(), gone: Vec::new(), missed: true }
            }
        })
    }
}

/// Sends changes to all watchers, as long as there is one.
async fn tell(core: Weak<Core>) {
    loop {
        sleep(limits::WATCH_INTERVAL).await;
        let Some(core) = core.upgrade() else { return };
        let Some(changes) = core.look_at_changes().await else { return };
        if changes.missed || !changes.rows.is_empty() || !changes.gone.is_empty() {
            // An error means that the last watcher has left.
            let _ = core.changed.send(Arc::new(changes));
        }
    }
}

/// One watcher of the feed: an open `Watch` call of an operator.
pub(crate) struct Watching {
    wanted: Wanted,
    changes: broadcast::Receiver<Arc<Changes>>,
    /// Not before this is there a next message; `None`: there was none yet.
    due: Option<Instant>,
}

impl Watching {
    /// The next message; `None`: the coordinator is leaving. The first is empty and comes at once.
    pub(crate) async fn next(&mut self) -> Option<WatchResponse> {
        let Some(due) = self.due else {
            self.due = Some(Instant::now());
            return Some(WatchResponse::default());
        };
        loop {
            let mut told = Told::default();
            match self.changes.recv().await {
                Ok(changes) => told.add(&changes, &self.wanted),
                Err(RecvError::Lagged(_)) => told.missed = true,
                Err(RecvError::Closed) => return None,
            }
            // A slow watcher gets the rest in one message.
            sleep_until(due).await;
            loop {
                match self.changes.try_recv() {
                    Ok(changes) => told.add(&changes, &self.wanted),
                    Err(TryRecvError::Lagged(_)) => told.missed = true,
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            if let Some(message) = told.message() {
                self.due = Some(Instant::now() + limits::WATCH_INTERVAL);
                return Some(message);
            }
        }
    }
}

/// One message in the making. Each task is in it once, as it was last.
#[derive(Default)]
struct Told {
    /// `None`: it is to be taken off the list.
    tasks: BTreeMap<TaskId, Option<Row>>,
    missed: bool,
}

impl Told {
    fn add(&mut self, changes: &Changes, wanted: &Wanted) {
        self.missed |= changes.missed;
        for row in changes.rows.iter().filter(|row| wanted.concerns(row)) {
            match wanted.fits(row) {
                true => drop(self.tasks.insert(row.id, Some(row.clone()))),
                false if wanted.may_lose() => drop(self.tasks.insert(row.id, None)),
                false => {}
            }
        }
        self.tasks.extend(changes.gone.iter().map(|id| (*id, None)));
        self.missed |= self.tasks.len() > limits::WATCH_TASKS_MAX;
    }

    /// `None`: there is nothing to say.
    fn message(self) -> Option<WatchResponse> {
        if self.missed {
            return Some(WatchResponse { missed: true, ..WatchResponse::default() });
        }
        let (mut tasks, mut gone) = (Vec::new(), Vec::new());
        for (id, row) in self.tasks {
            match row {
                Some(row) => tasks.push(row.into()),
                None => gone.push(id.to_string()),
            }
        }
        let says = !tasks.is_empty() || !gone.is_empty();
        says.then_some(WatchResponse { tasks, gone, missed: false })
    }
}

#[cfg(test)]
mod tests;
