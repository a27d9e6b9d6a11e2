//! A hand-written protobuf encoder for OTLP: fields in any order, appended when they are known. A
//! span is its encoded bytes, and ending it is a copy. `tests/traces` decodes them with
//! OpenTelemetry's generated messages.

use std::{
    fmt::{self, Write},
    time::{SystemTime, UNIX_EPOCH},
};

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Text(&'a str),
    Number(i64),
    Flag(bool),
    Decimal(f64),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Value::Text(text)
    }
}

macro_rules! number {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Value<'_> {
            fn from(number: $kind) -> Self {
                Value::Number(number.into())
            }
        }
    )*};
}
number!(i64, i32, u32, u16);

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Value::Decimal(number)
    }
}

/// The longest text of an attribute; the rest is cut. The message of a failure has the same limit.
const TEXT_BYTES_MAX: usize = 1024;

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn tag(out: &mut Vec<u8>, field: u32, kind: u32) {
    varint(out, u64::from(field << 3 | kind));
}

pub(super) fn fixed64(out: &mut Vec<u8>, field: u32, number: u64) {
    tag(out, field, 1);
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn fixed32(out: &mut Vec<u8>, field: u32, number: u32) {
    tag(out, field, 5);
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn number(out: &mut Vec<u8>, field: u32, number: u64) {
    tag(out, field, 0);
    varint(out, number);
}

pub(super) fn bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    tag(out, field, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A length-delimited field of which the length is known only at its end. The length nearly always
/// takes one byte.
pub(super) fn nested(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    tag(out, field, 2);
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out[at] = short,
        _ => {
            let mut prefix = Vec::with_capacity(5);
            varint(&mut prefix, length as u64);
            out.splice(at..=at, prefix);
        }
    }
}

struct Text<'a>(&'a mut Vec<u8>);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

pub(super) fn text(out: &mut Vec<u8>, field: u32, text: fmt::Arguments<'_>) {
    match text.as_str() {
        Some(text) => bytes(out, field, text.as_bytes()),
        None => nested(out, field, |out| {
            // Writing to memory cannot fail.
            let _ = Text(out).write_fmt(text);
        }),
    }
}

pub(super) fn any(out: &mut Vec<u8>, field: u32, value: Value<'_>) {
    nested(out, field, |out| match value {
        Value::Text(text) => {
            let cut = text.floor_char_boundary(TEXT_BYTES_MAX);
            bytes(out, 1, &text.as_bytes()[..cut]);
        }
        Value::Flag(flag) => number(out, 2, flag.into()),
        Value::Number(n) => number(out, 3, n as u64),
        Value::Decimal(n) => fixed64(out, 4, n.to_bits()),
    });
}

pub(super) fn attribute_text(out: &mut Vec<u8>, field: u32, key: &str, value: fmt::Arguments<'_>) {
    nested(out, field, |out| {
        bytes(out, 1, key.as_bytes());
        nested(out, 2, |out| text(out, 1, value));
    });
}

pub(super) fn attribute(out: &mut Vec<u8>, field: u32, key: &str, value: Value<'_>) {
    nested(out, field, |out| {
        bytes(out, 1, key.as_bytes());
        any(out, 2, value);
    });
}
