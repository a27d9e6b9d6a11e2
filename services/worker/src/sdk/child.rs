//! A started delegation (child task) that is awaited later or not at all.

use faultline_proto::{a2a, reason};

use crate::{
    Answer, Delegated, Error,
    sdk::delegation::{BACKOFF, Call, answered, is_transient},
};

/// A child task that runs beside its parent, made by
/// [`Delegation::start`](crate::Delegation::start). Dropping the `Child` leaves the task running;
/// the task ends with its parent, unless it is detached.
///
/// ```
/// # use std::time::Duration;
/// # use faultline_worker::{Context, Error};
/// # async fn run(cx: &Context) -> Result<(), Error> {
/// let draft = cx.delegate("writer", cx.text()).start().await?;
/// cx.status(format!("task {} writes a draft", draft.id())).await?;
/// cx.sleep(Duration::from_secs(1)).await?;
/// cx.reply(draft.wait().await?.text()).await
/// # }
/// ```
pub struct Child<'a> {
    call: Call<'a>,
    task: a2a::Task,
}

impl<'a> Child<'a> {
    pub(crate) async fn start(call: Call<'a>) -> Result<Self, Error> {
        let mut pauses = BACKOFF.without_jitter().start();
        let mut retried = false;
        loop {
            match call.cx.unless_cancelled(call.send(call.message.clone(), true)).await? {
                Ok(task) => return Ok(Self { call, task }),
                Err(failure) if is_transient(&failure) => {
                    call.cx.sleep(pauses.next_pause()).await?
                }
                Err(failure) => {
                    call.cx.unless_cancelled(call.wait_after(failure, retried)).await??;
                    retried = true;
                }
            }
        }
    }

    /// The id of the task; empty if the agent answered with a bare message.
    pub fn id(&self) -> &str {
        &self.task.id
    }

    /// Waits for the end of the task, as awaiting a [`Delegation`](crate::Delegation) does: its
    /// questions are relayed to the caller of this task, and its failure is returned as the error.
    pub async fn wait(self) -> Result<Delegated, Error> {
        if self.is_bare() { Ok(Delegated(self.task)) } else { self.call.wait_without_slot().await }
    }

    /// The present state of the task.
    pub async fn task(&self) -> Result<a2a::Task, Error> {
        if self.is_bare() {
            return Ok(self.task.clone());
        }
        let tenant = self.call.agent.clone();
        let id = self.task.id.clone();
        let request = a2a::GetTaskRequest { tenant, id, history_length: Some(0) };
        let mut client = self.call.client();
        let mut calling = self.call.calling("GetTask");
        let request = self.call.request(request, calling.context());
        let got = self.call.cx.unless_cancelled(client.get_task(request)).await?;
        Ok(answered(&mut calling, got)?)
    }

    /// Answers the question `key` of the task, or its oldest question if `key` is empty. Fails with
    /// UNSUPPORTED_OPERATION if no question is open, and with INVALID_PARAMS if the answer does not
    /// match the schema.
    pub async fn answer(&self, key: &str, answer: Answer) -> Result<(), Error> {
        let message = answer.into_message_for(&self.task.id, key);
        let sent = self.call.cx.unless_cancelled(self.call.send(message, true));
        sent.await?.map(drop).map_err(Error::from)
    }

    /// Cancels the task and all its descendants. Succeeds as well if the task has already ended.
    pub async fn cancel(&self) -> Result<(), Error> {
        if self.is_bare() {
            return Ok(());
        }
        let tenant = self.call.agent.clone();
        let id = self.task.id.clone();
        let request = a2a::CancelTaskRequest { tenant, id, ..a2a::CancelTaskRequest::default() };
        let mut client = self.call.client();
        let mut calling = self.call.calling("CancelTask");
        let request = self.call.request(request, calling.context());
        let done = self.call.cx.unless_cancelled(client.cancel_task(request)).await?;
        match answered(&mut calling, done) {
            Err(failure) if failure.row() != &reason::TASK_NOT_CANCELABLE => Err(failure.into()),
            _ => Ok(()),
        }
    }

    fn is_bare(&self) -> bool {
        self.task.id.is_empty()
    }
}
