//! The operators' view as ProtoJSON: `POST /mesh/{Method}` is `faultline.v1.Mesh/{Method}`, and
//! `Watch` is a stream of server-sent events. Authorization is here; the content comes from a
//! coordinator.

use std::time::Duration;

use axum::body::Body;
use faultline_proto::{
    Failure,
    advice::{Reader, advise},
    allocation,
    json::{self, ProtoJson},
    reason,
    v1::{Frame, call, reply},
};
use http::Response;

use crate::{
    http::{
        auth::{Principal, Scope},
        body,
        context::RequestContext,
        failure::{Rejection, Reporter},
        response::json_answer,
        sse::{self, EventFormat},
    },
    protocol::{validate, version::Version},
};

/// A method of `faultline.v1.Mesh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Agents,
    Workers,
    Inspect,
    Tasks,
    Events,
    Activity,
    Failures,
    Watch,
    Cancel,
    Answer,
    RemoveAgent,
}

impl Method {
    const ALL: [(Method, &'static str); 11] = [
        (Method::Agents, "Agents"),
        (Method::Workers, "Workers"),
        (Method::Inspect, "Inspect"),
        (Method::Tasks, "Tasks"),
        (Method::Events, "Events"),
        (Method::Activity, "Activity"),
        (Method::Failures, "Failures"),
        (Method::Watch, "Watch"),
        (Method::Cancel, "Cancel"),
        (Method::Answer, "Answer"),
        (Method::RemoveAgent, "RemoveAgent"),
    ];

    fn named(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(method, _)| *method).ok_or_else(|| {
            let all = Self::ALL.map(|(_, name)| name).join(", ");
            Failure::new(&reason::NOT_FOUND).because(format!("no such method: there are {all}"))
        })
    }

    /// Inspecting a task of the own principal needs `read`; everything else needs `operate`.
    fn scope(self, principal: Option<&Principal>) -> Scope {
        match self {
            Method::Inspect | Method::Events
                if !principal.is_some_and(|p| p.has(Scope::Operate)) =>
            {
                Scope::Read
            }
            _ => Scope::Operate,
        }
    }

    /// Whether the method changes a task or an agent.
    fn changes_state(self) -> bool {
        matches!(self, Method::Cancel | Method::Answer | Method::RemoveAgent)
    }

    fn call(self, body: &[u8]) -> Result<call::Body, Failure> {
        Ok(match self {
            Method::Agents => call::Body::Agents(request(body)?),
            Method::Workers => call::Body::Workers(request(body)?),
            Method::Inspect => call::Body::Inspect(request(body)?),
            Method::Tasks => call::Body::Tasks(request(body)?),
            Method::Events => call::Body::Events(request(body)?),
            Method::Activity => call::Body::Activity(request(body)?),
            Method::Failures => call::Body::Failures(request(body)?),
            Method::Watch => call::Body::Watch(request(body)?),
            Method::Cancel => call::Body::OperatorCancel(request(body)?),
            Method::Answer => call::Body::OperatorAnswer(request(body)?),
            Method::RemoveAgent => call::Body::RemoveAgent(request(body)?),
        })
    }
}

pub(crate) async fn handle(
    context: &RequestContext,
    method: &str,
    body: &mut Body,
) -> Result<Response<Body>, Rejection> {
    // Authorization precedes the check of the method name, which would reveal the methods.
    let named = Method::named(method);
    let scope = named.as_ref().map(|method| method.scope(context.principal.as_ref()));
    context.require_scope(scope.unwrap_or(Scope::Operate))?;
    let method = named?;
    if method.changes_state() && !context.gateway.operators_act {
        return Err(actions_disabled().into());
    }
    let body = body::read_json(&context.head, body).await?;
    let call = method.call(&body)?;
    validate::size(call.encoded_len())?;
    let caller = context.caller(Duration::ZERO);
    if method == Method::Watch {
        let changes = context.gateway.pool.stream(caller, call).await?;
        return Ok(sse::respond(context, changes, WatchFormat).await?);
    }
    let body = match context.gateway.pool.call(caller, call).await?.body {
        reply::Body::Agents(agents) => json::to_vec(&agents),
        reply::Body::Workers(workers) => json::to_vec(&workers),
        reply::Body::Inspect(mut inspect) => {
            let link = context.gateway.trace_link.as_ref();
            inspect.trace_url = link.map(|link| link.to(&inspect.trace_id)).unwrap_or_default();
            let operates = context.principal.as_ref().is_some_and(|p| p.has(Scope::Operate));
            let reader = if operates { Reader::Operator } else { Reader::Caller };
            let failure = inspect.failure.clone().map(Failure::from_record);
            inspect.advice = failure.map(|failure| advise(&failure, reader).to_record());
            json::to_vec(&*inspect)
        }
        reply::Body::AgentRemoved(removed) => json::to_vec(&removed),
        reply::Body::Tasks(tasks) => json::to_vec(&tasks),
        reply::Body::Events(events) => json::to_vec(&events),
        reply::Body::Activity(activity) => json::to_vec(&activity),
        reply::Body::Failures(failures) => json::to_vec(&failures),
        _ => return Err(validate::unexpected_reply().into()),
    };
    Ok(json_answer(body.into()))
}

fn actions_disabled() -> Failure {
    Failure::new(&reason::PERMISSION_DENIED).because(
        "operators of this gateway have read access only: `operators_act = true` in [gateway] lets \
         them cancel and answer tasks, and remove agents",
    )
}

/// An empty body is an empty request.
fn request<T: ProtoJson + Default>(body: &[u8]) -> Result<T, Failure> {
    match body.trim_ascii() {
        b"" => Ok(T::default()),
        body => json::from_caller(body, allocation::MESSAGE_BYTES_MAX)
            .map_err(|error| validate::decode_failure(&error)),
    }
}

/// The format of a watch: bare messages, and a failure as an event of the type `error`.
struct WatchFormat;

impl EventFormat for WatchFormat {
    fn write_event(&self, frame: Frame, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        json::write(&frame.changed.unwrap_or_default(), out);
        out.extend_from_slice(b"\n\n");
    }

    fn write_failure(&self, failure: Failure, report: &Reporter, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event: error\ndata: ");
        report.write_plain(failure, Version::V1, out);
        out.extend_from_slice(b"\n\n");
    }
}
