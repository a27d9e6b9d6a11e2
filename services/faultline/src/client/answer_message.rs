//! The message with which a command answers the question of a task.

use faultline_client::Draft;
use faultline_proto::{
    a2a::{Part, SendMessageRequest},
    answer,
    v1::AnswerAction,
};
use prost_types::Struct;

/// Answers the question `key` of the task, or its oldest question if `key` is empty.
pub(crate) fn draft(task: &str, key: &str, action: AnswerAction, parts: Vec<Part>) -> Draft {
    let record = answer::record(key, action);
    // A2A requires at least one part; a decline without text repeats the answer record.
    let parts = if parts.is_empty() { vec![answer::fields_part(record.clone())] } else { parts };
    let draft = Draft::new(parts).to_task(task).idempotent();
    // A plain answer is valid for every A2A server; only other answers need our metadata.
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
