//! Agents that want something of their callers, or offer less than others.

use faultline_worker::{Agent, Context, Error, Offer};

pub(crate) const REQUIRED: &str = "https://example.org/a2a/ext/stamps/v1";

struct Echo;

impl Agent for Echo {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("echo", cx.text()).await
    }
}

pub(crate) fn picky() -> Vec<Offer> {
    vec![
        Offer::new("mute", Echo).streaming(false).push_notifications(false),
        Offer::new("stamped", Echo).extension(REQUIRED, "Every message bears a stamp", true),
        Offer::new("texts-only", Echo).input_modes(["text/plain"]),
    ]
}
