//! A form on a terminal: one line for a plain question, one prompt per field for a question with a
//! schema; an invalid value is asked for again. Reads lines and writes prompts; must not call the
//! mesh.

use std::io::{self, BufRead, Write};

use faultline_proto::{
    a2a::{Part, part::Content},
    answer,
    schema::{Bounds, Choice, Field, Kind, Schema},
    v1::{Interrupt, interrupt},
};
use prost_types::{Struct, Value, value};

use crate::output::text::line;

/// Prompts for an answer and returns its parts. `None`: the person typed nothing, so the task
/// continues to wait.
pub(crate) fn ask(
    question: &Interrupt,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> io::Result<Option<Vec<Part>>> {
    if question.kind() == interrupt::Kind::AuthUrl {
        let done = read(input, output, "press Enter when that is done ")?;
        return Ok(done.map(|_| vec![text("done")]));
    }
    let schema = question.schema.as_ref().and_then(|schema| Schema::read(schema).ok());
    let Some(schema) = schema else {
        let typed = read(input, output, "> ")?;
        return Ok(typed.filter(|typed| !typed.is_empty()).map(|typed| vec![text(&typed)]));
    };
    let approves = question.kind() == interrupt::Kind::Approval;
    let mut fields = Struct::default();
    for field in &schema.fields {
        match ask_field(field, approves, input, output)? {
            FieldInput::Value(value) => drop(fields.fields.insert(field.name.clone(), value)),
            FieldInput::Skipped => {}
            FieldInput::InputEnded => return Ok(None),
        }
    }
    Ok(Some(vec![answer::fields_part(fields)]))
}

/// The input for one field.
enum FieldInput {
    Value(Value),
    Skipped,
    /// End of input.
    InputEnded,
}

fn ask_field(
    field: &Field,
    approves: bool,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> io::Result<FieldInput> {
    if let Kind::Choice(options) | Kind::Choices { options, .. } = &field.kind {
        for (number, option) in (1..).zip(options) {
            writeln!(output, "  {number}  {}", line(&option.title))?;
        }
    }
    let prompt = prompt(field);
    loop {
        let Some(typed) = read(input, output, &prompt)? else { return Ok(FieldInput::InputEnded) };
        let value = match typed.as_str() {
            // An empty line never approves.
            "" if field.kind == Kind::YesNo && approves => field.parse("no"),
            "" if field.default.is_some() || !field.required => return Ok(FieldInput::Skipped),
            typed => read_value(field, typed),
        };
        let empty = typed.is_empty() && !approves;
        let wrong = field.check(&value).or_else(|| empty.then(|| "is required".to_owned()));
        match wrong {
            Some(what) => writeln!(output, "  {} {}", line(field.label()), line(&what))?,
            None => return Ok(FieldInput::Value(value)),
        }
    }
}

/// The prompt of a field: its label, the permitted values and the default.
fn prompt(field: &Field) -> String {
    let mut prompt = line(field.label());
    if !field.description.is_empty() {
        prompt.push_str(&format!(" ({})", line(&field.description)));
    }
    let hint = match &field.kind {
        Kind::YesNo if field.default.is_none() => " [y/N]".to_owned(),
        Kind::Number { range, .. } => bounds(range),
        Kind::Choice(options) => format!(" 1-{}", options.len()),
        Kind::Choices { options, .. } => format!(" 1-{}, with commas", options.len()),
        Kind::Text { .. } | Kind::YesNo => String::new(),
    };
    prompt.push_str(&hint);
    match &field.default {
        Some(default) => prompt.push_str(&format!(" [{}]", line(&display(default)))),
        None if !field.required => prompt.push_str(" (optional)"),
        None => {}
    }
    prompt.push_str(": ");
    prompt
}

fn bounds(range: &Bounds) -> String {
    match (range.min, range.max) {
        (Some(min), Some(max)) => format!(" {min} to {max}"),
        (Some(min), None) => format!(" from {min}"),
        (None, Some(max)) => format!(" up to {max}"),
        (None, None) => String::new(),
    }
}

fn display(value: &Value) -> String {
    match &value.kind {
        Some(value::Kind::BoolValue(true)) => "yes".to_owned(),
        Some(value::Kind::BoolValue(false)) => "no".to_owned(),
        Some(value::Kind::NumberValue(number)) => number.to_string(),
        Some(value::Kind::StringValue(text)) => text.clone(),
        Some(value::Kind::ListValue(list)) => {
            list.values.iter().map(display).collect::<Vec<_>>().join(", ")
        }
        _ => String::new(),
    }
}

/// Parses the typed text. An option may be chosen by its number.
fn read_value(field: &Field, typed: &str) -> Value {
    match &field.kind {
        Kind::Choice(options) => field.parse(numbered(options, typed)),
        Kind::Choices { options, .. } => {
            let chosen = typed.split(',').map(|one| numbered(options, one.trim()));
            field.parse(&chosen.collect::<Vec<_>>().join(","))
        }
        Kind::Text { .. } | Kind::Number { .. } | Kind::YesNo => field.parse(typed),
    }
}

fn numbered<'a>(options: &'a [Choice], typed: &'a str) -> &'a str {
    if options.iter().any(|option| option.value == typed) {
        return typed;
    }
    let at = typed.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    at.and_then(|at| options.get(at)).map_or(typed, |option| &option.value)
}

/// One line without its line break; `None`: end of input.
fn read(
    input: &mut impl BufRead,
    output: &mut impl Write,
    prompt: &str,
) -> io::Result<Option<String>> {
    write!(output, "{prompt}")?;
    output.flush()?;
    let mut line = String::new();
    match input.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(line.trim().to_owned())),
    }
}

fn text(text: &str) -> Part {
    Part { content: Some(Content::Text(text.to_owned())), ..Part::default() }
}

#[cfg(test)]
mod tests {
    use faultline_proto::json;

    use super::*;

    /// The JSON of the answer and the written output for these typed lines.
    fn typed(question: &str, lines: &str) -> (Option<String>, String) {
        let question: Interrupt = json::from_str(question).unwrap();
        let mut output = Vec::new();
        let filled = ask(&question, &mut lines.as_bytes(), &mut output).unwrap();
        let parts = filled.map(|parts| {
            let each: Vec<_> = parts.iter().map(json::to_string).collect();
            each.join(",")
        });
        (parts, String::from_utf8(output).unwrap())
    }

    const APPROVAL: &str = r#"{"kind":"KIND_APPROVAL","schema":{"type":"object",
        "properties":{"approved":{"type":"boolean"}},"required":["approved"]}}"#;

    #[test]
    fn plain_question_takes_one_line_and_an_empty_line_is_no_answer() {
        assert_eq!(typed("{}", "Ada\n"), (Some(r#"{"text":"Ada"}"#.into()), "> ".into()));
        assert_eq!(typed("{}", "\n").0, None);
        assert_eq!(typed("{}", "").0, None);
    }

    #[test]
    fn approval_defaults_to_no() {
        let sent = |yes: bool| Some(format!(r#"{{"data":{{"approved":{yes}}}}}"#));
        assert_eq!(typed(APPROVAL, "y\n"), (sent(true), "approved [y/N]: ".into()));
        assert_eq!(typed(APPROVAL, "\n").0, sent(false));
        assert_eq!(typed(APPROVAL, "no\n").0, sent(false));
        let (parts, shown) = typed(APPROVAL, "perhaps\nyes\n");
        assert_eq!(parts, sent(true));
        assert!(shown.contains("  approved must be yes or no\n"), "{shown}");
        assert_eq!(typed(APPROVAL, "").0, None, "end of input");
    }

    #[test]
    fn form_asks_field_by_field_and_repeats_invalid_fields() {
        let form = r#"{"kind":"KIND_INPUT","schema":{"type":"object","properties":{
            "colour":{"type":"string","oneOf":[
                {"const":"r","title":"Red"},{"const":"g","title":"Green"}]},
            "host":{"type":"string","default":"localhost","description":"its name"},
            "note":{"type":"string"},
            "port":{"type":"integer","minimum":1,"maximum":65535,"title":"Port"},
            "tags":{"type":"array","items":{"enum":["a","b"]},"default":["a"]}},
            "required":["colour","port"]}}"#;
        let (parts, shown) = typed(form, "3\n2\n\n\n70000\n\n8080\n2, a\n");
        let sent = r#"{"data":{"colour":"g","port":8080,"tags":["b","a"]}}"#;
        assert_eq!(parts.as_deref(), Some(sent));
        let expected = "  1  Red\n  2  Green\n\
             colour 1-2:   colour must be one of r, g\n\
             colour 1-2: host (its name) [localhost]: note (optional): \
             Port 1 to 65535:   Port must be at most 65535\n\
             Port 1 to 65535:   Port must be a whole number\n\
             Port 1 to 65535:   1  a\n  2  b\ntags 1-2, with commas [a]: ";
        assert_eq!(shown, expected);
    }

    #[test]
    fn auth_url_question_only_asks_for_confirmation() {
        let auth = r#"{"kind":"KIND_AUTH_URL","url":"https://login.example"}"#;
        let (parts, shown) = typed(auth, "\n");
        assert_eq!(parts.as_deref(), Some(r#"{"text":"done"}"#));
        assert_eq!(shown, "press Enter when that is done ");
        assert_eq!(typed(auth, "").0, None);
    }

    #[test]
    fn control_characters_of_a_question_are_not_printed() {
        let evil = r#"{"schema":{"type":"object","required":["x"],"properties":{"x":
            {"type":"string","enum":["a\u001b[2J"],"title":"t\u001b[1A"}}}}"#;
        let (_, shown) = typed(evil, "1\n");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}
