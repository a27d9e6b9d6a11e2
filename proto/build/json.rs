//! Generates the ProtoJSON of every message and enum of the contract as Rust code. It defines the
//! shape of the generated code; `src/json` has the functions that it calls. A field of an
//! unsupported kind stops the build instead of being printed wrongly.

use std::{error::Error, fmt::Write};

use protox::prost_reflect::{
    DescriptorPool, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    OneofDescriptor,
};

/// A package of the contract and its module in this crate.
const PACKAGES: &[(&str, &str)] = &[("lf.a2a.v1", "crate::a2a"), ("faultline.v1", "crate::v1")];
/// A package that has no ProtoJSON here.
const KEDA: (&str, &str) = ("externalscaler", "crate::keda");

/// Fields of one message: the parser marks them in 64 bits.
const FIELDS_MAX: usize = 64;

/// The number of REQUIRED in google.api.FieldBehavior.
const REQUIRED: i32 = 2;

pub(crate) fn generate(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let behavior = pool
        .get_extension_by_name("google.api.field_behavior")
        .ok_or("the contract does not import google.api.field_behavior")?;
    let mut out = String::from("use crate::json::{ProtoEnum, ProtoMessage, read, write};\n");
    let mut registry = String::new();
    for desc in pool.all_enums().filter(|desc| is_own(desc.package_name())) {
        enumeration(&mut out, &desc)?;
    }
    for desc in pool.all_messages().filter(|desc| is_own(desc.package_name())) {
        if desc.is_map_entry() {
            continue;
        }
        message(&mut out, &desc, &behavior)?;
        let path = message_path(&desc);
        writeln!(registry, "    crate::json::Entry::of::<{path}>({:?}),", desc.full_name())?;
    }
    writeln!(out, "pub(super) static REGISTRY: &[crate::json::Entry] = &[\n{registry}];")?;
    Ok(out)
}

fn enumeration(out: &mut String, desc: &EnumDescriptor) -> Result<(), Box<dyn Error>> {
    let path = enum_path(desc);
    let names: Vec<_> = desc.values().map(|value| value.name().to_owned()).collect();
    writeln!(out, "impl ProtoEnum for {path} {{")?;
    writeln!(out, "const NAMES: &'static [&'static str] = &{names:?};")?;
    writeln!(out, "fn name(number: i32) -> Option<&'static str> {{")?;
    writeln!(out, "Self::try_from(number).ok().map(|value| value.as_str_name())\n}}")?;
    writeln!(out, "fn number(name: &str) -> Option<i32> {{")?;
    writeln!(out, "Self::from_str_name(name).map(|value| value as i32)\n}}\n}}")?;
    Ok(())
}

fn message(
    out: &mut String,
    desc: &MessageDescriptor,
    behavior: &ExtensionDescriptor,
) -> Result<(), Box<dyn Error>> {
    let (mut names, mut numbers, mut reads, mut writes) =
        <(String, String, String, String)>::default();
    if desc.fields().len() > FIELDS_MAX {
        return Err(format!("{}: more than {FIELDS_MAX} fields", desc.full_name()).into());
    }
    for (index, field) in desc.fields().enumerate() {
        let json = field.json_name();
        let proto = field.name();
        write!(names, "{json:?}, ")?;
        if json == proto {
            writeln!(numbers, "{json:?} => Some({index}),")?
        } else {
            writeln!(numbers, "{json:?} | {proto:?} => Some({index}),")?
        }
        writeln!(reads, "{index} => {},", reading(&field)?)?;
        match oneof(&field) {
            // The whole group is printed at its first member.
            Some(group) if group.fields().next().as_ref() == Some(&field) => {
                writes.push_str(&writing_oneof(&group)?);
            }
            Some(_) => {}
            None => writes.push_str(&writing(&field, is_required(&field, behavior)?)?),
        }
    }
    writeln!(out, "impl ProtoMessage for {} {{", message_path(desc))?;
    writeln!(out, "const FIELDS: &'static [&'static str] = &[{names}];")?;
    writeln!(out, "fn field(name: &str) -> Option<usize> {{")?;
    writeln!(out, "match name {{\n{numbers}_ => None,\n}}\n}}")?;
    writeln!(out, "fn read_field<'de, D: ::serde::Deserializer<'de>>(")?;
    writeln!(out, "&mut self, field: usize, input: D, trail: &crate::json::Trail,")?;
    writeln!(out, ") -> Result<(), D::Error> {{")?;
    writeln!(out, "match field {{\n{reads}_ => read::skip(input, trail)?,\n}}\nOk(())\n}}")?;
    writeln!(out, "fn write_fields(&self, out: &mut Vec<u8>) {{\n{writes}}}\n}}")?;
    Ok(())
}

/// The arm that reads one field into `self`.
fn reading(field: &FieldDescriptor) -> Result<String, Box<dyn Error>> {
    let name = field.name();
    if let Some(group) = oneof(field) {
        let variant = variant(&group, field);
        let members: Vec<_> = group.fields().map(|field| field.json_name().to_owned()).collect();
        return Ok(format!(
            "read::member(&mut self.{}, input, trail, &read::Member {{ \
             make: {variant}, is: |value| matches!(value, {variant}(_)), all: {:?} }})?",
            group.name(),
            members.join(", "),
        ));
    }
    Ok(match shape(field)? {
        Shape::Option => format!("self.{name} = read::nullable(input, trail)?"),
        Shape::Enum(path) => format!("self.{name} = read::enumeration::<{path}, D>(input, trail)?"),
        Shape::Enums(path) => {
            format!("self.{name} = read::enumerations::<{path}, D>(input, trail)?")
        }
        Shape::Plain => format!("self.{name} = read::or_default(input, trail)?"),
    })
}

/// The statement that prints one field of `self`.
fn writing(field: &FieldDescriptor, required: bool) -> Result<String, Box<dyn Error>> {
    let name = field.name();
    let key = key(field);
    Ok(match (shape(field)?, required) {
        (Shape::Option, _) => format!("write::option(out, {key}, &self.{name});\n"),
        (Shape::Enum(path), _) => {
            let print = format!("write::enumeration::<{path}>(out, {key}, self.{name});");
            if required {
                format!("{print}\n")
            } else {
                format!("if self.{name} != 0 {{ {print} }}\n")
            }
        }
        (Shape::Enums(path), _) => {
            format!("write::enumerations::<{path}>(out, {key}, &self.{name});\n")
        }
        (Shape::Plain, true) => format!("write::field(out, {key}, &self.{name});\n"),
        (Shape::Plain, false) => format!("write::unless_default(out, {key}, &self.{name});\n"),
    })
}

fn writing_oneof(group: &OneofDescriptor) -> Result<String, Box<dyn Error>> {
    let mut arms = String::new();
    for field in group.fields() {
        if matches!(field.kind(), Kind::Enum(_)) {
            return Err(unsupported(&field, "an enum in a oneof"));
        }
        let variant = variant(group, &field);
        let key = key(&field);
        writeln!(arms, "Some({variant}(value)) => write::field(out, {key}, value),")?;
    }
    Ok(format!("match &self.{} {{\n{arms}None => {{}}\n}}\n", group.name()))
}

enum Shape {
    /// With presence: a message or an `optional` scalar.
    Option,
    /// An i32 in Rust, so its enum type is named.
    Enum(String),
    /// A list of enum values.
    Enums(String),
    /// A scalar, list or map, absent if it has its default.
    Plain,
}

fn shape(field: &FieldDescriptor) -> Result<Shape, Box<dyn Error>> {
    let kind = field.kind();
    if field.is_map() {
        let entry = kind.as_message().ok_or("a map field is a list of entries")?;
        if entry.map_entry_key_field().kind() != Kind::String {
            return Err(unsupported(field, "a map whose key is not a string"));
        }
        if matches!(entry.map_entry_value_field().kind(), Kind::Enum(_) | Kind::Float) {
            return Err(unsupported(field, "a map to an enum or float"));
        }
        return Ok(Shape::Plain);
    }
    match kind {
        Kind::Float => Err(unsupported(field, "a float")),
        Kind::Enum(desc) if field.is_list() => Ok(Shape::Enums(enum_path(&desc))),
        _ if field.is_list() => Ok(Shape::Plain),
        Kind::Enum(_) if field.supports_presence() => Err(unsupported(field, "an optional enum")),
        _ if field.supports_presence() => Ok(Shape::Option),
        Kind::Enum(desc) => Ok(Shape::Enum(enum_path(&desc))),
        _ => Ok(Shape::Plain),
    }
}

fn unsupported(field: &FieldDescriptor, what: &str) -> Box<dyn Error> {
    format!("{}: {what} has no ProtoJSON here; teach build/json.rs", field.full_name()).into()
}

/// The declared oneof of a field: `optional` is a oneof only inside protobuf.
fn oneof(field: &FieldDescriptor) -> Option<OneofDescriptor> {
    field.containing_oneof().filter(|group| !group.is_synthetic())
}

fn is_required(
    field: &FieldDescriptor,
    behavior: &ExtensionDescriptor,
) -> Result<bool, Box<dyn Error>> {
    let options = field.options();
    let values = options.get_extension(behavior);
    let values = values.as_list().ok_or("field_behavior is a list")?;
    Ok(values.iter().any(|value| value.as_enum_number() == Some(REQUIRED)))
}

/// The printed key with its colon.
fn key(field: &FieldDescriptor) -> String {
    format!("{:?}", format!("\"{}\":", field.json_name()))
}

fn is_own(package: &str) -> bool {
    PACKAGES.iter().any(|(name, _)| *name == package)
}

pub(crate) fn module(package: &str) -> Option<&'static str> {
    let mut known = PACKAGES.iter().chain([&KEDA]);
    known.find(|(name, _)| *name == package).map(|(_, module)| *module)
}

pub(crate) fn message_path(desc: &MessageDescriptor) -> String {
    format!("{}::{}", scope(desc.package_name(), desc.parent_message()), camel(desc.name()))
}

fn enum_path(desc: &EnumDescriptor) -> String {
    format!("{}::{}", scope(desc.package_name(), desc.parent_message()), camel(desc.name()))
}

fn variant(group: &OneofDescriptor, field: &FieldDescriptor) -> String {
    let parent = group.parent_message();
    let scope = scope(parent.package_name(), Some(parent.clone()));
    format!("{scope}::{}::{}", camel(group.name()), camel(field.name()))
}

/// The module in which prost puts the types declared inside `parent`.
fn scope(package: &str, parent: Option<MessageDescriptor>) -> String {
    match parent {
        Some(parent) => {
            let outer = scope(package, parent.parent_message());
            format!("{outer}::{}", words(parent.name()).join("_").to_lowercase())
        }
        None => module(package).expect("only messages of PACKAGES are generated").to_owned(),
    }
}

/// A type name as prost spells it. A difference to prost would not compile.
fn camel(name: &str) -> String {
    let capitalize = |word: &String| word[..1].to_uppercase() + &word[1..].to_lowercase();
    words(name).iter().map(capitalize).collect()
}

/// Splits `HTTPAuthScheme` and `http_auth_scheme` into http, auth, scheme, keeping their case.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, &char) in chars.iter().enumerate() {
        let previous = at.checked_sub(1).map(|at| chars[at]);
        let next_is_lower = chars.get(at + 1).is_some_and(char::is_ascii_lowercase);
        let starts = char.is_ascii_uppercase()
            && previous.is_some_and(|previous| {
                previous.is_ascii_lowercase() || previous.is_ascii_digit() || next_is_lower
            });
        if char == '_' || starts {
            words.push(String::new());
        }
        if char != '_' {
            words.last_mut().expect("never empty").push(char);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
