//! Allocation limits for decoding, against a decompression bomb: an element of a few bytes on the
//! wire or in JSON can take several hundred in memory. The estimate here counts elements of lists
//! and entries of maps, and not their text, which takes no more than its encoding.
//! `build/allocation.rs` generates the layout of each message.

use std::{cell::Cell, mem::size_of};

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use prost_types::{ListValue, Struct, Value};

use crate::v1::Report;

const MIB: usize = 1024 * 1024;

/// Of one message of a caller. Ordinary content takes two to four times its encoding.
pub const MESSAGE_BYTES_MAX: usize = 32 * MIB;
/// Of one call of a gateway, which has applied that limit to the message in it.
pub const CALL_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// Of one message of a worker: several reports, or the cards of all its agents.
pub const HUB_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;
/// A message with no more bytes than this is decoded without an estimate.
pub(crate) const FREE_BYTES: usize = 16 * 1024;

/// The least memory of a text that is not empty.
const TEXT: usize = 32;
/// Entries of one node of a `BTreeMap`, which is allocated with its first entry.
const NODE_ENTRIES: usize = 11;
/// As many levels as prost decodes.
const DEPTH_MAX: usize = 100;

/// The memory that one message may still take.
#[derive(Debug)]
pub(crate) struct Budget(Cell<usize>);

/// A message would take more memory than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded;

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    pub(crate) fn spend(&self, bytes: usize) -> Result<(), Exceeded> {
        self.0.set(self.0.get().checked_sub(bytes).ok_or(Exceeded)?);
        Ok(())
    }

    /// One more element of a list.
    pub(crate) fn element<T>(&self) -> Result<(), Exceeded> {
        self.spend(element::<T>())
    }

    /// One more entry of a map of texts to `T` that has so many.
    pub(crate) fn entry<T>(&self, before: usize) -> Result<(), Exceeded> {
        self.spend(entry(size_of::<T>(), before))
    }
}

/// A list doubles its capacity, and copies itself for that.
const fn element<T>() -> usize {
    2 * size_of::<T>()
}

/// The first entry pays for a whole node, and the entries after that node for nodes half full.
const fn entry(value: usize, before: usize) -> usize {
    let one = size_of::<String>() + value;
    match before {
        0 => NODE_ENTRIES * one + TEXT,
        1..NODE_ENTRIES => TEXT,
        _ => 2 * one + TEXT,
    }
}

/// A message that can be estimated on the wire. Implemented by generated code.
pub trait Allocates {
    /// The limit of a request; `None`: only answers have this type, and a caller trusts them.
    const BYTES_MAX: Option<usize> = None;

    /// The field with this number, unless it is a single scalar or text.
    fn field(_number: u32) -> Option<Field> {
        None
    }

    /// A smaller message in place of one that is above the limit.
    fn reduced(_wire: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// A field whose elements take memory of their own, or whose message has such fields.
#[derive(Clone, Copy)]
pub struct Field {
    kind: FieldKind,
    inner: fn(u32) -> Option<Field>,
}

#[derive(Clone, Copy)]
enum FieldKind {
    /// One message, which is part of the memory of its parent.
    Single,
    /// Elements of this size each.
    List(usize),
    /// Entries with values of this size.
    Map(usize),
}

impl Field {
    pub fn single<T: Allocates>() -> Self {
        Self { kind: FieldKind::Single, inner: T::field }
    }

    pub fn list<T: Allocates>() -> Self {
        Self { kind: FieldKind::List(element::<T>()), inner: T::field }
    }

    pub fn texts() -> Self {
        Self { kind: FieldKind::List(element::<String>() + TEXT), inner: |_| None }
    }

    /// A map of texts to messages.
    pub fn map<T: Allocates>() -> Self {
        let inner = |number| (number == 2).then(Self::single::<T>);
        Self { kind: FieldKind::Map(size_of::<T>()), inner }
    }

    pub fn map_of_texts() -> Self {
        Self { kind: FieldKind::Map(size_of::<String>() + TEXT), inner: |_| None }
    }
}

impl Allocates for () {}

impl Allocates for Struct {
    fn field(number: u32) -> Option<Field> {
        (number == 1).then(Field::map::<Value>)
    }
}

impl Allocates for ListValue {
    fn field(number: u32) -> Option<Field> {
        (number == 1).then(Field::list::<Value>)
    }
}

impl Allocates for Value {
    fn field(number: u32) -> Option<Field> {
        match number {
            5 => Some(Field::single::<Struct>()),
            6 => Some(Field::single::<ListValue>()),
            _ => None,
        }
    }
}

/// Whether an encoded message stays within the budget.
pub(crate) fn check<T: Allocates>(wire: &[u8], budget: &Budget) -> Result<(), Exceeded> {
    fields(wire, T::field, budget, 0)
}

fn fields(
    mut wire: &[u8],
    known: fn(u32) -> Option<Field>,
    budget: &Budget,
    depth: usize,
) -> Result<(), Exceeded> {
    let mut entries = 0;
    // Bytes that cannot be parsed end the decoding as well.
    while let Some((number, content)) = next_field(&mut wire) {
        let (Some(content), Some(field)) = (content, known(number)) else { continue };
        match field.kind {
            FieldKind::Single => {}
            FieldKind::List(bytes) => budget.spend(bytes)?,
            FieldKind::Map(value) => {
                budget.spend(entry(value, entries))?;
                entries += 1;
            }
        }
        if depth < DEPTH_MAX {
            fields(content, field.inner, budget, depth + 1)?;
        }
    }
    Ok(())
}

/// The number of the next field, with its content if it has a length. The fields of a group count
/// as fields of its parent, which is an estimate that is too high.
fn next_field<'a>(wire: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    if wire.is_empty() {
        return None;
    }
    let (number, kind) = decode_key(wire).ok()?;
    let skipped = match kind {
        WireType::Varint => {
            decode_varint(wire).ok()?;
            0
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::StartGroup | WireType::EndGroup => 0,
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(wire).ok()?).ok()?;
            let (content, rest) = wire.split_at_checked(length)?;
            *wire = rest;
            return Some((number, Some(content)));
        }
    };
    *wire = wire.get(skipped..)?;
    Some((number, None))
}

/// A message of a worker, in which each report that takes more memory than a message may, or than
/// is left, has lost its content: its task fails, and the stream of the worker goes on. `None`: it
/// is another message.
pub(crate) fn without_heavy_reports(mut wire: &[u8]) -> Option<Vec<u8>> {
    const REPORTS: u32 = 2;
    const REPORT: u32 = 1;
    let budget = Budget::new(HUB_BYTES_MAX);
    let mut reports = Vec::with_capacity(wire.len());
    while let Some((number, content)) = next_field(&mut wire) {
        let mut content = content.filter(|_| number == REPORTS)?;
        while let Some((number, content)) = next_field(&mut content) {
            let report = content.filter(|_| number == REPORT)?;
            budget.element::<Report>().ok()?;
            let own = Budget::new(MESSAGE_BYTES_MAX.min(budget.0.get()));
            let before = own.0.get();
            let is_light = check::<Report>(report, &own).is_ok();
            let kept = if is_light { report.to_vec() } else { outline(report) };
            if is_light {
                budget.spend(before - own.0.get()).ok()?;
            }
            put(&mut reports, REPORT, &kept);
        }
    }
    let mut reduced = Vec::with_capacity(reports.len() + 16);
    put(&mut reduced, REPORTS, &reports);
    Some(reduced)
}

/// The task, attempt and number of a report.
fn outline(report: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut rest = report;
    loop {
        let before = rest;
        let Some((number, _)) = next_field(&mut rest) else { return kept };
        if number <= 3 {
            kept.extend_from_slice(&before[..before.len() - rest.len()]);
        }
    }
}

fn put(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

#[cfg(test)]
mod tests;
