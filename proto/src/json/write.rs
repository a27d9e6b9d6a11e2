//! The printer: the functions that generated code calls for each shape of field. Every member and
//! element is followed by a comma, and the closing bracket replaces the last one.

use serde::Serialize;

use super::{ProtoEnum, ProtoJson};

/// A field that is always printed; `key` includes its quotes and colon.
pub(crate) fn field<T: ProtoJson>(out: &mut Vec<u8>, key: &'static str, value: &T) {
    out.extend_from_slice(key.as_bytes());
    value.write(out);
    out.push(b',');
}

pub(crate) fn unless_default<T: ProtoJson + Default + PartialEq>(
    out: &mut Vec<u8>,
    key: &'static str,
    value: &T,
) {
    if *value != T::default() {
        field(out, key, value);
    }
}

pub(crate) fn option<T: ProtoJson>(out: &mut Vec<u8>, key: &'static str, value: &Option<T>) {
    if let Some(value) = value {
        field(out, key, value);
    }
}

pub(crate) fn enumeration<E: ProtoEnum>(out: &mut Vec<u8>, key: &'static str, number: i32) {
    out.extend_from_slice(key.as_bytes());
    named::<E>(out, number);
    out.push(b',');
}

pub(crate) fn enumerations<E: ProtoEnum>(out: &mut Vec<u8>, key: &'static str, numbers: &[i32]) {
    if numbers.is_empty() {
        return;
    }
    out.extend_from_slice(key.as_bytes());
    out.push(b'[');
    for number in numbers {
        named::<E>(out, *number);
        out.push(b',');
    }
    close(out, b']');
    out.push(b',');
}

/// An unknown number is printed as a number: the peer may be newer.
pub(super) fn named<E: ProtoEnum>(out: &mut Vec<u8>, number: i32) {
    match E::name(number) {
        Some(name) => {
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.push(b'"');
        }
        None => plain(out, number),
    }
}

pub(super) fn close(out: &mut Vec<u8>, bracket: u8) {
    match out.last_mut() {
        Some(last) if *last == b',' => *last = bracket,
        _ => out.push(bracket),
    }
}

/// A number in JSON's spelling.
pub(super) fn plain(out: &mut Vec<u8>, number: impl Serialize) {
    serde_json::to_writer(out, &number).expect("a Vec takes every finite number");
}

/// Bytes examined together; the compiler turns this into one vector comparison.
const STRIDE: usize = 16;

pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut chunks = text.as_bytes().chunks_exact(STRIDE);
    for chunk in &mut chunks {
        if chunk.iter().fold(false, |found, &byte| found | must_escape(byte)) {
            escaped(out, chunk)
        } else {
            out.extend_from_slice(chunk)
        }
    }
    escaped(out, chunks.remainder());
    out.push(b'"');
}

fn must_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => {
                let high = HEX[usize::from(byte >> 4)];
                let low = HEX[usize::from(byte & 15)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
            _ => out.push(byte),
        }
    }
}
