//! Layered configuration: defaults, then a TOML file, then the environment. Flags come on top and
//! are the binary's business. This module knows no key of any service: the types define the keys,
//! and an unknown key is an error that names the nearest known one.
//!
//! In the environment a key is `FAULTLINE_`, its section and its name, joined by two underscores:
//! `FAULTLINE_GATEWAY__PUBLIC_URL` is `public_url` of `[gateway]`. Names without two underscores
//! are not configuration. That keeps the variables which Kubernetes makes for every service, such
//! as `FAULTLINE_GATEWAY_PORT`, from being read as keys.

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::Path};

use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

/// The prefix of every variable of the configuration.
pub const PREFIX: &str = "FAULTLINE_";

/// The file in the working directory that is read when no other file is named.
pub const FILE: &str = "faultline.toml";

/// The variable that names the file when no flag does.
pub const FILE_VARIABLE: &str = "FAULTLINE_CONFIG";

/// Variables without a section that set a key.
const SHORT_NAMES: [(&str, &str); 2] = [
    ("FAULTLINE_LOG", "FAULTLINE_LOG__FILTER"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "FAULTLINE_LOG__OTLP_ENDPOINT"),
];

/// Names and values, usually of the process.
pub type Environment = BTreeMap<String, String>;

/// The text of a configuration file, and its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read '{path}'")]
    Unreadable { path: String, source: io::Error },
    #[error("{place}: {problem}")]
    Syntax { place: Place, problem: String },
    #[error("{place}: unknown key `{key}`{}{hint}", within(.section))]
    UnknownKey { place: Place, key: String, section: String, hint: Hint },
    #[error("{place}: `{key}`: {problem}")]
    BadValue { place: Place, key: String, problem: String },
}

/// A suggestion for a mistaken key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    Nearest(String),
    OneOf(Vec<String>),
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hint::Nearest(key) => write!(f, "; did you mean `{key}`?"),
            Hint::OneOf(keys) if keys.is_empty() => Ok(()),
            Hint::OneOf(keys) => write!(f, "; known are {}", keys.join(", ")),
        }
    }
}

/// The layer of the configuration, and the place in it, that has the mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Line {
        file: String,
        line: usize,
    },
    Variable(String),
    /// The defaults do not fit their own type: a mistake of the program.
    Defaults,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(f, "{file}:{line}"),
            Place::Variable(name) => f.write_str(name),
            Place::Defaults => f.write_str("defaults"),
        }
    }
}

fn within(section: &str) -> String {
    match section {
        "" => String::new(),
        section => format!(" in [{section}]"),
    }
}

/// The variables of this process whose names and values are UTF-8.
pub fn environment() -> Environment {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Loads the configuration of a process: `defaults`, then the file at `path`, then the environment.
/// Without a path [`FILE`] is read if it exists.
pub fn load_process<T>(defaults: &T, path: Option<&Path>, env: &Environment) -> Result<T, Error>
where
    T: Serialize + DeserializeOwned,
{
    let path = path.or_else(|| Some(Path::new(FILE)).filter(|path| path.exists()));
    let text = path.map(read).transpose()?;
    let name = path.map(|path| path.display().to_string()).unwrap_or_default();
    let file = text.as_ref().map(|text| File { name: &name, text });
    load(defaults, file, &with_short_names(env))
}

/// Adds the long names of [`SHORT_NAMES`]; a long name that is set wins.
fn with_short_names(env: &Environment) -> Environment {
    let mut env = env.clone();
    for (short, long) in SHORT_NAMES {
        if let Some(value) = env.get(short).filter(|v| !v.is_empty()).cloned() {
            env.entry(long.to_owned()).or_insert(value);
        }
    }
    env
}

/// Reads a file whole.
pub fn read(path: &Path) -> Result<String, Error> {
    let path_text = || path.display().to_string();
    std::fs::read_to_string(path).map_err(|source| Error::Unreadable { path: path_text(), source })
}

/// Merges the file into the defaults and the environment into both.
pub fn load<T>(defaults: &T, file: Option<File<'_>>, env: &Environment) -> Result<T, Error>
where
    T: Serialize + DeserializeOwned,
{
    let own = |error: &dyn fmt::Display| Error::Syntax {
        place: Place::Defaults,
        problem: error.to_string(),
    };
    let mut table = Table::try_from(defaults).map_err(|e| own(&e))?;
    if let Some(file) = file {
        // The file alone first: only an error of the text itself has a line number.
        toml::from_str::<T>(file.text).map_err(|e| in_file(e, file))?;
        let layer = file.text.parse::<Table>().map_err(|e| in_file(e, file))?;
        merge(&mut table, layer);
    }
    for (name, text) in env {
        if let Some(path) = path_of(name) {
            table = with_variable::<T>(&table, name, &path, text)?;
        }
    }
    table.try_into().map_err(|e| own(&e))
}

/// The path of keys that a variable names; none for a variable that is not configuration.
fn path_of(name: &str) -> Option<Vec<String>> {
    let rest = name.strip_prefix(PREFIX).filter(|rest| rest.contains("__"))?;
    Some(rest.split("__").map(str::to_ascii_lowercase).collect())
}

fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// A variable is text, and only the type of its key determines the reading: the text itself, a TOML
/// value such as `8` or `["echo"]`, or a list with commas. The first reading that fits is used.
fn with_variable<T: DeserializeOwned>(
    table: &Table,
    name: &str,
    path: &[String],
    text: &str,
) -> Result<Table, Error> {
    let bad = |key: &[String], problem: String| Error::BadValue {
        place: Place::Variable(name.to_owned()),
        key: key.join("."),
        problem,
    };
    if let Some(list) = list_above(table, path) {
        let whole = format!("{PREFIX}{}", list.join("__").to_ascii_uppercase());
        let problem = format!("is a list, which is set as a whole: {whole}='[…]', as in TOML");
        return Err(bad(list, problem));
    }
    let parsed = format!("value = {text}").parse::<Table>();
    let has_brackets = text.starts_with(['[', '{']);
    let torn = parsed.as_ref().err().filter(|_| has_brackets).cloned();
    let toml_value = parsed.ok().filter(|t| t.len() == 1).and_then(|mut t| t.remove("value"));
    let is_toml = toml_value.is_some();
    let items = text.split(',').map(|item| Value::String(item.trim().to_owned()));
    let list = (!has_brackets).then(|| Value::Array(items.collect()));
    let readings = [Some(Value::String(text.to_owned())), toml_value, list];
    let mut errors = Vec::new();
    for value in readings.into_iter().flatten() {
        let mut candidate = table.clone();
        put(&mut candidate, path, value);
        match candidate.clone().try_into::<T>() {
            Ok(_) => return Ok(candidate),
            Err(error) => errors.push(error),
        }
    }
    if let Some(error) = torn {
        return Err(bad(path, format!("is not good TOML: {}", error.message())));
    }
    // The error of the most likely reading explains the mistake best.
    let error = errors.swap_remove(usize::from(is_toml));
    let error = explain(error, Place::Variable(name.to_owned()));
    Err(match error {
        Error::Syntax { problem, .. } => bad(path, problem),
        other => other,
    })
}

/// The list that contains the path, if one does: its items have no names.
fn list_above<'a>(table: &Table, path: &'a [String]) -> Option<&'a [String]> {
    let mut inner = table;
    for (at, key) in path.iter().enumerate() {
        match inner.get(key)? {
            Value::Table(table) => inner = table,
            Value::Array(_) if at + 1 < path.len() => return Some(&path[..=at]),
            _ => return None,
        }
    }
    None
}

fn put(table: &mut Table, path: &[String], value: Value) {
    let [key, rest @ ..] = path else { return };
    if rest.is_empty() {
        table.insert(key.clone(), value);
        return;
    }
    let inner = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
    // A section replaces a plain value: deserialisation refuses it and names the key.
    if !inner.is_table() {
        *inner = Value::Table(Table::new());
    }
    if let Value::Table(inner) = inner {
        put(inner, rest, value);
    }
}

fn in_file(error: toml::de::Error, file: File<'_>) -> Error {
    let start = error.span().map_or(0, |span| span.start).min(file.text.len());
    let line = file.text.as_bytes()[..start].iter().filter(|b| **b == b'\n').count() + 1;
    explain(error, Place::Line { file: file.name.to_owned(), line })
}

/// Turns serde's error into a sentence for the author of the value.
fn explain(mut error: toml::de::Error, place: Place) -> Error {
    let message = error.message().to_owned();
    // The path of keys appears in the text only if there is no input to quote.
    error.set_input(None);
    let text = error.to_string();
    let at = text.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
    let at = at.unwrap_or_default().to_owned();
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let mut names = rest.split('`').step_by(2).map(str::to_owned);
        let key = names.next().unwrap_or_default();
        let known: Vec<String> = names.collect();
        let hint = match nearest(&key, known.iter().map(String::as_str)) {
            Some(nearest) => Hint::Nearest(nearest.to_owned()),
            None => Hint::OneOf(known),
        };
        return Error::UnknownKey { place, key, section: at, hint };
    }
    if at.is_empty() {
        Error::Syntax { place, problem: message }
    } else {
        Error::BadValue { place, key: at, problem: message }
    }
}

/// The candidate closest to a misspelt name, if any is close enough.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    let limit = (written.chars().count() / 3).max(2);
    let scored = candidates.into_iter().map(|c| (distance(&written, &c.to_ascii_lowercase()), c));
    scored.filter(|(score, _)| *score <= limit).min_by_key(|(score, _)| *score).map(|(_, c)| c)
}

/// Edit distance between two words. An exchange of two neighbours counts as one edit.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substitute = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substitute.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests;
