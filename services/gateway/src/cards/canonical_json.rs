//! Canonical JSON (RFC 8785): equal values give equal bytes, so a signature over them can be
//! verified by others. The tests are the examples of the RFC.

use serde_json::Value;

/// The canonical bytes of a value.
pub(super) fn canonical(value: &Value) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("a Value has string keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical_text(json: &str) -> String {
        String::from_utf8(canonical(&serde_json::from_str(json).unwrap())).unwrap()
    }

    /// Sections 3.2.2 to 3.2.4.
    #[test]
    fn rfc_example_is_canonical() {
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
        assert_eq!(canonical_text(json), expected);
    }

    /// Section 3.2.3: keys are sorted by UTF-16 units.
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
        assert_eq!(canonical_text(json), expected);
    }

    /// Appendix B: the bits of a double and its text.
    #[test]
    fn rfc_numbers_are_canonical() {
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
            let number = Value::from(f64::from_bits(bits));
            let out = String::from_utf8(canonical(&number)).unwrap();
            assert_eq!(out, text, "{bits:016x}");
        }
    }

    #[test]
    fn only_required_characters_are_escaped() {
        assert_eq!(
            canonical_text(r#""\u0008\u0009\u000c\u001f\u007f\u2028\/""#),
            "\"\\b\\t\\f\\u001f\u{7f}\u{2028}/\""
        );
    }
}
