//! Agents that refuse what the built-in ones allow, so that every refusal reaches every client.

use faultline_worker::{Agent, Context, Error, Offer};

/// Known to the clients' scripts too.
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
        // Its card promises an extended one, and there is none.
        Offer::new("promises", Repeat).card(promise),
    ]
}
