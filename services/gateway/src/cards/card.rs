//! The content of an agent card: the card of the worker, completed with the interfaces, the
//! security scheme and the signature of the gateway.

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
/// The name of the security scheme on a card.
const BEARER: &str = "bearer";
/// The media types of an agent that names none.
const ANYTHING: &str = "*/*";

/// The part of every card that the gateway adds. Immutable after the start.
pub(crate) struct CardSettings {
    pub(crate) public: PublicUrl,
    /// The gRPC address, if cards list gRPC.
    pub(crate) grpc: Option<String>,
    pub(crate) signer: Option<Signer>,
    /// Whether callers need a token.
    pub(crate) secured: bool,
    pub(crate) bindings: Vec<Binding>,
    /// Whether cards have the fields of A2A 0.3 too.
    pub(crate) v03: bool,
    /// The start of this gateway, which is the earliest `Last-Modified` of a card.
    pub(crate) since: SystemTime,
}

/// A card as JSON. `meaning` identifies the content where its bytes differ between gateways.
pub(crate) struct PrintedCard {
    pub(crate) body: Vec<u8>,
    pub(crate) meaning: Option<Vec<u8>>,
}

impl CardSettings {
    /// Completes and signs the card of an agent, or of the default agent at the root.
    pub(crate) fn complete(&self, head: &Parts, name: Option<&str>, card: &mut AgentCard) {
        fill(card);
        card.supported_interfaces = self.interfaces(head, name);
        if self.secured {
            secure(card);
        }
        // Signatures of the worker do not cover the completed card.
        card.signatures.clear();
        card.signatures = self.signer.as_ref().map_or_else(Vec::new, |signer| signer.sign(card));
    }

    /// The interfaces, in order of preference.
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
        // gRPC has one address for all agents: the tenant distinguishes them.
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

    /// The card as JSON. Two gateways never make the same ECDSA signature, so a signed card is
    /// identified by its unsigned content and the key: caches must not take a new signature for a
    /// new card.
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

    /// The bytes of a card. The fields of 0.3 are outside of the signature: a verifier of 1.0 does
    /// not know them.
    fn print(&self, card: &AgentCard) -> Vec<u8> {
        let new = json::to_vec(card);
        if !self.v03 {
            return new;
        }
        let parsed = serde_json::from_slice(&new).expect("ProtoJSON is JSON");
        serde_json::to_vec(&v03::card(parsed)).expect("a JSON value is JSON")
    }
}

/// Fills the required fields that the worker left empty: clients rely on them, and verifiers
/// disagree on whether an empty field is signed.
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

/// Adds the bearer scheme. The scopes are those of all operations of A2A.
fn secure(card: &mut AgentCard) {
    let scheme = HttpAuthSecurityScheme { scheme: "Bearer".to_owned(), ..Default::default() };
    let scheme = SecurityScheme { scheme: Some(Scheme::HttpAuthSecurityScheme(scheme)) };
    card.security_schemes.insert(BEARER.to_owned(), scheme);
    let scopes = StringList { list: vec!["send".to_owned(), "read".to_owned()] };
    let schemes = [(BEARER.to_owned(), scopes)].into_iter().collect();
    card.security_requirements.push(SecurityRequirement { schemes });
}
