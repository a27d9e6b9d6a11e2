//! Tests of the script parser: every instruction, and every syntax error.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn parse(source: &str) -> Vec<Instruction> {
    source.parse::<Script>().unwrap().instructions
}

fn refused(source: &str) -> String {
    source.parse::<Script>().unwrap_err().to_string()
}

#[test]
fn all_instructions_parse_as_written() {
    use Instruction::*;
    let text = |s: &str| s.to_owned();
    assert_eq!(
        parse("say hello there; chunk \" a;b\"\nartifact \"my file\" the text; sleep 200ms"),
        [
            Say(text("hello there")),
            Chunk(text(" a;b")),
            Artifact { name: text("my file"), text: text("the text") },
            Sleep(Duration::from_millis(200)),
        ]
    );
    assert_eq!(
        parse("data {\"a\": [1, \"}\"]}; data \"x\"; data 3"),
        [
            Data { name: text("data"), value: json!({"a": [1, "}"]}) },
            Data { name: text("data-2"), value: json!("x") },
            Data { name: text("data-3"), value: json!(3) },
        ]
    );
    assert_eq!(
        parse("ask Who?; auth http://x/y; message $answer; reject no; panic; abort; hang"),
        [
            Ask(text("Who?")),
            Auth(text("http://x/y")),
            Message(text("$answer")),
            Reject(text("no")),
            Panic,
            Abort,
            Hang,
        ]
    );
    assert_eq!(parse("\n# nothing; at all {\n ;"), []);
    assert_eq!(parse("sleep 2s;sleep 1m").len(), 2);
}

#[test]
fn fail_accepts_its_options_in_any_order() {
    let all = "fail rate_limited times=2 text=\"slow down\" code=40401 retry_after=2s \
               retryable=false type=quota recoverable=true";
    let expected = Fail {
        reason: &reason::RATE_LIMITED,
        code: Some("40401".into()),
        error_type: Some("quota".into()),
        text: Some("slow down".into()),
        retryable: Some(false),
        recoverable: Some(true),
        retry_after: Some(Duration::from_secs(2)),
        times: Some(2),
    };
    assert_eq!(parse(all), [Instruction::Fail(expected)]);
    assert!(matches!(&parse("fail INTERNAL")[0], Instruction::Fail(f) if f.times.is_none()));
}

#[test]
fn syntax_error_names_its_line() {
    assert_eq!(
        refused("say a\n\n  slep 2s; say b"),
        format!("line 3: cannot read 'slep 2s': expected {INSTRUCTIONS}")
    );
    let time = "expected a time such as 200ms, 2s or 1m";
    for bad in
        ["sleep", "sleep 2", "sleep 2h", "sleep s", "sleep -1s", "sleep 99999999999999999999s"]
    {
        assert_eq!(refused(bad), format!("line 1: cannot read '{bad}': {time}"));
    }
    assert!(refused("say").ends_with("expected a text after 'say'"));
    assert!(refused("artifact a").ends_with("expected a name and a text after 'artifact'"));
    assert!(refused("data {a}").contains("expected JSON after 'data'"));
    assert!(refused("fail NO_SUCH").contains("expected a reason of the table"));
    assert!(refused("fail").contains("expected a reason of the table"));
    for bad in ["times=x", "why=1", "retryable", "code=1 code=2", "text=a b"] {
        assert!(refused(&format!("fail INTERNAL {bad}")).contains("at most once"), "{bad}");
    }
    assert!(refused("panic now").ends_with("expected nothing after 'panic'"));
    assert!(refused("say :}").contains("quotes around it"));
    for bad in ["delegate", "delegate echo", "delegate Echo { a }", "delegate echo { a } b"] {
        assert!(refused(bad).ends_with("an agent and { its script } after 'delegate'"), "{bad}");
    }
    for bad in ["try", "try { a }", "try { say a }\nelse { say b }", "try a else { b }"] {
        assert!(refused(bad).contains("else { … } after 'try'"), "{bad}");
    }
    for bad in [
        "fanout",
        "fanout 2 of a,b",
        "fanout 2 a,b { x }",
        "fanout 3 of a,b { x }",
        "fanout 0 of a,b { x }",
        "fanout some of a,b { x }",
        "fanout 1 of { x }",
        "fanout 1 of a,,b { x }",
        "fanout 1 of a,B { x }",
        "fanout all of a,b { x } y",
    ] {
        assert!(refused(bad).contains("their script } after 'fanout'"), "{bad}: {}", refused(bad));
    }
    let nested = "say a\ntry {\n  say b\n  slep\n} else { say c }";
    assert!(refused(nested).starts_with("line 4: cannot read 'slep'"), "{}", refused(nested));
    let deep = "try { ".repeat(17) + &" } else { }".repeat(17);
    assert!(refused(&deep).ends_with("at most 16 'try' in one another"));
}

#[test]
fn blocks_are_laid_out_one_after_the_other() {
    use Instruction::*;
    let text = |s: &str| s.to_owned();
    assert_eq!(
        parse("try { say a; try { panic } else { } } else { say b }; checkpoint"),
        [
            Try { otherwise: 6 },
            Say(text("a")),
            Try { otherwise: 5 },
            Panic,
            EndTry { end: 5 },
            EndTry { end: 7 },
            Say(text("b")),
            Checkpoint,
        ]
    );
    let inner = "say a; delegate echo { \"}\" }\n# ok }\nask $answer";
    let script = format!("delegate script {{ {inner} }}");
    assert_eq!(parse(&script), [Delegate { agent: text("script"), script: text(inner) }]);
    for (count, required) in [("2", Some(2)), ("first", Some(1)), ("all", None)] {
        let agents = vec![text("a"), text("b-2"), text("a")];
        let script = format!("fanout {count} of a, b-2,a {{ {inner} }}");
        assert_eq!(parse(&script), [Fanout { required, agents, script: text(inner) }]);
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(source in "(?s).{0,200}") {
        let _ = source.parse::<Script>();
    }

    #[test]
    fn nor_does_text_that_looks_like_a_script(
        parts in proptest::collection::vec(
            prop_oneof![
                Just("say "), Just("fail INTERNAL "), Just("data "), Just("sleep 1s"),
                Just("\""), Just("\\"), Just("{"), Just("}"), Just(";"), Just("\n"),
                Just("#"), Just(" "), Just("text="), Just("é"), Just("artifact "),
                Just("fanout 1 of echo {"), Just("try {"), Just("else {"), Just("delegate echo {"),
            ],
            0..24,
        )
    ) {
        let _ = parts.concat().parse::<Script>();
    }

    #[test]
    fn any_text_survives_quoting(text in "(?s).{0,80}") {
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let script =
            format!("say {quoted}; artifact {quoted} {quoted}; fail INTERNAL text={quoted}");
        let Ok(read) = script.parse::<Script>() else {
            prop_assert!(text.is_empty(), "an artifact needs a name");
            return Ok(());
        };
        prop_assert_eq!(&read.instructions[0], &Instruction::Say(text.clone()));
        prop_assert_eq!(
            &read.instructions[1],
            &Instruction::Artifact { name: text.clone(), text: text.clone() }
        );
        let Instruction::Fail(fail) = &read.instructions[2] else { panic!("{read:?}") };
        prop_assert_eq!(fail.text.as_ref(), Some(&text));
    }
}
