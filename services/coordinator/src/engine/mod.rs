//! The in-memory state behind one lock: active tasks, workers, queues and timers, and the pipeline
//! that makes each change durable (group commit) before anybody sees it.
//!
//! May use: task, policy, telemetry, store, calls and webhooks.

pub(crate) mod active_task;
pub(crate) mod admission;
pub(crate) mod change_feed;
pub(crate) mod commit_loop;
pub(crate) mod commit_queue;
pub(crate) mod core;
pub(crate) mod deferred_cancel;
pub(crate) mod dispatch;
pub(crate) mod effect;
pub(crate) mod failover;
pub(crate) mod load;
pub(crate) mod peer_load;
pub(crate) mod publish;
pub(crate) mod remote_watch;
pub(crate) mod report_ingest;
pub(crate) mod state;
pub(crate) mod store_outage;
pub(crate) mod task_tree;
pub(crate) mod timeouts;
pub(crate) mod workers;
