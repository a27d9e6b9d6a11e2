//! Parser of scripts: text to instructions. Pure: it returns all instructions or the first syntax
//! error, and runs nothing.

use std::{fmt, str::FromStr, time::Duration};

use faultline_proto::id::check_agent_name;

use super::split::{Piece, block, pieces, unquote, word};
use crate::reason::{self, Reason};

const TEXT_CHARS_MAX: usize = 60;
/// Limit for nested `try`: each level is parsed once more than the level around it.
const TRY_DEPTH_MAX: usize = 16;
const INSTRUCTIONS: &str = "one of say, chunk, artifact, data, sleep, ask, auth, delegate, \
                            fanout, try, checkpoint, message, reject, fail, panic, abort, hang";

/// A parsed script. Blocks are laid out one after the other, so that an index identifies a
/// position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    pub instructions: Vec<Instruction>,
}

/// One instruction. Its texts still contain `$answer` and `$failure`, which are replaced when the
/// instruction runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Instruction {
    Say(String),
    Chunk(String),
    Artifact {
        name: String,
        text: String,
    },
    Data {
        name: String,
        value: serde_json::Value,
    },
    Sleep(Duration),
    Ask(String),
    Auth(String),
    /// The script is passed on unparsed.
    Delegate {
        agent: String,
        script: String,
    },
    /// Like `Delegate`, for several agents.
    Fanout {
        /// Number of agents that have to succeed; `None`: all.
        required: Option<usize>,
        agents: Vec<String>,
        script: String,
    },
    /// Continue at `otherwise` if an instruction before the matching `EndTry` fails.
    Try {
        otherwise: usize,
    },
    /// Nothing failed: continue at `end`.
    EndTry {
        end: usize,
    },
    Checkpoint,
    Message(String),
    Reject(String),
    Fail(Fail),
    Panic,
    Abort,
    Hang,
}

/// The options of a `fail` instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Fail {
    pub reason: &'static Reason,
    pub code: Option<String>,
    pub error_type: Option<String>,
    pub text: Option<String>,
    pub retryable: Option<bool>,
    pub recoverable: Option<bool>,
    pub retry_after: Option<Duration>,
    /// Only the first `times` attempts fail; `None`: all.
    pub times: Option<u32>,
}

/// A syntax error of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// The line, from 1.
    pub line: usize,
    /// The first line of the instruction, cut to 60 characters.
    pub text: String,
    pub expected: String,
}

impl ScriptError {
    pub(super) fn new(line: usize, text: &str, expected: impl Into<String>) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let mut cut: String = first.chars().take(TEXT_CHARS_MAX).collect();
        if cut.len() < text.len() {
            cut.push('…');
        }
        Self { line, text: cut, expected: expected.into() }
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text, expected } = self;
        write!(f, "line {line}: cannot read '{text}': expected {expected}")
    }
}

impl std::error::Error for ScriptError {}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(source: &str) -> Result<Self, ScriptError> {
        let mut reader = Reader::default();
        reader.read(source, 1)?;
        Ok(Self { instructions: reader.instructions })
    }
}

/// The parser: the instructions so far, one level of `try` at a time.
#[derive(Default)]
struct Reader {
    instructions: Vec<Instruction>,
    /// Number of `data` instructions so far.
    data: u32,
    /// Number of open `try` blocks.
    depth: usize,
}

impl Reader {
    fn read(&mut self, source: &str, line: usize) -> Result<(), ScriptError> {
        for piece in pieces(source, line)? {
            match word(piece.text) {
                ("try", rest) => self.try_else(&piece, rest)?,
                _ => {
                    let mut instruction = instruction(&piece)?;
                    if let Instruction::Data { name, .. } = &mut instruction {
                        self.data += 1;
                        if self.data > 1 {
                            *name = format!("data-{}", self.data);
                        }
                    }
                    self.instructions.push(instruction);
                }
            }
        }
        Ok(())
    }

    fn try_else(&mut self, piece: &Piece<'_>, rest: &str) -> Result<(), ScriptError> {
        let blocks = block(rest).and_then(|(body, rest)| match word(rest) {
            ("else", rest) => Some((body, block(rest)?)),
            _ => None,
        });
        let Some((body, (otherwise, ""))) = blocks else {
            return Err(piece.expected("{ … } else { … } after 'try', on the same line"));
        };
        if self.depth == TRY_DEPTH_MAX {
            return Err(piece.expected(format!("at most {TRY_DEPTH_MAX} 'try' in one another")));
        }
        self.depth += 1;
        let start = self.instructions.len();
        self.instructions.push(Instruction::Try { otherwise: 0 });
        self.read(body, piece.line_of(body))?;
        let end = self.instructions.len();
        self.instructions.push(Instruction::EndTry { end: 0 });
        self.read(otherwise, piece.line_of(otherwise))?;
        self.instructions[start] = Instruction::Try { otherwise: end + 1 };
        self.instructions[end] = Instruction::EndTry { end: self.instructions.len() };
        self.depth -= 1;
        Ok(())
    }
}

fn instruction(piece: &Piece<'_>) -> Result<Instruction, ScriptError> {
    let (name, rest) = word(piece.text);
    let text = |what: &str| match rest {
        "" => Err(piece.expected(format!("{what} after '{name}'"))),
        rest => Ok(unquote(rest).into_owned()),
    };
    let alone = |instruction| match rest {
        "" => Ok(instruction),
        _ => Err(piece.expected(format!("nothing after '{name}'"))),
    };
    match name {
        "say" => text("a text").map(Instruction::Say),
        "chunk" => text("a text").map(Instruction::Chunk),
        "artifact" => artifact(piece, rest),
        "data" => data(piece, rest),
        "sleep" => match duration(rest) {
            Some(time) => Ok(Instruction::Sleep(time)),
            None => Err(piece.expected("a time such as 200ms, 2s or 1m")),
        },
        "ask" => text("a question").map(Instruction::Ask),
        "auth" => text("a URL").map(Instruction::Auth),
        "delegate" => delegate(piece, rest),
        "fanout" => fanout(piece, rest),
        "checkpoint" => alone(Instruction::Checkpoint),
        "message" => text("a text").map(Instruction::Message),
        "reject" => text("a text").map(Instruction::Reject),
        "fail" => fail(piece, rest).map(Instruction::Fail),
        "panic" => alone(Instruction::Panic),
        "abort" => alone(Instruction::Abort),
        "hang" => alone(Instruction::Hang),
        _ => Err(piece.expected(INSTRUCTIONS)),
    }
}

fn artifact(piece: &Piece<'_>, rest: &str) -> Result<Instruction, ScriptError> {
    let (name, text) = word(rest);
    let name = unquote(name).into_owned();
    if name.is_empty() || text.is_empty() {
        return Err(piece.expected("a name and a text after 'artifact'"));
    }
    Ok(Instruction::Artifact { name, text: unquote(text).into_owned() })
}

fn delegate(piece: &Piece<'_>, rest: &str) -> Result<Instruction, ScriptError> {
    let (agent, rest) = word(rest);
    match (check_agent_name(agent), block(rest)) {
        (Ok(()), Some((script, ""))) => {
            let agent = agent.to_owned();
            let script = script.trim().to_owned();
            Ok(Instruction::Delegate { agent, script })
        }
        _ => Err(piece.expected("an agent and { its script } after 'delegate'")),
    }
}

fn fanout(piece: &Piece<'_>, rest: &str) -> Result<Instruction, ScriptError> {
    let expected = || {
        piece.expected(
            "N, first or all, then 'of', agents with commas between them, and { their script } \
             after 'fanout', with N from 1 to the number of agents",
        )
    };
    let (count, rest) = word(rest);
    let (of, rest) = word(rest);
    let brace = rest.find('{').filter(|_| of == "of").ok_or_else(expected)?;
    let (names, rest) = rest.split_at(brace);
    let agents: Vec<_> = names.split(',').map(|name| name.trim().to_owned()).collect();
    let required = match count {
        "all" => None,
        "first" => Some(1),
        count => Some(count.parse().map_err(|_| expected())?),
    };
    let named = agents.iter().all(|agent| check_agent_name(agent).is_ok());
    let possible = required.is_none_or(|n| (1..=agents.len()).contains(&n));
    match block(rest) {
        Some((script, "")) if named && possible => {
            let script = script.trim().to_owned();
            Ok(Instruction::Fanout { required, agents, script })
        }
        _ => Err(expected()),
    }
}

fn data(piece: &Piece<'_>, rest: &str) -> Result<Instruction, ScriptError> {
    let value = serde_json::from_str(rest);
    let value = value.map_err(|error| piece.expected(format!("JSON after 'data' ({error})")))?;
    Ok(Instruction::Data { name: "data".to_owned(), value })
}

fn fail(piece: &Piece<'_>, rest: &str) -> Result<Fail, ScriptError> {
    let (name, mut rest) = word(rest);
    let reason = reason::named(name)
        .ok_or_else(|| piece.expected("a reason of the table, such as RATE_LIMITED"))?;
    let mut fail = Fail {
        reason,
        code: None,
        error_type: None,
        text: None,
        retryable: None,
        recoverable: None,
        retry_after: None,
        times: None,
    };
    while !rest.is_empty() {
        let (option, after) = word(rest);
        rest = after;
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value = unquote(value);
        let known = match key {
            "code" => set(&mut fail.code, Some(value.into_owned())),
            "type" => set(&mut fail.error_type, Some(value.into_owned())),
            "text" => set(&mut fail.text, Some(value.into_owned())),
            "retryable" => set(&mut fail.retryable, value.parse().ok()),
            "recoverable" => set(&mut fail.recoverable, value.parse().ok()),
            "retry_after" => set(&mut fail.retry_after, duration(&value)),
            "times" => set(&mut fail.times, value.parse().ok()),
            _ => false,
        };
        if !known {
            return Err(piece.expected(
                "code=CODE, type=TYPE, text=\"TEXT\", retryable=true|false, \
                 recoverable=true|false, retry_after=2s or times=N, each at most once",
            ));
        }
    }
    Ok(fail)
}

/// Sets an option that is still unset; `false` if it is set already or the value is invalid.
fn set<T>(option: &mut Option<T>, value: Option<T>) -> bool {
    let fresh = option.is_none() && value.is_some();
    if fresh {
        *option = value;
    }
    fresh
}

fn duration(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
