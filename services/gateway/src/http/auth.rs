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
mod tests {
    use super::*;

    /// `printf %s secret | sha256sum`, and of `other`.
    const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    const OTHER: &str = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";

    fn token(sha256: &str, principal: &str) -> Token {
        let sha256 = sha256.to_owned();
        let principal = principal.to_owned();
        Token { sha256, principal, agents: Vec::new(), scopes: usual_scopes() }
    }

    fn authenticator(token: Vec<Token>) -> Authenticator {
        Authenticator::new(&Auth { token }).unwrap()
    }

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn callers_are_local_without_configured_tokens() {
        let authenticator = authenticator(Vec::new());
        for sent in [&[][..], &["Bearer whatever"], &["Basic eDp5"]] {
            let principal = authenticator.authenticate(&headers(sent)).unwrap();
            let caller = principal.caller();
            assert_eq!((caller.principal.as_str(), caller.operates), ("local", true));
            assert!(caller.agents.is_empty());
        }
    }

    #[test]
    fn token_authenticates_its_principal() {
        let upper = SECRET.to_uppercase();
        let authenticator = authenticator(vec![token(&upper, "acme"), token(OTHER, "beta")]);
        for (sent, name) in [
            ("Bearer secret", "acme"),
            ("bearer secret", "acme"),
            ("BEARER   secret ", "acme"),
            ("Bearer other", "beta"),
        ] {
            let principal = authenticator.authenticate(&headers(&[sent])).unwrap();
            assert_eq!(principal.caller().principal, name, "{sent}");
            assert!(!principal.caller().operates);
        }
    }

    #[test]
    fn unknown_tokens_are_rejected() {
        let authenticator = authenticator(vec![token(SECRET, "acme")]);
        let hint = |sent: &[&str]| {
            let failure = authenticator.authenticate(&headers(sent)).unwrap_err();
            assert_eq!(failure.row(), &reason::UNAUTHENTICATED_CALLER, "{sent:?}");
            failure.public_message.clone()
        };
        let missing = hint(&[]);
        assert!(missing.contains("Authorization: Bearer"), "{missing}");
        for none in
            [&["Bearer "][..], &["Bearer"], &["Basic secret"], &["Bearer secret", "Bearer secret"]]
        {
            assert_eq!(hint(none), missing, "{none:?}");
        }
        // A nearly right token gets the same answer as an entirely wrong one.
        let wrong = hint(&["Bearer nonsense"]);
        assert_ne!(wrong, missing);
        for near in ["Bearer secre", "Bearer secrets", "Bearer Secret", &format!("Bearer {SECRET}")]
        {
            assert_eq!(hint(&[near]), wrong, "{near}");
        }
    }

    #[test]
    fn missing_scope_is_named() {
        let mut reader = token(SECRET, "acme");
        reader.scopes = vec![Scope::Read];
        let authenticator = authenticator(vec![reader]);
        let principal = authenticator.authenticate(&headers(&["Bearer secret"])).unwrap();
        assert!(principal.require_scope(Scope::Read).is_ok());
        for (scope, name) in [(Scope::Send, "'send'"), (Scope::Operate, "'operate'")] {
            let failure = principal.require_scope(scope).unwrap_err();
            assert_eq!(failure.row(), &reason::INSUFFICIENT_SCOPE);
            assert!(failure.public_message.contains(name), "{}", failure.public_message);
        }
    }

    #[test]
    fn invalid_token_entry_is_named() {
        let agent = |name: &str| {
            let mut token = token(OTHER, "acme");
            token.agents = vec!["echo".to_owned(), name.to_owned()];
            token
        };
        let mut idle = token(OTHER, "acme");
        idle.scopes.clear();
        let bad_name = |name: &str| TokenProblem::Agent(check_agent_name(name).unwrap_err());
        for (entry, wrong) in [
            (token("secret", "acme"), TokenProblem::Digest),
            (token(&SECRET.replace('2', "g"), "acme"), TokenProblem::Digest),
            (token(&"é".repeat(32), "acme"), TokenProblem::Digest),
            (token(SECRET, "acme"), TokenProblem::Twice(0)),
            (token(OTHER, ""), TokenProblem::Principal),
            (token(OTHER, &"x".repeat(257)), TokenProblem::Principal),
            (token(OTHER, "faultline.dev/stops"), TokenProblem::OwnPrincipal),
            (token(OTHER, "faultline.dev/other"), TokenProblem::OwnPrincipal),
            (agent("Echo"), bad_name("Echo")),
            (agent("mesh"), bad_name("mesh")),
            (idle, TokenProblem::NoScope),
        ] {
            let auth = Auth { token: vec![token(SECRET, "first"), entry.clone()] };
            let bad = Authenticator::new(&auth).err().unwrap();
            assert_eq!((bad.entry, &bad.wrong), (1, &wrong));
            assert!(bad.to_string().starts_with("auth.token[1]"), "{bad}");
        }
    }

    #[test]
    fn token_without_agents_leaves_out_agents_for_drills() {
        let mut named = token(OTHER, "acme");
        named.agents = vec!["script".to_owned()];
        let authenticator = authenticator(vec![token(SECRET, "acme"), named]);
        let caller = |bearer| authenticator.authenticate(&headers(&[bearer])).unwrap().caller();
        assert!(caller("Bearer secret").without_drills);
        assert!(!caller("Bearer other").without_drills);
        assert!(!Authenticator::new(&Auth::default()).unwrap().local.caller().without_drills);
    }

    #[test]
    fn token_is_read_with_its_defaults() {
        let read = |text: &str| serde_json::from_str::<Auth>(text);
        let short = format!(r#"{{"token":[{{"sha256":"{SECRET}","principal":"acme"}}]}}"#);
        let auth = read(&short).unwrap();
        assert_eq!(auth, Auth { token: vec![token(SECRET, "acme")] });
        assert_eq!(read(&serde_json::to_string(&auth).unwrap()).unwrap(), auth);
        for more in [r#""agents":[]"#, r#""scopes":["admin"]"#, r#""secret":"x""#] {
            let text = short.replace(r#""acme""#, &format!(r#""acme",{more}"#));
            assert!(read(&text).is_err(), "{more}");
        }
    }
}
