//! From the text of a script to its instructions. Pure: it reads everything or says what it could
//! not read, and runs nothing.

use std::{fmt, str::FromStr, time::Duration};

use faultline_proto::id::check_agent_name;

use super::split::{Piece, block, pieces, unquote, word};
use crate::reason::{self, Reason};

const TEXT_CHARS_MAX: usize = 60;
/// How deep `try` may stand in `try`: each level is read once more than the one around it.
const TRY_DEPTH_MAX: usize = 16;
const INSTRUCTIONS: &str = "one of say, chunk, artifact, data, sleep, ask, auth, delegate, try, \
                            checkpoint, message, reject, fail, panic, abort, hang";

/// A script that can be run. Blocks are laid out one after the other, so that a place in the script
/// is a number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    pub instructions: Vec<Instruction>,
}

/// One step. Texts still hold their `$answer` and `$failure`: they are replaced when the step runs.
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
    /// The script is the other agent's business, as written.
    Delegate {
        agent: String,
        script: String,
    },
    /// If a step fails before the `EndTry` that belongs to it, go on at `otherwise`.
    Try {
        otherwise: usize,
    },
    /// Nothing failed: go on at `end`.
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

/// How a `fail` fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Fail {
    pub reason: &'static Reason,
    pub code: Option<String>,
    pub text: Option<String>,
    pub retryable: Option<bool>,
    pub retry_after: Option<Duration>,
    /// Only this many first attempts fail; `None`: all.
    pub times: Option<u32>,
}

/// What of a script could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// From 1.
    pub line: usize,
    /// The instruction as written, cut.
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

#[derive(Default)]
struct Reader {
    instructions: Vec<Instruction>,
    /// How many `data` there were.
    data: u32,
    /// How many `try` are open.
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
            let (agent, script) = (agent.to_owned(), script.trim().to_owned());
            Ok(Instruction::Delegate { agent, script })
        }
        _ => Err(piece.expected("an agent and { its script } after 'delegate'")),
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
    let mut fail =
        Fail { reason, code: None, text: None, retryable: None, retry_after: None, times: None };
    while !rest.is_empty() {
        let (option, after) = word(rest);
        rest = after;
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value = unquote(value);
        let known = match key {
            "code" => set(&mut fail.code, Some(value.into_owned())),
            "text" => set(&mut fail.text, Some(value.into_owned())),
            "retryable" => set(&mut fail.retryable, value.parse().ok()),
            "retry_after" => set(&mut fail.retry_after, duration(&value)),
            "times" => set(&mut fail.times, value.parse().ok()),
            _ => false,
        };
        if !known {
            return Err(piece.expected(
                "code=CODE, text=\"TEXT\", retryable=true|false, retry_after=2s or times=N, \
                 each at most once",
            ));
        }
    }
    Ok(fail)
}

/// Sets what was not set before, to a value that could be read.
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parse(source: &str) -> Vec<Instruction> {
        source.parse::<Script>().unwrap().instructions
    }

    fn refused(source: &str) -> String {
        source.parse::<Script>().unwrap_err().to_string()
    }

    #[test]
    fn every_instruction_reads_as_written() {
        use Instruction::*;
        let text = |s: &str| s.to_owned();
        assert_eq!(
            parse("say hello there; chunk \" a;b\"\nartifact \"my file\" the text; sleep 200ms"),
            [
                Say(text("hello there")),
                Chunk(text(" a;b")),
                Artifact { name: text("my file"), text: text("the text") },
                Sleep(Duration::from_millis(200)),
            ]
        );
        assert_eq!(
            parse("data {\"a\": [1, \"}\"]}; data \"x\"; data 3"),
            [
                Data { name: text("data"), value: json!({"a": [1, "}"]}) },
                Data { name: text("data-2"), value: json!("x") },
                Data { name: text("data-3"), value: json!(3) },
            ]
        );
        assert_eq!(
            parse("ask Who?; auth http://x/y; message $answer; reject no; panic; abort; hang"),
            [
                Ask(text("Who?")),
                Auth(text("http://x/y")),
                Message(text("$answer")),
                Reject(text("no")),
                Panic,
                Abort,
                Hang,
            ]
        );
        assert_eq!(parse("\n# nothing; at all {\n ;"), []);
        assert_eq!(parse("sleep 2s;sleep 1m").len(), 2);
    }

    #[test]
    fn fail_takes_its_options_in_any_order() {
        let all = "fail rate_limited times=2 text=\"slow down\" code=40401 retry_after=2s \
                   retryable=false";
        let expected = Fail {
            reason: &reason::RATE_LIMITED,
            code: Some("40401".into()),
            text: Some("slow down".into()),
            retryable: Some(false),
            retry_after: Some(Duration::from_secs(2)),
            times: Some(2),
        };
        assert_eq!(parse(all), [Instruction::Fail(expected)]);
        assert!(matches!(&parse("fail INTERNAL")[0], Instruction::Fail(f) if f.times.is_none()));
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        assert_eq!(
            refused("say a\n\n  slep 2s; say b"),
            format!("line 3: cannot read 'slep 2s': expected {INSTRUCTIONS}")
        );
        let time = "expected a time such as 200ms, 2s or 1m";
        for bad in
            ["sleep", "sleep 2", "sleep 2h", "sleep s", "sleep -1s", "sleep 99999999999999999999s"]
        {
            assert_eq!(refused(bad), format!("line 1: cannot read '{bad}': {time}"));
        }
        assert!(refused("say").ends_with("expected a text after 'say'"));
        assert!(refused("artifact a").ends_with("expected a name and a text after 'artifact'"));
        assert!(refused("data {a}").contains("expected JSON after 'data'"));
        assert!(refused("fail NO_SUCH").contains("expected a reason of the table"));
        assert!(refused("fail").contains("expected a reason of the table"));
        for bad in ["times=x", "why=1", "retryable", "code=1 code=2", "text=a b"] {
            assert!(refused(&format!("fail INTERNAL {bad}")).contains("at most once"), "{bad}");
        }
        assert!(refused("panic now").ends_with("expected nothing after 'panic'"));
        assert!(refused("say :}").contains("quotes around it"));
        for bad in ["delegate", "delegate echo", "delegate Echo { a }", "delegate echo { a } b"] {
            assert!(
                refused(bad).ends_with("an agent and { its script } after 'delegate'"),
                "{bad}"
            );
        }
        for bad in ["try", "try { a }", "try { say a }\nelse { say b }", "try a else { b }"] {
            assert!(refused(bad).contains("else { … } after 'try'"), "{bad}");
        }
        let nested = "say a\ntry {\n  say b\n  slep\n} else { say c }";
        assert!(refused(nested).starts_with("line 4: cannot read 'slep'"), "{}", refused(nested));
        let deep = "try { ".repeat(17) + &" } else { }".repeat(17);
        assert!(refused(&deep).ends_with("at most 16 'try' in one another"));
    }

    #[test]
    fn blocks_are_laid_out_one_after_the_other() {
        use Instruction::*;
        let text = |s: &str| s.to_owned();
        assert_eq!(
            parse("try { say a; try { panic } else { } } else { say b }; checkpoint"),
            [
                Try { otherwise: 6 },
                Say(text("a")),
                Try { otherwise: 5 },
                Panic,
                EndTry { end: 5 },
                EndTry { end: 7 },
                Say(text("b")),
                Checkpoint,
            ]
        );
        let inner = "say a; delegate echo { \"}\" }\n# ok }\nask $answer";
        let script = format!("delegate script {{ {inner} }}");
        assert_eq!(parse(&script), [Delegate { agent: text("script"), script: text(inner) }]);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(source in "(?s).{0,200}") {
            let _ = source.parse::<Script>();
        }

        #[test]
        fn nor_does_text_that_looks_like_a_script(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just("say "), Just("fail INTERNAL "), Just("data "), Just("sleep 1s"),
                    Just("\""), Just("\\"), Just("{"), Just("}"), Just(";"), Just("\n"),
                    Just("#"), Just(" "), Just("text="), Just("é"), Just("artifact "),
                    Just("try {"), Just("else {"), Just("delegate echo {"),
                ],
                0..24,
            )
        ) {
            let _ = parts.concat().parse::<Script>();
        }

        #[test]
        fn any_text_survives_quoting(text in "(?s).{0,80}") {
            let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
            let script =
                format!("say {quoted}; artifact {quoted} {quoted}; fail INTERNAL text={quoted}");
            let Ok(read) = script.parse::<Script>() else {
                prop_assert!(text.is_empty(), "an artifact needs a name");
                return Ok(());
            };
            prop_assert_eq!(&read.instructions[0], &Instruction::Say(text.clone()));
            prop_assert_eq!(
                &read.instructions[1],
                &Instruction::Artifact { name: text.clone(), text: text.clone() }
            );
            let Instruction::Fail(fail) = &read.instructions[2] else { panic!("{read:?}") };
            prop_assert_eq!(fail.text.as_ref(), Some(&text));
        }
    }
}
