//! `echo`: returns the parts of its message as an artifact. The smallest agent, and the baseline
//! for the cost of a task.

use crate::{Agent, Context, Error, Offer, Skill};

struct Echo;

impl Agent for Echo {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("echo", cx.message().parts.clone()).await
    }
}

pub fn offer() -> Offer {
    // `*/*` covers every type; the others help clients that look for a specific type.
    const TYPES: [&str; 3] = ["text/plain", "application/json", "*/*"];
    let skill = Skill::new("echo", "Echo", "Returns the text, data and files of the message");
    Offer::new("echo", Echo)
        .description("Returns the message as an artifact")
        .skill(skill.tag("test").example("hello"))
        .input_modes(TYPES)
        .output_modes(TYPES)
}
