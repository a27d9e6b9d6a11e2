//! Messages that are small on the wire and large in memory, and ordinary ones.

use prost::Message;

use super::*;
use crate::{
    a2a::{self, Part, SendMessageRequest, part::Content},
    json,
    v1::{AgentOffer, Call, FromWorker, Held, Hello, Reply, Reports, from_worker, report},
};

fn request(parts: Vec<Part>) -> SendMessageRequest {
    let message = a2a::Message { parts, ..a2a::Message::default() };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn data(json: &str) -> SendMessageRequest {
    let content = Some(Content::Data(json::from_str(json).unwrap()));
    request(vec![Part { content, ..Part::default() }])
}

fn list_of(element: &str, count: usize) -> SendMessageRequest {
    data(&format!("[{}]", vec![element; count].join(",")))
}

fn is_within<T: Allocates + Message>(message: &T) -> bool {
    let most = T::BYTES_MAX.expect("it is a request");
    check::<T>(&message.encode_to_vec(), &Budget::new(most)).is_ok()
}

#[test]
fn small_elements_without_number_are_refused_before_they_are_decoded() {
    assert!(!is_within(&request(vec![Part::default(); 500_000])));
    for element in ["[]", "{}", r#"{"":0}"#, r#""a""#, "0"] {
        assert!(!is_within(&list_of(element, 1_000_000)), "{element}");
    }
    let hello = |agents, held| {
        let hello = Hello { agents, held, ..Hello::default() };
        FromWorker { body: Some(from_worker::Body::Hello(hello)) }
    };
    assert!(!is_within(&hello(vec![AgentOffer::default(); 500_000], Vec::new())));
    assert!(!is_within(&hello(Vec::new(), vec![Held::default(); 4_000_000])));
    let mut keys = Struct::default();
    keys.fields.extend((0..300_000).map(|n| (n.to_string(), Value::default())));
    assert!(!is_within(&SendMessageRequest { metadata: Some(keys), ..request(Vec::new()) }));
}

#[test]
fn ordinary_content_is_within_the_limit_up_to_the_size_of_a_message() {
    let text = Some(Content::Text("x".repeat(4 * MIB)));
    assert!(is_within(&request(vec![Part { content: text, ..Part::default() }])));
    assert!(is_within(&request(vec![Part::default(); 1024])));
    assert!(is_within(&list_of("1.5", 380_000)), "numbers");
    assert!(is_within(&list_of(r#""eight by""#, 300_000)), "texts");
    let row = r#"{"id":1,"name":"item","price":2.5}"#;
    assert!(is_within(&list_of(row, 35_000)), "rows");
}

/// The estimate of one element beside what prost really allocates for it, by its sizes.
#[test]
fn estimate_is_no_less_than_the_memory_of_the_elements() {
    let count = 10_000;
    let spent = |message: &SendMessageRequest| {
        let budget = Budget::new(usize::MAX);
        check::<SendMessageRequest>(&message.encode_to_vec(), &budget).unwrap();
        usize::MAX - budget.0.get()
    };
    assert!(spent(&request(vec![Part::default(); count])) >= count * size_of::<Part>());
    let node = NODE_ENTRIES * (size_of::<String>() + size_of::<Value>());
    assert!(spent(&list_of(r#"{"a":0}"#, count)) >= count * (node + size_of::<Value>()));
}

#[test]
fn requests_have_a_limit_and_answers_have_none() {
    assert_eq!(SendMessageRequest::BYTES_MAX, Some(MESSAGE_BYTES_MAX));
    assert_eq!(Call::BYTES_MAX, Some(CALL_BYTES_MAX));
    assert_eq!(FromWorker::BYTES_MAX, Some(HUB_BYTES_MAX));
    assert_eq!(Reply::BYTES_MAX, None);
    assert_eq!(a2a::Task::BYTES_MAX, None);
}

#[test]
fn invalid_protobuf_is_left_to_the_decoder() {
    let budget = Budget::new(1000);
    for wire in [&[0xff][..], &[0x0a, 0xff], &[0x0a, 5, 1], &[0x0b, 0x0c], &[0x09, 1]] {
        assert_eq!(check::<SendMessageRequest>(wire, &budget), Ok(()), "{wire:?}");
    }
}

#[test]
fn heavy_report_loses_its_content_and_the_others_keep_theirs() {
    let report = |number, body| Report { task_id: "t".into(), attempt: 3, number, body };
    let light = report(1, Some(report::Body::Started(crate::v1::Started {})));
    let parts = vec![Part::default(); 500_000];
    let message = a2a::Message { parts, ..a2a::Message::default() };
    let heavy = report(2, Some(report::Body::Status(message)));
    let reports = vec![light.clone(), heavy, light.clone()];
    let body = Some(from_worker::Body::Reports(Reports { reports }));
    let wire = FromWorker { body }.encode_to_vec();
    let reduced = FromWorker::decode(&without_heavy_reports(&wire).unwrap()[..]).unwrap();
    let reports = vec![light.clone(), report(2, None), light];
    let expected = from_worker::Body::Reports(Reports { reports });
    assert_eq!(reduced.body, Some(expected));
    let hello = from_worker::Body::Hello(Hello::default());
    let hello = FromWorker { body: Some(hello) }.encode_to_vec();
    assert_eq!(without_heavy_reports(&hello), None);
}
