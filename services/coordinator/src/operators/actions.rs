//! Actions of operators on tasks of any principal: cancel, and answer a question. They share
//! the code and the errors of the callers' own cancel and answer.

use std::sync::Arc;

use faultline_proto::{
    a2a::{Message, Part, Role, SendMessageConfiguration, SendMessageRequest, part::Content},
    answer,
    id::TaskId,
    request_options,
    v1::{
        self, AnswerAction, InspectRequest, InspectResponse, OperatorAnswerRequest,
        OperatorCancelRequest,
    },
};
use tokio::sync::oneshot;

use crate::{
    calls::caller::Caller,
    engine::core::Core,
    error::Error,
    policy::capabilities,
    store::Scope,
    task::{Task, a2a_view::cancelled},
};

impl Core {
    pub(crate) async fn operator_cancel(
        self: &Arc<Self>,
        request: OperatorCancelRequest,
        caller: &Caller,
    ) -> Result<InspectResponse, Error> {
        caller.check_operates()?;
        let task = self.anybodys(&request.task_id).await?;
        let (id, by) = (task.id, "cancelled by an operator");
        let why = request_options::in_words(&request.reason);
        self.stop(task, cancelled("operator", by, why.as_deref()), "operator").await?;
        tracing::info!(task = %id, operator = caller.principal, "an operator cancelled a task");
        self.inspect(InspectRequest { task_id: request.task_id }, caller).await
    }

    pub(crate) async fn operator_answer(
        self: &Arc<Self>,
        request: OperatorAnswerRequest,
        caller: &Caller,
    ) -> Result<InspectResponse, Error> {
        caller.check_operates()?;
        let action = match AnswerAction::try_from(request.action) {
            Ok(AnswerAction::Expire) | Err(_) => {
                let what = "accept, decline or dismiss: only time makes a question expire";
                return Err(Error::Invalid { field: "action", what: what.to_owned() });
            }
            Ok(action) => action,
        };
        let task = self.anybodys(&request.task_id).await?;
        let id = task.id;
        let stand_in = self.owner_of(&task);
        let (done, answered) = oneshot::channel();
        let done = Box::new(move |sent| drop(done.send(sent)));
        self.send(message(&task, action, request), stand_in, done);
        answered.await.unwrap_or_else(|_| Err(Error::unanswered().into()))?;
        tracing::info!(task = %id, operator = caller.principal, "an operator answered a question");
        self.inspect(InspectRequest { task_id: id.to_string() }, caller).await
    }

    async fn anybodys(&self, id: &str) -> Result<Task, Error> {
        let not_found = || Error::TaskNotFound(id.to_owned());
        let task_id = id.parse::<TaskId>().map_err(|_| not_found())?;
        let stored = self.store.task(task_id, Scope::default()).await?;
        Ok(stored.ok_or_else(not_found)?.task)
    }

    /// As whom an operator answers: whoever owns the task. What its agent requires of clients is
    /// not required of operators.
    fn owner_of(&self, task: &Task) -> Caller {
        let agent = self.offer(&task.agent, |offer| Ok(capabilities::required_extensions(offer)));
        let (principal, extensions) = (task.principal.clone(), agent.unwrap_or_default());
        v1::Caller { principal, extensions, ..v1::Caller::default() }.into()
    }
}

fn message(
    task: &Task,
    action: AnswerAction,
    request: OperatorAnswerRequest,
) -> SendMessageRequest {
    let record = answer::record(&request.key, action);
    let text = Some(request.text).filter(|text| !text.is_empty()).map(Content::Text);
    let text = text.map(|text| Part { content: Some(text), ..Part::default() });
    let mut parts: Vec<_> =
        request.fields.map(answer::fields_part).into_iter().chain(text).collect();
    // A message has to say something; a bare no says just that.
    if parts.is_empty() {
        parts.push(answer::fields_part(record.clone()));
    }
    let message = Message {
        message_id: uuid::Uuid::now_v7().to_string(),
        role: Role::User as i32,
        task_id: task.id.to_string(),
        context_id: task.context_id.clone(),
        parts,
        metadata: Some(record),
        ..Message::default()
    };
    let configuration = SendMessageConfiguration {
        return_immediately: true,
        ..SendMessageConfiguration::default()
    };
    SendMessageRequest {
        message: Some(message),
        configuration: Some(configuration),
        ..SendMessageRequest::default()
    }
}

#[cfg(test)]
mod tests;
