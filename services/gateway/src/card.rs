//! Agent cards: what an agent says of itself, with what only the gateway knows: where it is
//! reached, how callers are known, and a signature.

mod kept;
mod public;

use std::time::SystemTime;

use axum::body::Body;
use faultline_proto::{
    Failure,
    a2a::{
        AgentCapabilities, AgentCard, AgentInterface, AgentSkill, HttpAuthSecurityScheme,
        SecurityRequirement, SecurityScheme, StringList, security_scheme::Scheme,
    },
    json, reason,
};
use http::{HeaderValue, Response, request::Parts};

pub(crate) use self::kept::KeptCards;
pub(crate) use self::public::{Public, host, is_grpc_address};
use crate::{
    binding::Binding,
    conditional::{self, Keeping, Tagged},
    error::{JSON, Refused},
    http::Exchange,
    sign::Signer,
    v03,
};

/// A card changes when a worker with another one attaches, which is rare.
const PUBLIC: HeaderValue = HeaderValue::from_static("public, max-age=60");
const PRIVATE: HeaderValue = HeaderValue::from_static("private, max-age=60");
const VERSION: &str = "1.0";
/// The name of our security scheme on a card.
const BEARER: &str = "bearer";
/// For an agent that does not say what it reads or writes.
const ANYTHING: &str = "*/*";

/// What this gateway adds to every card.
pub(crate) struct Cards {
    pub(crate) public: Public,
    /// Where gRPC clients dial, if cards should say so.
    pub(crate) grpc: Option<String>,
    pub(crate) signer: Option<Signer>,
    /// Callers need a token.
    pub(crate) secured: bool,
    pub(crate) bindings: Vec<Binding>,
    /// Clients of A2A 0.3 find what they look for, too.
    pub(crate) v03: bool,
    /// When this gateway started: what it adds is as old as that.
    pub(crate) since: SystemTime,
}

/// The public card of one agent, or of the one that serves the root.
pub(crate) async fn answer(
    exchange: &Exchange,
    name: Option<&str>,
) -> Result<Response<Body>, Refused> {
    let gateway = &exchange.gateway;
    let agent = gateway.kept_cards.find(&gateway.links, name).await?;
    let agent = agent.ok_or_else(|| not_found(name))?;
    let cards = &gateway.cards;
    let changed = agent.card_changed.and_then(|time| SystemTime::try_from(time).ok());
    let mut card = agent.card.clone().unwrap_or_default();
    if card.name.is_empty() {
        card.name.clone_from(&agent.name);
    }
    let keeping = Keeping {
        control: PUBLIC,
        vary: cards.public.is_as_asked().then_some(HeaderValue::from_static("host")),
        changed: changed.map(|changed| changed.max(cards.since)),
    };
    complete(exchange, name, &mut card);
    Ok(conditional::answer(&exchange.head, cards.tagged(card), JSON, keeping))
}

/// Adds to the card of an agent, or of the one that serves the root, what only the gateway knows.
pub(crate) fn complete(exchange: &Exchange, name: Option<&str>, card: &mut AgentCard) {
    exchange.gateway.cards.complete(&exchange.head, name, card);
}

/// An extended card as the answer to a GET, which its caller may keep and nobody else.
pub(crate) fn extended_answer(
    exchange: &Exchange,
    card: &AgentCard,
    kind: HeaderValue,
) -> Response<Body> {
    let cards = &exchange.gateway.cards;
    let vary = match cards.public.is_as_asked() {
        true => "authorization, host",
        false => "authorization",
    };
    let vary = Some(HeaderValue::from_static(vary));
    let keeping = Keeping { control: PRIVATE, vary, changed: None };
    conditional::answer(&exchange.head, cards.tagged(card.clone()), kind, keeping)
}

fn not_found(name: Option<&str>) -> Failure {
    let failure = Failure::new(&reason::AGENT_NOT_FOUND);
    match name {
        Some(name) => failure.because(format!(
            "no agent '{name}' is known here; POST /mesh/Agents lists those that are"
        )),
        None => failure.because(
            "no agent serves the root: start a worker that offers the default agent, or ask for \
             /agents/{agent}/.well-known/agent-card.json; POST /mesh/Agents lists the agents",
        ),
    }
}

impl Cards {
    fn complete(&self, head: &Parts, name: Option<&str>, card: &mut AgentCard) {
        fill(card);
        card.supported_interfaces = self.interfaces(head, name);
        if self.secured {
            secure(card);
        }
        // What somebody signed before is no longer what is sent.
        card.signatures.clear();
        card.signatures = self.signer.as_ref().map_or_else(Vec::new, |signer| signer.sign(card));
    }

    /// The first is the one that clients prefer.
    fn interfaces(&self, head: &Parts, name: Option<&str>) -> Vec<AgentInterface> {
        let public = self.public.url(head);
        let (rpc, rest) = match name {
            Some(name) => (format!("{public}/agents/{name}"), format!("{public}/agents/{name}")),
            None => (format!("{public}/"), public),
        };
        let interface = |url, binding: Binding, tenant: &str| AgentInterface {
            url,
            protocol_binding: binding.name().to_owned(),
            tenant: tenant.to_owned(),
            protocol_version: VERSION.to_owned(),
        };
        let mut interfaces =
            vec![interface(rpc, Binding::JsonRpc, ""), interface(rest, Binding::Rest, "")];
        // One address for all agents: there the tenant tells them apart.
        let grpc = self.grpc.clone();
        interfaces.extend(grpc.map(|url| interface(url, Binding::Grpc, name.unwrap_or_default())));
        let served =
            |i: &AgentInterface| self.bindings.iter().any(|b| b.name() == i.protocol_binding);
        interfaces.retain(served);
        if self.v03 {
            interfaces.extend(v03::interfaces(&interfaces));
        }
        interfaces
    }

    /// As JSON. No two gateways make the same signature, so the tag of a signed card is by what was
    /// signed and with which key: their caches and clients must not take one for a new card.
    fn tagged(&self, mut card: AgentCard) -> Tagged {
        let body = self.print(&card);
        let signatures = std::mem::take(&mut card.signatures);
        if signatures.is_empty() {
            return Tagged::exactly(body.into());
        }
        let mut meaning = self.print(&card);
        signatures.iter().for_each(|one| meaning.extend_from_slice(one.protected.as_bytes()));
        Tagged::meaning(body.into(), &meaning)
    }

    /// As JSON. What 0.3 looks for stands beside it, outside of what is signed: a client of 1.0
    /// does not see it, so it cannot verify it either.
    fn print(&self, card: &AgentCard) -> Vec<u8> {
        let new = json::to_vec(card);
        if !self.v03 {
            return new;
        }
        let parsed = serde_json::from_slice(&new).expect("ProtoJSON is JSON");
        serde_json::to_vec(&v03::card(parsed)).expect("a JSON value is JSON")
    }
}

/// Gives every field that A2A requires something to say, whatever the worker left out: clients
/// rely on them, and verifiers disagree on whether an empty one is signed.
fn fill(card: &mut AgentCard) {
    let name = card.name.clone();
    or(&mut card.description, &name);
    or(&mut card.version, "1.0.0");
    or_one(&mut card.default_input_modes, ANYTHING);
    or_one(&mut card.default_output_modes, ANYTHING);
    let capabilities = card.capabilities.get_or_insert_with(AgentCapabilities::default);
    capabilities.streaming.get_or_insert(false);
    if card.skills.is_empty() {
        card.skills.push(AgentSkill { id: name.clone(), ..AgentSkill::default() });
    }
    for skill in &mut card.skills {
        or(&mut skill.id, &name);
        let id = skill.id.clone();
        or(&mut skill.name, &id);
        or(&mut skill.description, &card.description);
        or_one(&mut skill.tags, &name);
        if skill.input_modes.is_empty() {
            skill.input_modes.clone_from(&card.default_input_modes);
        }
        if skill.output_modes.is_empty() {
            skill.output_modes.clone_from(&card.default_output_modes);
        }
    }
}

fn or(field: &mut String, otherwise: &str) {
    if field.is_empty() {
        otherwise.clone_into(field);
    }
}

fn or_one(field: &mut Vec<String>, otherwise: &str) {
    if field.is_empty() {
        field.push(otherwise.to_owned());
    }
}

/// Says that callers need a token. The scopes are those a client needs to do all it can.
fn secure(card: &mut AgentCard) {
    let scheme = HttpAuthSecurityScheme { scheme: "Bearer".to_owned(), ..Default::default() };
    let scheme = SecurityScheme { scheme: Some(Scheme::HttpAuthSecurityScheme(scheme)) };
    card.security_schemes.insert(BEARER.to_owned(), scheme);
    let scopes = StringList { list: vec!["send".to_owned(), "read".to_owned()] };
    let schemes = [(BEARER.to_owned(), scopes)].into_iter().collect();
    card.security_requirements.push(SecurityRequirement { schemes });
}
