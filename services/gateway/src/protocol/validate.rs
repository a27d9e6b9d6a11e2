//! Validation of requests before they are sent to a coordinator. Each violation names the field and
//! the rule. Rules that need state, such as the existence of a task, are the coordinator's.

use std::ops::RangeInclusive;

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    a2a::{
        DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
        ListTasksRequest, Message, Role, SendMessageRequest, TaskPushNotificationConfig, TaskState,
        part::Content,
    },
    allocation::MESSAGE_BYTES_MAX,
    codec,
    json::{self, Kind},
    reason,
    v1::call,
};
use prost::Message as _;
use prost_types::{Struct, Timestamp, Value, value};

/// Violations in one answer; a list of a million bad parts is not echoed.
const VIOLATIONS_MAX: usize = 16;
/// The deepest nesting of a body.
const NESTING_MAX: usize = 128;
const PAGE_SIZE_MAX: i32 = 100;
const NOT_JSON: &str = "must be JSON, which has no NaN, no infinity and no value without a kind";
/// The times that protobuf defines, in seconds since 1970: the years 1 to 9999.
const YEARS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
const NANOS: RangeInclusive<i32> = 0..=999_999_999;

/// Collects all violations of a request, as (field, description), for one answer.
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

    fn id(&mut self, field: &str, text: &str) {
        self.required(field, text);
        self.key(field, text);
    }

    fn metadata(&mut self, field: &str, metadata: Option<&Struct>) {
        let Some(metadata) = metadata else { return };
        let most = limits::METADATA_BYTES_MAX;
        if metadata.encoded_len() > most {
            self.add(field, format!("must be at most {most} bytes inside the mesh"));
        }
        if json::struct_depth(metadata) > limits::DATA_DEPTH_MAX {
            self.add(field, too_deep());
        }
        if !metadata.fields.values().all(is_json) {
            self.add(field, NOT_JSON);
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
        let texts: Vec<_> = self.0.iter().map(|(field, text)| format!("{field} {text}")).collect();
        let failure = Failure::new(&reason::INVALID_PARAMS)
            .because(format!("invalid parameters: {}", texts.join("; ")));
        let add = |failure: Failure, (field, text)| failure.with_violation(field, text);
        Err(self.0.into_iter().fold(failure, add))
    }
}

/// A failure with one violation.
pub(crate) fn violation(field: &str, description: &str) -> Failure {
    Failure::new(&reason::INVALID_PARAMS)
        .because(format!("invalid parameters: {field} {description}"))
        .with_violation(field, description)
}

pub(crate) fn call(call: &call::Body) -> Result<(), Failure> {
    let mut wrong = Violations::default();
    match call {
        call::Body::Send(request) | call::Body::Stream(request) => {
            send(request, &mut wrong);
            wrong.done()?;
            return size(request.encoded_len());
        }
        call::Body::Get(request) => {
            wrong.id("id", &request.id);
            wrong.not_negative("historyLength", request.history_length);
        }
        call::Body::List(request) => list(request, &mut wrong),
        call::Body::Cancel(request) => {
            wrong.id("id", &request.id);
            wrong.metadata("metadata", request.metadata.as_ref());
        }
        call::Body::Subscribe(subscribe) => {
            wrong.id("id", subscribe.request.as_ref().map_or("", |request| &request.id));
        }
        call::Body::CreatePush(config) => {
            wrong.id("taskId", &config.task_id);
            push("", config, &mut wrong);
        }
        call::Body::GetPush(GetTaskPushNotificationConfigRequest { task_id, id, .. })
        | call::Body::DeletePush(DeleteTaskPushNotificationConfigRequest { task_id, id, .. }) => {
            wrong.id("taskId", task_id);
            wrong.id("id", id);
        }
        call::Body::ListPush(request) => {
            wrong.id("taskId", &request.task_id);
            // Zero means unset here, because the field has no presence in protobuf.
            if !(0..=PAGE_SIZE_MAX).contains(&request.page_size) {
                wrong.add("pageSize", "must be from 1 to 100");
            }
        }
        call::Body::ExtendedCard(request) => wrong.key("tenant", &request.tenant),
        call::Body::Agents(_)
        | call::Body::Workers(_)
        | call::Body::Inspect(_)
        | call::Body::Tasks(_)
        | call::Body::Events(_)
        | call::Body::Activity(_)
        | call::Body::Failures(_)
        | call::Body::Watch(_)
        | call::Body::OperatorCancel(_)
        | call::Body::OperatorAnswer(_)
        | call::Body::RemoveAgent(_)
        | call::Body::Wait(_)
        | call::Body::Credit(_)
        | call::Body::Drop(_) => {}
    }
    wrong.done()?;
    size(call.encoded_len())
}

fn send(request: &SendMessageRequest, wrong: &mut Violations) {
    match &request.message {
        Some(sent) => message(sent, wrong),
        None => wrong.add("message", "is required"),
    }
    wrong.metadata("metadata", request.metadata.as_ref());
    wrong.key("tenant", &request.tenant);
    let Some(configuration) = &request.configuration else { return };
    wrong.not_negative("configuration.historyLength", configuration.history_length);
    if let Some(config) = &configuration.task_push_notification_config {
        push("configuration.taskPushNotificationConfig.", config, wrong);
    }
}

/// Refuses a call that the coordinator would not decode: that would end the link, which all calls
/// of this gateway share.
pub(crate) fn size(bytes: usize) -> Result<(), Failure> {
    match bytes {
        0..=limits::MESSAGE_BYTES_MAX => Ok(()),
        bytes => Err(Failure::new(&reason::CONTENT_TOO_LARGE).because(format!(
            "the message is {bytes} bytes inside the mesh, {} are allowed; send a URL instead of \
             the content",
            limits::MESSAGE_BYTES_MAX
        ))),
    }
}

fn message(message: &Message, wrong: &mut Violations) {
    wrong.id("message.messageId", &message.message_id);
    wrong.key("message.contextId", &message.context_id);
    wrong.key("message.taskId", &message.task_id);
    if !matches!(message.role(), Role::User | Role::Agent) {
        wrong.add("message.role", "must be ROLE_USER or ROLE_AGENT");
    }
    wrong.metadata("message.metadata", message.metadata.as_ref());
    let names =
        [("referenceTaskIds", &message.reference_task_ids), ("extensions", &message.extensions)];
    for (field, _) in names.iter().filter(|(_, names)| names.len() > limits::NAMES_MAX) {
        wrong.add(format!("message.{field}"), format!("must be at most {}", limits::NAMES_MAX));
    }
    match message.parts.len() {
        0 => wrong.add("message.parts", "must have at least one part"),
        1..=limits::PARTS_MAX => {}
        _ => wrong.add("message.parts", format!("must be at most {} parts", limits::PARTS_MAX)),
    }
    for (i, part) in message.parts.iter().enumerate() {
        match &part.content {
            Some(Content::Data(data)) if json::value_depth(data) > limits::DATA_DEPTH_MAX => {
                wrong.add(format!("message.parts[{i}].data"), too_deep());
            }
            Some(Content::Data(data)) if !is_json(data) => {
                wrong.add(format!("message.parts[{i}].data"), NOT_JSON);
            }
            Some(_) => {}
            None => {
                let description = "must have one of text, raw, url or data";
                wrong.add(format!("message.parts[{i}]"), description);
            }
        }
        if part.metadata.is_some() {
            wrong.metadata(&format!("message.parts[{i}].metadata"), part.metadata.as_ref());
        }
    }
}

/// Whether a protobuf value exists in JSON too. Others would come back as null.
fn is_json(value: &Value) -> bool {
    match &value.kind {
        Some(value::Kind::NumberValue(number)) => number.is_finite(),
        Some(value::Kind::ListValue(list)) => list.values.iter().all(is_json),
        Some(value::Kind::StructValue(object)) => object.fields.values().all(is_json),
        Some(_) => true,
        None => false,
    }
}

/// The same text as the JSON reader has for this violation.
fn too_deep() -> String {
    format!("nested deeper than {} levels", limits::DATA_DEPTH_MAX)
}

/// A push configuration: the fields that A2A requires. The coordinator checks the URL (SSRF) and
/// the sizes.
fn push(at: &str, config: &TaskPushNotificationConfig, wrong: &mut Violations) {
    wrong.required(&format!("{at}url"), &config.url);
    if let Some(authentication) = &config.authentication {
        wrong.required(&format!("{at}authentication.scheme"), &authentication.scheme);
    }
}

fn list(request: &ListTasksRequest, wrong: &mut Violations) {
    wrong.key("tenant", &request.tenant);
    wrong.key("contextId", &request.context_id);
    wrong.not_negative("historyLength", request.history_length);
    if request.page_size.is_some_and(|size| !(1..=PAGE_SIZE_MAX).contains(&size)) {
        wrong.add("pageSize", "must be from 1 to 100");
    }
    if TaskState::try_from(request.status).is_err() {
        wrong.add("status", "must be a state of A2A 1.0");
    }
    let is_time = |t: &Timestamp| YEARS.contains(&t.seconds) && NANOS.contains(&t.nanos);
    if !request.status_timestamp_after.as_ref().is_none_or(is_time) {
        wrong.add("statusTimestampAfter", "must be a time of the years 1 to 9999");
    }
}

/// An idempotency key: not empty, and bounded like all keys.
pub(crate) fn idempotency_key(field: &str, key: &str) -> Result<(), Failure> {
    let mut wrong = Violations::default();
    wrong.required(field, key);
    wrong.key(field, key);
    wrong.done()
}

/// Rejects JSON that nests too deep before it is parsed: some parsers overflow their stack.
pub(crate) fn depth(json: &[u8]) -> Result<(), Failure> {
    if nests_too_deep(json) {
        return Err(not_json(&format!("nested deeper than {NESTING_MAX} levels")));
    }
    Ok(())
}

/// Counts the nesting before the parser runs, which does not count fields that it skips.
fn nests_too_deep(body: &[u8]) -> bool {
    let opens = |byte: &u8| matches!(byte, b'{' | b'[');
    // Fast path: nearly every body has fewer brackets than this in all.
    if body.iter().filter(|byte| opens(byte)).count() <= NESTING_MAX {
        return false;
    }
    let mut depth = 0_usize;
    let mut in_text = false;
    let mut escaped = false;
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return true;
        }
    }
    false
}

pub(crate) fn not_json(text: &str) -> Failure {
    Failure::new(&reason::JSON_PARSE).because(format!("invalid JSON payload: {text}"))
}

/// The failure for JSON that is malformed or not the expected message.
pub(crate) fn decode_failure(error: &json::Error) -> Failure {
    match error.kind() {
        Kind::Syntax => not_json(error.description()),
        Kind::Shape => violation(named(error.path()), error.description()),
        Kind::TooLarge => codec::too_large(MESSAGE_BYTES_MAX),
    }
}

/// The field of a path. Below `data` and `metadata` any JSON is legal except deep nesting, which is
/// a violation of the whole field.
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

/// The failure for a reply of the wrong kind from a coordinator.
pub(crate) fn unexpected_reply() -> Failure {
    Failure::new(&reason::INTERNAL).because("the coordinator gave an answer of the wrong kind")
}

#[cfg(test)]
mod tests {
    use faultline_proto::a2a::GetTaskRequest;

    use super::*;

    #[test]
    fn violation_below_free_json_names_the_whole_field() {
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
    fn all_violations_are_in_one_answer() {
        let message = Message { parts: vec![Default::default()], ..Message::default() };
        let request = SendMessageRequest { message: Some(message), ..Default::default() };
        let failure = call(&call::Body::Send(request)).unwrap_err();
        let fields: Vec<_> = failure.violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["message.messageId", "message.role", "message.parts[0]"]);
        assert!(failure.public_message.contains("message.role must be ROLE_USER"));
    }

    #[test]
    fn numeric_bounds_are_enforced() {
        let list = |page_size| {
            call(&call::Body::List(ListTasksRequest { page_size, ..Default::default() }))
        };
        assert!(list(None).is_ok() && list(Some(1)).is_ok() && list(Some(100)).is_ok());
        assert!(list(Some(0)).is_err() && list(Some(101)).is_err() && list(Some(-1)).is_err());
        let get = |id: &str, history_length| {
            let id = id.to_owned();
            call(&call::Body::Get(GetTaskRequest { id, history_length, ..Default::default() }))
        };
        assert!(get("x", Some(0)).is_ok());
        assert!(get("x", Some(-1)).is_err() && get("", None).is_err());
    }

    #[test]
    fn brackets_in_strings_do_not_count_as_nesting() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(!nests_too_deep(nested(128).as_bytes()));
        assert!(nests_too_deep(nested(129).as_bytes()));
        assert!(nests_too_deep("[".repeat(5000).as_bytes()));
        assert!(!nests_too_deep(format!("\"{}\\\"{{\"", "[".repeat(5000)).as_bytes()));
        assert!(!nests_too_deep("[]".repeat(5000).as_bytes()));
    }
}
