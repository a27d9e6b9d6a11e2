//! RFC 8785: the one way to write a JSON value, so that two who never met sign the same bytes.

use serde_json::{Map, Value};

/// The canonical bytes of a value.
pub(super) fn canonical(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048);
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number.as_f64().unwrap_or_default(), out),
        Value::String(text) => write_text(text, out),
        Value::Array(values) => write_array(values, out),
        Value::Object(fields) => write_object(fields, out),
    }
}

/// Every number is a double, written as ECMAScript writes it.
fn write_number(number: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(ryu_js::Buffer::new().format(number).as_bytes());
}

/// serde_json escapes exactly what the RFC does, and in the same way.
fn write_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a Vec takes every string");
}

fn write_array(values: &[Value], out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(value, out);
    }
    out.push(b']');
}

/// Sorted by UTF-16 units, which is not the order of UTF-8 beyond U+D7FF.
fn write_object(fields: &Map<String, Value>, out: &mut Vec<u8>) {
    let mut sorted: Vec<_> = fields.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    out.push(b'{');
    for (index, (name, value)) in sorted.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_text(name, out);
        out.push(b':');
        write(value, out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> String {
        String::from_utf8(canonical(&serde_json::from_str(json).unwrap())).unwrap()
    }

    /// Section 3.2.2 to 3.2.4 of the RFC.
    #[test]
    fn the_example_of_the_rfc() {
        let json = r#"{
            "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]
        }"#;
        let expected = concat!(
            r#"{"literals":[null,true,false],"#,
            r#""numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
            r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        assert_eq!(of(json), expected);
    }

    /// Section 3.2.3: the order is that of UTF-16 units.
    #[test]
    fn keys_are_sorted_as_utf_16() {
        let json = r#"{
            "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet",
            "1": "One", "\ud83d\ude00": "Emoji", "\u0080": "Control", "\u00f6": "o umlaut"
        }"#;
        let expected = concat!(
            r#"{"\r":"Carriage Return","1":"One","#,
            "\"\u{80}\":\"Control\",\"ö\":\"o umlaut\",\"€\":\"Euro Sign\",",
            "\"😀\":\"Emoji\",\"\u{fb33}\":\"Hebrew Letter Dalet\"}"
        );
        assert_eq!(of(json), expected);
    }

    /// Appendix B: the bits of a double and how they are written.
    #[test]
    fn the_numbers_of_the_rfc() {
        for (bits, text) in [
            (0x0000000000000000, "0"),
            (0x8000000000000000, "0"),
            (0x0000000000000001, "5e-324"),
            (0x8000000000000001, "-5e-324"),
            (0x7fefffffffffffff, "1.7976931348623157e+308"),
            (0xffefffffffffffff, "-1.7976931348623157e+308"),
            (0x4340000000000000, "9007199254740992"),
            (0xc340000000000000, "-9007199254740992"),
            (0x4430000000000000, "295147905179352830000"),
            (0x44b52d02c7e14af5, "9.999999999999997e+22"),
            (0x44b52d02c7e14af6, "1e+23"),
            (0x44b52d02c7e14af7, "1.0000000000000001e+23"),
            (0x444b1ae4d6e2ef4e, "999999999999999700000"),
            (0x444b1ae4d6e2ef4f, "999999999999999900000"),
            (0x444b1ae4d6e2ef50, "1e+21"),
            (0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"),
            (0x3eb0c6f7a0b5ed8d, "0.000001"),
            (0x41b3de4355555553, "333333333.3333332"),
            (0x41b3de4355555554, "333333333.33333325"),
            (0x41b3de4355555555, "333333333.3333333"),
            (0x41b3de4355555556, "333333333.3333334"),
            (0x41b3de4355555557, "333333333.33333343"),
            (0xbecbf647612f3696, "-0.0000033333333333333333"),
            (0x43143ff3c1cb0959, "1424953923781206.2"),
        ] {
            let mut out = Vec::new();
            write_number(f64::from_bits(bits), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text, "{bits:016x}");
        }
    }

    #[test]
    fn what_need_not_be_escaped_is_not() {
        assert_eq!(
            of(r#""\u0008\u0009\u000c\u001f\u007f\u2028\/""#),
            "\"\\b\\t\\f\\u001f\u{7f}\u{2028}/\""
        );
    }
}
