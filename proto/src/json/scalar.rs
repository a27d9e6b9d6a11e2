//! The scalars of protobuf in JSON: 64-bit integers as text, because JavaScript numbers would round
//! them; bytes as base64; infinite floats and NaN by their names.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
    prelude::BASE64_STANDARD,
};
use bytes::Bytes;
use serde::{Deserializer, de};

use super::{
    ProtoJson, Trail,
    read::{Scalar, scalar, text},
    write::{self, plain},
};

impl ProtoJson for String {
    fn write(&self, out: &mut Vec<u8>) {
        write::text(out, self);
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        text(input, trail, "a string").map(Cow::into_owned)
    }
}

impl ProtoJson for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if *self { b"true" } else { b"false" });
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        match scalar(input, trail, "a boolean")? {
            Scalar::Bool(value) => Ok(value),
            other => Err(trail.expected("a boolean", other.name())),
        }
    }
}

macro_rules! integers {
    ($($integer:ty: $print:ident),*) => {$(
        impl ProtoJson for $integer {
            fn write(&self, out: &mut Vec<u8>) {
                $print(out, *self);
            }

            fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
                let value = scalar(input, trail, "an integer")?;
                <$integer>::try_from(integer(&value, trail, "an integer")?)
                    .map_err(|_| out_of_range(trail, <$integer>::MIN, <$integer>::MAX))
            }
        }
    )*};
}

integers!(i32: plain, u32: plain, i64: in_quotes, u64: in_quotes);

fn in_quotes(out: &mut Vec<u8>, number: impl serde::Serialize) {
    out.push(b'"');
    plain(out, number);
    out.push(b'"');
}

/// An integer given as a number or as text; `1.0` and `1e3` are integers.
pub(super) fn integer<E: de::Error>(
    value: &Scalar<'_>,
    trail: &Trail,
    expected: &str,
) -> Result<i128, E> {
    let float = match value {
        Scalar::Integer(value) => return Ok(*value),
        Scalar::Float(value) => *value,
        Scalar::Text(text) => match text.parse() {
            Ok(value) => return Ok(value),
            Err(_) => decimal(text)
                .ok_or_else(|| trail.expected::<E>(expected, "a string that is no number"))?,
        },
        other => return Err(trail.expected(expected, other.name())),
    };
    // Beyond every integer type, so the cast below is exact.
    if float.abs() >= 1e30 {
        return Err(trail.refuse("number out of range"));
    }
    if float.fract() == 0.0 {
        Ok(float as i128)
    } else {
        Err(trail.expected(expected, "a fraction"))
    }
}

pub(super) fn out_of_range<E: de::Error>(
    trail: &Trail,
    min: impl std::fmt::Display,
    max: impl std::fmt::Display,
) -> E {
    trail.refuse(format!("expected an integer from {min} to {max}"))
}

/// A finite number in JSON's spelling; Rust's own parser also accepts `inf` and the like.
fn decimal(text: &str) -> Option<f64> {
    let is_plain = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    text.bytes()
        .all(|byte| is_plain(&byte))
        .then(|| text.parse().ok())?
        .filter(|value: &f64| value.is_finite())
}

impl ProtoJson for f64 {
    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            value if value.is_nan() => out.extend_from_slice(b"\"NaN\""),
            f64::INFINITY => out.extend_from_slice(b"\"Infinity\""),
            f64::NEG_INFINITY => out.extend_from_slice(b"\"-Infinity\""),
            value => finite(out, value),
        }
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        match scalar(input, trail, "a number")? {
            Scalar::Integer(value) => Ok(value as f64),
            Scalar::Float(value) => Ok(value),
            Scalar::Text(text) => match text.as_ref() {
                "NaN" => Ok(f64::NAN),
                "Infinity" => Ok(f64::INFINITY),
                "-Infinity" => Ok(f64::NEG_INFINITY),
                text => decimal(text)
                    .ok_or_else(|| trail.expected("a number", "a string that is no number")),
            },
            other => Err(trail.expected("a number", other.name())),
        }
    }
}

/// The integer equal to a float, in the range where every integer has a float.
pub(super) fn whole(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let is_whole = value.fract() == 0.0 && value.abs() <= EXACT;
    // A negative zero has no integer.
    (is_whole && (value != 0.0 || value.is_sign_positive())).then_some(value as i64)
}

/// Integral values are printed without a point: a client that sent `1` gets `1` back.
pub(super) fn finite(out: &mut Vec<u8>, value: f64) {
    match whole(value) {
        Some(value) => plain(out, value),
        None => plain(out, value),
    }
}

impl ProtoJson for Vec<u8> {
    fn write(&self, out: &mut Vec<u8>) {
        base64(out, self);
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        let text = text(input, trail, "base64 text")?;
        // A text uses one alphabet or the other; where they agree either works.
        let is_url_safe = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
        let engine = if is_url_safe { &URL_SAFE } else { &STANDARD };
        engine.decode(text.as_ref()).map_err(|error| trail.refuse(format!("not base64: {error}")))
    }
}

impl ProtoJson for Bytes {
    fn write(&self, out: &mut Vec<u8>) {
        base64(out, self);
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        Vec::read(input, trail).map(Bytes::from)
    }
}

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_allow_trailing_bits(true)
    .with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let start = out.len();
    let length = bytes.len().div_ceil(3) * 4;
    out.resize(start + length, b'=');
    BASE64_STANDARD
        .encode_slice(bytes, &mut out[start..])
        .expect("the length is that of padded base64");
    out.push(b'"');
}
