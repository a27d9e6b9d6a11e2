//! Authentication by bearer token, and the scopes of principals. Only digests of tokens are kept,
//! so neither the configuration nor a memory dump reveals a token. The coordinator decides which
//! tasks a principal may see.

use std::{collections::HashSet, sync::Arc};

use faultline_chassis::limits;
use faultline_proto::{
    Failure,
    id::{BadAgentName, OWN_PRINCIPALS, check_agent_name, is_own_principal},
    reason,
    v1::Caller,
};
use http::{HeaderMap, header::AUTHORIZATION};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use serde::{Deserialize, Deserializer, Serialize, de};
use subtle::ConstantTimeEq;

use crate::protocol::operation::Operation;

/// The principal of every caller where no token is configured.
const LOCAL: &str = "local";

type Digest = [u8; SHA256_OUTPUT_LEN];

/// The tokens of callers. Without any token every caller is the principal `local`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// One entry per token. Default: none.
    pub token: Vec<Token>,
}

/// One bearer token and its rights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// SHA-256 of the token, 64 hexadecimal digits.
    pub sha256: String,
    /// The principal of the token. Tasks belong to principals: two tokens of one principal share
    /// them.
    pub principal: String,
    /// The agents it may use. Default: all but those for drills, such as `script`.
    #[serde(default, deserialize_with = "named", skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Its scopes. Default: send and read.
    #[serde(default = "usual_scopes")]
    pub scopes: Vec<Scope>,
}

/// A right of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Starts, answers and cancels tasks, and configures their push notifications.
    Send,
    /// Reads and follows the tasks of the principal.
    Read,
    /// Reads the tasks of all principals through the operators' view.
    Operate,
}

impl Scope {
    /// The scope that an operation requires.
    pub(crate) fn of(operation: Operation) -> Self {
        match operation {
            Operation::SendMessage
            | Operation::SendStreamingMessage
            | Operation::CancelTask
            // Reading a push configuration needs it too: it holds the secret of a webhook.
            | Operation::CreateTaskPushNotificationConfig
            | Operation::GetTaskPushNotificationConfig
            | Operation::ListTaskPushNotificationConfigs
            | Operation::DeleteTaskPushNotificationConfig => Scope::Send,
            Operation::GetTask
            | Operation::ListTasks
            | Operation::SubscribeToTask
            | Operation::GetExtendedAgentCard => Scope::Read,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Scope::Send => "send",
            Scope::Read => "read",
            Scope::Operate => "operate",
        }
    }
}

fn usual_scopes() -> Vec<Scope> {
    vec![Scope::Send, Scope::Read]
}

/// Rejects an explicit empty list of agents: internally an empty list means all of them.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let agents = Vec::<String>::deserialize(deserializer)?;
    if agents.is_empty() {
        return Err(de::Error::custom(
            "agents is empty: name some, or leave it out for all but those for drills",
        ));
    }
    Ok(agents)
}

/// An invalid entry of the token list.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("auth.token[{entry}] (principal '{principal}'): {wrong}")]
pub struct BadToken {
    /// Its index in the file, from 0.
    pub entry: usize,
    pub principal: String,
    pub wrong: TokenProblem,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenProblem {
    #[error("sha256 must be the 64 hexadecimal digits of a SHA-256, not the token itself")]
    Digest,
    #[error("sha256 is the same as that of auth.token[{0}]: a token has one principal")]
    Twice(usize),
    #[error("principal must have 1 to {} bytes", limits::KEY_BYTES_MAX)]
    Principal,
    #[error("principal must not begin with {OWN_PRINCIPALS}: such names are the mesh's own")]
    OwnPrincipal,
    #[error("agents: {0}")]
    Agent(BadAgentName),
    #[error("agents must be at most {} names", limits::CALLER_NAMES_MAX)]
    TooManyAgents,
    #[error("scopes must name at least one of send, read, operate")]
    NoScope,
}

/// The configured tokens. Immutable after the start.
pub(crate) struct Authenticator {
    /// Empty: every caller is `local`.
    tokens: Vec<(Digest, Principal)>,
    local: Principal,
}

impl Authenticator {
    pub(crate) fn new(auth: &Auth) -> Result<Self, BadToken> {
        let mut tokens: Vec<(Digest, Principal)> = Vec::with_capacity(auth.token.len());
        for (entry, token) in auth.token.iter().enumerate() {
            let bad = |wrong| BadToken { entry, principal: token.principal.clone(), wrong };
            let digest = check(token).map_err(bad)?;
            if let Some(first) = tokens.iter().position(|(known, _)| *known == digest) {
                return Err(bad(TokenProblem::Twice(first)));
            }
            tokens.push((digest, Principal::of(token)));
        }
        Ok(Self { tokens, local: Principal::local() })
    }

    /// Whether callers need a token.
    pub(crate) fn requires_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The names of the principals that have tokens.
    pub(crate) fn principals(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().map(|(_, principal)| principal.0.name.as_str())
    }

    /// The principal of a request. Other kinds of identity, such as OIDC or client certificates,
    /// would be added here only.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Failure> {
        if !self.requires_token() {
            return Ok(self.local.clone());
        }
        let token = bearer(headers).ok_or_else(|| {
            unauthenticated("this mesh requires a token: send 'Authorization: Bearer TOKEN'")
        })?;
        let sent = digest(&SHA256, token);
        // Every entry is compared, in constant time: the duration reveals nothing about the tokens.
        let matching = |found, (known, principal)| {
            if bool::from(sent.as_ref().ct_eq(known)) { Some(principal) } else { found }
        };
        let known = self.tokens.iter().map(|(digest, principal)| (&digest[..], principal));
        known.fold(None, matching).cloned().ok_or_else(|| {
            unauthenticated("this token is unknown here: ask the operator for a current one")
        })
    }
}

/// The token, if exactly one was sent as RFC 6750 defines it.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (all.next()?.as_bytes(), all.next()) else { return None };
    let (scheme, rest) = value.split_at(value.iter().position(|b| *b == b' ')?);
    let token = rest.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer") && !token.is_empty()).then_some(token)
}

fn unauthenticated(text: &str) -> Failure {
    Failure::new(&reason::UNAUTHENTICATED_CALLER).because(text)
}

fn check(token: &Token) -> Result<Digest, TokenProblem> {
    let digest = unhex(&token.sha256).ok_or(TokenProblem::Digest)?;
    if token.principal.is_empty() || token.principal.len() > limits::KEY_BYTES_MAX {
        return Err(TokenProblem::Principal);
    }
    if is_own_principal(&token.principal) {
        return Err(TokenProblem::OwnPrincipal);
    }
    if token.scopes.is_empty() {
        return Err(TokenProblem::NoScope);
    }
    if token.agents.len() > limits::CALLER_NAMES_MAX {
        return Err(TokenProblem::TooManyAgents);
    }
    token.agents.iter().try_for_each(|name| check_agent_name(name)).map_err(TokenProblem::Agent)?;
    Ok(digest)
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

/// An authenticated caller and its rights.
#[derive(Clone, Debug)]
pub(crate) struct Principal(Arc<Rights>);

/// The rights of a principal, shared by the requests that it makes.
#[derive(Debug)]
struct Rights {
    name: String,
    /// Empty: all agents…
    agents: Vec<String>,
    /// …without agents for drills, for a token that names no agents.
    without_drills: bool,
    scopes: Vec<Scope>,
}

impl Principal {
    fn of(token: &Token) -> Self {
        // Duplicates are dropped, because every call carries the list.
        let mut seen = HashSet::new();
        let agents = token.agents.iter().filter(|name| seen.insert(*name)).cloned().collect();
        let name = token.principal.clone();
        let scopes = token.scopes.clone();
        let without_drills = token.agents.is_empty();
        Self(Arc::new(Rights { name, agents, without_drills, scopes }))
    }

    fn local() -> Self {
        let scopes = vec![Scope::Send, Scope::Read, Scope::Operate];
        let name = LOCAL.to_owned();
        let agents = Vec::new();
        Self(Arc::new(Rights { name, agents, without_drills: false, scopes }))
    }

    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.0.scopes.contains(&scope)
    }

    /// Fails unless the principal has this scope.
    pub(crate) fn require_scope(&self, scope: Scope) -> Result<(), Failure> {
        if self.has(scope) {
            return Ok(());
        }
        let name = &self.0.name;
        let scope = scope.name();
        Err(Failure::new(&reason::INSUFFICIENT_SCOPE)
            .because(format!("this needs the scope '{scope}', and the token of '{name}' lacks it")))
    }

    /// The caller as calls to a coordinator carry it.
    pub(crate) fn caller(&self) -> Caller {
        Caller {
            principal: self.0.name.clone(),
            agents: self.0.agents.clone(),
            without_drills: self.0.without_drills,
            operates: self.has(Scope::Operate),
            ..Caller::default()
        }
    }
}

#[cfg(test)]
mod tests;
