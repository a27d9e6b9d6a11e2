//! The rules of ProtoJSON one by one, each as an example.

#![allow(clippy::unwrap_used)]

use faultline_proto::{
    a2a::{
        self, AgentCard, ListTasksResponse, Message, Part, Role, Task, TaskState, TaskStatus,
        part::Content,
    },
    json::{
        from_server, from_slice, from_str, from_struct, sample::sample_task, to_string, to_struct,
        to_vec,
    },
    json::{value_from_json, value_to_json, write},
    v1::{self, Failure, Frame, Refusal},
};
use prost::Message as _;
use prost_types::{Duration, ListValue, Struct, Timestamp, Value, value::Kind};
use serde_json::json;

fn read<T: faultline_proto::json::ProtoJson>(json: &str) -> T {
    from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

#[test]
fn empty_page_prints_all_four_fields() {
    let empty = r#"{"tasks":[],"nextPageToken":"","pageSize":0,"totalSize":0}"#;
    assert_eq!(to_string(&ListTasksResponse::default()), empty);
}

#[test]
fn required_scalars_lists_and_maps_are_printed_and_the_rest_left_out() {
    let message = r#"{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[]}"#;
    assert_eq!(to_string(&Message::default()), message);
    // An unset message is absent even if REQUIRED: there is nothing to print.
    assert_eq!(to_string(&Task::default()), r#"{"id":""}"#);
    let flow = a2a::ClientCredentialsOAuthFlow::default();
    assert_eq!(to_string(&flow), r#"{"tokenUrl":"","scopes":{}}"#);
    let card: serde_json::Value = from_json(&to_string(&AgentCard::default()));
    let required = ["name", "description", "supportedInterfaces", "version", "defaultInputModes"];
    for name in required.iter().chain(&["defaultOutputModes", "skills"]) {
        assert!(card.get(name).is_some(), "{name}");
    }
    assert_eq!(to_string(&Failure::default()), "{}");
}

fn from_json(json: &str) -> serde_json::Value {
    serde_json::from_str(json).unwrap()
}

#[test]
fn names_are_printed_in_camel_case_and_read_in_either() {
    let config = a2a::SendMessageConfiguration {
        return_immediately: true,
        history_length: Some(0),
        ..Default::default()
    };
    let camel = r#"{"historyLength":0,"returnImmediately":true}"#;
    assert_eq!(to_string(&config), camel);
    assert_eq!(read::<a2a::SendMessageConfiguration>(camel), config);
    let snake = r#"{"history_length":0,"return_immediately":true}"#;
    assert_eq!(read::<a2a::SendMessageConfiguration>(snake), config);
}

#[test]
fn enums_are_printed_as_names_and_read_as_names_or_numbers() {
    let status = TaskStatus { state: TaskState::InputRequired.into(), ..Default::default() };
    assert_eq!(to_string(&status), r#"{"state":"TASK_STATE_INPUT_REQUIRED"}"#);
    for json in ["\"TASK_STATE_INPUT_REQUIRED\"", "6", "6.0"] {
        assert_eq!(read::<TaskStatus>(&format!(r#"{{"state":{json}}}"#)), status);
    }
    for state in (0..=8).map(|number| TaskState::try_from(number).unwrap()) {
        let json = format!(r#"{{"state":"{}"}}"#, state.as_str_name());
        assert_eq!(to_string(&TaskStatus { state: state.into(), ..Default::default() }), json);
    }
    let unknown = TaskStatus { state: 77, ..Default::default() };
    assert_eq!(to_string(&unknown), r#"{"state":77}"#);
    assert_eq!(read::<TaskStatus>(r#"{"state":77}"#), unknown);
}

#[test]
fn integers_of_64_bits_are_printed_as_text_and_read_as_either() {
    let frame = Frame { seq: u64::MAX, ..Frame::default() };
    assert_eq!(to_string(&frame), r#"{"seq":"18446744073709551615"}"#);
    for (json, seq) in [
        ("18446744073709551615", u64::MAX),
        ("\"18446744073709551615\"", u64::MAX),
        ("1.0", 1),
        ("1e3", 1000),
        ("\"1e3\"", 1000),
    ] {
        assert_eq!(read::<Frame>(&format!(r#"{{"seq":{json}}}"#)).seq, seq, "{json}");
    }
    assert_eq!(to_string(&i64::MIN), "\"-9223372036854775808\"");
    assert_eq!(read::<i64>("-9223372036854775808"), i64::MIN);
    for json in ["1.5", "\"1.5\"", "\"\"", "\"inf\"", "\" 1\"", "-1", "1e300", "true"] {
        assert!(from_str::<Frame>(&format!(r#"{{"seq":{json}}}"#)).is_err(), "{json}");
    }
    for json in ["2147483648", "-2147483649", "4e9", "\"2147483648\""] {
        assert!(from_str::<i32>(json).is_err(), "{json}");
    }
}

#[test]
fn infinite_floats_and_nan_have_names() {
    for (value, json) in [
        (f64::INFINITY, "\"Infinity\""),
        (f64::NEG_INFINITY, "\"-Infinity\""),
        (1.5, "1.5"),
        (30.0, "30"),
        (1e300, "1e+300"),
        (-0.0, "-0.0"),
    ] {
        assert_eq!(to_string(&value), json);
        assert_eq!(read::<f64>(json).to_bits(), value.to_bits());
    }
    assert_eq!(to_string(&f64::NAN), "\"NaN\"");
    assert!(read::<Refusal>(r#"{"timeoutSeconds":"NaN"}"#).timeout_seconds.is_nan());
    assert_eq!(read::<f64>("\"2.5\""), 2.5);
    assert!(from_str::<f64>("\"nan\"").is_err());
}

#[test]
fn bytes_are_printed_in_standard_base64_and_read_in_any() {
    let raw = vec![0xfb, 0xef, 0xff, 0x00];
    assert_eq!(to_string(&raw), r#""++//AA==""#);
    for json in [r#""++//AA==""#, r#""++//AA""#, r#""--__AA==""#, r#""--__AA""#] {
        assert_eq!(read::<Vec<u8>>(json), raw);
    }
    let part = read::<Part>(r#"{"raw":"--__AA"}"#);
    assert_eq!(part.content, Some(Content::Raw(raw)));
    assert_eq!(read::<v1::Checkpointed>(r#"{"state":"AAE"}"#).state, &[0, 1][..]);
    assert!(from_str::<Vec<u8>>("\"a\"").is_err());
    assert!(from_str::<Vec<u8>>("\"+-==\"").is_err());
}

#[test]
fn timestamps_are_rfc_3339() {
    for (seconds, nanos, json) in [
        (0, 0, "1970-01-01T00:00:00.000Z"),
        (951_782_400, 0, "2000-02-29T00:00:00.000Z"),
        (1_767_225_600, 120_000_000, "2026-01-01T00:00:00.120Z"),
        (1_767_225_600, 120_500_000, "2026-01-01T00:00:00.120500Z"),
        (-1, 1, "1969-12-31T23:59:59.000000001Z"),
        (-62_135_596_800, 0, "0001-01-01T00:00:00.000Z"),
        (253_402_300_799, 999_999_999, "9999-12-31T23:59:59.999999999Z"),
    ] {
        let time = Timestamp { seconds, nanos };
        assert_eq!(to_string(&time), format!("\"{json}\""));
        assert_eq!(read::<Timestamp>(&format!("\"{json}\"")), time);
    }
    let offset = read::<Timestamp>("\"2026-01-01T02:30:00.5+02:30\"");
    assert_eq!(offset, Timestamp { seconds: 1_767_225_600, nanos: 500_000_000 });
    for json in [
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00.0000000001Z",
        "2026-01-01 00:00:00Z",
        "0000-12-31T23:59:59Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00Z ",
        "",
        "äöüäöüäöüäöü",
    ] {
        assert!(from_str::<Timestamp>(&format!("\"{json}\"")).is_err(), "{json}");
    }
}

#[test]
fn timestamp_of_a_server_without_a_zone_is_utc() {
    let read = |text: &str| from_server::<Timestamp>(format!("\"{text}\"").as_bytes());
    let time = Timestamp { seconds: 1_767_225_600, nanos: 123_456_000 };
    for same in ["2026-01-01T00:00:00.123456", "2026-01-01T00:00:00.123456Z"] {
        assert_eq!(read(same).unwrap(), time, "{same}");
    }
    assert_eq!(read("2026-01-01T02:00:00.123456+02:00").unwrap(), time);
    for wrong in ["2026-01-01", "2026-01-01T00:00", "2026-01-01T00:00:00+02", "", "Z"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

/// Compares with a calendar that is counted day by day, over every kind of century.
#[test]
fn every_day_of_five_centuries_has_its_date() {
    let mut year = 1890;
    let mut month = 1;
    let mut day = 1;
    for number in -29_219..160_000_i64 {
        let json = format!("\"{year:04}-{month:02}-{day:02}T12:34:56.000Z\"");
        let time = Timestamp { seconds: number * 86_400 + 45_296, nanos: 0 };
        assert_eq!(to_string(&time), json);
        assert_eq!(read::<Timestamp>(&json), time);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let february = if is_leap { 29 } else { 28 };
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        day += 1;
        if day > lengths[month - 1] {
            day = 1;
            month += 1;
        }
        if month > 12 {
            month = 1;
            year += 1;
        }
    }
    assert_eq!((year, month), (2408, 1));
}

#[test]
fn durations_are_seconds() {
    for (seconds, nanos, json) in [
        (0, 0, "0s"),
        (1, 500_000_000, "1.500s"),
        (0, -1_000, "-0.000001s"),
        (-3, -1, "-3.000000001s"),
        (315_576_000_000, 0, "315576000000s"),
    ] {
        let duration = Duration { seconds, nanos };
        assert_eq!(to_string(&duration), format!("\"{json}\""));
        assert_eq!(read::<Duration>(&format!("\"{json}\"")), duration);
    }
    assert_eq!(read::<Duration>("\"1.5s\""), Duration { seconds: 1, nanos: 500_000_000 });
    for json in
        ["", "s", "1", "1.s", ".5s", "--1s", "1.5 s", "315576000001s", "99999999999999999999s"]
    {
        assert!(from_str::<Duration>(&format!("\"{json}\"")).is_err(), "{json}");
    }
}

#[test]
fn illegal_times_of_a_peer_are_printed_as_the_nearest_legal_ones() {
    let late = Timestamp { seconds: i64::MAX, nanos: i32::MAX };
    assert_eq!(to_string(&late), "\"9999-12-31T23:59:59.999999999Z\"");
    let early = Timestamp { seconds: i64::MIN, nanos: i32::MIN };
    assert_eq!(to_string(&early), "\"0001-01-01T00:00:00.000Z\"");
    let long = Duration { seconds: i64::MIN, nanos: i32::MIN };
    assert_eq!(to_string(&long), "\"-315576000000s\"");
    assert_eq!(to_string(&Duration { seconds: 1, nanos: -1 }), "\"0.999999999s\"");
}

#[test]
fn values_are_plain_json() {
    let json = r#"{"a":[1,1.5,"x",true,null,{}],"b":{"c":[]}}"#;
    let value: Struct = read(json);
    assert_eq!(to_string(&value), json);
    assert_eq!(to_string(&read::<ListValue>("[null,[]]")), "[null,[]]");
    assert_eq!(read::<Value>("null").kind, Some(Kind::NullValue(0)));
    assert_eq!(to_string(&Value { kind: None }), "null");
    assert_eq!(to_string(&Value::from(f64::NAN)), "null");
    assert_eq!(to_string(&Value::from(9_007_199_254_740_992.0)), "9007199254740992");
    assert_eq!(to_string(&Value::from(1e21)), "1e+21");
    assert_eq!(to_string(&()), "{}");
    read::<()>(r#"{"ignored":1}"#);
}

#[test]
fn null_is_the_default_except_for_a_value() {
    let task = r#"{"id":null,"contextId":null,"status":null,"artifacts":null,"metadata":null}"#;
    assert_eq!(read::<Task>(task), Task::default());
    assert_eq!(read::<TaskStatus>(r#"{"state":null}"#), TaskStatus::default());
    assert_eq!(read::<a2a::GetTaskRequest>(r#"{"historyLength":null}"#).history_length, None);
    assert_eq!(read::<a2a::SecurityRequirement>(r#"{"schemes":null}"#), <_>::default());
    let part = read::<Part>(r#"{"data":null}"#);
    assert_eq!(part.content, Some(Content::Data(Value::from(Kind::NullValue(0)))));
    assert_eq!(read::<Part>(r#"{"text":null}"#).content, None);
    for json in ["null", r#"{"history":[null]}"#, r#"{"id":["x"]}"#] {
        assert!(from_str::<Task>(json).is_err(), "{json}");
    }
}

#[test]
fn oneof_has_one_member() {
    assert!(from_str::<Part>(r#"{"text":"a","url":"b"}"#).is_err());
    assert!(from_str::<Part>(r#"{"text":"a","data":null}"#).is_err());
    let one = Some(Content::Text("a".into()));
    assert_eq!(read::<Part>(r#"{"url":null,"text":"a","raw":null}"#).content, one);
    // A oneof member set to its default counts as set.
    let empty = Part { content: Some(Content::Text(String::new())), ..Default::default() };
    assert_eq!(to_string(&empty), r#"{"text":""}"#);
    assert_eq!(read::<Part>(r#"{"text":""}"#), empty);
}

#[test]
fn unknown_fields_are_skipped() {
    let json = r#"{"x":{"y":[1,{"z":"\u0041"}]},"kind":"task","id":"b"}"#;
    assert_eq!(read::<Task>(json), Task { id: "b".into(), ..Default::default() });
}

#[test]
fn strings_are_escaped_where_json_needs_it() {
    let all: String = (0..=0x7f_u8).map(char::from).chain("ß日🦀\u{2028}".chars()).collect();
    for start in 0..40 {
        let text = format!("{}{all}", "x".repeat(start));
        let json = to_string(&text);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        assert_eq!(
            json,
            serde_json::to_string(&text)
                .unwrap()
                .replace("\\b", "\\u0008")
                .replace("\\f", "\\u000c")
        );
        assert_eq!(read::<String>(&json), text);
    }
    assert_eq!(read::<String>(r#""\ud83e\udd80""#), "🦀");
}

#[test]
fn message_is_appended_to_the_buffer() {
    let mut out = b"{\"result\":".to_vec();
    write(&v1::Heartbeat {}, &mut out);
    out.push(b',');
    write(&Message { role: Role::User.into(), ..Default::default() }, &mut out);
    let json = r#"{"result":{},{"messageId":"","role":"ROLE_USER","parts":[]}"#;
    assert_eq!(String::from_utf8(out).unwrap(), json);
}

#[test]
fn message_round_trips_through_a_struct() {
    let failure = Failure {
        id: "f".into(),
        code: 5,
        retryable: Some(false),
        time: Some(Timestamp { seconds: 1, nanos: 0 }),
        ..Default::default()
    };
    let object = to_struct(&failure);
    assert_eq!(object.fields["code"], Value::from(5.0));
    assert_eq!(object.fields["time"], Value::from("1970-01-01T00:00:01.000Z".to_owned()));
    assert_eq!(from_struct::<Failure>(&object).unwrap(), failure);
    let bad = Struct { fields: [("code".to_owned(), Value::from(true))].into() };
    assert_eq!(from_struct::<Failure>(&bad).unwrap_err().path(), "code");
}

#[test]
fn serde_json_values_are_protobuf_values() {
    let json = json!({"a": [1, -2.5, "x", true, null], "b": {}});
    let value = value_from_json(json.clone());
    assert_eq!(value, read::<Value>(&json.to_string()));
    assert_eq!(value_to_json(&value), json);
    assert_eq!(value_to_json(&Value::from(f64::INFINITY)), json!(null));
}

#[test]
fn sample_is_a_typical_task() {
    let task = sample_task();
    let json = to_vec(&task);
    assert!((3_300..3_500).contains(&json.len()), "{}", json.len());
    assert_eq!(task.history.len(), 9);
    assert_eq!(from_slice::<Task>(&json).unwrap(), task);
}

/// The deepest message that contains a Part, so that no legal value fails later on the wire.
#[test]
fn accepted_depth_survives_the_deepest_nesting_in_the_mesh() {
    let deep = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    let frame = |levels: usize| {
        let part = format!(r#"{{"metadata":{}}}"#, deep(levels));
        let message = format!(r#"{{"parts":[{part}]}}"#);
        let task = format!(r#"{{"status":{{"message":{message}}}}}"#);
        format!(r#"{{"frame":{{"response":{{"task":{task}}}}}}}"#)
    };
    let reply: v1::Reply = read(&frame(24));
    assert_eq!(v1::Reply::decode(reply.encode_to_vec().as_slice()).unwrap(), reply);
    assert_eq!(read::<v1::Reply>(&to_string(&reply)), reply);
    assert_eq!(to_struct(&reply).fields.len(), 1);
    assert!(from_str::<v1::Reply>(&frame(25)).is_err());
}
