//! Conversion of messages at the boundary of the mesh: messages and answers outward, questions and
//! artifacts inward. Metadata keys of this mesh are removed in both directions. Must not do any
//! I/O.

use std::time::{Duration, SystemTime};

use faultline_chassis::limits;
use faultline_client::{interrupt_of, text_of};
use faultline_proto::{
    Failure,
    a2a::{
        Artifact, Message, Part, Role, SendMessageRequest, StreamResponse, Task, TaskState,
        TaskStatus, stream_response::Payload,
    },
    id::TaskId,
    json, reason,
    v1::{Interrupt, interrupt::Kind},
};
use faultline_worker::Question;
use prost::Message as _;
use prost_types::{Struct, Value, value};

/// The prefix of the metadata keys of this mesh.
const PRIVATE: &str = "faultline.dev/";
const ANSWER: &str = "faultline.dev/answer";
const CANCEL: &str = "faultline.dev/cancel";
const TIMEOUT: &str = "faultline.dev/timeoutMs";

/// The message of a local task as a request to the remote agent.
pub(super) fn request(
    message: &Message,
    context_id: &str,
    remaining: Option<Duration>,
) -> SendMessageRequest {
    let message = Message {
        message_id: TaskId::new().to_string(),
        context_id: context_id.to_owned(),
        role: Role::User as i32,
        parts: message.parts.iter().map(part).collect(),
        metadata: public(message.metadata.as_ref()),
        extensions: message.extensions.clone(),
        ..Message::default()
    };
    let metadata = remaining.map(|left| object([(TIMEOUT, number(left.as_millis() as f64))]));
    SendMessageRequest { message: Some(message), metadata, ..SendMessageRequest::default() }
}

/// The metadata of a cancel: the reason for which the remote task has to stop.
pub(super) fn cancel() -> Struct {
    let why = object([
        ("initiator", text("parent")),
        ("reason", text("the task that it works for was canceled")),
    ]);
    object([(CANCEL, Value { kind: Some(value::Kind::StructValue(why)) })])
}

/// A question of a remote task.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RemoteQuestion {
    /// Distinguishes it from other questions of its task; empty if nothing does.
    pub(super) id: String,
    /// The question key of a server with this extension; the answer has to name it.
    key: Option<String>,
    interrupt: Interrupt,
}

impl RemoteQuestion {
    /// The question of the task, if it waits.
    pub(super) fn of(task: &Task) -> Option<Self> {
        let status = task.status.as_ref()?;
        let is_auth = status.state() == TaskState::AuthRequired;
        if !is_auth && status.state() != TaskState::InputRequired {
            return None;
        }
        let told = interrupt_of(status, task.metadata.as_ref());
        let key = told.as_ref().map(|i| i.key.clone()).filter(|key| !key.is_empty());
        let said = status.message.as_ref();
        let id = key.clone().or_else(|| said.map(|m| m.message_id.clone())).unwrap_or_default();
        let words = said.map(text_of).unwrap_or_default();
        let interrupt = told.unwrap_or_else(|| Interrupt {
            kind: if is_auth { Kind::AuthUrl } else { Kind::Input } as i32,
            url: if is_auth { url_in(&words) } else { String::new() },
            prompt: words,
            ..Interrupt::default()
        });
        Some(Self { id, key, interrupt })
    }

    /// The question in this mesh.
    pub(super) fn question(&self) -> Question {
        let Interrupt { prompt, schema, url, expires_at, .. } = self.interrupt.clone();
        let prompt = if prompt.is_empty() { "The agent waits for you".to_owned() } else { prompt };
        let question = match self.interrupt.kind() {
            Kind::AuthUrl => Question::auth(url).prompt(prompt),
            Kind::Approval => Question::approval(prompt),
            Kind::Choice => Question::choice(prompt, [""; 0]),
            Kind::Input | Kind::Unspecified => Question::input(prompt),
        };
        let question = match schema.and_then(|s| serde_json::from_str(&json::to_string(&s)).ok()) {
            Some(schema) => question.schema(schema),
            None => question,
        };
        let until = expires_at.and_then(|at| SystemTime::try_from(at).ok());
        let question = match until.and_then(|at| at.duration_since(SystemTime::now()).ok()) {
            Some(left) => question.expires_in(left),
            None => question,
        };
        match self.id.as_str() {
            "" => question,
            id => question.key(format!("remote/{id}")),
        }
    }

    /// The answer as a request to the remote agent.
    pub(super) fn answer(&self, answer: &Message) -> SendMessageRequest {
        let mut request = request(answer, "", None);
        let Some(key) = &self.key else { return request };
        let given = answer.metadata.as_ref().and_then(|m| m.fields.get(ANSWER)?.kind.clone());
        let mut named = match given {
            Some(value::Kind::StructValue(given)) => given,
            _ => Struct::default(),
        };
        named.fields.insert("interruptId".to_owned(), text(key));
        let named = Value { kind: Some(value::Kind::StructValue(named)) };
        let message = request.message.get_or_insert_default();
        let metadata = message.metadata.get_or_insert_default();
        metadata.fields.insert(ANSWER.to_owned(), named);
        request
    }
}

/// Rejects an event with a part of unknown content: a relayed part without content would turn into
/// an empty result.
pub(super) fn check(event: &StreamResponse) -> Result<(), Failure> {
    match event.payload.as_ref() {
        Some(Payload::Message(message)) => check_parts("message", &message.parts),
        Some(Payload::Task(task)) => {
            task.artifacts.iter().try_for_each(check_artifact)?;
            check_status(task.status.as_ref())
        }
        Some(Payload::StatusUpdate(update)) => check_status(update.status.as_ref()),
        Some(Payload::ArtifactUpdate(update)) => {
            update.artifact.as_ref().map_or(Ok(()), check_artifact)
        }
        None => Ok(()),
    }
}

fn check_artifact(artifact: &Artifact) -> Result<(), Failure> {
    let id: String = artifact.artifact_id.chars().take(64).collect();
    check_parts(&format!("artifact '{id}'"), &artifact.parts)
}

fn check_status(status: Option<&TaskStatus>) -> Result<(), Failure> {
    let said = status.and_then(|status| status.message.as_ref());
    said.map_or(Ok(()), |message| check_parts("status.message", &message.parts))
}

fn check_parts(holder: &str, parts: &[Part]) -> Result<(), Failure> {
    let Some(at) = parts.iter().position(|part| part.content.is_none()) else { return Ok(()) };
    let text = format!(
        "parts[{at}] of the {holder} has no content that A2A knows: text, raw, url or data"
    );
    Err(Failure::new(&reason::INVALID_AGENT_RESPONSE).because(text))
}

/// The first URL in a text, for signing in.
fn url_in(words: &str) -> String {
    let is_url = |word: &&str| word.starts_with("https://") || word.starts_with("http://");
    let url = words.split_whitespace().find(is_url).unwrap_or_default();
    url.trim_end_matches(['.', ',', ')', '>']).to_owned()
}

/// An artifact in pieces within the message limit of the mesh.
pub(super) fn pieces(artifact: Artifact) -> Vec<Artifact> {
    let artifact = Artifact {
        parts: artifact.parts.iter().map(part).collect(),
        metadata: public(artifact.metadata.as_ref()),
        ..artifact
    };
    if artifact.encoded_len() <= limits::MESSAGE_BYTES_MAX {
        return vec![artifact];
    }
    let one = |part: &Part| Artifact { parts: vec![part.clone()], ..artifact.clone() };
    artifact.parts.iter().map(one).collect()
}

pub(super) fn parts(message: &Message) -> Vec<Part> {
    message.parts.iter().map(part).collect()
}

fn part(part: &Part) -> Part {
    Part { metadata: public(part.metadata.as_ref()), ..part.clone() }
}

/// Metadata without the keys of this mesh, which a peer may also forge.
fn public(metadata: Option<&Struct>) -> Option<Struct> {
    let fields = metadata?.fields.iter().filter(|(key, _)| !key.starts_with(PRIVATE));
    let fields = fields.map(|(key, value)| (key.clone(), value.clone()));
    Some(Struct { fields: fields.collect() }).filter(|s| !s.fields.is_empty())
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Struct {
    Struct { fields: fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

fn text(text: &str) -> Value {
    Value { kind: Some(value::Kind::StringValue(text.to_owned())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(value::Kind::NumberValue(number)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> Message {
        json::from_str(json).unwrap()
    }

    #[test]
    fn mesh_metadata_is_removed_and_other_metadata_is_kept() {
        let ours = message(
            r#"{"messageId":"m","contextId":"ours","taskId":"t","referenceTaskIds":["r"],
                "parts":[{"text":"hi","metadata":{"faultline.dev/x":1,"lang":"en"}}],
                "metadata":{"faultline.dev/parent":"p","team":"blue"}}"#,
        );
        let sent = request(&ours, "theirs", Some(Duration::from_millis(1500)));
        let text = json::to_string(&sent);
        for kept in [r#""lang":"en""#, r#""team":"blue""#, r#""contextId":"theirs""#] {
            assert!(text.contains(kept), "{kept} in {text}");
        }
        assert!(text.contains(r#""faultline.dev/timeoutMs":1500"#), "{text}");
        for gone in ["ours", "parent", "faultline.dev/x", r#""r""#, r#""m""#] {
            assert!(!text.contains(gone), "{gone} in {text}");
        }
    }

    #[test]
    fn question_is_read_from_its_record_or_from_the_status_message() {
        let asked = |state: &str, message: &str| {
            let task = format!(
                r#"{{"id":"t","status":{{"state":"TASK_STATE_{state}","message":{message}}}}}"#
            );
            RemoteQuestion::of(&json::from_str(&task).unwrap())
        };
        let keyed = r#"{"messageId":"m","parts":[{"text":"Sure?"}],"metadata":{
            "faultline.dev/interrupt":{"key":"ask-1","kind":"KIND_APPROVAL","prompt":"Sure?",
            "schema":{"type":"object"}}}}"#;
        let keyed = asked("INPUT_REQUIRED", keyed).unwrap();
        assert_eq!((keyed.id.as_str(), keyed.interrupt.kind()), ("ask-1", Kind::Approval));
        let answer = r#"{"parts":[{"text":"yes"}],"metadata":{"faultline.dev/answer":{
            "interruptId":"remote/ask-1","action":"accept"}}}"#;
        let answer = json::to_string(&keyed.answer(&message(answer)));
        assert!(answer.contains(r#""interruptId":"ask-1""#), "{answer}");
        assert!(answer.contains(r#""action":"accept""#) && !answer.contains("remote/"), "{answer}");
        let words = r#"{"messageId":"m","parts":[{"text":"Go to https://x.example/a, please"}]}"#;
        let words = asked("AUTH_REQUIRED", words).unwrap();
        assert_eq!((words.id.as_str(), words.interrupt.kind()), ("m", Kind::AuthUrl));
        assert_eq!(words.interrupt.url, "https://x.example/a");
        assert!(words.answer(&Message::default()).message.unwrap().metadata.is_none());
        assert_eq!(asked("WORKING", "{}"), None);
    }

    #[test]
    fn artifact_above_the_message_limit_is_split_into_pieces() {
        let half = "x".repeat(limits::MESSAGE_BYTES_MAX / 2 + 1);
        let content = faultline_proto::a2a::part::Content::Text(half);
        let part = Part { content: Some(content), ..Part::default() };
        let artifact = Artifact {
            artifact_id: "a".to_owned(),
            parts: vec![part.clone(), part],
            ..Artifact::default()
        };
        assert_eq!(pieces(artifact.clone()).len(), 2);
        let small = Artifact { parts: artifact.parts[..1].to_vec(), ..artifact };
        assert_eq!(pieces(small.clone()), [small]);
    }
}
