//! Content of messages and artifacts: text, data and files as A2A parts, and the size and depth
//! checks before they leave the worker.

use std::borrow::Cow;

use faultline_chassis::limits;
use faultline_proto::{
    a2a::{self, Part, part::Content as Kind},
    json, reason,
};
use prost::Message as _;
use prost_types::Struct;

use crate::Error;

/// The content of an artifact or a message: a list of A2A parts. A string becomes a text part, a
/// `serde_json` value a data part; A2A parts are taken unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content(pub(crate) Vec<Part>);

impl Content {
    /// A file by value: its bytes are part of the message.
    pub fn file(
        name: impl Into<String>,
        media_type: impl Into<String>,
        bytes: impl Into<Vec<u8>>,
    ) -> Self {
        let filename = name.into();
        let media_type = media_type.into();
        Part { filename, media_type, ..part(Kind::Raw(bytes.into())) }.into()
    }

    /// A file by reference.
    pub fn url(url: impl Into<String>, media_type: impl Into<String>) -> Self {
        Part { media_type: media_type.into(), ..part(Kind::Url(url.into())) }.into()
    }

    /// Appends more parts.
    pub fn and(mut self, more: impl Into<Content>) -> Self {
        self.0.extend(more.into().0);
        self
    }
}

fn part(content: Kind) -> Part {
    Part { content: Some(content), ..Part::default() }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        part(Kind::Text(text)).into()
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for Content {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}

impl From<Cow<'_, str>> for Content {
    fn from(text: Cow<'_, str>) -> Self {
        text.into_owned().into()
    }
}

impl From<serde_json::Value> for Content {
    fn from(value: serde_json::Value) -> Self {
        part(Kind::Data(json::value_from_json(value))).into()
    }
}

impl From<Part> for Content {
    fn from(part: Part) -> Self {
        Self(vec![part])
    }
}

impl From<Vec<Part>> for Content {
    fn from(parts: Vec<Part>) -> Self {
        Self(parts)
    }
}

/// All text parts of a message, joined by line breaks. Borrowed when there is at most one.
pub(crate) fn text_of(message: &a2a::Message) -> Cow<'_, str> {
    let mut texts = text_parts(&message.parts);
    let first = texts.next().unwrap_or_default();
    match texts.next() {
        None => Cow::Borrowed(first),
        Some(second) => {
            let rest = [first, second].into_iter().chain(texts);
            Cow::Owned(rest.collect::<Vec<_>>().join("\n"))
        }
    }
}

/// The text parts.
pub(crate) fn text_parts(parts: &[Part]) -> impl Iterator<Item = &str> {
    parts.iter().filter_map(|part| match &part.content {
        Some(Kind::Text(text)) => Some(text.as_str()),
        _ => None,
    })
}

/// A checked artifact. The name is the id, so that an artifact of the same name replaces it.
pub(crate) fn artifact(name: String, content: Content) -> Result<a2a::Artifact, Error> {
    let artifact = a2a::Artifact {
        artifact_id: name.clone(),
        name,
        parts: content.0,
        ..a2a::Artifact::default()
    };
    check_artifact(&artifact)?;
    Ok(artifact)
}

/// Checks depth and size of an artifact.
pub(crate) fn check_artifact(artifact: &a2a::Artifact) -> Result<(), Error> {
    check_depth(&artifact.parts)?;
    artifact.metadata.as_ref().map_or(Ok(()), check_object_depth)?;
    check_size("a chunk of an artifact", artifact.encoded_len(), limits::MESSAGE_BYTES_MAX)
}

pub(crate) fn check_size(what: &str, bytes: usize, bytes_max: usize) -> Result<(), Error> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let text = format!("{what} has {bytes} bytes; the limit is {bytes_max}");
    Err(Error::new(&reason::TASK_TOO_LARGE).because(text))
}

/// Checks depth and size of a message.
pub(crate) fn check_message(message: &a2a::Message) -> Result<(), Error> {
    check_depth(&message.parts)?;
    check_size("the message", message.encoded_len(), limits::MESSAGE_BYTES_MAX)
}

/// A part beyond the depth limit of the peer's decoder would break the whole stream, and with it
/// every other task of the worker.
pub(crate) fn check_depth(parts: &[Part]) -> Result<(), Error> {
    for part in parts {
        if let Some(Kind::Data(value)) = &part.content {
            check_levels(json::value_depth(value))?;
        }
        part.metadata.as_ref().map_or(Ok(()), check_object_depth)?;
    }
    Ok(())
}

/// The same check for a single object.
pub(crate) fn check_object_depth(object: &Struct) -> Result<(), Error> {
    check_levels(json::struct_depth(object))
}

fn check_levels(levels: usize) -> Result<(), Error> {
    if levels <= limits::DATA_DEPTH_MAX {
        return Ok(());
    }
    let text = format!("data nests deeper than {} levels", limits::DATA_DEPTH_MAX);
    Err(Error::new(&reason::TASK_TOO_LARGE).because(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_parts_are_joined_and_other_parts_skipped() {
        let parts = Content::from("a").and(json!({"n": 1})).and("b").0;
        let message = a2a::Message { parts, ..a2a::Message::default() };
        assert_eq!(text_of(&message), "a\nb");
        assert_eq!(text_of(&a2a::Message::default()), "");
    }

    #[test]
    fn oversized_and_too_deep_content_is_rejected_by_the_worker() {
        let large = "x".repeat(limits::MESSAGE_BYTES_MAX + 1);
        let error = artifact("a".into(), large.into()).unwrap_err();
        assert_eq!(error.failure().unwrap().reason, "TASK_TOO_LARGE");

        let nest = |n| (0..n).fold(json!(1), |inner, _| json!([inner]));
        assert!(artifact("a".into(), nest(limits::DATA_DEPTH_MAX).into()).is_ok());
        let error = artifact("a".into(), nest(limits::DATA_DEPTH_MAX + 1).into()).unwrap_err();
        assert_eq!(error.failure().unwrap().reason, "TASK_TOO_LARGE");
    }
}
