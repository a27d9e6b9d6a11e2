//! The response format of JSON-RPC and REST: the envelope around an answer and the version of A2A
//! it is written in. Requests of 0.3 are translated to 1.0 here, and answers back.

use axum::body::Body;
use bytes::Bytes;
use faultline_proto::{
    Failure,
    a2a::ListTasksResponse,
    allocation, json,
    v1::{Frame, call, reply},
};
use http::{HeaderValue, Response, header::CONTENT_TYPE};
use serde_json::Value;

use crate::{
    http::{
        admission::{self, AdmittedCall},
        card_endpoint,
        context::RequestContext,
        extensions,
        failure::{JSON, Rejection, Reporter},
        sse::{self, EventFormat},
    },
    protocol::{
        operation::Operation,
        request_id::RequestId,
        v03::{self, Dialect},
        validate,
        version::Version,
    },
};

const A2A_JSON: HeaderValue = HeaderValue::from_static("application/a2a+json");

/// The format of one response. Streams keep it until they end.
#[derive(Clone)]
pub(crate) struct ResponseFormat {
    pub(crate) envelope: Envelope,
    pub(crate) version: Version,
    pub(crate) operation: Operation,
}

#[derive(Clone)]
pub(crate) enum Envelope {
    /// A JSON-RPC response with the id of its request.
    JsonRpc(RequestId),
    /// No envelope.
    Bare,
}

impl ResponseFormat {
    /// Parses a request in JSON; validation follows later.
    pub(crate) fn read(&self, text: &str) -> Result<call::Body, Failure> {
        match self.version {
            Version::V1 => self.operation.read(text),
            Version::V03 => {
                let old = json::plain_from_caller(text, allocation::MESSAGE_BYTES_MAX);
                let old = old.map_err(|error| validate::decode_failure(&error))?;
                let new = v03::request(self.operation, self.dialect(), old)?;
                v03::effective_operation(self.operation, &new).read(&new.to_string())
            }
        }
    }

    /// Admits and sends a call, and answers in this format, also with a failure.
    pub(crate) async fn respond(
        self,
        context: &RequestContext,
        agent: Option<&str>,
        call: Result<call::Body, Failure>,
    ) -> Response<Body> {
        let admit = |call| admission::admit(context, self.operation, agent, call);
        let answered = match call.and_then(admit) {
            Err(failure) => Err(failure),
            Ok(call) if self.operation.streams() => self.respond_with_stream(context, call).await,
            Ok(call) => self.respond_once(context, call).await,
        };
        answered.unwrap_or_else(|failure| self.reject(failure.into(), context))
    }

    async fn respond_with_stream(
        &self,
        context: &RequestContext,
        call: AdmittedCall,
    ) -> Result<Response<Body>, Failure> {
        let frames = admission::open_stream(context, call).await?;
        sse::respond(context, frames, self.clone()).await
    }

    async fn respond_once(
        &self,
        context: &RequestContext,
        call: AdmittedCall,
    ) -> Result<Response<Body>, Failure> {
        let with_artifacts = call.lists_artifacts();
        let answer = admission::call(context, call).await?;
        let mut response = match (&self.envelope, &answer.body) {
            (Envelope::Bare, reply::Body::Card(card)) => {
                card_endpoint::extended_card(context, card, self.kind())
            }
            (_, body) => self.full_response(body, with_artifacts)?,
        };
        extensions::set_header(&answer.extensions, &context.head.headers, response.headers_mut());
        Ok(response)
    }

    fn full_response(
        &self,
        answer: &reply::Body,
        with_artifacts: bool,
    ) -> Result<Response<Body>, Failure> {
        let mut out = Vec::with_capacity(1024);
        self.open(&mut out);
        match (self.version, answer) {
            (Version::V1, reply::Body::List(list)) if with_artifacts => {
                write_with_artifacts(list, &mut out);
            }
            (Version::V1, answer) => write(answer, &mut out)?,
            (Version::V03, answer) => self.write_v03(answer, &mut out)?,
        }
        self.close(&mut out);
        let mut response = Response::new(Body::from(out));
        response.headers_mut().insert(CONTENT_TYPE, self.kind());
        Ok(response)
    }

    fn write_v03(&self, answer: &reply::Body, out: &mut Vec<u8>) -> Result<(), Failure> {
        let mut new = Vec::new();
        match (self.operation, answer) {
            (Operation::GetTaskPushNotificationConfig, reply::Body::Pushes(all)) => {
                let first = all.configs.first().ok_or_else(v03::no_configuration)?;
                json::write(first, &mut new);
            }
            _ => write(answer, &mut new)?,
        }
        put(&v03::response(self.operation, self.dialect(), reread(&new)), out);
        Ok(())
    }

    pub(crate) fn reject(&self, refused: Rejection, context: &RequestContext) -> Response<Body> {
        match &self.envelope {
            Envelope::JsonRpc(id) => context.reporter().rpc(refused, id),
            Envelope::Bare => context.reporter().plain(refused, self.version),
        }
    }

    fn kind(&self) -> HeaderValue {
        match (&self.envelope, self.version) {
            (Envelope::Bare, Version::V1) => A2A_JSON,
            _ => JSON,
        }
    }

    fn dialect(&self) -> Dialect {
        match self.envelope {
            Envelope::JsonRpc(_) => Dialect::Rpc,
            Envelope::Bare => Dialect::Rest,
        }
    }

    fn open(&self, out: &mut Vec<u8>) {
        if let Envelope::JsonRpc(id) = &self.envelope {
            out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
            out.extend_from_slice(id.as_bytes());
            out.extend_from_slice(br#","result":"#);
        }
    }

    fn close(&self, out: &mut Vec<u8>) {
        if let Envelope::JsonRpc(_) = self.envelope {
            out.push(b'}');
        }
    }
}

impl EventFormat for ResponseFormat {
    fn write_event(&self, frame: Frame, out: &mut Vec<u8>) {
        let event = &frame.response.unwrap_or_default();
        out.extend_from_slice(b"data: ");
        self.open(out);
        match self.version {
            Version::V1 => json::write(event, out),
            Version::V03 => {
                let new = reread(&json::to_vec(event));
                put(&v03::event(self.operation, self.dialect(), new), out);
            }
        }
        self.close(out);
        out.extend_from_slice(b"\n\n");
    }

    /// The last event of a stream that failed: a JSON-RPC error, or without JSON-RPC an event of
    /// the type `error`.
    fn write_failure(&self, failure: Failure, report: &Reporter, out: &mut Vec<u8>) {
        let event: &[u8] = match self.envelope {
            Envelope::JsonRpc(_) => b"data: ",
            Envelope::Bare => b"event: error\ndata: ",
        };
        out.extend_from_slice(event);
        match &self.envelope {
            Envelope::JsonRpc(id) => report.write_rpc(failure, id, out),
            Envelope::Bare => report.write_plain(failure, self.version, out),
        }
        out.extend_from_slice(b"\n\n");
    }
}

fn reread(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("what ProtoJSON writes is JSON")
}

fn put(value: &Value, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a Value is always JSON");
}

pub(crate) fn json_answer(body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// Appends the JSON of an answer to an operation. Other replies are an error.
fn write(answer: &reply::Body, out: &mut Vec<u8>) -> Result<(), Failure> {
    match answer {
        reply::Body::Sent(sent) => json::write(sent, out),
        reply::Body::Task(task) => json::write(task, out),
        reply::Body::List(list) => json::write(list, out),
        reply::Body::Push(config) => json::write(config, out),
        reply::Body::Pushes(configs) => json::write(configs, out),
        reply::Body::Card(card) => json::write(card, out),
        reply::Body::Deleted(_) => out.extend_from_slice(b"{}"),
        reply::Body::Frame(_)
        | reply::Body::Failure(_)
        | reply::Body::End(_)
        | reply::Body::Agents(_)
        | reply::Body::Workers(_)
        | reply::Body::Inspect(_)
        | reply::Body::Tasks(_)
        | reply::Body::Events(_)
        | reply::Body::Activity(_)
        | reply::Body::Failures(_)
        | reply::Body::AgentRemoved(_)
        | reply::Body::Moved(_) => return Err(validate::unexpected_reply()),
    }
    Ok(())
}

/// Appends a list of tasks with `artifacts` in each task. An empty list of artifacts is written
/// too: protobuf cannot tell it from an absent one, but JSON can.
fn write_with_artifacts(list: &ListTasksResponse, out: &mut Vec<u8>) {
    const EMPTY: &[u8] = br#"{"tasks":[]"#;
    let around = ListTasksResponse {
        tasks: Vec::new(),
        next_page_token: list.next_page_token.clone(),
        ..*list
    };
    let around = json::to_vec(&around);
    let rest = around.strip_prefix(EMPTY).expect("the tasks are required and come first");
    out.extend_from_slice(&EMPTY[..EMPTY.len() - 1]);
    for task in &list.tasks {
        json::write(task, out);
        if task.artifacts.is_empty() {
            out.pop();
            out.extend_from_slice(br#","artifacts":[]}"#);
        }
        out.push(b',');
    }
    if !list.tasks.is_empty() {
        out.pop();
    }
    out.push(b']');
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_with_artifacts_has_them_in_every_task() {
        let mut list: ListTasksResponse = json::from_str(
            r#"{"tasks":[{"id":"a"},{"id":"b","artifacts":[{"artifactId":"x"}]},{"id":"c"}],
                "nextPageToken":"n","pageSize":3,"totalSize":7}"#,
        )
        .unwrap();
        let written = |list: &ListTasksResponse| -> serde_json::Value {
            let mut out = Vec::new();
            write_with_artifacts(list, &mut out);
            serde_json::from_slice(&out).unwrap()
        };
        let mut shown = written(&list);
        for (task, count) in [(0, 0), (1, 1), (2, 0)] {
            let artifacts = shown["tasks"][task].as_object_mut().unwrap().remove("artifacts");
            assert_eq!(artifacts.unwrap().as_array().unwrap().len(), count);
        }
        list.tasks.iter_mut().for_each(|task| task.artifacts.clear());
        let plain: serde_json::Value = serde_json::from_str(&json::to_string(&list)).unwrap();
        assert_eq!(shown, plain, "everything else is the same");
        list.tasks.clear();
        assert_eq!(written(&list)["tasks"], serde_json::json!([]));
    }
}
