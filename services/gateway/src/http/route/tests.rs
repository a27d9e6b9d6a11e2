//! The table of paths, and the methods of each.

use super::*;

fn rest(
    agent: Option<&'static str>,
    tenant: Option<&'static str>,
    resource: Resource<'static>,
) -> Route<'static> {
    let tenant = tenant.map(Cow::Borrowed);
    Route::Rest(RestPath { agent, tenant, is_v03: false, resource })
}

fn v03(agent: Option<&'static str>, resource: Resource<'static>) -> Route<'static> {
    Route::Rest(RestPath { agent, tenant: None, is_v03: true, resource })
}

#[test]
fn every_path_has_one_meaning() {
    let id = |id: &'static str| Cow::Borrowed(id);
    for (path, route) in [
        ("/", Route::Rpc(None)),
        ("/agents/echo", Route::Rpc(Some("echo"))),
        ("/agents/echo/", Route::Rpc(Some("echo"))),
        ("/agents/", Route::Unknown),
        ("/agents", Route::Unknown),
        ("/agents//", Route::Unknown),
        ("/agents/echo//", Route::Unknown),
        ("/agents/%65cho", Route::Unknown),
        ("/agents/%65cho/tasks", Route::Unknown),
        ("/.well-known/agent-card.json", Route::Card(None)),
        ("/agents/echo/.well-known/agent-card.json", Route::Card(Some("echo"))),
        ("/.well-known/agent.json", Route::LegacyCard(None)),
        ("/agents/echo/.well-known/agent.json", Route::LegacyCard(Some("echo"))),
        ("/mesh/Agents", Route::Mesh("Agents")),
        ("/mesh", Route::Unknown),
        ("/healthz", Route::Health),
        ("/healthz/", Route::Unknown),
        ("/metrics", Route::Metrics),
        ("/metrics/x", Route::Unknown),
        ("//", Route::Unknown),
        ("", Route::Unknown),
        ("/message:send", rest(None, None, Resource::Send)),
        ("/message%3Asend", rest(None, None, Resource::Send)),
        ("/message:stream/", rest(None, None, Resource::Stream)),
        ("/message:other", Route::Unknown),
        ("/tasks", rest(None, None, Resource::Tasks)),
        ("/tasks/", rest(None, None, Resource::Tasks)),
        ("/tasks//", Route::Unknown),
        ("/tasks/t-1", rest(None, None, Resource::Task(id("t-1")))),
        ("/tasks/t%2D1", rest(None, None, Resource::Task(id("t-1")))),
        ("/tasks/a%2Fb", rest(None, None, Resource::Task(id("a/b")))),
        ("/tasks/%ff", Route::Unknown),
        ("/tasks/t:other", rest(None, None, Resource::Task(id("t:other")))),
        ("/tasks/t:cancel", rest(None, None, Resource::Cancel(id("t")))),
        ("/tasks/t:subscribe", rest(None, None, Resource::Subscribe(id("t")))),
        ("/tasks/t/pushNotificationConfigs", rest(None, None, Resource::PushConfigs(id("t")))),
        (
            "/tasks/t/pushNotificationConfigs/p",
            rest(None, None, Resource::PushConfig(id("t"), id("p"))),
        ),
        ("/tasks/t/pushNotificationConfigs/p/x", Route::Unknown),
        ("/tasks/t/other", Route::Unknown),
        ("/extendedAgentCard", rest(None, None, Resource::ExtendedCard)),
        ("/echo/tasks", rest(None, Some("echo"), Resource::Tasks)),
        ("/echo/tasks/t", rest(None, Some("echo"), Resource::Task(id("t")))),
        ("/echo", Route::Unknown),
        ("/console", Route::Console(None)),
        ("/console/", Route::Console(Some(""))),
        ("/console/app.js", Route::Console(Some("app.js"))),
        ("/console/tasks", Route::Console(Some("tasks"))),
        ("/consoles/tasks", rest(None, Some("consoles"), Resource::Tasks)),
        ("/v1/v1/tasks", Route::Unknown),
        ("/agents/echo/tasks", rest(Some("echo"), None, Resource::Tasks)),
        ("/agents/echo/plan/tasks", rest(Some("echo"), Some("plan"), Resource::Tasks)),
        ("/agents/echo/x/y/tasks", Route::Unknown),
        ("/v1/tasks/t", v03(None, Resource::Task(id("t")))),
        ("/v1/card", v03(None, Resource::ExtendedCard)),
        ("/v1/extendedAgentCard", Route::Unknown),
        ("/v1/tasks", Route::Unknown),
        ("/card", Route::Unknown),
        ("/agents/echo/v1/message:send", v03(Some("echo"), Resource::Send)),
    ] {
        assert_eq!(Route::parse(path, &HeaderMap::new()), route, "{path}");
    }
}

#[test]
fn allowed_methods_match_the_operations() {
    for path in [
        "/message:send",
        "/message:stream",
        "/tasks",
        "/tasks/t",
        "/tasks/t:cancel",
        "/tasks/t:subscribe",
        "/tasks/t/pushNotificationConfigs",
        "/tasks/t/pushNotificationConfigs/p",
        "/extendedAgentCard",
    ] {
        let route = Route::parse(path, &HeaderMap::new());
        let Route::Rest(rest) = &route else { panic!("{path}") };
        for method in [Method::GET, Method::POST, Method::DELETE, Method::PUT, Method::HEAD] {
            let does = rest.resource.operation(&method).is_some();
            assert_eq!(route.allows(&method), does, "{method} {path}");
        }
    }
}

#[test]
fn grpc_is_recognized_by_its_content_type() {
    let of = |kind: &str| {
        let headers = [(CONTENT_TYPE, kind.parse().unwrap())].into_iter().collect();
        Route::parse("/", &headers)
    };
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
        assert_eq!(of(kind), Route::Grpc, "{kind}");
    }
    for kind in ["application/grpc-web", "application/json", ""] {
        assert_eq!(of(kind), Route::Rpc(None), "{kind}");
    }
}
