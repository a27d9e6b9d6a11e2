//! The numbers of the table, written out: a change of the table must be repeated here.

use super::*;

#[test]
fn reason_names_are_legal_unique_and_explained() {
    for (i, row) in TABLE.iter().enumerate() {
        let legal = row.name.len() <= 63
            && row.name.starts_with(|c: char| c.is_ascii_uppercase())
            && row.name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        assert!(legal, "{}", row.name);
        assert!(!TABLE[..i].iter().any(|r| r.name == row.name), "{} twice", row.name);
        assert!(row.help.len() > 40 && row.help.ends_with('.'), "{} needs help", row.name);
        assert_ne!(row.code, Code::Ok, "{}", row.name);
    }
}

#[test]
fn every_code_has_its_generic_row_with_numbers_of_its_own() {
    let expected = [
        (1, "CANCELLED", 499, -31001),
        (2, "UNKNOWN", 500, -31002),
        (3, "INVALID_ARGUMENT", 400, -32602),
        (4, "DEADLINE_EXCEEDED", 504, -31004),
        (5, "NOT_FOUND", 404, -31005),
        (6, "ALREADY_EXISTS", 409, -31006),
        (7, "PERMISSION_DENIED", 403, -31007),
        (8, "RESOURCE_EXHAUSTED", 429, -31008),
        (9, "FAILED_PRECONDITION", 400, -31009),
        (10, "ABORTED", 409, -31010),
        (11, "OUT_OF_RANGE", 400, -31011),
        (12, "UNIMPLEMENTED", 501, -31012),
        (13, "INTERNAL", 500, -32603),
        (14, "UNAVAILABLE", 503, -31014),
        (15, "DATA_LOSS", 500, -31015),
        (16, "UNAUTHENTICATED", 401, -31016),
    ];
    for (number, name, http, jsonrpc) in expected {
        let row = generic(Code::from_i32(number));
        assert_eq!((row.name, row.http, row.jsonrpc), (name, http, jsonrpc));
        assert_eq!((row.code as i32, row.domain), (number, OURS));
        assert_eq!(code_name(row.code), name);
    }
}

#[test]
fn a2a_reasons_have_the_numbers_of_1_0_1() {
    let expected = [
        ("TASK_NOT_FOUND", 5, 404, -32001),
        ("TASK_NOT_CANCELABLE", 9, 400, -32002),
        ("PUSH_NOTIFICATION_NOT_SUPPORTED", 9, 400, -32003),
        ("UNSUPPORTED_OPERATION", 9, 400, -32004),
        ("CONTENT_TYPE_NOT_SUPPORTED", 3, 400, -32005),
        ("INVALID_AGENT_RESPONSE", 13, 500, -32006),
        ("EXTENDED_AGENT_CARD_NOT_CONFIGURED", 9, 400, -32007),
        ("EXTENSION_SUPPORT_REQUIRED", 9, 400, -32008),
        ("VERSION_NOT_SUPPORTED", 9, 400, -32009),
        ("JSON_PARSE", 3, 400, -32700),
        ("INVALID_REQUEST", 3, 400, -32600),
        ("METHOD_NOT_FOUND", 12, 404, -32601),
        ("INVALID_PARAMS", 3, 400, -32602),
        ("INTERNAL_ERROR", 13, 500, -32603),
    ];
    for (name, code, http, jsonrpc) in expected {
        let row = find(A2A, name).expect(name);
        assert_eq!((row.code as i32, row.http, row.jsonrpc), (code, http, jsonrpc), "{name}");
    }
    assert_eq!(TABLE.iter().filter(|r| r.domain == A2A).count(), expected.len());
}

#[test]
fn own_reasons_stay_out_of_foreign_number_ranges() {
    let expected = [
        ("UNAUTHENTICATED_CALLER", 401, -31016),
        ("INSUFFICIENT_SCOPE", 403, -31007),
        ("RATE_LIMITED", 429, -31008),
        ("AGENT_UNAVAILABLE", 503, -31014),
        ("TASK_TIMEOUT", 504, -31004),
        ("CONTENT_TOO_LARGE", 413, -32602),
        ("SKILL_NOT_FOUND", 404, -31005),
        ("AGENT_NOT_FOUND", 404, -31005),
        ("WORKER_LOST", 503, -31014),
        ("CIRCUIT_OPEN", 503, -31014),
        ("DEADLINE_BUDGET_EXHAUSTED", 504, -31004),
        ("TASK_REJECTED", 400, -31009),
        ("MIN_RESULTS_NOT_MET", 503, -31014),
        ("INPUT_TIMEOUT", 504, -31004),
        ("DELEGATION_TOO_DEEP", 400, -31009),
    ];
    for (name, http, jsonrpc) in expected {
        let row = find(OURS, name).expect(name);
        assert_eq!((row.http, row.jsonrpc), (http, jsonrpc), "{name}");
    }
    for row in TABLE.iter().filter(|r| r.domain == OURS) {
        let shape = matches!(row.jsonrpc, -32602 | -32603);
        assert!(shape || (-31016..=-31001).contains(&row.jsonrpc), "{}", row.name);
    }
}

#[test]
fn six_rows_differ_in_1_0_0() {
    let changed: Vec<_> = TABLE
        .iter()
        .filter(|row| row.in_1_0_0() != (row.code, row.http))
        .map(|row| (row.name, row.in_1_0_0()))
        .collect();
    assert_eq!(
        changed,
        [
            ("TASK_NOT_CANCELABLE", (Code::FailedPrecondition, 409)),
            ("PUSH_NOTIFICATION_NOT_SUPPORTED", (Code::Unimplemented, 400)),
            ("UNSUPPORTED_OPERATION", (Code::Unimplemented, 400)),
            ("CONTENT_TYPE_NOT_SUPPORTED", (Code::InvalidArgument, 415)),
            ("INVALID_AGENT_RESPONSE", (Code::Internal, 502)),
            ("VERSION_NOT_SUPPORTED", (Code::Unimplemented, 400)),
        ]
    );
}
