//! A differential test of every message against prost-reflect, an independent ProtoJSON: each
//! parses the other's output without loss. Messages are generated from a tape of random bytes; a
//! tape that runs out yields zeros, so a failing message shrinks.

#![allow(clippy::unwrap_used)]

use std::{cell::RefCell, collections::BTreeSet};

use faultline_proto::{DESCRIPTOR_SET, json};
use proptest::{
    prelude::*,
    test_runner::{TestCaseResult, TestRunner},
};
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MapKey,
    MessageDescriptor, ReflectMessage, SerializeOptions, Value,
};

const CASES: u32 = 200;
const MAX_DEPTH: usize = 9;

#[test]
fn every_message_reads_and_prints_like_the_reference() {
    let pool = DescriptorPool::decode(DESCRIPTOR_SET).unwrap();
    for entry in json::registry() {
        let desc = pool.get_message_by_name(entry.name).unwrap();
        let config = ProptestConfig {
            cases: CASES,
            failure_persistence: None,
            max_shrink_iters: 4_000,
            ..<_>::default()
        };
        let tapes = proptest::collection::vec(any::<u8>(), 0..500);
        let seen = RefCell::new(BTreeSet::new());
        TestRunner::new(config)
            .run(&tapes, |tape| {
                let message = grow_with_one_field_for_sure(&mut Tape(&tape), &desc);
                seen.borrow_mut().extend(message.fields().map(|(field, _)| field.number()));
                check(entry, &message)
            })
            .unwrap_or_else(|error| panic!("{}: {error}", entry.name));
        assert_eq!(seen.into_inner().len(), desc.fields().len(), "all of {}", entry.name);
    }
}

#[test]
fn registry_lists_every_message_of_both_packages() {
    let pool = DescriptorPool::decode(DESCRIPTOR_SET).unwrap();
    let is_ours = |desc: &MessageDescriptor| {
        ["lf.a2a.v1", "faultline.v1"].contains(&desc.package_name()) && !desc.is_map_entry()
    };
    let names: Vec<String> =
        pool.all_messages().filter(is_ours).map(|desc| desc.full_name().into()).collect();
    let registry: Vec<String> = json::registry().iter().map(|entry| entry.name.into()).collect();
    assert_eq!(registry, names);
    assert!(names.len() > 90);
}

fn check(entry: &json::Entry, grown: &DynamicMessage) -> TestCaseResult {
    let desc = grown.descriptor();
    let decode = |proto: &[u8]| DynamicMessage::decode(desc.clone(), proto).unwrap();
    let proto = grown.encode_to_vec();
    // Fields with their default are absent after a round trip, and only then comparable.
    let message = decode(&proto);

    let ours = (entry.json_of_proto)(&proto).unwrap();
    let shown = String::from_utf8_lossy(&ours);
    let mut input = serde_json::Deserializer::from_slice(&ours);
    let strict = DeserializeOptions::new().deny_unknown_fields(true);
    let theirs = DynamicMessage::deserialize_with_options(desc.clone(), &mut input, &strict);
    let theirs = decode(&theirs.unwrap().encode_to_vec());
    prop_assert!(theirs == message, "the reference reads otherwise: {shown}");
    let again = (entry.proto_of_json)(&ours).unwrap();
    prop_assert!(decode(&again) == message, "we read our own otherwise: {shown}");

    let plain = SerializeOptions::new;
    for options in [
        plain(),
        plain().use_proto_field_name(true),
        plain().skip_default_fields(false),
        plain().use_enum_numbers(true).stringify_64_bit_integers(false),
    ] {
        let mut theirs = serde_json::Serializer::new(Vec::new());
        message.serialize_with_options(&mut theirs, &options).unwrap();
        let theirs = theirs.into_inner();
        let read = (entry.proto_of_json)(&theirs);
        let shown = String::from_utf8_lossy(&theirs);
        let same = read.as_ref().is_ok_and(|proto| decode(proto) == message);
        prop_assert!(same, "we read the reference's otherwise: {shown}\nas {read:?}");
    }
    Ok(())
}

struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.next()) % end
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.next()))
    }
}

/// Generates the field first, before the tape runs out, and sets it last, because of its oneof.
fn grow_with_one_field_for_sure(tape: &mut Tape<'_>, desc: &MessageDescriptor) -> DynamicMessage {
    let field = desc.fields().nth(usize::from(tape.next()) % desc.fields().len().max(1));
    let chosen = field.map(|field| (field_value(tape, &field, 0), field));
    let mut message = grow(tape, desc, 0);
    if let Some((value, field)) = chosen {
        message.set_field(&field, value);
    }
    message
}

fn grow(tape: &mut Tape<'_>, desc: &MessageDescriptor, depth: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(desc.clone());
    match desc.full_name() {
        "google.protobuf.Timestamp" => {
            let seconds = [-62_135_596_800, -1, 0, 951_782_400, 1_767_225_600, 253_402_300_799];
            message.set_field_by_name("seconds", Value::I64(tape.pick(&seconds)));
            let nanos = [0, 120_000_000, 120_500_000, 1, 999_999_999];
            message.set_field_by_name("nanos", Value::I32(tape.pick(&nanos)));
        }
        "google.protobuf.Duration" => {
            let parts = [(0, 0), (1, 500_000_000), (-1, -5_000), (0, -1), (315_575_999_999, 1)];
            let (seconds, nanos) = tape.pick(&parts);
            message.set_field_by_name("seconds", Value::I64(seconds));
            message.set_field_by_name("nanos", Value::I32(nanos));
        }
        // JSON has no absent value: exactly one kind is set.
        "google.protobuf.Value" => {
            let kinds = if depth < MAX_DEPTH { 6 } else { 4 };
            let field = desc.fields().nth(tape.below(kinds)).unwrap();
            let value = match field.name() {
                "null_value" => Value::EnumNumber(0),
                "number_value" => Value::F64(finite(tape)),
                _ => value(tape, &field, depth),
            };
            message.set_field(&field, value);
        }
        _ => {
            for field in desc.fields().filter(|field| depth < MAX_DEPTH || !is_message(field)) {
                // A later member of a oneof replaces an earlier one.
                if tape.below(3) != 0 {
                    let value = field_value(tape, &field, depth);
                    message.set_field(&field, value);
                }
            }
        }
    }
    message
}

fn is_message(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(_))
}

fn field_value(tape: &mut Tape<'_>, field: &FieldDescriptor, depth: usize) -> Value {
    if field.is_map() {
        let kind = field.kind();
        let of = kind.as_message().unwrap().map_entry_value_field();
        let entries = (0..tape.below(3)).map(|_| {
            let key = MapKey::String(text(tape));
            (key, value(tape, &of, depth))
        });
        return Value::Map(entries.collect());
    }
    if field.is_list() {
        Value::List((0..tape.below(4)).map(|_| value(tape, field, depth)).collect())
    } else {
        value(tape, field, depth)
    }
}

fn value(tape: &mut Tape<'_>, field: &FieldDescriptor, depth: usize) -> Value {
    match field.kind() {
        Kind::Bool => Value::Bool(tape.below(2) == 1),
        Kind::String => Value::String(text(tape)),
        Kind::Bytes => {
            let length = tape.pick(&[0, 1, 2, 3, 4, 17]);
            Value::Bytes((0..length).map(|_| tape.next()).collect())
        }
        Kind::Int32 => {
            let random = tape.word() as i32;
            Value::I32(tape.pick(&[0, 1, -1, i32::MIN, i32::MAX, random]))
        }
        Kind::Uint32 => Value::U32(tape.pick(&[0, 1, u32::MAX, 1 << 31])),
        Kind::Uint64 => {
            let random = tape.word();
            Value::U64(tape.pick(&[0, 1, u64::MAX, (1 << 53) + 1, 1 << 63, random]))
        }
        Kind::Double => {
            let finite = finite(tape);
            Value::F64(tape.pick(&[finite, finite, f64::INFINITY, f64::NEG_INFINITY]))
        }
        Kind::Enum(desc) => {
            let known = tape.below(desc.values().len());
            let known = desc.values().nth(known).unwrap().number();
            Value::EnumNumber(tape.pick(&[known, known, known, 99, -1, i32::MAX]))
        }
        Kind::Message(desc) => Value::Message(grow(tape, &desc, depth + 1)),
        other => panic!("{other:?} is new to the contract: grow it here"),
    }
}

fn finite(tape: &mut Tape<'_>) -> f64 {
    let random = f64::from_bits(tape.word());
    let random = if random.is_finite() { random } else { 1.5 };
    let big = 9_007_199_254_740_993.0;
    tape.pick(&[0.0, 1.0, -1.0, 0.1, 1e21, big, -big, 1e-7, f64::MAX, f64::MIN_POSITIVE, random])
}

fn text(tape: &mut Tape<'_>) -> String {
    const PIECES: &[&str] = &[
        "a",
        "",
        "\"",
        "\\",
        "\n",
        "\u{0}",
        "\u{1f}",
        "\u{7f}",
        "ß",
        "日本",
        "🦀",
        "\u{2028}",
        "</script>",
        "snake_case",
        "0123456789abcdefghijklmnopqrstuvwxyz",
    ];
    (0..tape.below(5)).map(|_| tape.pick(PIECES)).collect()
}
