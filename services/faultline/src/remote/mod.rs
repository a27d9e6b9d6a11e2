//! Agents that are elsewhere. Each is offered to the mesh by a name of ours and forwards its tasks
//! to an A2A server of another house, with failures, stops and questions whole in both directions.
//! To the mesh it is an agent like any other; it knows no other service.
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

/// How long the start of a worker waits for cards.
const CARD_TIMEOUT: Duration = Duration::from_secs(5);
const ANYTHING: &str = "*/*";

/// The agents of `[remote]`. Each is offered with what the card of the real one says, if that can
/// be had now; one that is away is offered all the same, and looked for again by its first task.
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
            let text = "a remote agent is away: it is offered without what its card says until \
                        this worker starts again";
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

/// What may be promised of it: what it is for and what it reads and writes. How it is reached, and
/// what tasks can do, is this mesh's.
fn describe(own: &mut AgentCard, card: Option<&AgentCard>) {
    let anything = || vec![ANYTHING.to_owned()];
    let modes = |modes: &[String]| if modes.is_empty() { anything() } else { modes.to_vec() };
    let Some(card) = card else {
        own.description = format!("The agent {}, which is elsewhere", own.name);
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
    // Who may use a skill is for this mesh to say, which asks its callers in its own way.
    own.skills.iter_mut().for_each(|skill| skill.security_requirements.clear());
}

/// The server keeps the keys of sends, so that one may be sent again.
fn keeps_keys(client: &Client) -> bool {
    let capabilities = client.card().and_then(|card| card.capabilities.as_ref());
    capabilities
        .is_some_and(|c| c.extensions.iter().any(|e| e.uri == foreign_failure::FAILURE_EXTENSION))
}
