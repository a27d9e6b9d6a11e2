//! Agent cards: what an agent says of itself, with what only the gateway knows: where it is
//! reached, how callers are known, and a signature.

use std::time::SystemTime;

use faultline_proto::{
    a2a::{
        AgentCapabilities, AgentCard, AgentInterface, AgentSkill, HttpAuthSecurityScheme,
        SecurityRequirement, SecurityScheme, StringList, security_scheme::Scheme,
    },
    json,
};
use http::request::Parts;

use crate::{
    cards::{public_url::PublicUrl, signature::Signer},
    protocol::{binding::Binding, v03},
};

const VERSION: &str = "1.0";
/// The name of our security scheme on a card.
const BEARER: &str = "bearer";
/// For an agent that does not say what it reads or writes.
const ANYTHING: &str = "*/*";

/// What this gateway adds to every card.
pub(crate) struct CardSettings {
    pub(crate) public: PublicUrl,
    /// Where gRPC clients dial, if cards should say so.
    pub(crate) grpc: Option<String>,
    pub(crate) signer: Option<Signer>,
    /// Authenticator need a token.
    pub(crate) secured: bool,
    pub(crate) bindings: Vec<Binding>,
    /// Clients of A2A 0.3 find what they look for, too.
    pub(crate) v03: bool,
    /// When this gateway started: what it adds is as old as that.
    pub(crate) since: SystemTime,
}

/// A card as JSON, and the meaning of the bytes where other bytes may mean the same.
pub(crate) struct PrintedCard {
    pub(crate) body: Vec<u8>,
    pub(crate) meaning: Option<Vec<u8>>,
}

impl CardSettings {
    pub(crate) fn complete(&self, head: &Parts, name: Option<&str>, card: &mut AgentCard) {
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

    /// As JSON. No two gateways make the same signature, so the meaning of a signed card is what was
    /// signed and with which key: their caches and clients must not take one for a new card.
    pub(crate) fn printed(&self, mut card: AgentCard) -> PrintedCard {
        let body = self.print(&card);
        let signatures = std::mem::take(&mut card.signatures);
        if signatures.is_empty() {
            return PrintedCard { body, meaning: None };
        }
        let mut meaning = self.print(&card);
        signatures.iter().for_each(|one| meaning.extend_from_slice(one.protected.as_bytes()));
        PrintedCard { body, meaning: Some(meaning) }
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
