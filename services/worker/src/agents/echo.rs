//! `echo`: answers with what it was told. The smallest agent there is, and the yardstick for what
//! a task costs.

use crate::{Agent, Context, Error, Offer, Skill};

struct Echo;

impl Agent for Echo {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        cx.artifact("echo", cx.text()).await
    }
}

pub fn offer() -> Offer {
    let skill = Skill::new("echo", "Echo", "Answers with the text it was sent");
    Offer::new("echo", Echo)
        .description("Answers with what it was told")
        .skill(skill.tag("test").example("hello"))
}
