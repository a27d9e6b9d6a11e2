//! The error mapping: every reason on the three bindings, and the exact bytes of two errors.

use faultline_chassis::client::Channel;
use faultline_gateway::ErrorTable;
use faultline_proto::{
    a2a::a2a_service_client::A2aServiceClient,
    reason::{self, TABLE},
    status::from_status,
};
use http_body_util::BodyExt;
use tonic::{Code, Request, metadata::MetadataValue};

use crate::{
    Mesh,
    client::{message, request},
    grpc::say,
};

/// `(HTTP status of JSON-RPC, JSON-RPC number, HTTP status of REST, gRPC code)`.
async fn seen(mesh: &Mesh, name: &str) -> (u16, i64, u16, Code) {
    let text = format!("error {name}");
    let mut client = mesh.client().await;
    let rpc = client.rpc("SendMessage", message(&text)).await;
    let rest = client.ask("POST", "/message:send", &[], message(&text).to_string()).await;
    let mut grpc =
        A2aServiceClient::new(Channel::without_token(&mesh.address.to_string()).unwrap());
    let mut request = Request::new(say(&text));
    request.metadata_mut().insert("a2a-version", MetadataValue::from_static("1.0"));
    let status = grpc.send_message(request).await.unwrap_err();
    let failure = from_status(&status);
    let row = reason::named(name).unwrap();
    for (reason, domain) in [
        (rpc.reason(), &rpc.details()[0]["domain"]),
        (rest.reason(), &rest.details()[0]["domain"]),
        (&failure.reason, &failure.domain.as_str().into()),
    ] {
        assert_eq!((reason, domain.as_str().unwrap()), (row.name, row.domain));
    }
    assert_eq!(rest.code(), i64::from(rest.status.as_u16()));
    assert_eq!(rest.body["error"]["status"], reason::code_name(status.code()));
    (rpc.status.as_u16(), rpc.code(), rest.status.as_u16(), status.code())
}

#[tokio::test]
async fn every_reason_is_the_same_on_every_binding() {
    let mesh = Mesh::start().await;
    for row in TABLE {
        let usual = match row.name {
            "UNAUTHENTICATED_CALLER" => 401,
            "INSUFFICIENT_SCOPE" => 403,
            "CONTENT_TOO_LARGE" => 413,
            _ => 200,
        };
        let expected = (usual, i64::from(row.jsonrpc), row.http, row.code);
        assert_eq!(seen(&mesh, row.name).await, expected, "{}", row.name);
    }
}

#[tokio::test]
async fn error_table_1_0_0_is_served_on_request() {
    let mesh = Mesh::start_with(|config| config.a2a_error_table = ErrorTable::V1_0_0).await;
    for (name, number, http, code) in [
        ("TASK_NOT_FOUND", -32001, 404, Code::NotFound),
        ("TASK_NOT_CANCELABLE", -32002, 409, Code::FailedPrecondition),
        ("PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400, Code::Unimplemented),
        ("UNSUPPORTED_OPERATION", -32004, 400, Code::Unimplemented),
        ("CONTENT_TYPE_NOT_SUPPORTED", -32005, 415, Code::InvalidArgument),
        ("INVALID_AGENT_RESPONSE", -32006, 502, Code::Internal),
        ("EXTENDED_AGENT_CARD_NOT_CONFIGURED", -32007, 400, Code::FailedPrecondition),
        ("EXTENSION_SUPPORT_REQUIRED", -32008, 400, Code::FailedPrecondition),
        ("VERSION_NOT_SUPPORTED", -32009, 400, Code::Unimplemented),
        ("UNAVAILABLE", -31014, 503, Code::Unavailable),
    ] {
        assert_eq!(seen(&mesh, name).await, (200, number, http, code), "{name}");
    }
}

const DETAILS: &str = concat!(
    r#"[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"TASK_NOT_FOUND","#,
    r#""domain":"a2a-protocol.org","metadata":{"failureId":"f-1","hop":"0","retryable":"false","#,
    r#""traceId":"t"}},{"@type":"type.googleapis.com/faultline.v1.Failure","id":"f-1","code":5,"#,
    r#""reason":"TASK_NOT_FOUND","domain":"a2a-protocol.org","#,
    r#""publicMessage":"task not found","plane":"PLANE_PROTOCOL","origin":{"service":"fake"},"#,
    r#""traceId":"t","spanId":"s"},{"@type":"type.googleapis.com/faultline.v1.Advice","#,
    r#""verdict":"fix","actor":"caller","text":"check the task id","party":"the caller"}]"#,
);

#[tokio::test]
async fn error_bytes_are_pinned() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let rpc = request("SendMessage", message("error TASK_NOT_FOUND"));
    let rest = message("error TASK_NOT_FOUND").to_string();
    for (path, body, head) in [
        (
            "/",
            rpc,
            concat!(
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"#,
                r#""message":"task not found","data":"#
            ),
        ),
        (
            "/message:send",
            rest,
            concat!(
                r#"{"error":{"code":404,"status":"NOT_FOUND","#,
                r#""message":"task not found","details":"#
            ),
        ),
    ] {
        let response = client.send("POST", path, &[], body).await;
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let expected = format!("{head}{DETAILS}}}}}");
        assert_eq!(String::from_utf8(bytes.to_vec()).unwrap(), expected);
    }
}
