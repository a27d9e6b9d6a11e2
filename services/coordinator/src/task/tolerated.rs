//! Tolerated failures of a task: bounded records of failures that did not end it. Pure.

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    failure::{METADATA_KEY, public},
    v1,
};
use prost::Message;
use prost_types::{ListValue, Struct, Value, value::Kind};

/// Set on a task that went on without something.
const DEGRADED_KEY: &str = "faultline.dev/degraded";
/// The records of the failures that a task tolerated, bounded.
const TOLERATED_KEY: &str = "faultline.dev/tolerated";
/// How many more there were than are kept.
const MORE_KEY: &str = "faultline.dev/toleratedMore";

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tolerated {
    failures: Vec<v1::Failure>,
    bytes: usize,
    /// Those for which there was no room.
    more: u32,
    /// Both counts at the last checkpoint.
    saved: (usize, u32),
}

impl Tolerated {
    pub(crate) fn add(&mut self, failure: &v1::Failure) {
        let bytes = self.bytes + failure.encoded_len();
        let full = self.failures.len() >= limits::TOLERATED_MAX;
        if full || bytes > limits::TOLERATED_BYTES_MAX {
            self.more += 1;
            return;
        }
        self.bytes = bytes;
        self.failures.push(failure.clone());
    }

    pub(crate) fn checkpoint(&mut self) {
        self.saved = (self.failures.len(), self.more);
    }

    /// Rewinds to the last checkpoint: the next attempt repeats the work after it.
    pub(crate) fn rewind(&mut self) {
        let (kept, more) = self.saved;
        self.failures.truncate(kept);
        self.more = more;
        self.bytes = self.failures.iter().map(Message::encoded_len).sum();
    }

    pub(crate) fn failures(&self) -> &[v1::Failure] {
        &self.failures
    }

    /// The metadata of the task about them, if there are any.
    pub(crate) fn show(&self, metadata: Option<Struct>) -> Option<Struct> {
        if self.failures.is_empty() && self.more == 0 {
            return metadata;
        }
        let mut metadata = metadata.unwrap_or_default();
        let mut put = |key: &str, kind| {
            metadata.fields.insert(key.to_owned(), Value { kind: Some(kind) });
        };
        put(DEGRADED_KEY, Kind::BoolValue(true));
        let values = self.failures.iter().map(public).collect();
        put(TOLERATED_KEY, Kind::ListValue(ListValue { values }));
        if self.more > 0 {
            put(MORE_KEY, Kind::NumberValue(self.more.into()));
        }
        Some(metadata)
    }
}

/// The metadata that watchers see of one: the record alone. The flat keys mean a failed task.
pub(crate) fn metadata(tolerated: &v1::Tolerated) -> Option<Struct> {
    let value = public(tolerated.failure.as_ref()?);
    Some(Struct { fields: [(METADATA_KEY.to_owned(), value)].into() })
}

/// The stored form: recoverable, since it did not end the task.
pub(crate) fn recoverable(failure: Failure) -> v1::Tolerated {
    let failure = failure.with_severity(v1::Severity::Recoverable);
    v1::Tolerated { failure: Some(failure.into_record()) }
}

#[cfg(test)]
mod tests {
    use faultline_proto::{json, reason};

    use super::*;

    fn failure(text: &str) -> v1::Failure {
        Failure::new(&reason::WORKER_LOST).because(text).into_record()
    }

    #[test]
    fn task_without_tolerated_failures_has_no_metadata() {
        assert_eq!(Tolerated::default().show(None), None);
        let other = Struct::default();
        assert_eq!(Tolerated::default().show(Some(other.clone())), Some(other));
    }

    #[test]
    fn excess_tolerated_failures_are_counted() {
        let mut tolerated = Tolerated::default();
        for _ in 0..limits::TOLERATED_MAX + 3 {
            tolerated.add(&failure("x"));
        }
        assert_eq!(tolerated.failures().len(), limits::TOLERATED_MAX);
        let shown = json::to_string(&tolerated.show(None).unwrap());
        assert!(shown.contains(r#""faultline.dev/degraded":true"#), "{shown}");
        assert!(shown.contains(r#""faultline.dev/toleratedMore":3"#), "{shown}");

        let large = v1::Failure {
            context_id: "x".repeat(limits::TOLERATED_BYTES_MAX),
            ..v1::Failure::default()
        };
        let mut tolerated = Tolerated::default();
        tolerated.add(&large);
        assert!(tolerated.failures().is_empty());
        assert!(tolerated.show(None).is_some(), "degraded all the same");
    }

    #[test]
    fn lost_attempt_rewinds_tolerated_failures() {
        let mut tolerated = Tolerated::default();
        tolerated.add(&failure("kept"));
        tolerated.checkpoint();
        let saved = tolerated.clone();
        for _ in 0..limits::TOLERATED_MAX {
            tolerated.add(&failure("undone"));
        }
        tolerated.rewind();
        assert_eq!(tolerated, saved);
    }
}
