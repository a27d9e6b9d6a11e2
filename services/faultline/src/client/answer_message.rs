//! The message that answers a question of a task, as the commands send it.

use faultline_client::Draft;
use faultline_proto::{
    a2a::{Part, SendMessageRequest},
    answer,
    v1::AnswerAction,
};
use prost_types::Struct;

/// Answers question `key` of the task, or the oldest if that is empty.
pub(crate) fn draft(task: &str, key: &str, action: AnswerAction, parts: Vec<Part>) -> Draft {
    let record = answer::record(key, action);
    // A message has to say something; a bare no says just that.
    let parts = if parts.is_empty() { vec![answer::fields_part(record.clone())] } else { parts };
    let draft = Draft::new(parts).to_task(task).idempotent();
    // Any A2A server understands a plain answer; only what is more needs words of our own.
    if key.is_empty() && action == AnswerAction::Accept {
        return draft;
    }
    let mut request = SendMessageRequest::from(draft);
    if let Some(message) = &mut request.message {
        let metadata = message.metadata.get_or_insert_with(Struct::default);
        metadata.fields.extend(record.fields);
    }
    Draft::from(request)
}
