//! Writes the layout of every message as Rust: the fields whose elements take memory of their own.
//! Its meaning at run time is in `src/allocation.rs`.

use std::{collections::HashSet, error::Error, fmt::Write};

use protox::prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use super::json::{message_path, module};

pub(crate) fn generate(pool: &DescriptorPool) -> Result<String, Box<dyn Error>> {
    let methods = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>());
    let requests: HashSet<_> = methods.map(|m| m.input().full_name().to_owned()).collect();
    let mut out = String::from("use crate::allocation::{Allocates, Field};\n");
    for desc in pool.all_messages().filter(|desc| module(desc.package_name()).is_some()) {
        if !desc.is_map_entry() {
            let limit = requests.contains(desc.full_name()).then(|| limit(desc.full_name()));
            message(&mut out, &desc, limit)?;
        }
    }
    Ok(out)
}

/// The constant with the limit of a request.
fn limit(full_name: &str) -> &'static str {
    match full_name {
        "faultline.v1.Call" => "CALL_BYTES_MAX",
        "faultline.v1.FromWorker" => "HUB_BYTES_MAX",
        _ => "MESSAGE_BYTES_MAX",
    }
}

fn message(
    out: &mut String,
    desc: &MessageDescriptor,
    limit: Option<&str>,
) -> Result<(), Box<dyn Error>> {
    writeln!(out, "impl Allocates for {} {{", message_path(desc))?;
    if let Some(limit) = limit {
        let limit = format!("Some(crate::allocation::{limit})");
        writeln!(out, "const BYTES_MAX: Option<usize> = {limit};")?;
    }
    let mut arms = String::new();
    for field in desc.fields() {
        if let Some(layout) = layout(&field) {
            writeln!(arms, "{} => Some({layout}),", field.number())?;
        }
    }
    if !arms.is_empty() {
        writeln!(out, "fn field(number: u32) -> Option<Field> {{")?;
        writeln!(out, "match number {{\n{arms}_ => None,\n}}\n}}")?;
    }
    if desc.full_name() == "faultline.v1.FromWorker" {
        writeln!(out, "fn reduced(wire: &[u8]) -> Option<Vec<u8>> {{")?;
        writeln!(out, "crate::allocation::without_heavy_reports(wire)\n}}")?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

fn layout(field: &FieldDescriptor) -> Option<String> {
    if field.is_map() {
        let entry = field.kind().as_message()?.map_entry_value_field();
        return Some(match path(&entry) {
            Some(path) => format!("Field::map::<{path}>()"),
            None => "Field::map_of_texts()".to_owned(),
        });
    }
    match (path(field), field.is_list()) {
        (Some(path), true) => Some(format!("Field::list::<{path}>()")),
        (Some(path), false) => Some(format!("Field::single::<{path}>()")),
        (None, true) if matches!(field.kind(), Kind::String | Kind::Bytes) => {
            Some("Field::texts()".to_owned())
        }
        // Numbers take at most eight times their encoding.
        (None, _) => None,
    }
}

/// The message of a field, if it can have fields that take memory.
fn path(field: &FieldDescriptor) -> Option<String> {
    let kind = field.kind();
    let desc = kind.as_message()?;
    match desc.full_name() {
        "google.protobuf.Struct" => Some("::prost_types::Struct".to_owned()),
        "google.protobuf.Value" => Some("::prost_types::Value".to_owned()),
        "google.protobuf.ListValue" => Some("::prost_types::ListValue".to_owned()),
        _ => module(desc.package_name()).map(|_| message_path(desc)),
    }
}
