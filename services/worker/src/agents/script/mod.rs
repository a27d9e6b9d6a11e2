//! `script`: a fault-injection agent that runs the instructions in its message. For demonstrations,
//! tests and bug reports.
//!
//! # The language
#![doc = include_str!("language.md")]

mod parse;
mod run;
mod split;

use crate::{Agent, Context, Error, Offer, Skill, reason};

pub use parse::{Fail, Instruction, Script, ScriptError};

struct ScriptAgent {
    /// Whether `abort`, `panic` and `hang` take effect.
    drills: bool,
}

impl Agent for ScriptAgent {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let script: Script = cx.text().parse().map_err(|error: ScriptError| {
            let text = error.to_string();
            Error::new(&reason::INVALID_ARGUMENT)
                .because(text.as_str())
                .violation("message.parts[0].text", text)
        })?;
        run::run(cx, &script, self.drills).await
    }
}

/// Offers the agent. `drills`: whether `abort`, `panic` and `hang` take effect; otherwise they fail
/// the task.
pub fn offer(drills: bool) -> Offer {
    let skill = Skill::new("script", "Script", "Runs the instructions in the message, one by one");
    Offer::new("script", ScriptAgent { drills })
        .drill()
        .description("Runs the instructions in its message: report, wait, ask, delegate, fail")
        .skill(
            skill
                .tag("test")
                .example("say working; sleep 200ms; chunk done")
                .example("ask \"What is your name?\"; chunk $answer")
                .example("fail RATE_LIMITED code=40401 text=\"slow down\" retry_after=2s times=1")
                .writes("text/plain")
                .writes("application/json"),
        )
        .writes("application/json")
        .extended_skill(reference())
        .may_answer_with_message()
}

/// The language with one example for each instruction. Part of the extended card only, because
/// `abort` and `hang` harm workers.
fn reference() -> Skill {
    let skill = Skill::new("reference", "Reference", include_str!("language.md"));
    EXAMPLES.iter().fold(skill.tag("test"), |skill, example| skill.example(*example))
}

const EXAMPLES: [&str; 17] = [
    "say \"half way\"",
    "chunk some; chunk more",
    "artifact report \"all of it\"",
    "data {\"total\": 3}",
    "sleep 200ms",
    "ask \"Which one?\"; chunk $answer",
    "auth https://accounts.example.org/connect",
    "delegate echo { hello }",
    "fanout 2 of echo,echo,script { say hello }",
    "try { delegate script { fail INTERNAL } } else { chunk \"it failed: $failure\" }",
    "chunk once; checkpoint; abort",
    "message hello",
    "reject \"not my job\"",
    "fail RATE_LIMITED code=40401 text=\"slow down\" retry_after=2s times=1",
    "panic",
    "sleep 1s; abort",
    "hang",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_examples_are_valid_scripts() {
        for example in EXAMPLES {
            assert!(example.parse::<Script>().is_ok(), "{example}");
        }
    }
}
