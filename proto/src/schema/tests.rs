//! Schemas and answers: each keyword, and random input.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn object(value: serde_json::Value) -> Struct {
    match json::value_from_json(value).kind {
        Some(value::Kind::StructValue(object)) => object,
        other => panic!("an object, not {other:?}"),
    }
}

fn plain(object: Struct) -> serde_json::Value {
    json::value_to_json(&Value { kind: Some(value::Kind::StructValue(object)) })
}

fn schema(properties: serde_json::Value, required: &[&str]) -> Schema {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    Schema::read(&object(schema)).expect("a flat schema")
}

/// The problem of a value of the only field `x`.
fn wrong(property: serde_json::Value, given: serde_json::Value) -> Option<String> {
    let schema = schema(json!({"x": property}), &[]);
    let answer = object(json!({"x": given}));
    schema.check(answer).err().map(|mut wrong| wrong.remove(0).what)
}

#[test]
fn values_are_checked_against_every_keyword() {
    let port = json!({"type": "integer", "minimum": 1, "maximum": 65535});
    let colour = json!({"type": "string", "enum": ["red", "green"]});
    let size = json!({"type": "string", "oneOf": [{"const": "s", "title": "Small"}]});
    let many = json!({"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]},
                      "minItems": 1, "maxItems": 2});
    let text = |more: serde_json::Value| {
        let mut property = json!({"type": "string"});
        property.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        property
    };
    let email = text(json!({"format": "email"}));
    let uri = text(json!({"format": "uri"}));
    let date = text(json!({"format": "date"}));
    let time = text(json!({"format": "date-time"}));
    let length = text(json!({"minLength": 2, "maxLength": 3}));
    let cases = [
        (&port, json!(8080), ""),
        (&port, json!(1), ""),
        (&port, json!(65535), ""),
        (&port, json!(70000), "must be at most 65535"),
        (&port, json!(0), "must be at least 1"),
        (&port, json!(80.5), "must be a whole number"),
        (&port, json!("80"), "must be a whole number"),
        (&json!({"type": "number", "maximum": 0.5}), json!(0.75), "must be at most 0.5"),
        (&json!({"type": "number"}), json!(true), "must be a number"),
        (&json!({"type": "boolean"}), json!(false), ""),
        (&json!({"type": "boolean"}), json!("yes"), "must be yes or no"),
        (&colour, json!("red"), ""),
        (&colour, json!("blue"), "must be one of red, green"),
        (&size, json!("s"), ""),
        (&size, json!("Small"), "must be one of s"),
        (&many, json!(["a", "c"]), ""),
        (&many, json!(["a", "d"]), "must be one of a, b, c"),
        (&many, json!([]), "must be at least 1 of them"),
        (&many, json!(["a", "b", "c"]), "must be at most 2 of them"),
        (&many, json!([1]), "must be a list of texts"),
        (&many, json!("a"), "must be a list of texts"),
        (&email, json!("ada@example.com"), ""),
        (&email, json!("ada"), "must be an e-mail address"),
        (&email, json!("a b@example.com"), "must be an e-mail address"),
        (&uri, json!("https://example.com/a?b"), ""),
        (&uri, json!("mailto:ada@example.com"), ""),
        (&uri, json!("example"), "must be a URI such as https://example.com"),
        (&date, json!("2024-02-29"), ""),
        (&date, json!("2023-02-29"), "must be a date such as 2026-01-31"),
        (&date, json!("2024-2-29"), "must be a date such as 2026-01-31"),
        (&time, json!("2024-02-29T10:00:00+02:00"), ""),
        (&time, json!("2024-02-29"), "must be a time such as 2026-01-31T12:00:00Z"),
        (&length, json!("äöü"), ""),
        (&length, json!("a"), "must be at least 2 characters"),
        (&length, json!("abcd"), "must be at most 3 characters"),
        (&length, json!(12), "must be a text"),
    ];
    for (property, given, expected) in cases {
        let found = wrong(property.clone(), given.clone()).unwrap_or_default();
        assert_eq!(found, expected, "{given} for {property}");
    }
}

#[test]
fn every_invalid_field_is_named() {
    let schema = schema(
        json!({"host": {"type": "string"}, "port": {"type": "integer", "maximum": 65535},
               "tls": {"type": "boolean", "default": true}}),
        &["host", "port"],
    );
    let wrong = schema.check(object(json!({"port": 70000, "hots": "x"}))).unwrap_err();
    let named: Vec<_> = wrong.iter().map(|v| format!("{}: {}", v.field, v.what)).collect();
    let expected = [
        "hots: is not asked for; there are host, port, tls",
        "host: is required",
        "port: must be at most 65535",
    ];
    assert_eq!(named, expected);
    let right = schema.check(object(json!({"host": "a", "port": 1, "tls": null}))).unwrap();
    assert_eq!(plain(right), json!({"host": "a", "port": 1, "tls": true}));
}

#[test]
fn plain_text_answers_a_single_field() {
    let read = |property: serde_json::Value, text: &str| {
        let schema = schema(json!({"x": property}), &["x"]);
        schema.check(schema.from_text(text)?).ok().map(|answer| plain(answer)["x"].clone())
    };
    let yes_no = json!({"type": "boolean"});
    let choice = json!({"type": "string", "oneOf": [{"const": "s", "title": "Small"}]});
    let many = json!({"type": "array", "items": {"enum": ["a", "b"]}});
    assert_eq!(read(json!({"type": "integer"}), " 8080\n"), Some(json!(8080)));
    assert_eq!(read(json!({"type": "integer"}), "many"), None);
    assert_eq!(read(yes_no.clone(), "Yes"), Some(json!(true)));
    assert_eq!(read(yes_no.clone(), "n"), Some(json!(false)));
    assert_eq!(read(yes_no, "perhaps"), None);
    assert_eq!(read(choice.clone(), "small"), Some(json!("s")));
    assert_eq!(read(choice, "S"), Some(json!("s")));
    assert_eq!(read(many, "b, A"), Some(json!(["b", "a"])));
    assert_eq!(read(json!({"type": "string"}), " as it is "), Some(json!(" as it is ")));
    let two = json!({"a": {"type": "string"}, "b": {"type": "string"}});
    assert_eq!(schema(two, &[]).from_text("which?"), None);
}

#[test]
fn schema_without_a_form_is_refused_with_its_field() {
    let property = |x: serde_json::Value| json!({"type": "object", "properties": {"x": x}});
    let cases = [
        (json!({}), "schema.type"),
        (json!({"type": "string"}), "schema.type"),
        (json!({"type": "object"}), "schema.properties"),
        (json!({"type": "object", "properties": {}}), "schema.properties"),
        (json!({"type": "object", "properties": {"x": 1}}), "schema.properties.x"),
        (json!({"type": "object", "allOf": []}), "schema.allOf"),
        (property(json!({"type": "object"})), "schema.properties.x.type"),
        (property(json!({"type": ["string", "null"]})), "schema.properties.x.type"),
        (property(json!({"type": "string", "pattern": "a+"})), "schema.properties.x.pattern"),
        (property(json!({"type": "string", "format": "ipv4"})), "schema.properties.x.format"),
        (property(json!({"type": "string", "enum": []})), "schema.properties.x.enum"),
        (property(json!({"type": "array"})), "schema.properties.x.items"),
        (
            property(json!({"type": "array", "items": {"type": "string"}})),
            "schema.properties.x.items.enum",
        ),
        (
            property(json!({"type": "integer", "minimum": 2, "maximum": 1})),
            "schema.properties.x.minimum",
        ),
        (
            property(json!({"type": "integer", "minimum": 2, "default": 1})),
            "schema.properties.x.default",
        ),
        (
            json!({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["y"]}),
            "schema.required",
        ),
        (property(json!({"type": "string", "description": "x".repeat(BYTES_MAX)})), "schema"),
    ];
    for (given, field) in cases {
        let refused = Schema::read(&object(given.clone())).expect_err(field);
        assert_eq!(refused.field, field, "{}", refused.what);
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let word = prop::sample::select(vec![
        "type",
        "object",
        "string",
        "integer",
        "properties",
        "enum",
        "oneOf",
        "const",
        "default",
        "items",
        "array",
        "required",
        "minimum",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        any::<f64>().prop_map(|n| json!(n)),
        word.clone().prop_map(|w| json!(w)),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|v| json!(v)),
            prop::collection::btree_map(word.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|m| json!(m)),
        ]
    })
}

proptest! {
    /// Random schemas and answers are accepted or refused without a panic, and an accepted answer
    /// with its defaults is accepted again.
    #[test]
    fn random_schemas_never_panic_and_checked_answers_stay_valid(
        properties in any_json(), answer in any_json(), text in ".*",
    ) {
        let whole = json!({"type": "object", "properties": properties});
        for given in [whole, properties] {
            if !given.is_object() {
                continue;
            }
            let Ok(schema) = Schema::read(&object(given)) else { continue };
            let given = if answer.is_object() { object(answer.clone()) } else { Struct::default() };
            let typed = schema.from_text(&text);
            for given in std::iter::once(given).chain(typed) {
                if let Ok(right) = schema.check(given) {
                    prop_assert_eq!(schema.check(right.clone()), Ok(right));
                }
            }
        }
    }

    #[test]
    fn number_is_accepted_exactly_within_its_bounds(
        low in -100i32..100, span in 0i32..100, n in -300i32..300,
    ) {
        let property = json!({"type": "integer", "minimum": low, "maximum": low + span});
        let right = (low..=low + span).contains(&n);
        prop_assert_eq!(wrong(property, json!(n)).is_none(), right);
    }
}
