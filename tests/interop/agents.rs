//! Agents without streams or push, and with a required extension, so that every client meets every
//! refusal.

use faultline_worker::{Agent, Context, Error, Offer};

/// The scripts of the clients use the same URI.
const EXTENSION: &str = "https://example.org/ext/strict/v1";

struct Repeat;

impl Agent for Repeat {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("repeat", cx.text()).await
    }
}

pub(crate) fn offers() -> [Offer; 3] {
    let promise = |card: &mut faultline_worker::a2a::AgentCard| {
        card.capabilities.get_or_insert_default().extended_agent_card = Some(true);
    };
    [
        // No streams, no push, no extended card.
        Offer::new("plain", Repeat).streaming(false).push_notifications(false),
        Offer::new("strict", Repeat).extension(EXTENSION, "Must be spoken", true),
        // The card announces an extended card that does not exist.
        Offer::new("promises", Repeat).card(promise),
    ]
}
