//! Classification of a failure by its origin: the agent that reports it, an agent below it, or
//! a service of the mesh. Pure.

use faultline_proto::{Failure, v1::Origin};

/// Nothing that the agent called has failed: it did so itself. An agent that speaks for a stranger
/// is as near as anybody comes to what failed there: his hops are quoted below its name, and only
/// one of ours is above them.
pub(crate) fn is_born_here(failure: &Failure) -> bool {
    let hops = match failure.foreign {
        true => failure.causes.iter().filter(|cause| !is_quoted(&cause.agent)).count(),
        false => failure.causes.len().max(failure.hop as usize + 1),
    };
    // A service of the mesh that failed a call of the agent is no agent: nobody below could retry.
    let services = usize::from(is_of_mesh(failure) && hops > 1);
    hops - services <= 1 && failure.aggregate.is_none()
}

/// A service of the mesh, or its configuration, is the origin, and not an agent.
pub(crate) fn is_of_mesh(failure: &Failure) -> bool {
    let is_service = |origin: &Origin| origin.agent.is_empty() && !origin.service.is_empty();
    !failure.foreign && failure.origin.as_ref().is_some_and(is_service)
}

/// `ours:theirs`, which is no name of an agent of ours.
pub(crate) fn is_quoted(agent: &str) -> bool {
    agent.contains(':')
}
