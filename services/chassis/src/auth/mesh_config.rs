//! The section `[mesh]` of the configuration: the credentials of a member of one mesh.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{credential::Credential, secret::Secret};
use crate::net::{network::Network, resolver::Resolver};

/// `[mesh]`: how a process finds and proves itself to the mesh. Read once at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeshConfig {
    /// Presented to the coordinator. At a coordinator on loopback: accepted as every role. Default:
    /// the one in `token_file`.
    #[serde(skip_serializing)]
    pub token: Option<Secret>,
    /// A file of mode 0600 with the token. Default: `mesh.token` in the data directory, for
    /// coordinators on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// At the coordinator: the tokens it accepts, each with its role. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credential: Vec<Credential>,
    /// PEM: the CA that issued the coordinator's certificate. Default: those the system trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The data directory, where a generated token is kept. Default: `.faultline`.
    #[serde(skip)]
    pub data: Option<PathBuf>,
    /// A token with every role, for the services of a mesh that runs in one process. It never
    /// leaves the process.
    #[serde(skip)]
    pub in_process_token: Option<Secret>,
    /// The in-process network of a mesh in one process. Default: the machine's network.
    #[serde(skip)]
    pub network: Option<Network>,
    /// Resolves the host names of coordinators. Default: the system's resolver.
    #[serde(skip)]
    pub resolver: Option<Resolver>,
}
