//! `docs/configuration.md`: the generated reference of all configuration keys.
//!
//! The keys come from serde, which lists them in its error for an unknown key; the defaults from
//! the serialized default configuration; types and meanings from the fields and doc comments of
//! the structs (`source.rs`). With `FAULTLINE_WRITE_DOCUMENTS=1` the document is written, otherwise
//! it is compared.

use std::{collections::BTreeSet, env, fs, path::Path};

use faultline::Config;
use faultline_chassis::config::{Environment, Error};
use serde_json::Value;

use crate::{
    root,
    session::WRITE,
    source::{Field, Source, Struct},
};

const DOCUMENT: &str = "docs/configuration.md";
/// The placeholder of a name in a section such as `[remote.NAME]`.
const NAME: &str = "NAME";
/// A key that no struct has.
const UNKNOWN: &str = "no_such_key";

const HEAD: &str = "\
# Configuration

Every key of `faultline.toml`, generated from the code. A change of a key, its default or its doc
comment fails `configuration_reference_equals_the_code` in
`services/faultline/tests/documents/configuration.rs` until the page is written again with
`FAULTLINE_WRITE_DOCUMENTS=1`.

## Layers

A value is taken from the first of these layers that sets it:

1. the flag of the command, such as `--listen`
2. the environment variable of the key
3. the configuration file: `--config`, or the file that `FAULTLINE_CONFIG` names, or
   `faultline.toml` in the working directory
4. the default

`faultline config` prints the effective configuration without secrets. An unknown key is an error
that names the nearest known key. The file is read once, at the start of a process.

## Environment variables

The variable of a key is `FAULTLINE_`, the section and the key in upper case, joined by two
underscores. In a section with a name, such as `[remote.billing]`, the variable contains that name:
`FAULTLINE_REMOTE__BILLING__CARD`. A list takes values separated by commas. A list of tables, such
as `[[auth.token]]`, is set as a whole, in TOML. Two keys of `[log]` have short variables as well:
`FAULTLINE_LOG` for `filter` and `OTEL_EXPORTER_OTLP_ENDPOINT` for `otlp_endpoint`.
";

const UP: &str = "\
## Defaults of `faultline up`

`faultline up` starts from other defaults for these keys. If its ports can be reached from other
machines, `coordinator.push.allow_private` has the usual default; with caller tokens or on such
ports, `gateway.operators_act` and `worker.agents` have their usual defaults as well.

| key | default |
|---|---|
";

/// The relation of a section to its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Table,
    /// A table per name, `[a.NAME]`.
    Named,
    /// A list of tables, `[[a]]`.
    List,
}

/// One section of the reference. `sections` computes it; nothing changes it later.
struct Section {
    /// The path of keys, with `NAME` for a name.
    path: Vec<String>,
    kind: Kind,
    doc: String,
    struct_: Struct,
    /// The serialized defaults of its keys.
    defaults: Value,
}

#[test]
fn configuration_reference_equals_the_code() {
    let text = reference();
    let path = root().join(DOCUMENT);
    if env::var_os(WRITE).is_some() {
        return fs::write(&path, text).expect("the document can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let line = written.lines().zip(text.lines()).find(|(written, current)| written != current);
    assert!(
        written == text,
        "{DOCUMENT} differs from the code, first at {line:?}: {WRITE}=1 writes it again"
    );
}

#[test]
fn configuration_reference_has_every_key_with_a_meaning() {
    for section in sections() {
        let known = known_keys(&section);
        let documented: BTreeSet<_> =
            section.struct_.fields.iter().map(|field| field.name.clone()).collect();
        assert_eq!(documented, known, "[{}]", section.path.join("."));
        for field in keys(&section) {
            let meaning = meaning(&section, field);
            let is_sentence = meaning.len() > 10 && meaning.ends_with('.');
            assert!(is_sentence, "{} `{}`: '{meaning}'", section.path.join("."), field.name);
        }
    }
}

#[test]
fn environment_variables_of_the_reference_are_known() {
    for section in sections().iter().filter(|section| section.kind != Kind::List) {
        for field in keys(section) {
            let name = variable(section, &field.name);
            let env: Environment = [(name.clone(), "1".to_owned())].into();
            let unknown = matches!(
                Config::default().load(Some(Path::new("/dev/null")), &env),
                Err(Error::UnknownKey { .. })
            );
            assert!(!unknown, "{name}");
        }
    }
}

fn reference() -> String {
    let mut text = HEAD.to_owned();
    for section in sections() {
        text += &render(&section);
    }
    text += "\n";
    text += UP;
    let usual = json(&Config::default());
    let up = json(&Config::local(Path::new(".faultline")));
    for (path, value) in differences("", &usual, &up) {
        text += &format!("| `{path}` | {} |\n", display(&value));
    }
    text
}

fn json(config: &Config) -> Value {
    serde_json::to_value(config).expect("a configuration is serializable")
}

/// The values of `other` that differ from `usual`, with their paths.
fn differences(path: &str, usual: &Value, other: &Value) -> Vec<(String, Value)> {
    let Some(object) = other.as_object() else { return vec![(path.to_owned(), other.clone())] };
    let differing = object.iter().filter(|(key, value)| usual[key.as_str()] != **value);
    let each = differing.map(|(key, value)| {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        differences(&path, &usual[key.as_str()], value)
    });
    each.flatten().collect()
}

/// All sections, each before its subsections.
fn sections() -> Vec<Section> {
    let source = Source::get();
    let config = source.find("faultline", "Config");
    let defaults = json(&Config::default());
    let mut sections = Vec::new();
    for field in &config.fields {
        collect(source, &config, &[], field, &defaults, &mut sections);
    }
    sections
}

/// Adds the section of a field and its subsections, if its type is a struct.
fn collect(
    source: &Source,
    parent: &Struct,
    above: &[String],
    field: &Field,
    defaults: &Value,
    sections: &mut Vec<Section>,
) {
    let (kind, element) = element(&field.ty);
    let Some(struct_) = source.struct_of(&parent.package, element) else { return };
    let mut path = [above, std::slice::from_ref(&field.name)].concat();
    if kind == Kind::Named {
        path.push(NAME.to_owned());
    }
    let doc = if kind == Kind::Table { field.doc.clone() } else { struct_.doc.clone() };
    let defaults = match &defaults[field.name.as_str()] {
        Value::Object(object) if kind == Kind::Table => Value::Object(object.clone()),
        _ => defaults_of_element(&path, kind, &struct_),
    };
    sections.push(Section {
        path: path.clone(),
        kind,
        doc,
        struct_: struct_.clone(),
        defaults: defaults.clone(),
    });
    for field in &struct_.fields {
        collect(source, &struct_, &path, field, &defaults, sections);
    }
}

/// The kind of section that a type makes, and the type of its tables.
fn element(ty: &str) -> (Kind, &str) {
    let inner = |prefix: &str| ty.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    if let Some(element) = inner("BTreeMap<String, ") {
        (Kind::Named, element)
    } else if let Some(element) = inner("Vec<") {
        (Kind::List, element)
    } else {
        (Kind::Table, inner("Option<").unwrap_or(ty))
    }
}

/// The head of a section in TOML.
fn head(path: &[String], kind: Kind) -> String {
    let path = path.join(".");
    if kind == Kind::List { format!("[[{path}]]") } else { format!("[{path}]") }
}

/// The defaults of a table that the default configuration does not have: those of a minimal one.
fn defaults_of_element(path: &[String], kind: Kind, struct_: &Struct) -> Value {
    let required = struct_.fields.iter().filter(|field| field.is_required);
    let required = required.map(|field| {
        let value = if field.name == "role" { "worker".to_owned() } else { "0".repeat(64) };
        format!("{} = '{value}'\n", field.name)
    });
    let text = format!("{}\n{}", head(path, kind), required.collect::<String>());
    let config: Config = toml::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut value = json(&config);
    for key in path {
        value = value[key.as_str()].take();
    }
    if kind == Kind::List { value[0].take() } else { value }
}

/// The keys of a section according to serde, which lists them in its error for an unknown key.
fn known_keys(section: &Section) -> BTreeSet<String> {
    let text = format!("{}\n{UNKNOWN} = 1\n", head(&section.path, section.kind));
    let error = toml::from_str::<Config>(&text).expect_err("the key is unknown");
    let message = error.message().to_owned();
    let names = message.split('`').skip(1).step_by(2).map(str::to_owned);
    names.filter(|name| name != UNKNOWN).collect()
}

/// The fields of a section that are no sections themselves.
fn keys(section: &Section) -> impl Iterator<Item = &Field> {
    let source = Source::get();
    section.struct_.fields.iter().filter(move |field| {
        source.struct_of(&section.struct_.package, element(&field.ty).1).is_none()
    })
}

fn variable(section: &Section, key: &str) -> String {
    let path = section.path.iter().map(String::as_str).chain([key]);
    format!("FAULTLINE_{}", path.collect::<Vec<_>>().join("__").to_ascii_uppercase())
}

fn render(section: &Section) -> String {
    let (doc, default) = split_default(&section.doc);
    let mut text = format!("\n## `{}`\n\n{doc}", head(&section.path, section.kind));
    if let Some(default) = default {
        text += &format!(" Default: {default}.");
    }
    if section.kind == Kind::List {
        let (key, above) = section.path.split_last().expect("a section has a path");
        let above = above.iter().map(|part| part.to_ascii_uppercase() + "__").collect::<String>();
        let variable = format!("FAULTLINE_{above}{}", key.to_ascii_uppercase());
        text += &format!(" The variable `{variable}` sets the whole list, as `[{{ … }}]`.");
    }
    let mut rows = keys(section).peekable();
    text += "\n";
    if rows.peek().is_none() {
        return text;
    }
    text += "\n| key and variable | type | default | meaning |\n|---|---|---|---|\n";
    for field in rows {
        let mut key = format!("`{}`", field.name);
        if section.kind != Kind::List {
            key += &format!("<br>`{}`", variable(section, &field.name));
        }
        let cells =
            [key, type_of(section, field), default_of(section, field), meaning(section, field)];
        text += &format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    text
}

/// The type of a key in words.
fn type_of(section: &Section, field: &Field) -> String {
    let mut ty = field.ty.as_str();
    let inner = |ty: &str, name: &str| {
        let inner = ty.strip_prefix(name)?.strip_prefix('<')?.strip_suffix('>')?;
        Some(inner.to_owned())
    };
    let optional = inner(ty, "Option");
    ty = optional.as_deref().unwrap_or(ty);
    let list = inner(ty, "Vec");
    let element = list.as_deref().unwrap_or(ty);
    let word = match element {
        "bool" => "boolean".to_owned(),
        "u16" | "u32" | "u64" | "usize" => "integer".to_owned(),
        "f64" => "number".to_owned(),
        "String" => "text".to_owned(),
        "PathBuf" => "path".to_owned(),
        "Secret" => "text, secret".to_owned(),
        "SocketAddr" => "address, `IP:PORT`".to_owned(),
        "Cidr" => "address or network".to_owned(),
        _ => variants(section, field, list.is_some()),
    };
    if list.is_some() { format!("list of {word}") } else { word }
}

/// The values of an enum according to serde, which lists them in its error for an unknown one.
fn variants(section: &Section, field: &Field, is_list: bool) -> String {
    let value = if is_list { format!("['{UNKNOWN}']") } else { format!("'{UNKNOWN}'") };
    let text = format!("{}\n{} = {value}\n", head(&section.path, section.kind), field.name);
    let error = toml::from_str::<Config>(&text).expect_err("the value is unknown");
    let message = error.message().to_owned();
    assert!(message.starts_with("unknown variant"), "{}: {}: {message}", field.name, field.ty);
    let names = message.split('`').skip(1).step_by(2).filter(|name| *name != UNKNOWN);
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The serialized default, or the words of the doc comment where nothing is the default.
fn default_of(section: &Section, field: &Field) -> String {
    let (_, words) = split_default(&field.doc);
    match &section.defaults[field.name.as_str()] {
        _ if field.is_required => "required".to_owned(),
        Value::Null => words.unwrap_or_else(|| "none".to_owned()),
        Value::Array(list) if list.is_empty() => words.unwrap_or_else(|| "none".to_owned()),
        Value::String(text) if text.is_empty() => "required".to_owned(),
        value => {
            let shown = display(value);
            let plain = shown.trim_matches('`');
            let more =
                words.as_deref().and_then(|words| words.trim_matches('`').strip_prefix(plain));
            format!("{shown}{}", more.filter(|more| more.starts_with([',', ';'])).unwrap_or(""))
        }
    }
}

fn display(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{text}`"),
        value => format!("`{}`", value.to_string().replace("\",\"", "\", \"")),
    }
}

/// The doc comment of a key without its default. A key of one agent without a doc comment has the
/// meaning of the coordinator's key; a key without one has that of its type.
fn meaning(section: &Section, field: &Field) -> String {
    let (text, _) = split_default(&field.doc);
    // A sentence with a rustdoc link is about the Rust API.
    let text: String = text.split_inclusive(". ").filter(|part| !part.contains("[`")).collect();
    let text = text.trim_end().to_owned();
    if !text.is_empty() {
        return text;
    }
    let source = Source::get();
    let coordinator = source.find("faultline-coordinator", "Config");
    let is_per_agent = section.path.starts_with(&["coordinator".to_owned(), "agents".to_owned()]);
    if is_per_agent && coordinator.fields.iter().any(|other| other.name == field.name) {
        return format!("As `{}` of `[coordinator]`, for this agent.", field.name);
    }
    split_default(&source.doc_of_enum(&section.struct_.package, element(&field.ty).1)).0
}

/// Splits a doc comment into its meaning and the words after `Default:` or `Unset:`.
fn split_default(doc: &str) -> (String, Option<String>) {
    let at = ["Default: ", "Unset: "].iter().find_map(|mark| Some((doc.find(mark)?, mark.len())));
    let Some((at, mark)) = at else { return (doc.to_owned(), None) };
    let words = &doc[at + mark..];
    let end = words.find(". ").unwrap_or(words.len() - usize::from(words.ends_with('.')));
    let rest = words[end..].trim_start_matches('.').trim_start();
    let meaning = format!("{} {rest}", doc[..at].trim_end());
    (meaning.trim_end().to_owned(), Some(words[..end].to_owned()))
}
