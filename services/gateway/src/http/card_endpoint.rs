//! Agent cards over HTTP: the public card of an agent and the extended card of a caller, with
//! `ETag` and caching headers.

use std::time::SystemTime;

use axum::body::Body;
use faultline_proto::{Failure, a2a::AgentCard, reason};
use http::{HeaderValue, Response};

use crate::{
    cards::card::PrintedCard,
    http::{
        conditional::{self, CachePolicy, TaggedBody},
        context::RequestContext,
        failure::{JSON, Rejection},
    },
};

/// A card changes only when a worker with another card attaches.
const PUBLIC: HeaderValue = HeaderValue::from_static("public, max-age=60");
const PRIVATE: HeaderValue = HeaderValue::from_static("private, max-age=60");

/// The public card of one agent, or of the default agent at the root.
pub(crate) async fn handle(
    context: &RequestContext,
    name: Option<&str>,
) -> Result<Response<Body>, Rejection> {
    let gateway = &context.gateway;
    let agent = gateway.card_cache.find(&gateway.pool, name).await?;
    let agent = agent.ok_or_else(|| not_found(name))?;
    let cards = &gateway.cards;
    let changed = agent.card_changed.and_then(|time| SystemTime::try_from(time).ok());
    let mut card = agent.card.clone().unwrap_or_default();
    if card.name.is_empty() {
        card.name.clone_from(&agent.name);
    }
    let policy = CachePolicy {
        control: PUBLIC,
        vary: cards.public.depends_on_host().then_some(HeaderValue::from_static("host")),
        last_modified: changed.map(|changed| changed.max(cards.since)),
    };
    cards.complete(&context.head, name, &mut card);
    Ok(conditional::respond(&context.head, tagged(cards.printed(card)), JSON, policy))
}

/// An extended card as the answer to a GET. Only its caller may cache it.
pub(crate) fn extended_card(
    context: &RequestContext,
    card: &AgentCard,
    kind: HeaderValue,
) -> Response<Body> {
    let cards = &context.gateway.cards;
    let depends_on_host = cards.public.depends_on_host();
    let vary = if depends_on_host { "authorization, host" } else { "authorization" };
    let vary = Some(HeaderValue::from_static(vary));
    let policy = CachePolicy { control: PRIVATE, vary, last_modified: None };
    conditional::respond(&context.head, tagged(cards.printed(card.clone())), kind, policy)
}

/// The tag of a card: of its bytes, or of its meaning where the bytes differ between gateways.
fn tagged(printed: PrintedCard) -> TaggedBody {
    match printed.meaning {
        None => TaggedBody::by_bytes(printed.body.into()),
        Some(meaning) => TaggedBody::by_meaning(printed.body.into(), &meaning),
    }
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
