//! A failure between services: the public record that travels, and beside it the private text that
//! does not. Built at the origin, wrapped at each hop, never edited otherwise.

use std::{fmt, ops::Deref, time::Duration, time::SystemTime};

use prost_types::{Struct, Value, value::Kind};
use tonic::Code;
use uuid::Uuid;

use crate::{
    a2a::TaskState,
    disposition::{self, RUN_ERROR},
    json,
    reason::{self, Reason},
    v1::{self, Cancellation, Cause, FieldViolation, Origin, Plane},
};

/// Where a failed task carries its record.
pub const METADATA_KEY: &str = "faultline.dev/failure";
/// The longest public text; the rest is cut.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// The longest chain; the middle goes first.
pub const CAUSES_MAX: usize = 16;

/// What went wrong. Reads as its record; the private part is reached by name only.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    record: Box<v1::Failure>,
    private: Option<Private>,
}

/// Text for logs and traces. It has neither `Display` nor `Serialize`, so it cannot slip into an
/// answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Private(String);

impl Private {
    /// The only way to read it, named after the only place for it.
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

/// The one sentence for logs: reason, message, id.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.public_message)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A fresh one, of the protocol plane until somebody says otherwise.
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

    /// Takes a record from a peer or the store as it is, but within bounds.
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

    /// The row of its reason, or of its code when the reason is unknown here.
    pub fn row(&self) -> &'static Reason {
        reason::find(&self.domain, &self.reason).unwrap_or_else(|| reason::generic(self.code()))
    }

    /// What the failure says itself, else what its reason says.
    pub fn may_retry(&self) -> bool {
        self.record.retryable.unwrap_or_else(|| self.row().retry.may_retry())
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.record.retry_after.and_then(|d| Duration::try_from(d).ok())
    }

    pub fn origin_agent(&self) -> &str {
        self.record.origin.as_ref().map_or("", |o| o.agent.as_str())
    }

    // Building, at the origin.

    /// The public message.
    pub fn because(mut self, text: impl Into<String>) -> Self {
        self.record.public_message = text.into();
        cut(&mut self.record.public_message, MESSAGE_BYTES_MAX);
        self
    }

    /// What only the log may know.
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
        let (field, description) = (field.into(), description.into());
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

    /// Says who stopped it. `reason` is empty if that is not known.
    pub fn with_cancellation(mut self, initiator: &str, reason: &str) -> Self {
        let (initiator, reason) = (initiator.to_owned(), reason.to_owned());
        let at = Some(SystemTime::now().into());
        self.record.cancel = Some(Cancellation { initiator, reason, at });
        self
    }

    pub(crate) fn edit(mut self, change: impl FnOnce(&mut v1::Failure)) -> Self {
        change(&mut self.record);
        self
    }

    /// Names the birthplace and makes it the root of the chain. Only the first call counts.
    pub fn born_at(mut self, origin: Origin) -> Self {
        if self.record.origin.is_none() {
            let mut root = self.head(&origin.agent, &self.task_id, 0);
            root.time = self.record.time;
            self.record.origin = Some(origin);
            self.record.causes = vec![root];
        }
        self
    }

    /// Names the worker at the birthplace.
    pub fn with_origin_worker(mut self, worker: &str) -> Self {
        if let Some(origin) = &mut self.record.origin {
            worker.clone_into(&mut origin.worker);
        }
        self
    }

    /// Passes through a hop: the hop puts itself in front, everything born at the origin stays.
    pub fn wrap(mut self, agent: &str, task_id: &str, context_id: &str) -> Self {
        let hop = self.record.hop.saturating_add(1);
        self.record.public_message = format!("Downstream agent '{}' failed", self.nearest_agent());
        let mut head = self.head(agent, task_id, hop);
        head.span_id.clear();
        self.record.hop = hop;
        self.record.task_id = task_id.to_owned();
        self.record.context_id = context_id.to_owned();
        self.record.causes.insert(0, head);
        self.drop_middle_causes(CAUSES_MAX);
        self
    }

    /// Names the span of the hop that has just put itself in front.
    pub fn with_hop_span(mut self, span_id: impl Into<String>) -> Self {
        if let Some(head) = self.record.causes.first_mut() {
            head.span_id = span_id.into();
        }
        self
    }

    fn nearest_agent(&self) -> &str {
        self.record.causes.first().map_or_else(|| self.origin_agent(), |c| c.agent.as_str())
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

    /// Keeps the outermost and the root, drops from the middle, counts what went.
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

    // On a task.

    /// The metadata of a task or status that ended with this failure: our record, and the flat
    /// keys that other frameworks read.
    pub fn to_metadata(&self, state: TaskState) -> Struct {
        let mut metadata = self.to_flat_metadata(state);
        metadata.fields.insert(METADATA_KEY.to_owned(), public(self.record()));
        metadata
    }

    /// The flat keys alone, for the message that mirrors them. The record is said once: a chain is
    /// the largest part of a failed task.
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

    /// Reads back what [`Failure::to_metadata`] wrote.
    pub fn from_metadata(metadata: &Struct) -> Option<Self> {
        match metadata.fields.get(METADATA_KEY)?.kind.as_ref()? {
            Kind::StructValue(record) => json::from_struct(record).ok().map(Self::from_record),
            _ => None,
        }
    }
}

/// A record as any caller may see it: without the worker, which is named after its host. Those who
/// run the mesh find it with the attempts of the task.
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

/// Cuts at a character boundary.
pub(crate) fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn born(agent: &str) -> Failure {
        let origin = Origin { agent: agent.to_owned(), ..Origin::default() };
        Failure::new(&reason::RATE_LIMITED)
            .because("slow down")
            .with_business_code("40401")
            .with_trace("4bf9", "00f0")
            .born_at(origin)
    }

    #[test]
    fn a_wrapped_failure_keeps_what_its_origin_knew() {
        let root = born("code");
        let top = root.clone().wrap("plan", "t-2", "c").wrap("front", "t-1", "c");
        assert_eq!((top.id.as_str(), top.origin_agent()), (root.id.as_str(), "code"));
        assert_eq!((top.reason.as_str(), top.code), ("RATE_LIMITED", 8));
        assert_eq!((top.trace_id.as_str(), top.hop), ("4bf9", 2));
        assert_eq!(top.public_message, "Downstream agent 'plan' failed");
        let hops: Vec<_> = top.causes.iter().map(|c| (c.agent.as_str(), c.hop)).collect();
        assert_eq!(hops, [("front", 2), ("plan", 1), ("code", 0)]);
        assert_eq!(top.causes[2].public_message, "slow down");
    }

    #[test]
    fn a_long_chain_loses_its_middle_and_counts_it() {
        let mut failure = born("root");
        for i in 0..40 {
            failure = failure.wrap(&format!("a{i}"), "t", "c");
        }
        assert_eq!(failure.causes.len(), CAUSES_MAX);
        assert_eq!(failure.causes_dropped, 41 - CAUSES_MAX as u32);
        assert_eq!(failure.causes[0].agent, "a39");
        assert_eq!(failure.causes[CAUSES_MAX - 1].agent, "root");
        assert_eq!(failure.hop, 40);
    }

    #[test]
    fn private_text_shows_nowhere_but_in_the_log() {
        let failure = born("a").privately("password=hunter2");
        assert!(!format!("{failure:?} {failure}").contains("hunter2"));
        assert!(!json::to_string(failure.record()).contains("hunter2"));
        assert_eq!(failure.private().map(Private::for_log), Some("password=hunter2"));
    }

    #[test]
    fn an_explicit_flag_beats_the_reason() {
        assert!(born("a").may_retry());
        assert!(!born("a").with_retryable(false).may_retry());
        assert!(!Failure::new(&reason::INTERNAL).may_retry());
    }

    #[test]
    fn a_word_of_a_newer_peer_costs_the_record_nothing_else() {
        let record = r#"{"code":8,"reason":"RATE_LIMITED","domain":"faultline.dev",
            "plane":"PLANE_BRAND_NEW","severity":"SEVERITY_ODD","businessCode":"B9"}"#;
        let record: Struct = json::from_str(record).unwrap();
        let value = Value { kind: Some(Kind::StructValue(record)) };
        let metadata = Struct { fields: [(METADATA_KEY.to_owned(), value)].into() };
        let failure = Failure::from_metadata(&metadata).expect("the record is read");
        assert_eq!((failure.row(), failure.plane()), (&reason::RATE_LIMITED, Plane::Unspecified));
        assert_eq!(failure.business_code, "B9");
    }

    #[test]
    fn a_task_carries_the_record_and_the_flat_keys() {
        let failure = born("a").with_violation("order.id", "missing");
        let metadata = failure.to_metadata(TaskState::Failed);
        assert_eq!(Failure::from_metadata(&metadata), Some(failure.clone()));
        let mirrored = failure.to_flat_metadata(TaskState::Failed);
        assert_eq!(Failure::from_metadata(&mirrored), None, "the record is said once");
        let texts = [json::to_string(&metadata), json::to_string(&mirrored)];
        for flat in [
            r#""object_type":"error""#,
            r#""error_type":"run_error""#,
            r#""error_code":"40401""#,
            r#""error_message":"slow down""#,
            r#""task_state":"failed""#,
            r#""error_param":"order.id""#,
        ] {
            assert!(texts.iter().all(|text| text.contains(flat)), "{flat} in {texts:?}");
        }
    }
}
