//! ProtoJSON: the contract as JSON, as protobuf's own libraries parse and print it, with one rule
//! of A2A: REQUIRED scalars, lists and maps are printed even when empty. `build/json.rs` generates
//! the code of each message; this module has the functions that it calls, and the types that
//! protobuf prints specially. It knows no transport.

mod error;
mod plain;
pub(crate) mod read;
mod repeated;
pub mod sample;
mod scalar;
pub(crate) mod time;
mod value;
pub(crate) mod write;

use std::str;

use prost_types::Struct;
use serde::Deserializer;

pub use error::{Error, Kind, Trail, VALUE_DEPTH_MAX};
pub use plain::plain_from_caller;
pub use value::{struct_depth, value_depth, value_from_json, value_to_json};

#[allow(clippy::all, deprecated, unused_variables)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/json.rs"));
}

/// A message, or a value inside one, that has a ProtoJSON form.
pub trait ProtoJson: Sized {
    /// Appends the JSON to `out`.
    fn write(&self, out: &mut Vec<u8>);

    /// Parses the JSON. On an error every caller adds its step to the trail.
    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error>;

    /// The value of `null` in a field of this type: unset, except for the one type that has a null.
    fn null() -> Option<Self> {
        None
    }
}

/// A message that prints as an object of its fields. Implemented by generated code.
pub trait ProtoMessage: Default {
    /// The JSON names, in the order of declaration.
    const FIELDS: &'static [&'static str];

    /// The index in `FIELDS` of a JSON or proto name.
    fn field(name: &str) -> Option<usize>;

    fn read_field<'de, D: Deserializer<'de>>(
        &mut self,
        field: usize,
        input: D,
        trail: &Trail,
    ) -> Result<(), D::Error>;

    fn write_fields(&self, out: &mut Vec<u8>);
}

/// Large members of a oneof are boxed, which makes no difference to their JSON.
impl<M: ProtoMessage> ProtoMessage for Box<M> {
    const FIELDS: &'static [&'static str] = M::FIELDS;

    fn field(name: &str) -> Option<usize> {
        M::field(name)
    }

    fn read_field<'de, D: Deserializer<'de>>(
        &mut self,
        field: usize,
        input: D,
        trail: &Trail,
    ) -> Result<(), D::Error> {
        (**self).read_field(field, input, trail)
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        (**self).write_fields(out);
    }
}

/// An enum of the contract; its fields are plain numbers in Rust. Implemented by generated code.
pub trait ProtoEnum {
    const NAMES: &'static [&'static str];

    fn name(number: i32) -> Option<&'static str>;

    fn number(name: &str) -> Option<i32>;
}

pub fn to_vec<T: ProtoJson>(message: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    message.write(&mut out);
    out
}

pub fn to_string<T: ProtoJson>(message: &T) -> String {
    String::from_utf8(to_vec(message)).expect("only str and ASCII are ever written")
}

/// Appends the JSON of a message to a buffer, so that an envelope needs no second copy.
pub fn write<T: ProtoJson>(message: &T, out: &mut Vec<u8>) {
    message.write(out);
}

/// Parses the input of a caller, which may take so many bytes of memory. A list or map with many
/// small elements takes several hundred times its text (a decompression bomb).
pub fn from_caller<T: ProtoJson>(json: &[u8], memory: usize) -> Result<T, Error> {
    read_with(Trail::within(memory), checked(json)?)
}

pub fn from_slice<T: ProtoJson>(json: &[u8]) -> Result<T, Error> {
    from_str(checked(json)?)
}

/// Checked once for the whole input, which is cheaper than once for each string.
fn checked(json: &[u8]) -> Result<&str, Error> {
    str::from_utf8(json)
        .map_err(|error| Error::syntax(format!("invalid UTF-8 after byte {}", error.valid_up_to())))
}

pub fn from_str<T: ProtoJson>(json: &str) -> Result<T, Error> {
    read_with(Trail::bounded(), json)
}

/// Parses a response of a foreign server. Some print timestamps without a zone, although RFC 3339
/// requires one: such a timestamp is parsed as UTC.
pub fn from_server<T: ProtoJson>(json: &[u8]) -> Result<T, Error> {
    read_with(Trail::of_server(), checked(json)?)
}

/// Parses a record of a peer that may be newer: an unknown enum name becomes zero and does not
/// invalidate the rest.
pub fn from_peer<T: ProtoJson>(json: &str) -> Result<T, Error> {
    read_with(Trail::lenient(), json)
}

fn read_with<T: ProtoJson>(trail: Trail, json: &str) -> Result<T, Error> {
    let mut input = serde_json::Deserializer::from_str(json);
    T::read(&mut input, &trail)
        .and_then(|message| input.end().map(|()| message))
        .map_err(|error| trail.into_error(&error))
}

/// The JSON of a message as a Struct, for fields with arbitrary objects such as `metadata`.
pub fn to_struct<T: ProtoMessage>(message: &T) -> Struct {
    let json = to_string(message);
    // A message in memory is no input: its depth has no limit here.
    let trail = Trail::unbounded();
    let mut input = serde_json::Deserializer::from_str(&json);
    input.disable_recursion_limit();
    Struct::read(&mut input, &trail).expect("a message prints as an object")
}

/// Parses a record from a Struct as [`from_peer`] does: peers put their records into metadata.
pub fn from_struct<T: ProtoMessage>(json: &Struct) -> Result<T, Error> {
    from_peer(&to_string(json))
}

/// Every message of the contract by its full name, for tests of all messages.
#[doc(hidden)]
pub fn registry() -> &'static [Entry] {
    generated::REGISTRY
}

#[doc(hidden)]
pub struct Entry {
    pub name: &'static str,
    pub json_of_proto: fn(&[u8]) -> Result<Vec<u8>, prost::DecodeError>,
    pub proto_of_json: fn(&[u8]) -> Result<Vec<u8>, Error>,
}

impl Entry {
    const fn of<M: ProtoMessage + prost::Message>(name: &'static str) -> Self {
        Entry {
            name,
            json_of_proto: |proto| M::decode(proto).map(|message| to_vec(&message)),
            proto_of_json: |json| from_slice::<M>(json).map(|message| message.encode_to_vec()),
        }
    }
}

impl<M: ProtoMessage> ProtoJson for M {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.write_fields(out);
        write::close(out, b'}');
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        read::message(input, trail)
    }
}
