//! Agents with restricted capabilities: no streaming or push, a required extension, or text input
//! only.

use faultline_worker::{Agent, Context, Error, Offer};

pub(crate) const REQUIRED: &str = "https://example.org/a2a/ext/stamps/v1";

struct Echo;

impl Agent for Echo {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("echo", cx.text()).await
    }
}

pub(crate) fn restricted() -> Vec<Offer> {
    vec![
        Offer::new("mute", Echo).streaming(false).push_notifications(false),
        Offer::new("stamped", Echo).extension(REQUIRED, "Every message has a stamp", true),
        Offer::new("texts-only", Echo).input_modes(["text/plain"]),
    ]
}
