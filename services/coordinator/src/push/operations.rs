//! The operations on push configurations: create, get, list, delete, and creation together with
//! a message. Each answer is durable when it is sent.

use crate::store::push_row;
use std::sync::Arc;

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{
        DeleteTaskPushNotificationConfigRequest as Delete,
        GetTaskPushNotificationConfigRequest as Get,
        ListTaskPushNotificationConfigsRequest as List, ListTaskPushNotificationConfigsResponse,
        SendMessageRequest, TaskPushNotificationConfig,
    },
    id::TaskId,
};

use crate::{
    api::send::{push_of, task_id},
    calls::caller::Caller,
    engine::core::{Core, State},
    error::Error,
    policy::capabilities,
    store::{PushKey, PushRow, PushWrite},
    task::Task,
};
use crate::{
    push::pending::Pending,
    webhooks::target::{Target, invalid},
};

const PAGE: i32 = 50;
const PAGE_MAX: i32 = 100;

impl Core {
    /// Makes a configuration, or replaces the one of the same id. Statuses are sent from what was
    /// stored when it was asked for: an end that comes in the meantime is not missed.
    pub(crate) async fn create_push(
        self: &Arc<Self>,
        config: TaskPushNotificationConfig,
        caller: &Caller,
    ) -> Result<TaskPushNotificationConfig, Error> {
        let task = self.pushed(&config.task_id, &config.tenant, caller).await?;
        let config = self.check_push(config).await?;
        self.check_push_count(task.id, &config.id).await?;
        let row = PushRow { done: task.is_final(), ..push_row(task.id, config, task.seq) };
        let made = row.config.clone();
        self.write_push(|state| {
            if let Some(active) = state.tasks.get_mut(&task.id) {
                // The caller knows the task, so the reply cannot become a bare message.
                active.may_reply_without_task = false;
            }
            PushWrite::Set(row)
        })
        .await?;
        Ok(made)
    }

    pub(crate) async fn get_push(
        &self,
        request: Get,
        caller: &Caller,
    ) -> Result<TaskPushNotificationConfig, Error> {
        let task = self.pushed(&request.task_id, &request.tenant, caller).await?;
        let key = PushKey { task: task.id, id: request.id };
        let missing = Error::PushNotFound { task: task.id, id: key.id.clone() };
        self.store.push(key).await?.map(|row| row.config).ok_or(missing)
    }

    pub(crate) async fn list_push(
        &self,
        request: List,
        caller: &Caller,
    ) -> Result<ListTaskPushNotificationConfigsResponse, Error> {
        let task = self.pushed(&request.task_id, &request.tenant, caller).await?;
        let limit = match request.page_size {
            0 => PAGE,
            size if (1..=PAGE_MAX).contains(&size) => size,
            _ => return Err(invalid("pageSize", format!("1 to {PAGE_MAX}"))),
        } as usize;
        // A page token is the last id shown, so it does not move when others come and go.
        let mut rows = self.store.pushes(task.id, request.page_token, limit + 1).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more);
        let next_page_token = last.map_or_else(String::new, |row| row.key.id.clone());
        let configs = rows.into_iter().map(|row| row.config).collect();
        Ok(ListTaskPushNotificationConfigsResponse { configs, next_page_token })
    }

    /// Deleting what is not there is fine; nothing is sent once this has returned, save what is on
    /// its way.
    pub(crate) async fn delete_push(
        self: &Arc<Self>,
        request: Delete,
        caller: &Caller,
    ) -> Result<(), Error> {
        let task = self.pushed(&request.task_id, &request.tenant, caller).await?;
        let key = PushKey { task: task.id, id: request.id };
        self.write_push(|state| {
            state.deliveries.stop(&key);
            PushWrite::Delete(key)
        })
        .await
    }

    /// The configuration that came with a message, checked.
    pub(crate) async fn inline_push(
        &self,
        request: &SendMessageRequest,
        task: Option<&Task>,
        caller: &Caller,
    ) -> Result<Option<TaskPushNotificationConfig>, Error> {
        let Some(config) = push_of(request).cloned() else { return Ok(None) };
        let agent = match task {
            Some(task) => task.agent.clone(),
            None => self.addressee(&self.lock(), &request.tenant, caller)?,
        };
        self.offer(&agent, capabilities::check_push)?;
        if !config.task_id.is_empty() && config.task_id != task_id(request) {
            let what = "leave it out: the configuration is for the task of the message";
            return Err(inline(invalid("taskId", what)));
        }
        let config = self.check_push(config).await.map_err(inline)?;
        if let Some(task) = task {
            self.check_push_count(task.id, &config.id).await.map_err(inline)?;
        }
        Ok(Some(config))
    }

    /// Is there a place for one more? Said again by the store, if two come at once.
    async fn check_push_count(&self, task: TaskId, id: &str) -> Result<(), Error> {
        let most = limits::PUSH_CONFIGS_MAX;
        let rows = self.store.pushes(task, String::new(), most).await?;
        match rows.len() < most || rows.iter().any(|row| row.key.id == id) {
            true => Ok(()),
            false => {
                let what = format!("the task has {most} configurations already: delete one");
                Err(invalid("taskId", what))
            }
        }
    }

    /// A task of the caller, if its agent offers push notifications.
    async fn pushed(&self, id: &str, tenant: &str, caller: &Caller) -> Result<Task, Error> {
        self.visible_with(id, tenant, caller, capabilities::check_push).await
    }

    /// One that can be delivered, with an id.
    async fn check_push(
        &self,
        mut config: TaskPushNotificationConfig,
    ) -> Result<TaskPushNotificationConfig, Error> {
        Target::of(&config)?.check_reachable(&self.courier.rules).await?;
        // It says under which address it was made, and that differs from client to client.
        config.tenant.clear();
        if config.id.is_empty() {
            config.id = uuid::Uuid::now_v7().to_string();
        }
        Ok(config)
    }

    /// Queues a write, waits until it is durable, and starts its delivery.
    async fn write_push(
        self: &Arc<Self>,
        decide: impl FnOnce(&mut State) -> PushWrite,
    ) -> Result<(), Error> {
        let pending = self.change(|state| {
            state.check_open()?;
            let write = decide(state);
            let set = match &write {
                PushWrite::Set(row) => vec![row.key.clone()],
                PushWrite::Sent { .. } | PushWrite::Delete(_) => Vec::new(),
            };
            let pending = Pending::queue(state, write);
            self.deliver_after_commit(state, set);
            Ok::<_, Error>(pending)
        })?;
        pending.durable().await
    }
}

/// The same complaint about a configuration inside a message.
fn inline(error: Error) -> Error {
    let Error::Invalid { field, what } = error else { return error };
    let field = match field {
        "id" => "configuration.taskPushNotificationConfig.id",
        "taskId" => "configuration.taskPushNotificationConfig.taskId",
        "token" => "configuration.taskPushNotificationConfig.token",
        "authentication.scheme" => "configuration.taskPushNotificationConfig.authentication.scheme",
        "authentication.credentials" => {
            "configuration.taskPushNotificationConfig.authentication.credentials"
        }
        _ => "configuration.taskPushNotificationConfig.url",
    };
    Error::Invalid { field, what }
}
