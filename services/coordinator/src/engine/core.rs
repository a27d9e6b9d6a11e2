//! The engine of a coordinator: the state behind its lock, the store, and the signals between the
//! loops. A change is decided and applied under the lock, queued for group commit, and published
//! after its commit. The lock is never held across an await.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use faultline_chassis::limits;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use crate::engine::state::{Closed, State};
use crate::{
    Config,
    calls::{attempt_token::Tokens, idempotency::KeyClaims},
    engine::{change_feed::Changed, publish::Deferred},
    store::{Store, activity_cache::ActivityCache},
    telemetry::metrics::Meters,
    webhooks::courier::Courier,
};

/// The coordinator itself: the state lock, the store, and the signals between its loops. Created by
/// `Config::bind`, shared by all services and loops, dropped at the end of the drain.
///
/// Only `state` is behind the lock. The other fields are immutable, or they are signals, atomics
/// and caches that synchronise themselves.
pub(crate) struct Core {
    state: Mutex<State>,
    pub(crate) store: Box<dyn Store>,
    pub(crate) config: Arc<Config>,
    pub(crate) claims: KeyClaims,
    pub(crate) courier: Courier,
    /// Broadcast of changes to the operators' views.
    pub(crate) changed: Changed,
    pub(crate) pulse: ActivityCache,
    pub(crate) meters: Arc<Meters>,
    /// A write is queued for the commit loop.
    pub(crate) work: Notify,
    /// The commit queue has shrunk (backpressure).
    pub(crate) room: Notify,
    /// A timer is due earlier than the timer loop expects.
    pub(crate) sooner: Notify,
    /// A remote watch, or a backlog of a peer, needs a look at the store.
    pub(crate) remote_dirty: Notify,
    /// The drain has begun: gateways make new calls at another coordinator.
    pub(crate) farewell: CancellationToken,
    /// The coordinator has left: it accepts no more calls.
    pub(crate) left: AtomicBool,
    /// The lease was not renewed in time: the in-memory state may be stale.
    pub(crate) lapsed: AtomicBool,
}

impl Core {
    pub(crate) fn new(store: Box<dyn Store>, config: Config) -> Self {
        let (work, room, sooner) = (Notify::new(), Notify::new(), Notify::new());
        let meters = Meters::new(&config.metrics);
        let courier = Courier::new(config.push.clone(), meters.deliveries.clone());
        let config = Arc::new(config);
        let tokens = Tokens::new(store.secret());
        let is_shared = store.cluster().is_some();
        let state = State::new(tokens, Arc::clone(&config), Arc::clone(&meters), is_shared);
        Self {
            state: Mutex::new(state),
            store,
            config,
            claims: KeyClaims::default(),
            courier,
            changed: Changed::new(limits::WATCH_BATCHES_MAX),
            pulse: ActivityCache::default(),
            meters,
            work,
            room,
            sooner,
            remote_dirty: Notify::new(),
            farewell: CancellationToken::new(),
            left: AtomicBool::new(false),
            lapsed: AtomicBool::new(false),
        }
    }

    /// Takes the state lock for a short read. Changes go through [`Core::change`].
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state and wakes the commit loop.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let done = self.touch(work);
        self.work.notify_one();
        done
    }

    /// Changes the state without a write to the store.
    pub(crate) fn touch<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let done = work(&mut state);
        let sooner = state.timers.take_sooner();
        let has_cluster_work = state.has_cluster_work();
        let deferred = std::mem::take(&mut state.deferred);
        drop(state);
        if sooner {
            self.sooner.notify_one();
        }
        if has_cluster_work {
            self.remote_dirty.notify_one();
        }
        deferred.into_iter().for_each(Deferred::run);
        done
    }

    /// Waits until the aborted streams have released the core, so that the store is closed when the
    /// service returns and another process may open it.
    pub(crate) async fn released(self: Arc<Self>) {
        for _ in 0..200 {
            if Arc::strong_count(&self) == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the commit queue is short enough to accept more (backpressure).
    pub(crate) async fn room(&self) {
        loop {
            let room = self.room.notified();
            if self.lock().queue.writes.len() < limits::STORE_QUEUE_MAX / 2 {
                return;
            }
            room.await;
        }
    }
}
