//! Draft of a message and of the options of its answer, including the idempotency key.

use faultline_proto::{
    a2a::{
        Message, Part, Role, SendMessageConfiguration, SendMessageRequest,
        TaskPushNotificationConfig, part::Content,
    },
    id::TaskId,
};
use prost_types::{Struct, Value, value::Kind};

/// Metadata key of the idempotency key.
const IDEMPOTENCY_KEY: &str = "faultline.dev/idempotencyKey";

/// The argument of [`crate::Client::send`], [`crate::Client::follow`] and [`crate::Client::run`].
/// Made from a [`text`] or from a whole [`SendMessageRequest`].
///
/// ```
/// use faultline_client::text;
///
/// let reply = text("yes").to_task("0199a1b2").idempotent();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Draft(SendMessageRequest);

/// A draft with one text.
pub fn text(text: impl Into<String>) -> Draft {
    Draft::new([Part { content: Some(Content::Text(text.into())), ..Part::default() }])
}

impl Draft {
    /// A draft with several parts.
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        let message = Message {
            message_id: TaskId::new().to_string(),
            role: Role::User as i32,
            parts: parts.into_iter().collect(),
            ..Message::default()
        };
        Self(SendMessageRequest { message: Some(message), ..SendMessageRequest::default() })
    }

    /// Adds a part.
    pub fn part(mut self, part: Part) -> Self {
        self.message().parts.push(part);
        self
    }

    /// Puts the message into a context (conversation) of earlier tasks.
    pub fn in_context(mut self, id: impl Into<String>) -> Self {
        self.message().context_id = id.into();
        self
    }

    /// Sends the message to an existing task that waits for it.
    pub fn to_task(mut self, id: impl Into<String>) -> Self {
        self.message().task_id = id.into();
        self
    }

    /// Returns as soon as the task exists, instead of at its end or its first question.
    pub fn return_immediately(mut self) -> Self {
        self.configuration().return_immediately = true;
        self
    }

    /// Accepts output of one more media type.
    pub fn accept(mut self, media_type: impl Into<String>) -> Self {
        self.configuration().accepted_output_modes.push(media_type.into());
        self
    }

    /// Registers a webhook for the events of the task.
    pub fn push_to(mut self, config: TaskPushNotificationConfig) -> Self {
        self.configuration().task_push_notification_config = Some(config);
        self
    }

    /// Sets a random [`Draft::idempotency_key`].
    pub fn idempotent(self) -> Self {
        self.idempotency_key(TaskId::new().to_string())
    }

    /// Sets an idempotency key: two sends with the same key do the work once (a faultline mesh
    /// keeps keys for a day). Only a send with a key is retried after an unknown outcome. Do not
    /// set a key for a server without support for keys: a retry would do the work twice.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        let metadata = self.0.metadata.get_or_insert_with(Struct::default);
        let value = Value { kind: Some(Kind::StringValue(key.into())) };
        metadata.fields.insert(IDEMPOTENCY_KEY.to_owned(), value);
        self
    }

    /// The id of the message.
    pub fn message_id(&self) -> &str {
        self.0.message.as_ref().map_or("", |message| &message.message_id)
    }

    fn message(&mut self) -> &mut Message {
        self.0.message.get_or_insert_with(Message::default)
    }

    fn configuration(&mut self) -> &mut SendMessageConfiguration {
        self.0.configuration.get_or_insert_with(SendMessageConfiguration::default)
    }
}

impl From<SendMessageRequest> for Draft {
    fn from(request: SendMessageRequest) -> Self {
        Self(request)
    }
}

impl From<Draft> for SendMessageRequest {
    fn from(draft: Draft) -> Self {
        draft.0
    }
}

impl From<&str> for Draft {
    fn from(words: &str) -> Self {
        text(words)
    }
}

impl From<String> for Draft {
    fn from(words: String) -> Self {
        text(words)
    }
}

pub(crate) fn idempotency_key(request: &SendMessageRequest) -> Option<String> {
    match request.metadata.as_ref()?.fields.get(IDEMPOTENCY_KEY)?.kind.as_ref()? {
        Kind::StringValue(key) if !key.is_empty() => Some(key.clone()),
        _ => None,
    }
}
