//! The REST binding, which A2A calls HTTP+JSON: a request is made of the path, the query and the
//! body. The paths are in `http::route`, the responses in `http::response`.

use std::{borrow::Cow, str};

use axum::body::Body;
use faultline_proto::{
    Failure,
    a2a::{
        GetExtendedAgentCardRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTasksRequest,
    },
    json::ProtoMessage,
    reason,
    v1::call,
};
use http::{Method, Response};
use serde_json::{Map, Value};

use crate::{
    http::{
        admission, body,
        context::RequestContext,
        failure::Rejection,
        negotiation,
        response::{Envelope, ResponseFormat},
        route::{Resource, RestPath},
    },
    protocol::{operation::Operation, validate, version::Version},
};

pub(crate) async fn handle(
    context: &RequestContext,
    rest: &RestPath<'_>,
    operation: Operation,
    body: &mut Body,
) -> Result<Response<Body>, Rejection> {
    context.set_operation(operation);
    let version = version(context, rest, operation)?;
    let format = ResponseFormat { envelope: Envelope::Bare, version, operation };
    let call = match context.head.method {
        Method::POST => {
            let body = body::read_json(&context.head, body).await?;
            from_body(&format, &body)
        }
        _ => from_query(&format, context.head.uri.query().unwrap_or("")),
    };
    let call = call.map(|mut call| {
        set_path_ids(&mut call, &rest.resource);
        call
    });
    let mut tenant = rest.tenant.clone().map(Cow::into_owned).unwrap_or_default();
    admission::set_tenant(&mut tenant, rest.agent)?;
    let agent = Some(tenant.as_str()).filter(|tenant| !tenant.is_empty());
    Ok(format.respond(context, agent, call).await)
}

/// The version, which the path determines. A header that differs is an error.
fn version(
    context: &RequestContext,
    rest: &RestPath<'_>,
    operation: Operation,
) -> Result<Version, Failure> {
    let version = negotiation::version(context)?;
    if !rest.is_v03 {
        negotiation::require_v1(context, version, operation)?;
        return Ok(Version::V1);
    }
    negotiation::require_v03_served(context)?;
    match version {
        Version::V03 => Ok(Version::V03),
        Version::V1 => Err(Failure::new(&reason::VERSION_NOT_SUPPORTED).because(
            "paths below /v1 are A2A 0.3, and A2A-Version is 1.0: leave /v1 out of the path",
        )),
    }
}

/// No body, `null` and `{}` are the same: an empty request.
fn from_body(format: &ResponseFormat, body: &[u8]) -> Result<call::Body, Failure> {
    let text = match body.trim_ascii() {
        b"" | b"null" => "{}",
        body => str::from_utf8(body).map_err(|e| {
            validate::not_json(&format!("invalid UTF-8 after byte {}", e.valid_up_to()))
        })?,
    };
    validate::depth(text.as_bytes())?;
    format.read(text)
}

fn from_query(format: &ResponseFormat, query: &str) -> Result<call::Body, Failure> {
    let fields = Value::Object(parameters(format.operation, query)?);
    format.read(&fields.to_string())
}

/// The parameters of a query that are fields of the request, by their JSON or their proto name.
/// Others are ignored.
fn parameters(operation: Operation, query: &str) -> Result<Map<String, Value>, Failure> {
    let mut fields = Map::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let Some(field) = field(operation, &name) else { continue };
        // ProtoJSON reads numbers and enums from text, but not booleans.
        let value = match (field, &*value) {
            ("includeArtifacts", "true") => Value::Bool(true),
            ("includeArtifacts", "false") => Value::Bool(false),
            ("includeArtifacts", _) => {
                return Err(validate::violation(field, "must be true or false"));
            }
            (_, text) => Value::String(text.to_owned()),
        };
        if fields.insert(field.to_owned(), value).is_some() {
            return Err(validate::violation(field, "is given twice"));
        }
    }
    Ok(fields)
}

fn field(operation: Operation, name: &str) -> Option<&'static str> {
    match operation {
        Operation::GetTask => field_of::<GetTaskRequest>(name),
        Operation::ListTasks => field_of::<ListTasksRequest>(name),
        Operation::ListTaskPushNotificationConfigs => {
            field_of::<ListTaskPushNotificationConfigsRequest>(name)
        }
        Operation::GetTaskPushNotificationConfig | Operation::DeleteTaskPushNotificationConfig => {
            field_of::<GetTaskPushNotificationConfigRequest>(name)
        }
        _ => field_of::<GetExtendedAgentCardRequest>(name),
    }
}

fn field_of<M: ProtoMessage>(name: &str) -> Option<&'static str> {
    M::field(name).map(|at| M::FIELDS[at])
}

/// Sets the ids of the path, which take precedence over those of the body or the query.
fn set_path_ids(call: &mut call::Body, resource: &Resource<'_>) {
    match (call, resource) {
        (call::Body::Get(request), Resource::Task(id)) => request.id = id.to_string(),
        (call::Body::Cancel(request), Resource::Cancel(id)) => request.id = id.to_string(),
        (call::Body::Subscribe(subscribe), Resource::Subscribe(id)) => {
            subscribe.request.get_or_insert_default().id = id.to_string();
        }
        (call::Body::CreatePush(config), Resource::PushConfigs(task)) => {
            config.task_id = task.to_string();
        }
        (call::Body::ListPush(request), Resource::PushConfigs(task)) => {
            request.task_id = task.to_string();
        }
        (call::Body::GetPush(request), Resource::PushConfig(task, id)) => {
            (request.task_id, request.id) = (task.to_string(), id.to_string());
        }
        (call::Body::DeletePush(request), Resource::PushConfig(task, id)) => {
            (request.task_id, request.id) = (task.to_string(), id.to_string());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn query_parameter_is_read_by_json_or_proto_name() {
        let read = |query: &str| parameters(Operation::ListTasks, query).map(Value::Object);
        let said = "context_id=a%2Bb+c&pageSize=5&includeArtifacts=true&utm=x&A2A-Version=1.0";
        let fields = json!({"contextId": "a+b c", "pageSize": "5", "includeArtifacts": true});
        assert_eq!(read(said).unwrap(), fields);
        for (bad, field) in [
            ("includeArtifacts=yes", "includeArtifacts"),
            ("pageSize=1&page_size=2", "pageSize"),
            ("status=a&status=b", "status"),
        ] {
            assert_eq!(read(bad).unwrap_err().violations[0].field, field, "{bad}");
        }
    }

    #[test]
    fn invalid_query_value_names_its_parameter() {
        let format = ResponseFormat {
            envelope: Envelope::Bare,
            version: Version::V1,
            operation: Operation::ListTasks,
        };
        for (bad, field) in [
            ("pageSize=many", "pageSize"),
            ("historyLength=1.5", "historyLength"),
            ("status=DONE", "status"),
            ("statusTimestampAfter=yesterday", "statusTimestampAfter"),
        ] {
            assert_eq!(from_query(&format, bad).unwrap_err().violations[0].field, field, "{bad}");
        }
        let good = "status=TASK_STATE_WORKING&statusTimestampAfter=2026-01-02T03:04:05.678Z";
        assert!(from_query(&format, good).is_ok());
    }
}
