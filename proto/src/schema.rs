//! The schema of an answer: a flat JSON Schema that a form can show. The same parser serves agents
//! that ask, the check of answers, and the forms. Pure.

use std::collections::BTreeMap;

use prost_types::{Struct, Value, value};

use crate::json;

/// The largest number of fields.
pub const FIELDS_MAX: usize = 64;
/// The largest schema, about as large as its JSON.
pub const BYTES_MAX: usize = 64 * 1024;

/// The fields of an answer, sorted by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    pub fields: Vec<Field>,
}

/// One field of an answer, with its label for forms and its constraints. Immutable.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: String,
    /// For people; empty: the name is shown.
    pub title: String,
    pub description: String,
    pub required: bool,
    pub default: Option<Value>,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Text {
        format: Option<Format>,
        length: Bounds,
    },
    Choice(Vec<Choice>),
    Number {
        whole: bool,
        range: Bounds,
    },
    YesNo,
    /// Any number of options.
    Choices {
        options: Vec<Choice>,
        count: Bounds,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Email,
    Uri,
    Date,
    DateTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub value: String,
    /// For people.
    pub title: String,
}

/// Both bounds are inclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    pub min: Option<f64>,
    pub max: Option<f64>,
}

/// A field and its problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub field: String,
    pub what: String,
}

fn violation(field: impl Into<String>, what: impl Into<String>) -> Violation {
    Violation { field: field.into(), what: what.into() }
}

impl Schema {
    /// Parses a schema. A schema that a form could not show, or that could not check an answer, is
    /// refused with its field.
    pub fn read(schema: &Struct) -> Result<Self, Violation> {
        if prost::Message::encoded_len(schema) > BYTES_MAX {
            return Err(violation("schema", format!("takes at most {BYTES_MAX} bytes")));
        }
        let top = Keywords { at: "schema", fields: &schema.fields };
        top.only(&["type", "properties", "required", "additionalProperties"])?;
        if top.text("type")? != Some("object") {
            return Err(violation("schema.type", "an answer is an \"object\""));
        }
        let Some(properties) = top.object("properties")? else {
            return Err(violation("schema.properties", "names the fields of the answer"));
        };
        if properties.is_empty() || properties.len() > FIELDS_MAX {
            let what = format!("takes 1 to {FIELDS_MAX} fields");
            return Err(violation("schema.properties", what));
        }
        let required = top.texts("required")?.unwrap_or_default();
        if let Some(name) = required.iter().find(|name| !properties.contains_key(**name)) {
            let what = format!("'{name}' is not one of the properties");
            return Err(violation("schema.required", what));
        }
        let fields = properties.iter().map(|(name, property)| {
            let at = format!("schema.properties.{name}");
            let Some(value::Kind::StructValue(property)) = &property.kind else {
                return Err(violation(at, "is an object"));
            };
            let required = required.contains(&name.as_str());
            Field::read(name, required, &Keywords { at: &at, fields: &property.fields })
        });
        Ok(Self { fields: fields.collect::<Result<_, _>>()? })
    }

    /// The answer with defaults filled in, or all its violations.
    pub fn check(&self, mut answer: Struct) -> Result<Struct, Vec<Violation>> {
        let mut wrong = Vec::new();
        for name in answer.fields.keys() {
            if !self.fields.iter().any(|field| field.name == *name) {
                // A misspelt field would be lost silently.
                let known: Vec<_> = self.fields.iter().map(|f| f.name.as_str()).collect();
                let what = format!("is not asked for; there are {}", known.join(", "));
                wrong.push(violation(name, what));
            }
        }
        for field in &self.fields {
            let given = answer.fields.get(&field.name).filter(|v| !is_null(v));
            match (given, &field.default) {
                (Some(value), _) => {
                    wrong.extend(field.check(value).map(|what| violation(&field.name, what)));
                }
                (None, Some(default)) => {
                    answer.fields.insert(field.name.clone(), default.clone());
                }
                (None, None) if field.required => {
                    wrong.push(violation(&field.name, "is required"));
                }
                (None, None) => {
                    answer.fields.remove(&field.name);
                }
            }
        }
        if wrong.is_empty() { Ok(answer) } else { Err(wrong) }
    }

    /// The value of plain text, if the schema has a single field for it.
    pub fn from_text(&self, text: &str) -> Option<Struct> {
        let [field] = self.fields.as_slice() else { return None };
        let fields: BTreeMap<_, _> = [(field.name.clone(), field.parse(text))].into();
        Some(Struct { fields })
    }
}

impl Field {
    fn read(name: &str, required: bool, property: &Keywords<'_>) -> Result<Self, Violation> {
        let at = |keyword: &str| format!("{}.{keyword}", property.at);
        let kind = match property.text("type")? {
            Some("string") if property.has("enum") || property.has("oneOf") => {
                property.only(&["type", "enum", "enumNames", "oneOf"])?;
                Kind::Choice(property.options()?)
            }
            Some("string") => {
                property.only(&["type", "format", "minLength", "maxLength"])?;
                let format = match property.text("format")? {
                    None => None,
                    Some("email") => Some(Format::Email),
                    Some("uri") => Some(Format::Uri),
                    Some("date") => Some(Format::Date),
                    Some("date-time") => Some(Format::DateTime),
                    Some(_) => {
                        let what = "is one of email, uri, date and date-time";
                        return Err(violation(at("format"), what));
                    }
                };
                Kind::Text { format, length: property.bounds("minLength", "maxLength")? }
            }
            Some(word @ ("number" | "integer")) => {
                property.only(&["type", "minimum", "maximum"])?;
                let range = property.bounds("minimum", "maximum")?;
                Kind::Number { whole: word == "integer", range }
            }
            Some("boolean") => {
                property.only(&["type"])?;
                Kind::YesNo
            }
            Some("array") => {
                property.only(&["type", "items", "minItems", "maxItems", "uniqueItems"])?;
                let Some(items) = property.object("items")? else {
                    return Err(violation(at("items"), "says what to choose from"));
                };
                let items = Keywords { at: &at("items"), fields: items };
                items.only(&["type", "enum", "enumNames", "oneOf", "anyOf"])?;
                let count = property.bounds("minItems", "maxItems")?;
                Kind::Choices { options: items.options()?, count }
            }
            Some(_) | None => {
                let what =
                    "is one of string, number, integer, boolean and array: an answer is flat";
                return Err(violation(at("type"), what));
            }
        };
        let field = Self {
            name: name.to_owned(),
            title: property.text("title")?.unwrap_or_default().to_owned(),
            description: property.text("description")?.unwrap_or_default().to_owned(),
            required,
            default: property.fields.get("default").filter(|v| !is_null(v)).cloned(),
            kind,
        };
        match field.default.as_ref().and_then(|default| field.check(default)) {
            Some(what) => Err(violation(at("default"), what)),
            None => Ok(field),
        }
    }

    /// The label of a form.
    pub fn label(&self) -> &str {
        if self.title.is_empty() { &self.name } else { &self.title }
    }

    /// The problem of the value, if it has one.
    pub fn check(&self, value: &Value) -> Option<String> {
        use value::Kind::{BoolValue, ListValue, NumberValue, StringValue};
        match (&self.kind, value.kind.as_ref()?) {
            (Kind::Text { format, length }, StringValue(text)) => {
                let bad_length = length.check(text.chars().count() as f64, " characters");
                bad_length.or_else(|| format.and_then(|format| format.check(text)))
            }
            (Kind::Choice(options), StringValue(text)) => one_of(options, text),
            (Kind::Number { whole, range }, NumberValue(number)) => match number {
                number if !number.is_finite() => Some("must be a number".to_owned()),
                number if *whole && number.fract() != 0.0 => {
                    Some("must be a whole number".to_owned())
                }
                number => range.check(*number, ""),
            },
            (Kind::YesNo, BoolValue(_)) => None,
            (Kind::Choices { options, count }, ListValue(list)) => {
                let bad = list.values.iter().find_map(|value| match &value.kind {
                    Some(StringValue(text)) => one_of(options, text),
                    _ => Some("must be a list of texts".to_owned()),
                });
                bad.or_else(|| count.check(list.values.len() as f64, " of them"))
            }
            (Kind::Text { .. } | Kind::Choice(_), _) => Some("must be a text".to_owned()),
            (Kind::Number { whole: true, .. }, _) => Some("must be a whole number".to_owned()),
            (Kind::Number { whole: false, .. }, _) => Some("must be a number".to_owned()),
            (Kind::YesNo, _) => Some("must be yes or no".to_owned()),
            (Kind::Choices { .. }, _) => Some("must be a list of texts".to_owned()),
        }
    }

    /// The most likely value of a typed text. Text without a valid reading stays as it is, and
    /// `check` reports it.
    pub fn parse(&self, typed: &str) -> Value {
        let text = |text: &str| value::Kind::StringValue(text.to_owned());
        let trimmed = typed.trim();
        let kind = match &self.kind {
            Kind::Text { format: None, .. } => text(typed),
            Kind::Text { .. } => text(trimmed),
            Kind::Choice(options) => text(chosen(options, trimmed)),
            Kind::Number { .. } => match trimmed.parse::<f64>() {
                Ok(number) => value::Kind::NumberValue(number),
                Err(_) => text(typed),
            },
            Kind::YesNo => yes_or_no(typed).map_or_else(|| text(typed), value::Kind::BoolValue),
            Kind::Choices { options, .. } => {
                let each = trimmed.split(',').map(str::trim).filter(|one| !one.is_empty());
                let each = each.map(|one| Value { kind: Some(text(chosen(options, one))) });
                value::Kind::ListValue(prost_types::ListValue { values: each.collect() })
            }
        };
        Value { kind: Some(kind) }
    }
}

/// A boolean in words, in any case: yes, y or true; no, n or false. `None`: another text.
pub fn yes_or_no(text: &str) -> Option<bool> {
    let is_any = |words: [&str; 3]| words.iter().any(|word| text.trim().eq_ignore_ascii_case(word));
    if is_any(["yes", "y", "true"]) {
        Some(true)
    } else if is_any(["no", "n", "false"]) {
        Some(false)
    } else {
        None
    }
}

/// The value of the chosen option: by its value, else by its title, in any case.
fn chosen<'a>(options: &'a [Choice], typed: &'a str) -> &'a str {
    let same = |text: &str| text.to_lowercase() == typed.to_lowercase();
    let found = options.iter().find(|option| option.value == typed);
    let found = found.or_else(|| options.iter().find(|option| same(&option.value)));
    let found = found.or_else(|| options.iter().find(|option| same(&option.title)));
    found.map_or(typed, |option| &option.value)
}

fn one_of(options: &[Choice], text: &str) -> Option<String> {
    let known = options.iter().any(|option| option.value == text);
    (!known).then(|| {
        let values: Vec<_> = options.iter().map(|option| option.value.as_str()).collect();
        format!("must be one of {}", values.join(", "))
    })
}

fn is_null(value: &Value) -> bool {
    matches!(value.kind, None | Some(value::Kind::NullValue(_)))
}

impl Bounds {
    fn check(&self, number: f64, unit: &str) -> Option<String> {
        let min = self.min.filter(|m| number < *m);
        let max = self.max.filter(|m| number > *m);
        let low = min.map(|min| format!("must be at least {min}{unit}"));
        low.or_else(|| max.map(|max| format!("must be at most {max}{unit}")))
    }
}

impl Format {
    fn check(self, text: &str) -> Option<String> {
        let (right, what) = match self {
            Format::Email => (is_email(text), "must be an e-mail address"),
            Format::Uri => (is_uri(text), "must be a URI such as https://example.com"),
            Format::Date => (is_date(text), "must be a date such as 2026-01-31"),
            Format::DateTime => (is_time(text), "must be a time such as 2026-01-31T12:00:00Z"),
        };
        (!right).then(|| what.to_owned())
    }
}

/// A rough check, for text typed into the wrong field.
fn is_email(text: &str) -> bool {
    let plain = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let parts = text.rsplit_once('@');
    plain && parts.is_some_and(|(who, host)| !who.is_empty() && !host.is_empty())
}

fn is_uri(text: &str) -> bool {
    let scheme = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphabetic())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let plain = text.chars().all(|c| c.is_ascii_graphic());
    plain && text.split_once(':').is_some_and(|(s, rest)| scheme(s) && !rest.is_empty())
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && is_time(&format!("{text}T00:00:00Z"))
}

fn is_time(text: &str) -> bool {
    json::time::timestamp(text.as_bytes()).is_some()
}

/// The keywords of one object of a schema.
struct Keywords<'a> {
    at: &'a str,
    fields: &'a BTreeMap<String, Value>,
}

/// Annotations, which do not restrict an answer.
const NOTES: [&str; 8] =
    ["title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"];

impl<'a> Keywords<'a> {
    /// Refuses unknown keywords: a constraint that is not checked must not look as if it were.
    fn only(&self, known: &[&str]) -> Result<(), Violation> {
        let known = |name: &str| known.contains(&name) || NOTES.contains(&name);
        match self.fields.keys().find(|name| !known(name)) {
            Some(name) => Err(violation(format!("{}.{name}", self.at), "is not supported here")),
            None => Ok(()),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    fn wrong<T>(&self, name: &str, what: &str) -> Result<T, Violation> {
        Err(violation(format!("{}.{name}", self.at), what))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, Violation> {
        match self.fields.get(name).map(|value| value.kind.as_ref()) {
            None => Ok(None),
            Some(Some(value::Kind::StringValue(text))) => Ok(Some(text)),
            Some(_) => self.wrong(name, "is a text"),
        }
    }

    fn object(&self, name: &str) -> Result<Option<&'a BTreeMap<String, Value>>, Violation> {
        match self.fields.get(name).map(|value| value.kind.as_ref()) {
            None => Ok(None),
            Some(Some(value::Kind::StructValue(object))) => Ok(Some(&object.fields)),
            Some(_) => self.wrong(name, "is an object"),
        }
    }

    fn list(&self, name: &str) -> Result<Option<&'a [Value]>, Violation> {
        match self.fields.get(name).map(|value| value.kind.as_ref()) {
            None => Ok(None),
            Some(Some(value::Kind::ListValue(list))) => Ok(Some(&list.values)),
            Some(_) => self.wrong(name, "is a list"),
        }
    }

    fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, Violation> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        let texts = list.iter().map(|value| match &value.kind {
            Some(value::Kind::StringValue(text)) => Ok(text.as_str()),
            _ => self.wrong(name, "is a list of texts"),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    fn number(&self, name: &str) -> Result<Option<f64>, Violation> {
        match self.fields.get(name).map(|value| value.kind.as_ref()) {
            None => Ok(None),
            Some(Some(value::Kind::NumberValue(number))) if number.is_finite() => Ok(Some(*number)),
            Some(_) => self.wrong(name, "is a number"),
        }
    }

    fn bounds(&self, min: &str, max: &str) -> Result<Bounds, Violation> {
        let bounds = Bounds { min: self.number(min)?, max: self.number(max)? };
        match (bounds.min, bounds.max) {
            (Some(low), Some(high)) if low > high => {
                self.wrong(min, &format!("is greater than {max}: nothing could be answered"))
            }
            _ => Ok(bounds),
        }
    }

    /// `enum`, with or without `enumNames`, or titled constants.
    fn options(&self) -> Result<Vec<Choice>, Violation> {
        let listed = ["oneOf", "anyOf"].into_iter().find(|name| self.has(name));
        let options: Vec<Choice> = match (self.texts("enum")?, listed) {
            (Some(values), None) => {
                let titles = self.texts("enumNames")?.unwrap_or_default();
                let titles = titles.into_iter().map(Some).chain(std::iter::repeat(None));
                let options = values.into_iter().zip(titles).map(|(value, title)| Choice {
                    value: value.to_owned(),
                    title: title.unwrap_or(value).to_owned(),
                });
                options.collect()
            }
            (None, Some(name)) => {
                let options = self.list(name)?.unwrap_or_default().iter().map(|one| {
                    let Some(value::Kind::StructValue(one)) = &one.kind else {
                        return self.wrong(name, "lists objects with `const` and `title`");
                    };
                    let one = Keywords { at: &format!("{}.{name}", self.at), fields: &one.fields };
                    one.only(&["const", "type"])?;
                    let Some(value) = one.text("const")? else {
                        return one.wrong("const", "is a text");
                    };
                    let title = one.text("title")?.unwrap_or(value).to_owned();
                    Ok(Choice { value: value.to_owned(), title })
                });
                options.collect::<Result<_, _>>()?
            }
            _ => return self.wrong("enum", "says what to choose from, or else `oneOf` does"),
        };
        if options.is_empty() {
            self.wrong(listed.unwrap_or("enum"), "lists at least one option")
        } else {
            Ok(options)
        }
    }
}

#[cfg(test)]
mod tests;
