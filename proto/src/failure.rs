//! A failure between services: the public record, which is sent, and the private text beside it,
//! which is not. Built at the origin, wrapped at each hop, and never edited otherwise.

use std::{fmt, ops::Deref, time::Duration, time::SystemTime};

use prost_types::{Struct, Value, value::Kind};
use tonic::Code;
use uuid::Uuid;

use crate::{
    a2a::TaskState,
    advice::{ADVICE_KEY, Reader, advise},
    disposition::{self, RUN_ERROR},
    json,
    reason::{self, Reason, Retry},
    v1::{self, Cancellation, Cause, FieldViolation, Origin, Plane},
};

/// The metadata key of a failed task's record.
pub const METADATA_KEY: &str = "faultline.dev/failure";
/// The longest public text; longer ones are truncated.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// The longest chain of causes; the middle is dropped first.
pub const CAUSES_MAX: usize = 16;

/// A public record and a private text. It dereferences to its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    record: Box<v1::Failure>,
    private: Option<Private>,
}

/// Text for logs and traces only. It has neither `Display` nor `Serialize`, so it cannot appear in
/// an answer by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Private(String);

impl Private {
    /// The only access to the text.
    pub fn for_log(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<private>")
    }
}

impl Deref for Failure {
    type Target = v1::Failure;

    fn deref(&self) -> &v1::Failure {
        &self.record
    }
}

/// One line for logs and error chains: `REASON: public message`. The id is a field of the record.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.public_message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A new failure, of the protocol plane by default.
    pub fn new(reason: &'static Reason) -> Self {
        let record = v1::Failure {
            id: Uuid::now_v7().to_string(),
            code: reason.code as i32,
            reason: reason.name.to_owned(),
            domain: reason.domain.to_owned(),
            public_message: reason.title.to_owned(),
            plane: Plane::Protocol as i32,
            time: Some(SystemTime::now().into()),
            ..v1::Failure::default()
        };
        Self { record: Box::new(record), private: None }
    }

    /// The failure of a record from a peer or the store, with its texts and lists bounded.
    pub fn from_record(mut record: v1::Failure) -> Self {
        if !(1..=16).contains(&record.code) {
            record.code = Code::Unknown as i32;
        }
        if record.reason.is_empty() {
            let row = reason::generic(Code::from_i32(record.code));
            record.reason = row.name.to_owned();
            record.domain = row.domain.to_owned();
        }
        cut(&mut record.reason, 63);
        cut(&mut record.domain, 255);
        cut(&mut record.business_code, 255);
        cut(&mut record.error_type, 255);
        cut(&mut record.public_message, MESSAGE_BYTES_MAX);
        disposition::bound(&mut record);
        let mut failure = Self { record: Box::new(record), private: None };
        failure.drop_middle_causes(CAUSES_MAX);
        failure
    }

    pub fn record(&self) -> &v1::Failure {
        &self.record
    }

    pub fn into_record(self) -> v1::Failure {
        *self.record
    }

    pub fn private(&self) -> Option<&Private> {
        self.private.as_ref()
    }

    pub fn code(&self) -> Code {
        Code::from_i32(self.record.code)
    }

    /// The row of its reason, or of its code if the reason is unknown.
    pub fn row(&self) -> &'static Reason {
        reason::find(&self.domain, &self.reason).unwrap_or_else(|| reason::generic(self.code()))
    }

    /// The flag of the failure, else the class of its reason. A refusal by a person is final. An
    /// unknown outcome is settled by an Idempotency-Key or by the code of the agent itself, never
    /// by the flag of the mesh or of a server outside: those set it without a look at the work.
    pub fn may_retry(&self) -> bool {
        let class = self.row().retry;
        let service = self.record.origin.as_ref().map_or("", |origin| origin.service.as_str());
        let is_of_agent = !self.record.foreign && !["coordinator", "gateway"].contains(&service);
        let is_settled = class != Retry::Idempotent || is_of_agent || self.record.repeat_with_key;
        let by_flag = self.record.retryable.filter(|_| is_settled);
        !self.record.declined && by_flag.unwrap_or(class.may_retry())
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.record.retry_after.and_then(|d| Duration::try_from(d).ok())
    }

    /// The delay before a retry: that of the failure, else the default of its retry class.
    pub fn delay(&self) -> Option<Duration> {
        match self.row().retry {
            _ if !self.may_retry() => None,
            Retry::Delay => Some(self.retry_after().unwrap_or(reason::DELAY_DEFAULT)),
            _ => self.retry_after(),
        }
    }

    /// The delay for `google.rpc.RetryInfo`, also of a failure that must not be retried.
    pub fn retry_info(&self) -> Option<prost_types::Duration> {
        self.record.retry_after.or_else(|| self.delay()?.try_into().ok())
    }

    pub fn origin_agent(&self) -> &str {
        self.record.origin.as_ref().map_or("", |o| o.agent.as_str())
    }

    // Builders, used at the origin.

    /// Sets the public message.
    pub fn because(mut self, text: impl Into<String>) -> Self {
        self.record.public_message = text.into();
        cut(&mut self.record.public_message, MESSAGE_BYTES_MAX);
        self
    }

    /// Sets the private text.
    pub fn privately(mut self, text: impl Into<String>) -> Self {
        self.private = Some(Private(text.into()));
        self
    }

    pub fn with_business_code(mut self, code: impl Into<String>) -> Self {
        self.record.business_code = code.into();
        self
    }

    pub fn with_error_type(mut self, error_type: impl Into<String>) -> Self {
        self.record.error_type = error_type.into();
        self
    }

    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.record.retryable = Some(retryable);
        self
    }

    /// Marks a call with an unknown outcome that may be repeated with its own Idempotency-Key.
    pub fn with_repeat_by_key(mut self) -> Self {
        self.record.repeat_with_key = true;
        self.with_retryable(true)
    }

    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.record.retry_after = prost_types::Duration::try_from(delay).ok();
        self
    }

    pub fn with_retries_spent(mut self, retries: u32) -> Self {
        self.record.retries_spent = retries;
        self
    }

    pub fn with_plane(mut self, plane: Plane) -> Self {
        self.record.plane = plane as i32;
        self
    }

    pub fn with_violation(
        mut self,
        field: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        let field = field.into();
        let description = description.into();
        self.record.violations.push(FieldViolation { field, description });
        self
    }

    pub fn with_task(mut self, task_id: impl fmt::Display, context_id: &str) -> Self {
        self.record.task_id = task_id.to_string();
        self.record.context_id = context_id.to_owned();
        self
    }

    pub fn with_trace(mut self, trace_id: impl Into<String>, span_id: impl Into<String>) -> Self {
        self.record.trace_id = trace_id.into();
        self.record.span_id = span_id.into();
        self
    }

    /// Sets the initiator of the cancellation. `reason` is empty if it is not known.
    pub fn with_cancellation(mut self, initiator: &str, reason: &str) -> Self {
        let initiator = initiator.to_owned();
        let reason = reason.to_owned();
        let at = Some(SystemTime::now().into());
        self.record.cancel = Some(Cancellation { initiator, reason, at });
        self
    }

    pub(crate) fn edit(mut self, change: impl FnOnce(&mut v1::Failure)) -> Self {
        change(&mut self.record);
        self
    }

    /// Sets the origin and makes it the root of the chain. Only the first call counts.
    pub fn born_at(mut self, origin: Origin) -> Self {
        if self.record.origin.is_none() {
            let mut root = self.head(&origin.agent, &self.task_id, 0);
            root.time = self.record.time;
            self.record.origin = Some(origin);
            self.record.causes = vec![root];
        }
        self
    }

    /// Sets the worker of the origin.
    pub fn with_origin_worker(mut self, worker: &str) -> Self {
        if let Some(origin) = &mut self.record.origin {
            worker.clone_into(&mut origin.worker);
        }
        self
    }

    /// Adds a hop in front of the chain. The facts of the origin stay unchanged.
    pub fn wrap(mut self, agent: &str, task_id: &str, context_id: &str) -> Self {
        let hop = self.record.hop.saturating_add(1);
        self.record.public_message = self.text_with_path();
        let mut head = self.head(agent, task_id, hop);
        head.span_id.clear();
        // The text is the origin's, which has a copy.
        head.public_message.clear();
        self.record.hop = hop;
        self.record.task_id = task_id.to_owned();
        self.record.context_id = context_id.to_owned();
        self.record.causes.insert(0, head);
        self.drop_middle_causes(CAUSES_MAX);
        self
    }

    /// Sets the span of the outermost hop.
    pub fn with_hop_span(mut self, span_id: impl Into<String>) -> Self {
        if let Some(head) = self.record.causes.first_mut() {
            head.span_id = span_id.into();
        }
        self
    }

    /// The text for a hop above the chain: the origin with its public text, then the hops between
    /// in the order in which the failure passed them. `ledger: the card processor takes 20 calls a
    /// minute (via billing, planner)`
    fn text_with_path(&self) -> String {
        let (root, between) = match self.record.causes.as_slice() {
            [between @ .., root] => (Some(root), between),
            [] => (None, &[][..]),
        };
        let mut via: Vec<_> = between.iter().rev().map(|hop| hop.agent.as_str()).collect();
        if self.record.causes_dropped > 0 {
            via.insert(0, "…");
        }
        let path = match via.as_slice() {
            [] => String::new(),
            via => format!(" (via {})", via.join(", ")),
        };
        let name = root.map_or("", |root| root.agent.as_str());
        let name = if name.is_empty() { self.origin_agent() } else { name };
        let text = root.map_or("", |root| root.public_message.as_str());
        let text = if text.is_empty() { self.record.public_message.as_str() } else { text };
        let mut line = if name.is_empty() { text.to_owned() } else { format!("{name}: {text}") };
        cut(&mut line, MESSAGE_BYTES_MAX.saturating_sub(path.len()));
        line.push_str(&path);
        cut(&mut line, MESSAGE_BYTES_MAX);
        line
    }

    fn head(&self, agent: &str, task_id: &str, hop: u32) -> Cause {
        Cause {
            agent: agent.to_owned(),
            code: self.record.code,
            reason: self.record.reason.clone(),
            business_code: self.record.business_code.clone(),
            public_message: self.record.public_message.clone(),
            hop,
            task_id: task_id.to_owned(),
            time: Some(SystemTime::now().into()),
            span_id: self.record.span_id.clone(),
            retryable: self.record.retryable,
        }
    }

    /// Keeps the outermost cause and the root, and counts the dropped causes of the middle.
    pub(crate) fn drop_middle_causes(&mut self, keep: usize) {
        let causes = &mut self.record.causes;
        let excess = causes.len().saturating_sub(keep.max(1));
        if excess > 0 {
            let root = causes.pop();
            causes.truncate(keep.max(1) - 1);
            causes.extend(root);
            let dropped = &mut self.record.causes_dropped;
            *dropped = dropped.saturating_add(excess as u32);
        }
    }

    // Task metadata.

    /// The metadata of a task or status that ended with this failure: the record, the advice for
    /// the caller, and the flat keys that other frameworks read.
    pub fn to_metadata(&self, state: TaskState) -> Struct {
        let mut metadata = self.to_flat_metadata(state);
        metadata.fields.insert(METADATA_KEY.to_owned(), public(self.record()));
        let advice = advise(self, Reader::Caller).to_value();
        metadata.fields.insert(ADVICE_KEY.to_owned(), advice);
        metadata
    }

    /// Only the flat keys, for the message of the status. The record would be the largest part of a
    /// failed task and is sent once.
    pub fn to_flat_metadata(&self, state: TaskState) -> Struct {
        let text = |s: &str| Value { kind: Some(Kind::StringValue(s.to_owned())) };
        let code = match self.business_code.as_str() {
            "" => self.reason.as_str(),
            own => own,
        };
        let error_type = match self.error_type.as_str() {
            "" => RUN_ERROR,
            own => own,
        };
        let mut fields = vec![
            ("object_type", text("error")),
            ("error_type", text(error_type)),
            ("error_code", text(code)),
            ("error_message", text(&self.public_message)),
            ("task_state", text(state_word(state))),
        ];
        if !self.llm_response_id.is_empty() {
            fields.push(("llm_response_id", text(&self.llm_response_id)));
        }
        if let Some(violation) = self.violations.first() {
            fields.push(("error_param", text(&violation.field)));
        }
        Struct { fields: fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect() }
    }

    /// Parses the metadata written by [`Failure::to_metadata`].
    pub fn from_metadata(metadata: &Struct) -> Option<Self> {
        match metadata.fields.get(METADATA_KEY)?.kind.as_ref()? {
            Kind::StructValue(record) => json::from_struct(record).ok().map(Self::from_record),
            _ => None,
        }
    }
}

/// A record without the worker, which has the name of its host. Operators find the worker with the
/// attempts of the task.
pub fn public(record: &v1::Failure) -> Value {
    let mut record = json::to_struct(record);
    let origin = record.fields.get_mut("origin").and_then(|origin| origin.kind.as_mut());
    if let Some(Kind::StructValue(origin)) = origin {
        origin.fields.remove("worker");
    }
    Value { kind: Some(Kind::StructValue(record)) }
}

/// A state in the lower-case spelling of A2A 0.3, which the flat keys use.
pub fn state_word(state: TaskState) -> &'static str {
    match state {
        TaskState::Unspecified => "unknown",
        TaskState::Submitted => "submitted",
        TaskState::Working => "working",
        TaskState::Completed => "completed",
        TaskState::Failed => "failed",
        TaskState::Canceled => "canceled",
        TaskState::InputRequired => "input-required",
        TaskState::Rejected => "rejected",
        TaskState::AuthRequired => "auth-required",
    }
}

/// Truncates at a character boundary.
pub(crate) fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
    }
}

#[cfg(test)]
mod tests;
