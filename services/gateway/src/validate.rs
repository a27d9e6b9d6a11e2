//! What a request must satisfy before it is sent on, and how it is refused: always with the field
//! and what is wrong with it. It knows nothing that only the coordinator can know, such as whether
//! a task exists.

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{ListTasksRequest, Message, Role, SendMessageRequest},
    json::{self, Kind},
    reason,
};
use prost::Message as _;

/// Wrong fields named in one answer; a list of a million bad parts is not echoed.
const VIOLATIONS_MAX: usize = 16;

/// Collects what is wrong, so that the caller hears of everything at once.
#[derive(Default)]
struct Violations(Vec<(String, String)>);

impl Violations {
    fn add(&mut self, field: impl Into<String>, description: impl Into<String>) {
        if self.0.len() < VIOLATIONS_MAX {
            self.0.push((field.into(), description.into()));
        }
    }

    fn required(&mut self, field: &str, text: &str) {
        if text.is_empty() {
            self.add(field, "must not be empty");
        }
    }

    fn key(&mut self, field: &str, text: &str) {
        if text.len() > limits::KEY_BYTES_MAX {
            self.add(field, format!("must be at most {} bytes long", limits::KEY_BYTES_MAX));
        }
    }

    fn not_negative(&mut self, field: &str, number: Option<i32>) {
        if number.is_some_and(|n| n < 0) {
            self.add(field, "must not be negative");
        }
    }

    fn done(self) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let said: Vec<_> = self.0.iter().map(|(field, text)| format!("{field} {text}")).collect();
        let failure = Failure::new(&reason::INVALID_PARAMS)
            .because(format!("invalid parameters: {}", said.join("; ")));
        let add = |failure: Failure, (field, text)| failure.with_violation(field, text);
        Err(self.0.into_iter().fold(failure, add))
    }
}

/// One wrong field, and nothing else to say.
pub(crate) fn violation(field: &str, description: &str) -> Failure {
    Failure::new(&reason::INVALID_PARAMS)
        .because(format!("invalid parameters: {field} {description}"))
        .with_violation(field, description)
}

pub(crate) fn send(request: &SendMessageRequest) -> Result<(), Failure> {
    let mut wrong = Violations::default();
    match &request.message {
        Some(sent) => message(sent, &mut wrong),
        None => wrong.add("message", "is required"),
    }
    let history_length = request.configuration.as_ref().and_then(|c| c.history_length);
    wrong.not_negative("configuration.historyLength", history_length);
    wrong.key("tenant", &request.tenant);
    wrong.done()?;
    match request.encoded_len() {
        0..=limits::MESSAGE_BYTES_MAX => Ok(()),
        bytes => Err(Failure::new(&reason::CONTENT_TOO_LARGE).because(format!(
            "the message is {bytes} bytes inside the mesh, {} are allowed; send a URL instead of \
             the content",
            limits::MESSAGE_BYTES_MAX
        ))),
    }
}

fn message(message: &Message, wrong: &mut Violations) {
    wrong.required("message.messageId", &message.message_id);
    wrong.key("message.messageId", &message.message_id);
    wrong.key("message.contextId", &message.context_id);
    wrong.key("message.taskId", &message.task_id);
    if !matches!(message.role(), Role::User | Role::Agent) {
        wrong.add("message.role", "must be ROLE_USER or ROLE_AGENT");
    }
    if message.parts.is_empty() {
        wrong.add("message.parts", "must have at least one part");
    }
    for (i, part) in message.parts.iter().enumerate() {
        if part.content.is_none() {
            let description = "must have one of text, raw, url or data";
            wrong.add(format!("message.parts[{i}]"), description);
        }
    }
}

/// A request that names one task.
pub(crate) fn task(id: &str, history_length: Option<i32>) -> Result<(), Failure> {
    let mut wrong = Violations::default();
    wrong.required("id", id);
    wrong.not_negative("historyLength", history_length);
    wrong.done()
}

pub(crate) fn list(request: &ListTasksRequest) -> Result<(), Failure> {
    let mut wrong = Violations::default();
    wrong.key("tenant", &request.tenant);
    wrong.key("contextId", &request.context_id);
    wrong.not_negative("historyLength", request.history_length);
    if request.page_size.is_some_and(|size| !(1..=100).contains(&size)) {
        wrong.add("pageSize", "must be from 1 to 100");
    }
    wrong.done()
}

/// JSON that is not the message it should be.
pub(crate) fn not_the_message(error: &json::Error) -> Failure {
    match error.kind() {
        Kind::Syntax => Failure::new(&reason::JSON_PARSE)
            .because(format!("invalid JSON payload: {}", error.description())),
        Kind::Shape => violation(named(error.path()), error.description()),
    }
}

/// The field a path leads to. Below `data` and `metadata` all JSON is legal except what nests too
/// deep, and then it is the whole field that does.
fn named(path: &str) -> &str {
    let mut end = 0;
    for step in path.split('.') {
        end += step.len();
        if matches!(step.split('[').next(), Some("data" | "metadata")) {
            let brackets = step.find('[').map_or(0, |at| step.len() - at);
            return &path[..end - brackets];
        }
        end += 1;
    }
    if path.is_empty() { "params" } else { path }
}

/// The coordinator answered a call with the answer to another.
pub(crate) fn wrong_answer() -> Failure {
    Failure::new(&reason::INTERNAL).because("the coordinator gave an answer of the wrong kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_free_json_is_cut_at_the_field() {
        for (path, field) in [
            ("", "params"),
            ("message.parts[0].text", "message.parts[0].text"),
            ("message.parts[2].data[0][1].x", "message.parts[2].data"),
            ("message.parts[2].data", "message.parts[2].data"),
            ("metadata.a.b[3]", "metadata"),
            ("message.metadata[\"a b\"].c", "message.metadata"),
        ] {
            assert_eq!(named(path), field, "{path}");
        }
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let message = Message { parts: vec![Default::default()], ..Message::default() };
        let failure = send(&SendMessageRequest { message: Some(message), ..Default::default() });
        let failure = failure.unwrap_err();
        let fields: Vec<_> = failure.violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["message.messageId", "message.role", "message.parts[0]"]);
        assert!(failure.public_message.contains("message.role must be ROLE_USER"));
    }

    #[test]
    fn bounds_are_those_that_are_written_down() {
        let list = |page_size| list(&ListTasksRequest { page_size, ..Default::default() });
        assert!(list(None).is_ok() && list(Some(1)).is_ok() && list(Some(100)).is_ok());
        assert!(list(Some(0)).is_err() && list(Some(101)).is_err() && list(Some(-1)).is_err());
        assert!(task("x", Some(0)).is_ok());
        assert!(task("x", Some(-1)).is_err() && task("", None).is_err());
    }
}
