//! Admission of a message: whether the agent's card, the task's state and the size limits allow it.

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{self, SendMessageRequest},
    v1::{AgentOffer, event},
};
use prost::Message;

use crate::{
    calls::caller::Caller,
    engine::core::State,
    error::Error,
    policy::capabilities,
    task::{
        Task,
        answers::{self, NoAnswer},
        nesting, trace_segment,
    },
};

/// Turns a message to a task into the answer to its open question.
pub(crate) fn answer_of(
    state: &State,
    task: &Task,
    request: SendMessageRequest,
    caller: &Caller,
    streams: bool,
) -> Result<event::Body, Error> {
    let id = task.id;
    if let Some(agent) = state.registry.agents.get(&task.agent) {
        check_gates(&agent.offer, &request, caller, streams)?;
    }
    let message = request.message.unwrap_or_default();
    if !message.context_id.is_empty() && message.context_id != task.context_id {
        let what = format!("the task belongs to context '{}'", task.context_id);
        return Err(Error::Invalid { field: "message.contextId", what });
    }
    if task.is_final() {
        return Err(Error::Ended { id, state: task.state });
    }
    if task.message_bytes() + check_size(&message)? > limits::TASK_MESSAGE_BYTES_MAX {
        let text = "the messages of this task are too many: start a new one in its context";
        return Err(Error::TooLarge(text));
    }
    let body = task.decide_answer(message).map_err(|refused| match refused {
        NoAnswer::Final => Error::Ended { id, state: task.state },
        NoAnswer::Busy => Error::Busy(id),
        NoAnswer::Answered(question) => Error::Answered { id, question },
        NoAnswer::Wrong(wrong) => answers::refusal(wrong).with_task(id, "").into(),
    })?;
    Ok(trace_segment::traced(body, &caller.trace))
}

/// Bounds the lists of a send before a loop goes through them under the state lock. The gateway
/// also checks them, but it is not the only caller.
fn check_lists(request: &SendMessageRequest) -> Result<(), Error> {
    let empty = a2a::Message::default();
    let message = request.message.as_ref().unwrap_or(&empty);
    let modes = request.configuration.as_ref().map_or(0, |c| c.accepted_output_modes.len());
    let lists = [
        ("message.parts", message.parts.len(), limits::PARTS_MAX),
        ("message.referenceTaskIds", message.reference_task_ids.len(), limits::NAMES_MAX),
        ("message.extensions", message.extensions.len(), limits::NAMES_MAX),
        ("configuration.acceptedOutputModes", modes, limits::NAMES_MAX),
    ];
    match lists.into_iter().find(|(_, count, most)| count > most) {
        None => Ok(()),
        Some((field, count, most)) => {
            let what = format!("{count} entries, at most {most}");
            Err(Error::Invalid { field, what })
        }
    }
}

pub(crate) fn check_gates(
    offer: &AgentOffer,
    request: &SendMessageRequest,
    caller: &Caller,
    streams: bool,
) -> Result<(), Error> {
    check_lists(request)?;
    // Capabilities on a card apply to clients; agents may stream every task.
    if streams && caller.calling.is_none() {
        capabilities::check_streaming(offer)?;
    }
    capabilities::check_send(offer, request, caller.extensions.uris())?;
    caller.extensions.activate(offer);
    Ok(())
}

/// The size of a message within the bound. The gateway also checks it, but it is not the only
/// caller.
pub(crate) fn check_size(message: &a2a::Message) -> Result<usize, Error> {
    if nesting::is_message_too_deep(message) {
        return Err(Error::Invalid { field: "message", what: nesting::too_deep() });
    }
    match message.encoded_len() {
        bytes if bytes > limits::MESSAGE_BYTES_MAX => {
            Err(Error::TooLarge("the message is over 4 MiB: send a URL instead of the content"))
        }
        bytes => Ok(bytes),
    }
}
