//! Calls of a gateway that have one answer, dispatched to their operations.

use std::sync::Arc;

use faultline_proto::v1::{Deleted, call, reply};

use crate::{calls::caller::Caller, engine::core::Core, error::Error};

/// The A2A method of a unary call; `None` for a call of an operator.
pub(super) fn method(question: &call::Body) -> Option<&'static str> {
    use call::Body;
    Some(match question {
        Body::Get(_) => "GetTask",
        Body::List(_) => "ListTasks",
        Body::Cancel(_) => "CancelTask",
        Body::CreatePush(_) => "CreateTaskPushNotificationConfig",
        Body::GetPush(_) => "GetTaskPushNotificationConfig",
        Body::ListPush(_) => "ListTaskPushNotificationConfigs",
        Body::DeletePush(_) => "DeleteTaskPushNotificationConfig",
        Body::ExtendedCard(_) => "GetExtendedAgentCard",
        _ => return None,
    })
}

pub(super) async fn ask(
    core: &Arc<Core>,
    question: call::Body,
    caller: &Caller,
) -> Result<reply::Body, Error> {
    use call::Body;
    Ok(match question {
        Body::Get(request) => reply::Body::Task(Box::new(core.get(request, caller).await?)),
        Body::List(request) => reply::Body::List(core.list(request, caller).await?),
        Body::Cancel(request) => reply::Body::Task(Box::new(core.cancel(request, caller).await?)),
        Body::Inspect(request) => {
            reply::Body::Inspect(Box::new(core.inspect(request, caller).await?))
        }
        Body::Tasks(request) => reply::Body::Tasks(core.tasks(request, caller).await?),
        Body::Events(request) => reply::Body::Events(core.events(request, caller).await?),
        Body::Activity(request) => reply::Body::Activity(core.activity(request, caller).await?),
        Body::Failures(request) => reply::Body::Failures(core.failures(request, caller).await?),
        Body::OperatorCancel(request) => {
            reply::Body::Inspect(Box::new(core.operator_cancel(request, caller).await?))
        }
        Body::OperatorAnswer(request) => {
            reply::Body::Inspect(Box::new(core.operator_answer(request, caller).await?))
        }
        Body::Agents(request) => {
            core.load_unknown_agent(&request.name).await?;
            reply::Body::Agents(core.agents(&request)?)
        }
        Body::RemoveAgent(request) => {
            reply::Body::AgentRemoved(core.remove_agent(request, caller).await?)
        }
        Body::Workers(_) => reply::Body::Workers(core.workers()),
        Body::CreatePush(config) => {
            reply::Body::Push(Box::new(core.create_push(config, caller).await?))
        }
        Body::GetPush(request) => {
            reply::Body::Push(Box::new(core.get_push(request, caller).await?))
        }
        Body::ListPush(request) => reply::Body::Pushes(core.list_push(request, caller).await?),
        Body::DeletePush(request) => {
            core.delete_push(request, caller).await?;
            reply::Body::Deleted(Deleted {})
        }
        Body::ExtendedCard(request) => {
            reply::Body::Card(Box::new(core.extended_card(&request, caller)?))
        }
        Body::Send(_)
        | Body::Wait(_)
        | Body::Stream(_)
        | Body::Subscribe(_)
        | Body::Watch(_)
        | Body::Credit(_)
        | Body::Drop(_) => unreachable!("the line keeps these to itself"),
    })
}
