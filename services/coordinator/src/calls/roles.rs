//! Authorization by role: the one table of the methods that each role may call at the port. A
//! method that the table does not name is denied to every role.

use std::sync::Arc;

use faultline_chassis::credential::{Identity, MIGRATION_PAGE, Role};
use faultline_proto::{Failure, id, reason, v1::Hello};
use http::request::Parts;
use tonic::Extensions;

/// The token of the attempt that calls.
pub(crate) const TASK: &str = "faultline-task";

/// The access of a role to the methods below a path.
enum Access {
    Full,
    /// Only as an attempt: with the token that came with an assignment.
    AsAttempt,
}

/// The methods that workers need to delegate. An attempt has no use for lists, webhooks or cards.
const DELEGATION: [&str; 5] =
    ["SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask"];
/// Of A2A's own methods.
pub(crate) const A2A: &str = "/lf.a2a.v1.A2AService/";

fn access(role: Role, path: &str) -> Option<Access> {
    let below = |service: &str| path.starts_with(service);
    match role {
        Role::Gateway if below("/faultline.v1.Link/") => Some(Access::Full),
        Role::Worker if below("/faultline.v1.Hub/") => Some(Access::Full),
        Role::Worker if path.strip_prefix(A2A).is_some_and(|m| DELEGATION.contains(&m)) => {
            Some(Access::AsAttempt)
        }
        Role::Operator if below("/faultline.v1.Mesh/") => Some(Access::Full),
        Role::Gateway | Role::Worker | Role::Operator => None,
    }
}

/// Whether this caller may make this call, before anything of it is read.
pub(crate) fn authorize(identity: &Identity, head: &Parts) -> Result<(), Failure> {
    let Some(role) = identity.role() else { return Ok(()) };
    let (path, name) = (head.uri.path(), identity.name());
    match access(role, path) {
        Some(Access::Full) => Ok(()),
        Some(Access::AsAttempt) if head.headers.contains_key(TASK) => Ok(()),
        Some(Access::AsAttempt) => Err(denied(format!(
            "the credential '{name}' is a worker's, and calls other agents only with the token of \
             an attempt, in the metadata `{TASK}`"
        ))),
        None => Err(denied(format!(
            "the credential '{name}' has the role {}, which may not call {path}: use a credential \
             of the role that may ({MIGRATION_PAGE} lists them)",
            role.name()
        ))),
    }
}

/// The caller that the port authenticated. Missing only if a service is served without its layer.
pub(crate) fn identity(extensions: &Extensions) -> Result<Arc<Identity>, Failure> {
    let known = extensions.get::<Arc<Identity>>().cloned();
    known.ok_or_else(|| Failure::new(&reason::UNAUTHENTICATED).because("nobody is authenticated"))
}

/// Whether a call without an attempt may say for which principal it is made. A second check: the
/// table lets no other role this far.
pub(crate) fn check_may_name_principals(identity: &Identity) -> Result<(), Failure> {
    match identity.role() {
        None => Ok(()),
        Some(role) => {
            let (name, role) = (identity.name(), role.name());
            Err(denied(format!(
                "the credential '{name}' has the role {role}, which names no principals"
            )))
        }
    }
}

/// Refuses a caller with a name that the mesh keeps for tasks of its own.
pub(crate) fn check_principal(name: &str) -> Result<(), Failure> {
    match id::is_own_principal(name) {
        false => Ok(()),
        true => Err(denied(format!(
            "'{name}' is no principal of a caller: names that begin with {} are the mesh's own",
            id::OWN_PRINCIPALS
        ))),
    }
}

/// Whether a worker may offer everything that its hello offers, cards included.
pub(crate) fn check_offers(identity: &Identity, hello: &Hello) -> Result<(), Failure> {
    let agents = hello.agents.iter().map(|offer| offer.name.as_str());
    match agents.into_iter().find(|agent| !identity.may_offer(agent)) {
        None => Ok(()),
        Some(agent) => Err(denied(format!(
            "the credential '{}' may not offer the agent '{agent}': add it to `agents` of its \
             [[mesh.credential]] at the coordinator, or offer it with a credential that has it",
            identity.name()
        ))),
    }
}

pub(crate) fn denied(text: String) -> Failure {
    Failure::new(&reason::PERMISSION_DENIED).because(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every service of the port, with the roles that may call it.
    #[test]
    fn each_service_has_its_roles_and_unknown_paths_have_none() {
        let roles = |path: &str| -> Vec<&str> {
            let all = [Role::Gateway, Role::Worker, Role::Operator];
            all.into_iter().filter(|r| access(*r, path).is_some()).map(Role::name).collect()
        };
        assert_eq!(roles("/faultline.v1.Link/Open"), ["gateway"]);
        assert_eq!(roles("/faultline.v1.Hub/Attach"), ["worker"]);
        for method in ["Agents", "Inspect", "Tasks", "Watch", "Cancel", "Answer"] {
            assert_eq!(roles(&format!("/faultline.v1.Mesh/{method}")), ["operator"], "{method}");
        }
        for method in DELEGATION {
            assert_eq!(roles(&format!("{A2A}{method}")), ["worker"], "{method}");
        }
        for method in [
            "ListTasks",
            "CreateTaskPushNotificationConfig",
            "GetTaskPushNotificationConfig",
            "ListTaskPushNotificationConfigs",
            "DeleteTaskPushNotificationConfig",
            "GetExtendedAgentCard",
        ] {
            assert_eq!(roles(&format!("{A2A}{method}")), [""; 0], "{method}");
        }
        for path in ["/", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/faultline"]
        {
            assert_eq!(roles(path), [""; 0], "{path}");
        }
    }
}
