//! Push configurations as they are stored. The events of a task are the outbox; each
//! configuration stores its position in them.

use faultline_proto::{a2a::TaskPushNotificationConfig, id::TaskId};

/// Which configuration of which task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PushKey {
    pub(crate) task: TaskId,
    pub(crate) id: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PushRow {
    pub(crate) key: PushKey,
    pub(crate) config: TaskPushNotificationConfig,
    /// The last event that the webhook has taken, or that came before the configuration.
    pub(crate) sent: u64,
    /// Nothing more will be sent: the end of the task was, or the webhook was given up.
    pub(crate) done: bool,
}

/// One step of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PushWrite {
    /// Refused if the task is not there or has too many. One of the same id is replaced and keeps
    /// its place, so that what the old one still owed is sent by the new one.
    Set(PushRow),
    /// The webhook has taken everything up to here.
    Sent {
        key: PushKey,
        seq: u64,
        done: bool,
    },
    Delete(PushKey),
}

/// A configuration as it is stored, for what happens to the task after event `sent`.
pub(crate) fn push_row(task: TaskId, mut config: TaskPushNotificationConfig, sent: u64) -> PushRow {
    config.task_id = task.to_string();
    let key = PushKey { task, id: config.id.clone() };
    PushRow { key, config, sent, done: false }
}
