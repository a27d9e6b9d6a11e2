//! Routing: the one table of paths for all bindings. It is not axum's router, which cannot match
//! `{id}:cancel`, and which cannot reject a request in the form of its binding.

use std::borrow::Cow;

use http::{HeaderMap, Method, header::CONTENT_TYPE};
use percent_encoding::percent_decode_str;

use crate::protocol::{binding::Binding, operation::Operation};

const HEALTH: &str = "/grpc.health.v1.Health/";
const CARD: &str = ".well-known/agent-card.json";
const LEGACY_CARD: &str = ".well-known/agent.json";
/// Reserved first segments of a path: no tenant can have such a name.
const RESERVED: [&str; 9] =
    [".well-known", "agents", "console", "healthz", "mesh", "message", "metrics", "tasks", "v1"];

/// The configuration of the console for its user: its one file that is not public.
pub(crate) const CONSOLE_CONFIG: &str = "config.json";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// gRPC, on the same port, recognized by its content type.
    Grpc,
    /// The gRPC health service, which needs no token.
    GrpcHealth,
    /// JSON-RPC, at the root or for one agent.
    Rpc(Option<&'a str>),
    Rest(RestPath<'a>),
    Card(Option<&'a str>),
    /// The card at the path of clients older than 0.3.
    LegacyCard(Option<&'a str>),
    Mesh(&'a str),
    /// Metrics for Prometheus.
    Metrics,
    /// The console: without a slash, or one of its files.
    Console(Option<&'a str>),
    Health,
    Unknown,
}

/// One resource of the REST binding, with the agent and the tenant of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RestPath<'a> {
    /// Of the path `/agents/{agent}/…`.
    pub(crate) agent: Option<&'a str>,
    /// Of the path `/{tenant}/…`, which may follow the agent.
    pub(crate) tenant: Option<Cow<'a, str>>,
    /// Whether the path is below `/v1`, the paths of A2A 0.3.
    pub(crate) is_v03: bool,
    pub(crate) resource: Resource<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    Send,
    Stream,
    Tasks,
    Task(Cow<'a, str>),
    Cancel(Cow<'a, str>),
    Subscribe(Cow<'a, str>),
    PushConfigs(Cow<'a, str>),
    PushConfig(Cow<'a, str>, Cow<'a, str>),
    ExtendedCard,
}

impl<'a> Route<'a> {
    pub(crate) fn parse(path: &'a str, headers: &HeaderMap) -> Self {
        match path {
            _ if is_grpc(headers) && path.starts_with(HEALTH) => Route::GrpcHealth,
            _ if is_grpc(headers) => Route::Grpc,
            "/" => Route::Rpc(None),
            "/healthz" => Route::Health,
            "/metrics" => Route::Metrics,
            _ => path.strip_prefix('/').map_or(Route::Unknown, Self::below_root),
        }
    }

    fn below_root(path: &'a str) -> Self {
        match path.split_once('/') {
            _ if path == CARD => Route::Card(None),
            _ if path == LEGACY_CARD => Route::LegacyCard(None),
            None if path == "console" => Route::Console(None),
            Some(("console", file)) => Route::Console(Some(file)),
            Some(("mesh", method)) => Route::Mesh(method),
            Some(("agents", rest)) => Self::below_agents(rest),
            _ => RestPath::parse(None, path).map_or(Route::Unknown, Route::Rest),
        }
    }

    fn below_agents(path: &'a str) -> Self {
        let (agent, rest) = path.split_once('/').unwrap_or((path, ""));
        match rest {
            // The name of an agent never needs escaping.
            _ if agent.is_empty() || agent.contains('%') => Route::Unknown,
            "" => Route::Rpc(Some(agent)),
            CARD => Route::Card(Some(agent)),
            LEGACY_CARD => Route::LegacyCard(Some(agent)),
            rest => RestPath::parse(Some(agent), rest).map_or(Route::Unknown, Route::Rest),
        }
    }

    /// The binding of a path; `None` for cards, health and the operators' view.
    pub(crate) fn binding(&self) -> Option<Binding> {
        match self {
            Route::Rpc(_) => Some(Binding::JsonRpc),
            Route::Rest(_) => Some(Binding::Rest),
            Route::Grpc => Some(Binding::Grpc),
            Route::GrpcHealth
            | Route::Card(_)
            | Route::LegacyCard(_)
            | Route::Mesh(_)
            | Route::Metrics
            | Route::Console(_)
            | Route::Health
            | Route::Unknown => None,
        }
    }

    /// The methods of a path, as `Allow` lists them.
    pub(crate) fn allow(&self) -> &'static str {
        match self {
            Route::Grpc | Route::GrpcHealth | Route::Rpc(_) | Route::Mesh(_) => "POST",
            Route::Rest(rest) => rest.resource.allow(),
            Route::Card(_) | Route::LegacyCard(_) | Route::Console(_) => "GET, HEAD",
            Route::Metrics | Route::Health | Route::Unknown => "GET, HEAD",
        }
    }

    pub(crate) fn allows(&self, method: &Method) -> bool {
        self.allow().split(", ").any(|allowed| allowed == method.as_str())
    }

    /// Whether the path needs no authentication.
    pub(crate) fn is_public(&self) -> bool {
        match self {
            Route::Card(_) | Route::LegacyCard(_) | Route::Health | Route::GrpcHealth => true,
            // The files of the console contain no data; only its configuration depends on the user.
            Route::Console(file) => *file != Some(CONSOLE_CONFIG),
            Route::Unknown => true,
            Route::Grpc | Route::Rpc(_) | Route::Rest(_) | Route::Mesh(_) => false,
            Route::Metrics => false,
        }
    }

    /// The path template for spans and metrics, so that clients cannot add series.
    pub(crate) fn template(&self) -> &'static str {
        match self {
            Route::Grpc => "/lf.a2a.v1.A2AService",
            Route::GrpcHealth => "/grpc.health.v1.Health",
            Route::Rpc(None) => "/",
            Route::Rpc(Some(_)) => "/agents/{agent}",
            Route::Rest(rest) => rest.resource.template(),
            Route::Card(None) => "/.well-known/agent-card.json",
            Route::Card(Some(_)) => "/agents/{agent}/.well-known/agent-card.json",
            Route::LegacyCard(None) => "/.well-known/agent.json",
            Route::LegacyCard(Some(_)) => "/agents/{agent}/.well-known/agent.json",
            Route::Mesh(_) => "/mesh/{method}",
            Route::Metrics => "/metrics",
            Route::Console(None) => "/console",
            Route::Console(Some(_)) => "/console/{file}",
            Route::Health => "/healthz",
            Route::Unknown => "unknown path",
        }
    }
}

pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let given = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let rest = given.and_then(|value| value.strip_prefix(b"application/grpc"));
    // `application/grpc-web` is another protocol.
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

impl<'a> RestPath<'a> {
    fn parse(agent: Option<&'a str>, path: &'a str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (path, is_v03) = match path.strip_prefix("v1/") {
            Some(rest) => (rest, true),
            None => (path, false),
        };
        if let Some(resource) = Resource::parse(path, is_v03) {
            return Some(Self { agent, tenant: None, is_v03, resource });
        }
        let (first, rest) = path.split_once('/')?;
        let tenant = decode(first).filter(|t| !t.is_empty() && !RESERVED.contains(&&**t))?;
        let resource = Resource::parse(rest, is_v03)?;
        Some(Self { agent, tenant: Some(tenant), is_v03, resource })
    }
}

impl<'a> Resource<'a> {
    fn parse(path: &'a str, is_v03: bool) -> Option<Self> {
        let steps = path.split('/').map(decode).collect::<Option<Vec<_>>>()?;
        let mut steps = steps.into_iter();
        let step = (steps.next()?, steps.next(), steps.next(), steps.next(), steps.next());
        let named = |id: &Cow<'_, str>| !id.is_empty();
        Some(match step {
            (first, None, ..) => match &*first {
                "message:send" => Resource::Send,
                "message:stream" => Resource::Stream,
                // A2A 0.3 has no operation that lists tasks.
                "tasks" if !is_v03 => Resource::Tasks,
                "extendedAgentCard" if !is_v03 => Resource::ExtendedCard,
                "card" if is_v03 => Resource::ExtendedCard,
                _ => return None,
            },
            (tasks, Some(id), None, ..) if tasks == "tasks" && named(&id) => {
                match id.rsplit_once(':') {
                    Some((id, "cancel")) => Resource::Cancel(Cow::Owned(id.to_owned())),
                    Some((id, "subscribe")) => Resource::Subscribe(Cow::Owned(id.to_owned())),
                    _ => Resource::Task(id),
                }
            }
            (tasks, Some(task), Some(pushes), push, None)
                if tasks == "tasks" && named(&task) && pushes == "pushNotificationConfigs" =>
            {
                match push {
                    None => Resource::PushConfigs(task),
                    Some(id) => named(&id).then_some(Resource::PushConfig(task, id))?,
                }
            }
            _ => return None,
        })
    }

    /// The operation of a method on this resource, if there is one.
    pub(crate) fn operation(&self, method: &Method) -> Option<Operation> {
        Some(match (self, method.as_str()) {
            (Resource::Send, "POST") => Operation::SendMessage,
            (Resource::Stream, "POST") => Operation::SendStreamingMessage,
            (Resource::Tasks, "GET") => Operation::ListTasks,
            (Resource::Task(_), "GET") => Operation::GetTask,
            (Resource::Cancel(_), "POST") => Operation::CancelTask,
            // The specification names both methods, so clients use either.
            (Resource::Subscribe(_), "GET" | "POST") => Operation::SubscribeToTask,
            (Resource::PushConfigs(_), "POST") => Operation::CreateTaskPushNotificationConfig,
            (Resource::PushConfigs(_), "GET") => Operation::ListTaskPushNotificationConfigs,
            (Resource::PushConfig(..), "GET") => Operation::GetTaskPushNotificationConfig,
            (Resource::PushConfig(..), "DELETE") => Operation::DeleteTaskPushNotificationConfig,
            (Resource::ExtendedCard, "GET") => Operation::GetExtendedAgentCard,
            _ => return None,
        })
    }

    fn allow(&self) -> &'static str {
        match self {
            Resource::Send | Resource::Stream | Resource::Cancel(_) => "POST",
            Resource::Tasks | Resource::Task(_) | Resource::ExtendedCard => "GET",
            Resource::Subscribe(_) | Resource::PushConfigs(_) => "GET, POST",
            Resource::PushConfig(..) => "GET, DELETE",
        }
    }

    fn template(&self) -> &'static str {
        match self {
            Resource::Send => "/message:send",
            Resource::Stream => "/message:stream",
            Resource::Tasks => "/tasks",
            Resource::Task(_) => "/tasks/{id}",
            Resource::Cancel(_) => "/tasks/{id}:cancel",
            Resource::Subscribe(_) => "/tasks/{id}:subscribe",
            Resource::PushConfigs(_) => "/tasks/{id}/pushNotificationConfigs",
            Resource::PushConfig(..) => "/tasks/{id}/pushNotificationConfigs/{config}",
            Resource::ExtendedCard => "/extendedAgentCard",
        }
    }
}

/// One decoded segment of a path; `None` if it is not UTF-8.
fn decode(step: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(step).decode_utf8().ok()
}

#[cfg(test)]
mod tests;
