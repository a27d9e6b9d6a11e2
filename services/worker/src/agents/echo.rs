//! `echo`: answers with what it was told. The smallest agent there is, and the yardstick for what
//! a task costs.

use crate::{Agent, Context, Error, Offer, Skill};

struct Echo;

impl Agent for Echo {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("echo", cx.message().parts.clone()).await
    }
}

pub fn offer() -> Offer {
    // The last stands for all; the others are there for clients that look for what they send.
    const TYPES: [&str; 3] = ["text/plain", "application/json", "*/*"];
    let skill = Skill::new("echo", "Echo", "Answers with the text, data and files it was sent");
    Offer::new("echo", Echo)
        .description("Answers with what it was told")
        .skill(skill.tag("test").example("hello"))
        .input_modes(TYPES)
        .output_modes(TYPES)
}
