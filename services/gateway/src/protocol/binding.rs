//! The bindings of A2A: JSON-RPC, REST and gRPC.

use faultline_proto::{Failure, reason};
use serde::{Deserialize, Serialize};

/// A binding of A2A. A gateway serves those that its configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    JsonRpc,
    Rest,
    Grpc,
}

impl Binding {
    pub const ALL: [Binding; 3] = [Binding::JsonRpc, Binding::Rest, Binding::Grpc];

    /// The name on agent cards.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Binding::JsonRpc => "JSONRPC",
            Binding::Rest => "HTTP+JSON",
            Binding::Grpc => "GRPC",
        }
    }

    pub(crate) fn not_served(self) -> Failure {
        Failure::new(&reason::METHOD_NOT_FOUND)
            .because(format!("{} is not served here: the agent's card lists what is", self.name()))
    }
}
