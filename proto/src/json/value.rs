//! Struct, Value and ListValue, which are plain JSON, and Empty. Also conversions to and from
//! serde_json's values.

use std::{collections::BTreeMap, fmt};

use prost_types::{ListValue, NullValue, Struct, Value, value::Kind};
use serde::{
    Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use super::{
    ProtoJson, ProtoMessage, Trail, read,
    repeated::{elements, pairs},
    scalar::{finite, whole},
    write,
};

impl ProtoJson for Value {
    fn write(&self, out: &mut Vec<u8>) {
        match &self.kind {
            Some(Kind::NumberValue(number)) if number.is_finite() => finite(out, *number),
            Some(Kind::StringValue(text)) => write::text(out, text),
            Some(Kind::BoolValue(value)) => value.write(out),
            Some(Kind::StructValue(value)) => value.write(out),
            Some(Kind::ListValue(value)) => value.write(out),
            // JSON printers print null for a number without a JSON form.
            Some(Kind::NullValue(_) | Kind::NumberValue(_)) | None => {
                out.extend_from_slice(b"null");
            }
        }
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        input.deserialize_any(ValueVisitor { trail })
    }

    fn null() -> Option<Self> {
        Some(Kind::NullValue(NullValue::NullValue.into()).into())
    }
}

struct ValueVisitor<'a> {
    trail: &'a Trail,
}

impl<'de> Visitor<'de> for ValueVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Kind::NullValue(NullValue::NullValue.into()).into())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Kind::BoolValue(value).into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Kind::NumberValue(value as f64).into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Kind::NumberValue(value as f64).into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Kind::NumberValue(value).into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Kind::StringValue(value.to_owned()).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Value, A::Error> {
        self.trail.enter()?;
        let values = elements(items, self.trail)?;
        self.trail.leave();
        Ok(Kind::ListValue(ListValue { values }).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Value, A::Error> {
        self.trail.enter()?;
        let fields = pairs(entries, self.trail)?;
        self.trail.leave();
        Ok(Kind::StructValue(Struct { fields }).into())
    }
}

impl ProtoJson for Struct {
    fn write(&self, out: &mut Vec<u8>) {
        self.fields.write(out);
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        trail.enter()?;
        let fields = BTreeMap::read(input, trail)?;
        trail.leave();
        Ok(Struct { fields })
    }
}

impl ProtoJson for ListValue {
    fn write(&self, out: &mut Vec<u8>) {
        self.values.write(out);
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        trail.enter()?;
        let values = Vec::read(input, trail)?;
        trail.leave();
        Ok(ListValue { values })
    }
}

/// google.protobuf.Empty, as prost knows it.
impl ProtoMessage for () {
    const FIELDS: &'static [&'static str] = &[];

    fn field(_: &str) -> Option<usize> {
        None
    }

    fn read_field<'de, D: Deserializer<'de>>(
        &mut self,
        _: usize,
        input: D,
        trail: &Trail,
    ) -> Result<(), D::Error> {
        read::skip(input, trail)
    }

    fn write_fields(&self, _: &mut Vec<u8>) {}
}

/// The nesting depth of objects and lists, the outermost included. JSON deeper than
/// `VALUE_DEPTH_MAX` is refused by the parser; protobuf input needs this check, because prost
/// counts from the enclosing message.
pub fn value_depth(value: &Value) -> usize {
    match &value.kind {
        Some(Kind::ListValue(list)) => 1 + deepest(list.values.iter()),
        Some(Kind::StructValue(object)) => struct_depth(object),
        _ => 0,
    }
}

pub fn struct_depth(object: &Struct) -> usize {
    1 + deepest(object.fields.values())
}

fn deepest<'a>(values: impl Iterator<Item = &'a Value>) -> usize {
    values.map(value_depth).max().unwrap_or(0)
}

pub fn value_from_json(json: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match json {
        Json::Null => Kind::NullValue(NullValue::NullValue.into()),
        Json::Bool(value) => Kind::BoolValue(value),
        // Without arbitrary precision every number of serde_json has a nearest float.
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => {
            Kind::ListValue(ListValue { values: items.into_iter().map(value_from_json).collect() })
        }
        Json::Object(entries) => {
            let fields = entries.into_iter().map(|(key, value)| (key, value_from_json(value)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    };
    kind.into()
}

pub fn value_to_json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match &value.kind {
        Some(Kind::NullValue(_)) | None => Json::Null,
        Some(Kind::BoolValue(value)) => Json::Bool(*value),
        Some(Kind::NumberValue(number)) => match whole(*number) {
            Some(number) => number.into(),
            // Null for a number without a JSON form, as the printer does.
            None => (*number).into(),
        },
        Some(Kind::StringValue(text)) => Json::String(text.clone()),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_to_json).collect(),
        Some(Kind::StructValue(object)) => {
            let entries = object.fields.iter();
            entries.map(|(key, value)| (key.clone(), value_to_json(value))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{VALUE_DEPTH_MAX, from_str};

    #[test]
    fn depth_equals_the_depth_that_the_reader_counts() {
        for (json, depth) in [("7", 0), ("[]", 1), ("{}", 1), (r#"[1,{"a":[]},[2]]"#, 3)] {
            assert_eq!(value_depth(&from_str(json).unwrap()), depth, "{json}");
        }
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        let deepest: Value = from_str(&nested(VALUE_DEPTH_MAX)).unwrap();
        assert_eq!(value_depth(&deepest), VALUE_DEPTH_MAX);
        assert!(from_str::<Value>(&nested(VALUE_DEPTH_MAX + 1)).is_err());
        let object: Struct = from_str(r#"{"a":{"b":{}}}"#).unwrap();
        assert_eq!(struct_depth(&object), 3);
    }
}
