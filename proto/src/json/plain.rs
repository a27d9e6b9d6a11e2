//! JSON as serde_json's values, for code that translates it first. Unlike serde_json's own parser
//! this one refuses an object with a duplicate key.

use std::fmt;

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value, error::Category, map::Entry};

use crate::allocation::{Budget, Exceeded};

use super::{
    Error,
    error::{Kind, quoted},
};

/// Parses the input of a caller, which may take so many bytes of memory.
pub fn plain_from_caller(json: &str, memory: usize) -> Result<Value, Error> {
    let budget = Budget::new(memory);
    let mut input = serde_json::Deserializer::from_str(json);
    let read = Plain(&budget).deserialize(&mut input);
    read.and_then(|value| input.end().map(|()| value)).map_err(|error| {
        let kind = match error.classify() {
            Category::Data if error.to_string().starts_with(EXCEEDED) => Kind::TooLarge,
            Category::Data => Kind::Shape,
            Category::Io | Category::Syntax | Category::Eof => Kind::Syntax,
        };
        Error::of(kind, error.to_string())
    })
}

const EXCEEDED: &str = "too many small elements";

fn exceeded<E: de::Error>(_: Exceeded) -> E {
    E::custom(EXCEEDED)
}

#[derive(Clone, Copy)]
struct Plain<'a>(&'a Budget);

impl<'de> DeserializeSeed<'de> for Plain<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Plain<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            self.0.element::<Value>().map_err(exceeded)?;
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.0.entry::<Value>(object.len()).map_err(exceeded)?;
            let value = entries.next_value_seed(self)?;
            match object.entry(key) {
                Entry::Vacant(entry) => _ = entry.insert(value),
                Entry::Occupied(entry) => {
                    let key = quoted(entry.key());
                    return Err(A::Error::custom(format!("key {key} is given twice")));
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(json: &str) -> Result<Value, Error> {
        plain_from_caller(json, 10_000)
    }

    #[test]
    fn plain_json_is_read_as_serde_json_reads_it() {
        for json in [
            "null",
            r#"[true, -1, 18446744073709551615, 1.5, "a\u00e9", [], {}]"#,
            r#"{"a": {"b": [1]}, "c": {"b": null}}"#,
        ] {
            assert_eq!(plain(json).unwrap(), serde_json::from_str::<Value>(json).unwrap());
        }
        assert_eq!(plain("{").unwrap_err().kind(), Kind::Syntax);
    }

    #[test]
    fn plain_json_with_a_duplicate_key_is_refused() {
        for json in [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"c":2,"\u0061":3}}]"#] {
            let error = plain(json).unwrap_err();
            assert_eq!(error.kind(), Kind::Shape, "{error}");
            assert!(error.to_string().contains(r#"key "a" is given twice"#), "{error}");
        }
    }

    #[test]
    fn plain_json_of_many_small_elements_is_too_large() {
        let objects = |count: usize| format!("[{}]", vec![r#"{"":0}"#; count].join(","));
        assert!(plain(&objects(8)).is_ok());
        let error = plain(&objects(100)).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge, "{error}");
    }
}
