//! The bindings of A2A, of which a gateway may serve some and not others.

use faultline_proto::{Failure, reason};
use serde::{Deserialize, Serialize};

/// One way to speak A2A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    JsonRpc,
    Rest,
    Grpc,
}

impl Binding {
    pub const ALL: [Binding; 3] = [Binding::JsonRpc, Binding::Rest, Binding::Grpc];

    /// As cards spell it.
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
