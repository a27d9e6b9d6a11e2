//! Limits on the nesting depth of data: not every endpoint parses JSON, which has this limit,
//! and deeper data could not be decoded from protobuf again. Pure.

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{Artifact, Message, Part, part::Content},
    json,
    v1::report::Body,
};
use prost_types::Struct;

/// The error text for data that nests deeper.
pub(crate) fn too_deep() -> String {
    format!("nested deeper than {} levels", limits::DATA_DEPTH_MAX)
}

pub(crate) fn is_message_too_deep(message: &Message) -> bool {
    is_object_too_deep(message.metadata.as_ref()) || message.parts.iter().any(is_part_too_deep)
}

/// Whether a report nests too deeply to be forwarded.
pub(crate) fn is_report_too_deep(report: &Body) -> bool {
    match report {
        Body::Status(message) | Body::Rejected(message) | Body::Message(message) => {
            is_message_too_deep(message)
        }
        Body::Completed(done) => done.message.as_ref().is_some_and(is_message_too_deep),
        Body::Artifact(chunk) => chunk.artifact.as_ref().is_some_and(is_artifact_too_deep),
        Body::Ask(interrupt) => is_object_too_deep(interrupt.schema.as_ref()),
        Body::Started(_)
        | Body::Checkpoint(_)
        | Body::Failed(_)
        | Body::Tolerated(_)
        | Body::Withdrawn(_)
        | Body::Released(_)
        | Body::Stopped(_) => false,
    }
}

fn is_artifact_too_deep(artifact: &Artifact) -> bool {
    is_object_too_deep(artifact.metadata.as_ref()) || artifact.parts.iter().any(is_part_too_deep)
}

fn is_part_too_deep(part: &Part) -> bool {
    let data = match &part.content {
        Some(Content::Data(data)) => json::value_depth(data),
        _ => 0,
    };
    data > limits::DATA_DEPTH_MAX || is_object_too_deep(part.metadata.as_ref())
}

pub(crate) fn is_object_too_deep(object: Option<&Struct>) -> bool {
    object.is_some_and(|object| json::struct_depth(object) > limits::DATA_DEPTH_MAX)
}

#[cfg(test)]
mod tests {
    use faultline_proto::v1::{ArtifactChunk, Interrupt};
    use prost_types::{ListValue, Value, value::Kind};

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value { kind: None }, |inner, _| Value {
            kind: Some(Kind::ListValue(ListValue { values: vec![inner] })),
        })
    }

    fn object(levels: usize) -> Struct {
        Struct { fields: [("x".to_owned(), nested(levels - 1))].into() }
    }

    #[test]
    fn excessive_nesting_is_found_in_every_field() {
        let most = limits::DATA_DEPTH_MAX;
        for (levels, too_deep) in [(most, false), (most + 1, true)] {
            let data = Part { content: Some(Content::Data(nested(levels))), ..Part::default() };
            let marked = Part { metadata: Some(object(levels)), ..Part::default() };
            for part in [data, marked] {
                let message = Message { parts: vec![part.clone()], ..Message::default() };
                assert_eq!(is_message_too_deep(&message), too_deep, "{levels}");
                let artifact = Some(Artifact { parts: vec![part], ..Artifact::default() });
                let chunk = ArtifactChunk { artifact, ..ArtifactChunk::default() };
                assert_eq!(is_report_too_deep(&Body::Artifact(chunk)), too_deep, "{levels}");
                assert_eq!(is_report_too_deep(&Body::Status(message)), too_deep, "{levels}");
            }
            let schema = Some(object(levels));
            let ask = Body::Ask(Interrupt { schema, ..Interrupt::default() });
            assert_eq!(is_report_too_deep(&ask), too_deep, "{levels}");
        }
    }
}
