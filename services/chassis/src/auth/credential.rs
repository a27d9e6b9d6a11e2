//! Authentication at the coordinator's port: the bearer tokens that it accepts, by their digests,
//! and the role of each. [`Credentials::load`] is the only way from configuration to credentials.

use std::{net::SocketAddr, sync::Arc};

use faultline_proto::{
    Failure,
    id::{BadAgentName, check_agent_name},
    reason,
};
use http::{HeaderMap, header::AUTHORIZATION};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::auth::{mesh_config::MeshConfig, secret::Secret, token_file};

/// The page that explains how a mesh with one token gets a credential for each role.
pub const MIGRATION_PAGE: &str = "docs/migrating-credentials.md";
/// In `agents`: every agent.
const EVERY_AGENT: &str = "*";

type Digest = [u8; SHA256_OUTPUT_LEN];

/// The role of a caller. It decides which methods of the coordinator are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Calls on behalf of principals.
    Gateway,
    /// Attaches, reports, and calls other agents with the token of an attempt.
    Worker,
    /// Lists, cancels and answers the tasks of all principals.
    Operator,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Worker => "worker",
            Role::Operator => "operator",
        }
    }
}

/// `[[mesh.credential]]`: one token that the coordinator accepts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    pub role: Role,
    /// SHA-256 of the token, 64 hexadecimal digits.
    pub sha256: String,
    /// The agents that a worker may offer; `["*"]`: all. Required for workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// For logs and refusals. Default: the role and the first digits of the digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The port that credentials are for.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub listen: SocketAddr,
    /// Other coordinators serve the same store, with the same gateways and workers.
    pub shared_store: bool,
}

/// The reason for which a coordinator does not open its port.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0} can be reached from other machines, and no credential is configured: give each role \
         its own [[mesh.credential]] (or FAULTLINE_MESH__CREDENTIAL), or listen on 127.0.0.1; \
         {MIGRATION_PAGE} says how"
    )]
    Unconfigured(SocketAddr),
    #[error(
        "coordinators on PostgreSQL share their gateways and workers, so none generates a token of \
         its own: configure [[mesh.credential]] for each role ({MIGRATION_PAGE} says how), or, \
         while all of them listen on loopback, one `token` in [mesh] or FAULTLINE_MESH__TOKEN"
    )]
    Shared,
    #[error(
        "`token` in [mesh] is every role at once, and {0} can be reached from other machines: \
         remove it here and give each role its own [[mesh.credential]]; {MIGRATION_PAGE} says how"
    )]
    OneForAll(SocketAddr),
    #[error("mesh.credential[{entry}] ({role}): {wrong}", role = .role.name())]
    Entry { entry: usize, role: Role, wrong: Wrong },
    #[error("no token for the coordinator's port")]
    File(#[from] token_file::Error),
}

/// The mistake in one `[[mesh.credential]]` entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("sha256 must be the 64 hexadecimal digits of a SHA-256, not the token itself")]
    Digest,
    #[error("sha256 is the same as that of mesh.credential[{0}]: each role has its own token")]
    Twice(usize),
    #[error("sha256 is that of `token` in [mesh], which is every role: make another token for it")]
    IsMeshToken,
    #[error("name is the same as that of mesh.credential[{0}]")]
    NameTwice(usize),
    #[error("name must have 1 to 64 letters, digits, '-', '_' or '.'")]
    Name,
    #[error("agents must list the agents that it may offer, or be [\"*\"] for all of them")]
    NoAgents,
    #[error("agents is for workers only: leave it out")]
    NotAWorker,
    #[error("agents: {0}")]
    Agent(BadAgentName),
}

/// A caller of the coordinator's port.
#[derive(Debug)]
pub struct Identity {
    name: String,
    /// `None`: every role.
    role: Option<Role>,
    /// `None`: every agent.
    agents: Option<Vec<String>>,
    binding: Binding,
}

/// Identifies a credential in the store. It is a digest of the digest, and no use as a token.
pub type Binding = [u8; 16];

impl Identity {
    fn new(name: String, digest: &Digest, role: Option<Role>, agents: Option<Vec<String>>) -> Self {
        let mut binding = Binding::default();
        let bytes = ring::digest::digest(&SHA256, &[b"faultline binding ", &digest[..]].concat());
        binding.copy_from_slice(&bytes.as_ref()[..16]);
        Self { name, role, agents, binding }
    }

    /// The name in logs and refusals.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn role(&self) -> Option<Role> {
        self.role
    }

    pub fn has(&self, role: Role) -> bool {
        self.role.is_none_or(|own| own == role)
    }

    /// Whether a worker with this credential may offer the agent.
    pub fn may_offer(&self, agent: &str) -> bool {
        let agents = self.agents.as_ref();
        self.has(Role::Worker) && agents.is_none_or(|own| own.iter().any(|name| name == agent))
    }

    pub fn binding(&self) -> Binding {
        self.binding
    }
}

/// Every token that the port accepts, by its digest. Immutable after the start.
#[derive(Debug)]
pub struct Credentials(Vec<(Digest, Arc<Identity>)>);

impl Credentials {
    /// Reads and checks the configured tokens. On loopback with a store of its own, a coordinator
    /// without any generates a token: see [`local_token`].
    pub fn load(mesh: &MeshConfig, port: Port) -> Result<Self, Error> {
        let mut known = Self(Vec::new());
        let token = match (&mesh.token, &mesh.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(path)) => {
                let path = path.clone();
                Some(token_file::read(&path)?.ok_or(token_file::Error::Missing { path })?)
            }
            (None, None) => None,
        };
        if token.is_some() && !is_private(mesh, port) {
            return Err(Error::OneForAll(port.listen));
        }
        let nothing = token.is_none() && mesh.credential.is_empty();
        if nothing && !is_private(mesh, port) {
            return Err(Error::Unconfigured(port.listen));
        }
        let token = if nothing && mesh.in_process_token.is_none() {
            Some(local_token(mesh, port)?)
        } else {
            token
        };
        for (name, token) in
            [("mesh", token.as_ref()), ("this process", mesh.in_process_token.as_ref())]
        {
            if let Some(token) = token {
                let digest = digest_of(token.reveal().as_bytes());
                let identity = Identity::new(name.to_owned(), &digest, None, None);
                known.0.push((digest, Arc::new(identity)));
            }
        }
        let shared = known.0.len();
        for (entry, credential) in mesh.credential.iter().enumerate() {
            let bad = |wrong| Error::Entry { entry, role: credential.role, wrong };
            let (digest, identity) = check(credential).map_err(bad)?;
            match known.0.iter().position(|(other, _)| *other == digest) {
                Some(at) if at < shared => return Err(bad(Wrong::IsMeshToken)),
                Some(at) => return Err(bad(Wrong::Twice(at - shared))),
                None => {}
            }
            let others = known.0[shared..].iter();
            if let Some(at) = others.map(|(_, other)| &other.name).position(|n| *n == identity.name)
            {
                return Err(bad(Wrong::NameTwice(at)));
            }
            known.0.push((digest, Arc::new(identity)));
        }
        Ok(known)
    }

    /// The caller that sent these headers.
    pub fn identify(&self, headers: &HeaderMap) -> Result<&Arc<Identity>, Failure> {
        let token = bearer(headers).ok_or_else(|| unauthenticated("the call carries no token"))?;
        let sent = digest_of(token);
        // Compares every entry, each in constant time: the time taken reveals nothing.
        let mut found = None;
        for (known, identity) in &self.0 {
            if sent[..].ct_eq(&known[..]).into() {
                found = Some(identity);
            }
        }
        found.ok_or_else(|| unauthenticated("the coordinator knows no such token"))
    }
}

/// The token of a mesh of one user on one machine. The file in the data directory holds it and is
/// generated at the first start.
pub fn local_token(mesh: &MeshConfig, port: Port) -> Result<Secret, Error> {
    if !is_private(mesh, port) {
        return Err(Error::Unconfigured(port.listen));
    }
    if port.shared_store {
        return Err(Error::Shared);
    }
    Ok(token_file::read_or_generate(&token_file::in_data(mesh.data.as_deref()))?)
}

/// Whether only this machine, or this process, can reach the port.
fn is_private(mesh: &MeshConfig, port: Port) -> bool {
    mesh.network.is_some() || port.listen.ip().is_loopback()
}

fn check(credential: &Credential) -> Result<(Digest, Identity), Wrong> {
    let Credential { role, sha256, agents, name } = credential;
    let digest = unhex(sha256).ok_or(Wrong::Digest)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = match name {
        Some(name) if name.is_empty() || name.len() > 64 || !name.chars().all(plain) => {
            return Err(Wrong::Name);
        }
        Some(name) => name.clone(),
        None => format!("{}-{}", role.name(), sha256[..8].to_ascii_lowercase()),
    };
    let agents = match role {
        Role::Worker if agents.is_empty() => return Err(Wrong::NoAgents),
        Role::Worker if agents.len() == 1 && agents[0] == EVERY_AGENT => None,
        Role::Worker => {
            agents.iter().try_for_each(|name| check_agent_name(name)).map_err(Wrong::Agent)?;
            Some(agents.clone())
        }
        Role::Gateway | Role::Operator if agents.is_empty() => None,
        Role::Gateway | Role::Operator => return Err(Wrong::NotAWorker),
    };
    let identity = Identity::new(name, &digest, Some(*role), agents);
    Ok((digest, identity))
}

/// The token, if exactly one was sent as RFC 6750 prescribes.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?.as_bytes(), all.next()) else { return None };
    let (scheme, rest) = value.split_at(value.iter().position(|b| *b == b' ')?);
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer") && !token.is_empty()).then_some(token)
}

fn unauthenticated(problem: &str) -> Failure {
    let remedy = "set `token` in [mesh] or FAULTLINE_MESH__TOKEN to one that the coordinator \
                  accepts; on one machine, name the coordinator's data directory with --data or \
                  its mesh.token with `token_file` in [mesh] or FAULTLINE_MESH__TOKEN_FILE";
    Failure::new(&reason::UNAUTHENTICATED).because(format!("{problem}: {remedy}"))
}

fn digest_of(bytes: &[u8]) -> Digest {
    let mut out = Digest::default();
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

fn unhex(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    let digits = text.as_bytes();
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |ascii: u8| char::from(ascii).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests;
