//! Operations of A2A: the name for JSON-RPC and gRPC, the route for HTTP+JSON, and whether the
//! operation is idempotent. Depends on no connection.

use faultline_proto::{
    a2a::{
        CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTasksRequest, SendMessageRequest,
        SubscribeToTaskRequest, TaskPushNotificationConfig,
    },
    json::{self, ProtoJson},
};
use http::{HeaderName, Method};

use crate::protocol::draft;

/// The headers of A2A's service parameters.
pub(crate) const VERSION_HEADER: HeaderName = HeaderName::from_static("a2a-version");
pub(crate) const EXTENSIONS_HEADER: HeaderName = HeaderName::from_static("a2a-extensions");

/// One operation with its request, independent of the binding.
#[derive(Clone, Debug)]
pub(crate) struct Operation<Q> {
    /// The name on JSON-RPC and gRPC.
    pub(crate) name: &'static str,
    pub(crate) request: Q,
    pub(crate) verb: Method,
    /// The path on HTTP+JSON, below the interface's URL and the tenant.
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    /// Idempotent: a repetition does no harm.
    pub(crate) repeatable: bool,
    /// The response is empty: `{}`, `null` or no body.
    pub(crate) empty_response: bool,
    pub(crate) idempotency_key: Option<String>,
    /// Start after this event.
    pub(crate) after: Option<u64>,
}

/// A request with a tenant: the agent of a server with several agents.
pub(crate) trait Request: ProtoJson + prost::Message + Clone + 'static {
    fn tenant(&mut self) -> &mut String;
}

macro_rules! requests {
    ($($request:ty),* $(,)?) => {
        $(impl Request for $request {
            fn tenant(&mut self) -> &mut String {
                &mut self.tenant
            }
        })*
    };
}

requests!(
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
);

impl<Q> Operation<Q> {
    fn new(name: &'static str, verb: Method, path: String, request: Q) -> Self {
        Self {
            name,
            request,
            verb,
            path,
            query: Vec::new(),
            repeatable: true,
            empty_response: false,
            idempotency_key: None,
            after: None,
        }
    }

    /// Sets the parameters that are not empty.
    fn with_query(mut self, query: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.query = query.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        self
    }
}

pub(crate) fn send(request: SendMessageRequest) -> Operation<SendMessageRequest> {
    sending("SendMessage", "/message:send", request)
}

pub(crate) fn send_streaming(request: SendMessageRequest) -> Operation<SendMessageRequest> {
    sending("SendStreamingMessage", "/message:stream", request)
}

fn sending(
    name: &'static str,
    path: &str,
    request: SendMessageRequest,
) -> Operation<SendMessageRequest> {
    let key = draft::idempotency_key(&request);
    let operation = Operation::new(name, Method::POST, path.to_owned(), request);
    Operation { repeatable: key.is_some(), idempotency_key: key, ..operation }
}

pub(crate) fn get_task(request: GetTaskRequest) -> Operation<GetTaskRequest> {
    let query = [("historyLength", number(request.history_length))];
    let path = format!("/tasks/{}", segment(&request.id));
    Operation::new("GetTask", Method::GET, path, request).with_query(query)
}

pub(crate) fn list_tasks(request: ListTasksRequest) -> Operation<ListTasksRequest> {
    let state = match request.status {
        0 => String::new(),
        _ => request.status().as_str_name().to_owned(),
    };
    let after = request.status_timestamp_after.as_ref().map(json::to_string).unwrap_or_default();
    let query = [
        ("contextId", request.context_id.clone()),
        ("status", state),
        ("pageSize", number(request.page_size)),
        ("pageToken", request.page_token.clone()),
        ("historyLength", number(request.history_length)),
        ("statusTimestampAfter", after.trim_matches('"').to_owned()),
        ("includeArtifacts", request.include_artifacts.map(|b| b.to_string()).unwrap_or_default()),
    ];
    Operation::new("ListTasks", Method::GET, "/tasks".to_owned(), request).with_query(query)
}

pub(crate) fn cancel_task(request: CancelTaskRequest) -> Operation<CancelTaskRequest> {
    let path = format!("/tasks/{}:cancel", segment(&request.id));
    Operation::new("CancelTask", Method::POST, path, request)
}

pub(crate) fn subscribe(
    request: SubscribeToTaskRequest,
    after: Option<u64>,
) -> Operation<SubscribeToTaskRequest> {
    let path = format!("/tasks/{}:subscribe", segment(&request.id));
    // The specification says both GET and POST; servers support GET.
    Operation { after, ..Operation::new("SubscribeToTask", Method::GET, path, request) }
}

pub(crate) fn create_push(
    config: TaskPushNotificationConfig,
) -> Operation<TaskPushNotificationConfig> {
    let path = pushes(&config.task_id);
    // Without an id, a repetition would create a second configuration.
    let repeatable = !config.id.is_empty();
    let operation = Operation::new("CreateTaskPushNotificationConfig", Method::POST, path, config);
    Operation { repeatable, ..operation }
}

pub(crate) fn get_push(
    request: GetTaskPushNotificationConfigRequest,
) -> Operation<GetTaskPushNotificationConfigRequest> {
    let path = format!("{}/{}", pushes(&request.task_id), segment(&request.id));
    Operation::new("GetTaskPushNotificationConfig", Method::GET, path, request)
}

pub(crate) fn list_pushes(
    request: ListTaskPushNotificationConfigsRequest,
) -> Operation<ListTaskPushNotificationConfigsRequest> {
    let size = Some(request.page_size).filter(|size| *size != 0);
    let query = [("pageSize", number(size)), ("pageToken", request.page_token.clone())];
    let path = pushes(&request.task_id);
    Operation::new("ListTaskPushNotificationConfigs", Method::GET, path, request).with_query(query)
}

pub(crate) fn delete_push(
    request: DeleteTaskPushNotificationConfigRequest,
) -> Operation<DeleteTaskPushNotificationConfigRequest> {
    let path = format!("{}/{}", pushes(&request.task_id), segment(&request.id));
    let operation =
        Operation::new("DeleteTaskPushNotificationConfig", Method::DELETE, path, request);
    Operation { empty_response: true, ..operation }
}

pub(crate) fn extended_card() -> Operation<GetExtendedAgentCardRequest> {
    let path = "/extendedAgentCard".to_owned();
    let request = GetExtendedAgentCardRequest::default();
    Operation::new("GetExtendedAgentCard", Method::GET, path, request)
}

fn pushes(task_id: &str) -> String {
    format!("/tasks/{}/pushNotificationConfigs", segment(task_id))
}

fn number(value: Option<i32>) -> String {
    value.map(|n| n.to_string()).unwrap_or_default()
}

/// Percent-encodes a name as one path segment or query value.
pub(crate) fn segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(byte.into()),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use faultline_proto::a2a::TaskState;

    use super::*;

    #[test]
    fn query_contains_only_set_parameters() {
        let bare = list_tasks(ListTasksRequest::default());
        assert_eq!((bare.path.as_str(), bare.query.len()), ("/tasks", 0));
        let full = list_tasks(ListTasksRequest {
            context_id: "c".to_owned(),
            status: TaskState::Working as i32,
            page_size: Some(5),
            page_token: "p".to_owned(),
            history_length: Some(0),
            status_timestamp_after: Some(prost_types::Timestamp { seconds: 1, nanos: 0 }),
            include_artifacts: Some(true),
            ..ListTasksRequest::default()
        });
        let query: Vec<_> = full.query.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            query.join("&"),
            "contextId=c&status=TASK_STATE_WORKING&pageSize=5&pageToken=p&historyLength=0\
             &statusTimestampAfter=1970-01-01T00:00:01.000Z&includeArtifacts=true"
        );
    }

    #[test]
    fn id_is_encoded_as_one_segment() {
        let request = GetTaskRequest { id: "a/b:cancel?x".to_owned(), ..Default::default() };
        assert_eq!(get_task(request).path, "/tasks/a%2Fb%3Acancel%3Fx");
    }

    #[test]
    fn send_is_repeatable_only_with_a_key() {
        assert!(!send(draft::text("x").into()).repeatable);
        let keyed = send_streaming(draft::text("x").idempotency_key("k").into());
        assert!(keyed.repeatable && keyed.idempotency_key.as_deref() == Some("k"));
        assert!(!create_push(TaskPushNotificationConfig::default()).repeatable);
    }
}
