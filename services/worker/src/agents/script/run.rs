//! Interpreter of scripts, with a checkpoint after each expensive instruction, so that another
//! worker continues from the last one.

use prost::Message;

use super::parse::{Fail, Instruction, Script};
use crate::{Action, Context, Error, Fanned, a2a, reason};

/// The position and the variables of a script; the content of its checkpoints.
#[derive(Clone, PartialEq, prost::Message)]
struct Position {
    /// Index of the next instruction.
    #[prost(uint32, tag = "1")]
    next: u32,
    #[prost(string, tag = "2")]
    answer: String,
    /// The text of the last `message`.
    #[prost(string, optional, tag = "3")]
    reply: Option<String>,
    /// Indices to continue at after a failure, the innermost `try` last.
    #[prost(uint32, repeated, tag = "4")]
    otherwise: Vec<u32>,
    /// The reason of the last failure that was caught.
    #[prost(string, tag = "5")]
    failure: String,
}

impl Position {
    /// Continues at the `else` of the innermost `try`. A stop or a rejection is not caught.
    async fn catch(&mut self, cx: &Context, error: Error) -> Result<(), Error> {
        match (error.failure(), self.otherwise.pop()) {
            (Some(failure), Some(at)) => {
                self.failure.clone_from(&failure.reason);
                self.next = at;
                cx.tolerate(error).await
            }
            _ => Err(error),
        }
    }
}

pub(super) async fn run(cx: &Context, script: &Script, drills: bool) -> Result<(), Error> {
    let mut place = match cx.restored() {
        None => Position::default(),
        Some(bytes) => Position::decode(bytes).map_err(|error| {
            let text = "the saved place of the script cannot be read";
            Error::new(&reason::DATA_LOSS).because(text).caused_by(error)
        })?,
    };
    if let Some(reply) = &place.reply {
        cx.reply(reply).await?;
    }
    let next = |place: &Position| script.instructions.get(place.next as usize);
    // Only a script that begins with `message` can do without a task.
    let begins_with_answer = matches!(next(&place), Some(Instruction::Message(_)));
    if !begins_with_answer || cx.restored().is_some() {
        cx.start().await?;
    }
    while let Some(instruction) = next(&place) {
        place.next += 1;
        let stepped = if is_harmful(instruction) && !drills {
            Err(no_drills(instruction))
        } else {
            step(cx, instruction, &mut place).await
        };
        let save = match stepped {
            Ok(save) => save,
            Err(error) => place.catch(cx, error).await.map(|()| true)?,
        };
        if save {
            cx.checkpoint(place.encode_to_vec()).await?;
        }
    }
    Ok(())
}

/// Harms the worker's process, a thread or a slot, and thereby other tasks.
fn is_harmful(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Panic | Instruction::Abort | Instruction::Hang)
}

fn no_drills(instruction: &Instruction) -> Error {
    let verb = match instruction {
        Instruction::Panic => "panic",
        Instruction::Abort => "abort",
        _ => "hang",
    };
    Error::new(&reason::FAILED_PRECONDITION).because(format!(
        "'{verb}' harms the worker, which allows it only with `drills = true` in [worker] or \
         FAULTLINE_WORKER__DRILLS=true"
    ))
}

/// Runs one instruction. `true`: the position is worth a checkpoint.
async fn step(
    cx: &Context,
    instruction: &Instruction,
    place: &mut Position,
) -> Result<bool, Error> {
    let fill =
        |text: &str| text.replace("$answer", &place.answer).replace("$failure", &place.failure);
    match instruction {
        Instruction::Say(text) => cx.status(fill(text)).await?,
        Instruction::Chunk(text) => cx.append("output", fill(text)).await?,
        Instruction::Artifact { name, text } => cx.artifact(fill(name), fill(text)).await?,
        Instruction::Data { name, value } => {
            let mut value = value.clone();
            fill_json(&mut value, &fill);
            cx.artifact(name, value).await?;
        }
        Instruction::Sleep(time) => {
            cx.sleep(*time).await?;
            return Ok(true);
        }
        Instruction::Ask(prompt) => {
            let answer = cx.ask(fill(prompt)).await?;
            place.answer = match answer.action() {
                Action::Accepted => answer.text().into_owned(),
                Action::Declined => "declined".to_owned(),
                Action::Dismissed => "dismissed".to_owned(),
            };
            return Ok(true);
        }
        Instruction::Auth(url) => {
            cx.auth(fill(url)).await?;
            return Ok(true);
        }
        Instruction::Delegate { agent, script } => {
            let made = cx.delegate(agent, script).await?;
            for artifact in made.artifacts() {
                cx.artifact(&artifact.artifact_id, artifact.parts.clone()).await?;
            }
            return Ok(true);
        }
        Instruction::Fanout { required, agents, script } => {
            let fanout = agents.iter().fold(cx.fanout(script), |fanout, agent| fanout.to(agent));
            let fanned = fanout.at_least(required.unwrap_or(agents.len())).await?;
            for (name, parts) in joined(&fanned) {
                cx.artifact(name, parts).await?;
            }
            return Ok(true);
        }
        Instruction::Try { otherwise } => place.otherwise.push(index(*otherwise)),
        Instruction::EndTry { end } => {
            place.otherwise.pop();
            place.next = index(*end);
        }
        Instruction::Checkpoint => return Ok(true),
        Instruction::Message(text) => {
            let text = fill(text);
            cx.reply(text.as_str()).await?;
            place.reply = Some(text);
        }
        Instruction::Reject(text) => return Err(Error::rejected(fill(text))),
        Instruction::Fail(how) => fail(cx, how, fill)?,
        Instruction::Panic => panic!("instruction `panic` of the script"),
        Instruction::Abort => {
            cx.settled().await?;
            std::process::abort();
        }
        Instruction::Hang => std::future::pending::<()>().await,
    }
    Ok(false)
}

/// The artifacts of all branches; those of the same name are joined.
fn joined(fanned: &Fanned) -> Vec<(&str, Vec<a2a::Part>)> {
    let mut all: Vec<(&str, Vec<a2a::Part>)> = Vec::new();
    for artifact in fanned.results.iter().flat_map(|branch| branch.made.artifacts()) {
        let name = artifact.artifact_id.as_str();
        let parts = artifact.parts.iter().cloned();
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => known.extend(parts),
            None => all.push((name, parts.collect())),
        }
    }
    all
}

/// The size limit of messages keeps a script far below `u32::MAX` instructions.
fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn fail(cx: &Context, how: &Fail, fill: impl Fn(&str) -> String) -> Result<(), Error> {
    if how.times.is_some_and(|times| cx.attempt() > times) {
        return Ok(());
    }
    let mut error = Error::new(how.reason);
    if let Some(text) = &how.text {
        error = error.because(fill(text));
    }
    if let Some(code) = &how.code {
        error = error.code(fill(code));
    }
    if let Some(name) = &how.error_type {
        error = error.error_type(fill(name));
    }
    if let Some(yes) = how.recoverable {
        error = error.recoverable(yes);
    }
    if let Some(yes) = how.retryable {
        error = error.retryable(yes);
    }
    if let Some(delay) = how.retry_after {
        error = error.retry_after(delay);
    }
    Err(error)
}

fn fill_json(value: &mut serde_json::Value, fill: &impl Fn(&str) -> String) {
    match value {
        serde_json::Value::String(text) => *text = fill(text),
        serde_json::Value::Array(values) => values.iter_mut().for_each(|v| fill_json(v, fill)),
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(|v| fill_json(v, fill));
        }
        _ => {}
    }
}
