//! Capability checks against an agent's card: a call that needs a capability the card does not
//! offer is rejected. Pure.

use faultline_proto::{
    a2a::{AgentCapabilities, AgentCard, AgentExtension, Part, SendMessageRequest},
    v1::AgentOffer,
};

use crate::error::Error;

/// May this be sent to the agent by a client that declared these extensions?
pub(crate) fn check_send(
    offer: &AgentOffer,
    request: &SendMessageRequest,
    declared: &[String],
) -> Result<(), Error> {
    check_extensions(offer, declared)?;
    let parts = request.message.as_ref().map_or(&[][..], |message| &message.parts);
    check_content(offer, parts)?;
    let configuration = request.configuration.as_ref();
    match configuration.is_some_and(|c| c.task_push_notification_config.is_some()) {
        true => check_push(offer),
        false => Ok(()),
    }
}

pub(crate) fn check_streaming(offer: &AgentOffer) -> Result<(), Error> {
    match capabilities(offer).is_some_and(|c| c.streaming == Some(true)) {
        true => Ok(()),
        false => Err(Error::NoStreaming(offer.name.clone())),
    }
}

pub(crate) fn check_push(offer: &AgentOffer) -> Result<(), Error> {
    match capabilities(offer).is_some_and(|c| c.push_notifications == Some(true)) {
        true => Ok(()),
        false => Err(Error::NoPush(offer.name.clone())),
    }
}

/// The extended card, for callers with credentials.
pub(crate) fn extended_card(offer: &AgentOffer) -> Result<AgentCard, Error> {
    match capabilities(offer).is_some_and(|c| c.extended_agent_card == Some(true)) {
        true => {
            let missing = || Error::ExtendedCardMissing(offer.name.clone());
            offer.extended_card.clone().ok_or_else(missing)
        }
        false => Err(Error::NoExtendedCard(offer.name.clone())),
    }
}

/// The declared extensions that the card lists.
pub(crate) fn common_extensions(offer: &AgentOffer, declared: &[String]) -> Vec<String> {
    let listed = extensions(offer).map(|extension| &extension.uri);
    listed.filter(|uri| declared.contains(uri)).cloned().collect()
}

/// The extensions that a client must declare.
pub(crate) fn required_extensions(offer: &AgentOffer) -> Vec<String> {
    extensions(offer).filter(|extension| extension.required).map(|e| e.uri.clone()).collect()
}

fn check_extensions(offer: &AgentOffer, declared: &[String]) -> Result<(), Error> {
    let missing = extensions(offer).find(|e| e.required && !declared.contains(&e.uri));
    match missing {
        None => Ok(()),
        Some(extension) => {
            let (agent, uri) = (offer.name.clone(), extension.uri.clone());
            Err(Error::ExtensionRequired { agent, uri })
        }
    }
}

/// A part that states no media type is taken, and so is everything by an agent that lists none.
fn check_content(offer: &AgentOffer, parts: &[Part]) -> Result<(), Error> {
    let mut stated = parts.iter().enumerate().filter(|(_, part)| !part.media_type.is_empty());
    let refused = stated.find(|(_, part)| !takes(offer, &part.media_type));
    match refused {
        None => Ok(()),
        Some((at, part)) => {
            let (agent, media_type) = (offer.name.clone(), part.media_type.clone());
            Err(Error::ContentType { agent, at, media_type })
        }
    }
}

fn takes(offer: &AgentOffer, media_type: &str) -> bool {
    let Some(card) = &offer.card else { return true };
    let skills = card.skills.iter().flat_map(|skill| &skill.input_modes);
    let mut modes = card.default_input_modes.iter().chain(skills).peekable();
    modes.peek().is_none() || modes.any(|mode| covers(mode, media_type))
}

/// `text/*` covers `text/plain`; parameters and case do not matter.
fn covers(mode: &str, media_type: &str) -> bool {
    let (Some(mode), Some(given)) = (halves(mode), halves(media_type)) else { return false };
    let equal = |wanted: &str, given: &str| wanted == "*" || wanted.eq_ignore_ascii_case(given);
    equal(mode.0, given.0) && equal(mode.1, given.1)
}

fn halves(media_type: &str) -> Option<(&str, &str)> {
    let essence = media_type.split(';').next().unwrap_or_default();
    let (kind, subtype) = essence.split_once('/')?;
    Some((kind.trim(), subtype.trim()))
}

fn capabilities(offer: &AgentOffer) -> Option<&AgentCapabilities> {
    offer.card.as_ref()?.capabilities.as_ref()
}

fn extensions(offer: &AgentOffer) -> impl Iterator<Item = &AgentExtension> {
    capabilities(offer).into_iter().flat_map(|c| &c.extensions)
}

#[cfg(test)]
mod tests;
