//! The parser: the functions that generated code calls for each shape of field. One visitor serves
//! all scalars, so each error text exists once.

use std::{borrow::Cow, collections::HashSet, fmt, marker::PhantomData};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{
    ProtoEnum, ProtoJson, ProtoMessage, Trail,
    error::quoted,
    scalar::{integer, out_of_range},
};

/// The visits that a visitor of a composite type refuses, each with its own text.
macro_rules! refuse {
    ($expected:literal: $($visit:ident)*) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str($expected)
        }
        $(refuse!(@ $expected, $visit);)*
    };
    (@ $expected:literal, scalar) => {
        refuse!(@ $expected, visit_bool: bool, "a boolean");
        refuse!(@ $expected, visit_i64: i64, "a number");
        refuse!(@ $expected, visit_u64: u64, "a number");
        refuse!(@ $expected, visit_f64: f64, "a number");
        refuse!(@ $expected, visit_str: &str, "a string");
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Err(self.trail.expected($expected, "null"))
        }
    };
    (@ $expected:literal, list) => {
        fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
            Err(self.trail.expected($expected, "a list"))
        }
    };
    (@ $expected:literal, object) => {
        fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
            Err(self.trail.expected($expected, "an object"))
        }
    };
    (@ $expected:literal, $visit:ident: $argument:ty, $found:literal) => {
        fn $visit<E: Error>(self, _: $argument) -> Result<Self::Value, E> {
            Err(self.trail.expected($expected, $found))
        }
    };
}
pub(super) use refuse;

/// A value as a serde seed, with the trail as its state.
pub(super) struct Seed<'a, T> {
    trail: &'a Trail,
    of: PhantomData<T>,
}

impl<'a, T> Seed<'a, T> {
    pub(super) fn new(trail: &'a Trail) -> Self {
        Seed { trail, of: PhantomData }
    }
}

impl<'de, T: ProtoJson> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<T, D::Error> {
        T::read(input, self.trail)
    }
}

/// Two parsers of an object with a duplicate key could use different values.
const TWICE: &str = "given twice: a key stands once in an object";

pub(crate) fn message<'de, M: ProtoMessage, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
) -> Result<M, D::Error> {
    input.deserialize_any(MessageVisitor { trail, of: PhantomData })
}

struct MessageVisitor<'a, M> {
    trail: &'a Trail,
    of: PhantomData<M>,
}

impl<'de, M: ProtoMessage> Visitor<'de> for MessageVisitor<'_, M> {
    type Value = M;

    refuse!("an object": scalar list);

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<M, A::Error> {
        let mut message = M::default();
        // One bit for each field: `build/json.rs` generates no message with more fields than bits.
        let mut seen = 0_u64;
        let mut unknown = HashSet::new();
        while let Some(name) = fields.next_key_seed(FieldName::<M>(PhantomData))? {
            let field = match name {
                Key::Field(field) => field,
                Key::Unknown(name) => {
                    skip_entry(&mut fields, &mut unknown, name, self.trail)?;
                    continue;
                }
            };
            if seen & (1 << field) != 0 {
                self.trail.at_field(M::FIELDS[field]);
                return Err(self.trail.refuse(TWICE));
            }
            seen |= 1 << field;
            let seed = Field { message: &mut message, field, trail: self.trail };
            fields.next_value_seed(seed).inspect_err(|_| self.trail.at_field(M::FIELDS[field]))?;
        }
        Ok(message)
    }
}

/// Looks up a field by its name, and keeps only unknown names.
struct FieldName<M>(PhantomData<M>);

enum Key {
    Field(usize),
    Unknown(String),
}

impl<'de, M: ProtoMessage> DeserializeSeed<'de> for FieldName<M> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_str(self)
    }
}

impl<M: ProtoMessage> Visitor<'_> for FieldName<M> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(M::field(name).map_or_else(|| Key::Unknown(name.to_owned()), Key::Field))
    }
}

struct Field<'a, M> {
    message: &'a mut M,
    field: usize,
    trail: &'a Trail,
}

impl<'de, M: ProtoMessage> DeserializeSeed<'de> for Field<'_, M> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.message.read_field(self.field, input, self.trail)
    }
}

/// Skips an unused value. A duplicate key in it is refused all the same.
pub(crate) fn skip<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<(), D::Error> {
    Skip(trail).deserialize(input)
}

struct Skip<'a>(&'a Trail);

impl<'de> DeserializeSeed<'de> for Skip<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Skip(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            skip_entry(&mut entries, &mut seen, key, self.0)?;
        }
        Ok(())
    }
}

/// Skips the value of a key, which must be new.
fn skip_entry<'de, A: MapAccess<'de>>(
    entries: &mut A,
    seen: &mut HashSet<String>,
    key: String,
    trail: &Trail,
) -> Result<(), A::Error> {
    if seen.contains(&key) {
        return Err(trail.repeated(&key));
    }
    // The set is a table of texts.
    trail.entry::<(), A::Error>(seen.len())?;
    entries.next_value_seed(Skip(trail)).inspect_err(|_| trail.at_key(&key))?;
    seen.insert(key);
    Ok(())
}

/// A field that may be unset: `null` means absent.
pub(crate) fn nullable<'de, T: ProtoJson, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
) -> Result<Option<T>, D::Error> {
    input.deserialize_option(Nullable { trail, of: PhantomData::<T> })
}

struct Nullable<'a, T> {
    trail: &'a Trail,
    of: PhantomData<T>,
}

impl<'de, T: ProtoJson> Visitor<'de> for Nullable<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(T::null())
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(T::null())
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        T::read(input, self.trail).map(Some)
    }
}

pub(crate) fn or_default<'de, T: ProtoJson + Default, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
) -> Result<T, D::Error> {
    nullable(input, trail).map(Option::unwrap_or_default)
}

/// A member of a oneof: its constructor, its test, and the other members of the group.
pub(crate) struct Member<T, O> {
    pub(crate) make: fn(T) -> O,
    pub(crate) is: fn(&O) -> bool,
    pub(crate) all: &'static str,
}

pub(crate) fn member<'de, T: ProtoJson, O, D: Deserializer<'de>>(
    slot: &mut Option<O>,
    input: D,
    trail: &Trail,
    member: &Member<T, O>,
) -> Result<(), D::Error> {
    let value: Option<T> = nullable(input, trail)?;
    let is_other = slot.as_ref().is_some_and(|current| !(member.is)(current));
    match value {
        // An absent member does not affect the others.
        None if is_other => Ok(()),
        Some(_) if is_other => {
            Err(trail.refuse(format!("only one of {} may be given", member.all)))
        }
        value => {
            *slot = value.map(member.make);
            Ok(())
        }
    }
}

pub(crate) fn enumeration<'de, E: ProtoEnum, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
) -> Result<i32, D::Error> {
    nullable::<Named<E>, D>(input, trail).map(|named| named.map_or(0, |named| named.number))
}

pub(crate) fn enumerations<'de, E: ProtoEnum, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
) -> Result<Vec<i32>, D::Error> {
    let named = or_default::<Vec<Named<E>>, D>(input, trail)?;
    Ok(named.into_iter().map(|named| named.number).collect())
}

struct Named<E> {
    number: i32,
    of: PhantomData<E>,
}

impl<E: ProtoEnum> ProtoJson for Named<E> {
    fn write(&self, out: &mut Vec<u8>) {
        super::write::named::<E>(out, self.number);
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        const EXPECTED: &str = "the name of an enum value";
        let number = match scalar(input, trail, EXPECTED)? {
            Scalar::Text(name) if trail.is_lenient => E::number(&name).unwrap_or_default(),
            Scalar::Text(name) => E::number(&name).ok_or_else(|| {
                let names = E::NAMES.join(", ");
                trail.refuse(format!("unknown name {}, expected one of {names}", quoted(&name)))
            })?,
            number => {
                let number = integer(&number, trail, EXPECTED)?;
                i32::try_from(number).map_err(|_| out_of_range(trail, i32::MIN, i32::MAX))?
            }
        };
        Ok(Named { number, of: PhantomData })
    }
}

/// Anything that is not a list or an object.
pub(super) enum Scalar<'de> {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(Cow<'de, str>),
}

impl Scalar<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Scalar::Null => "null",
            Scalar::Bool(_) => "a boolean",
            Scalar::Integer(_) | Scalar::Float(_) => "a number",
            Scalar::Text(_) => "a string",
        }
    }
}

pub(super) fn scalar<'de, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
    expected: &'static str,
) -> Result<Scalar<'de>, D::Error> {
    input.deserialize_any(ScalarVisitor { trail, expected })
}

pub(super) fn text<'de, D: Deserializer<'de>>(
    input: D,
    trail: &Trail,
    expected: &'static str,
) -> Result<Cow<'de, str>, D::Error> {
    match scalar(input, trail, expected)? {
        Scalar::Text(text) => Ok(text),
        other => Err(trail.expected(expected, other.name())),
    }
}

struct ScalarVisitor<'a> {
    trail: &'a Trail,
    expected: &'static str,
}

impl<'de> Visitor<'de> for ScalarVisitor<'_> {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Integer(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(self.trail.expected(self.expected, "a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(self.trail.expected(self.expected, "an object"))
    }
}
