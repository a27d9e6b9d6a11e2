//! Remote agents: an adapter from the worker's `Agent` trait to an A2A server outside this mesh.
//! Each remote agent has a name in this mesh and forwards its tasks, with failures, cancellation
//! and questions in both directions. Must not depend on any service but the worker.
//!
//! May use: no other folder of this crate.

mod agent;
mod config;
mod foreign_failure;
mod relay;

use std::{collections::BTreeMap, time::Duration};

use faultline_client::Client;
use faultline_proto::a2a::AgentCard;
use faultline_worker::Offer;
use futures::future::join_all;
use tokio::time::timeout;

pub use config::{Binding, Dialect, InvalidRemote, Remote, Timeouts};

use agent::RemoteAgent;

/// Timeout of a worker's start for reading the cards.
const CARD_TIMEOUT: Duration = Duration::from_secs(5);
const ANYTHING: &str = "*/*";

/// The agents of `[remote]`. Each is offered with the description and skills of its card, if the
/// card can be read now. An unreachable agent is offered without them, and its first task reads the
/// card again.
pub async fn offers(remotes: &BTreeMap<String, Remote>) -> Result<Vec<Offer>, InvalidRemote> {
    let agents = remotes.iter().map(|(name, remote)| RemoteAgent::new(name, remote));
    let agents = agents.collect::<Result<Vec<_>, _>>()?;
    Ok(join_all(agents.into_iter().zip(remotes.values()).map(offer)).await)
}

async fn offer((agent, remote): (RemoteAgent, &Remote)) -> Offer {
    let name = agent.name().to_owned();
    let found = match timeout(CARD_TIMEOUT, agent.client()).await {
        Ok(found) => found.cloned().map_err(|error| error.to_string()),
        Err(_) => Err(format!("no card within {CARD_TIMEOUT:?}")),
    };
    let card = match &found {
        Ok(client) => client.card(),
        Err(why) => {
            let text = "a remote agent is unreachable: it is offered without the contents of its \
                        card until this worker restarts";
            tracing::warn!(agent = name, card = remote.card, why, "{text}");
            None
        }
    };
    let offer = Offer::new(name, agent).delivers_stops().card(|own| describe(own, card));
    match &remote.description {
        Some(text) => offer.description(text),
        None => offer,
    }
}

/// Copies the description, modes and skills of the remote card into the card in this mesh. The
/// interfaces and capabilities are those of this mesh.
fn describe(own: &mut AgentCard, card: Option<&AgentCard>) {
    let anything = || vec![ANYTHING.to_owned()];
    let modes = |modes: &[String]| if modes.is_empty() { anything() } else { modes.to_vec() };
    let Some(card) = card else {
        own.description = format!("The remote agent {}", own.name);
        (own.default_input_modes, own.default_output_modes) = (anything(), anything());
        return;
    };
    if !card.description.is_empty() {
        own.description.clone_from(&card.description);
    }
    if !card.version.is_empty() {
        own.version.clone_from(&card.version);
    }
    own.provider.clone_from(&card.provider);
    own.documentation_url.clone_from(&card.documentation_url);
    own.icon_url.clone_from(&card.icon_url);
    own.default_input_modes = modes(&card.default_input_modes);
    own.default_output_modes = modes(&card.default_output_modes);
    own.skills.clone_from(&card.skills);
    // This mesh authenticates its callers; the remote security schemes do not apply to them.
    own.skills.iter_mut().for_each(|skill| skill.security_requirements.clear());
}

/// Whether the server stores idempotency keys, so that a send may be repeated.
fn keeps_keys(client: &Client) -> bool {
    let capabilities = client.card().and_then(|card| card.capabilities.as_ref());
    capabilities
        .is_some_and(|c| c.extensions.iter().any(|e| e.uri == foreign_failure::FAILURE_EXTENSION))
}
