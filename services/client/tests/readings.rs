//! Reading of foreign answers: own conventions for failures, error dialects and trace ids.

mod script;

use std::collections::BTreeSet;

use faultline_client::{Client, Dialect, Ending, Error, Failure, Retry, a2a::Task};
use faultline_proto::reason;
use prost_types::value::Kind;
use script::{Server, plain, result, stream};

const FAILED: &str = r#"{"id":"t-1","status":{"state":"TASK_STATE_FAILED"},
    "metadata":{"acme/errno":7}}"#;

/// The convention of one server.
fn acme(task: &Task) -> Option<Failure> {
    match task.metadata.as_ref()?.fields.get("acme/errno")?.kind.as_ref()? {
        Kind::NumberValue(errno) => {
            Some(Failure::new(&reason::RATE_LIMITED).with_business_code(errno.to_string()))
        }
        _ => None,
    }
}

#[tokio::test]
async fn own_convention_precedes_the_default_reading() {
    let told = format!(r#"{{"task":{FAILED}}}"#);
    let server = Server::start([stream(&[(0, &told)], true), result(FAILED)]).await;
    let client = Client::builder(&server.url).convert(acme).direct().unwrap();
    let Err(Error::Ended(ended)) = client.run("hi").await else { panic!("the task failed") };
    assert_eq!((ended.how, ended.failure.row()), (Ending::Failed, &reason::RATE_LIMITED));
    assert_eq!(ended.failure.business_code, "7");
    // Without the convention, or if it returns nothing, the default reading applies.
    let task: Task = faultline_proto::json::from_str(FAILED).unwrap();
    let plain = Client::new(&server.url).unwrap().ended(&task).unwrap();
    assert_eq!((plain.failure.row(), plain.failure.foreign), (&reason::TASK_FAILED, true));
    let silent = Client::builder(&server.url).convert(|_| None).direct().unwrap();
    assert_eq!(silent.ended(&task).unwrap().failure.row(), &reason::TASK_FAILED);
}

#[tokio::test]
async fn dialect_applies_only_to_its_client() {
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32004,"message":"slow down"}}"#;
    for (dialect, row) in [
        (Dialect::Auto, &reason::UNSUPPORTED_OPERATION),
        (Dialect::StackA2a, &reason::RATE_LIMITED),
    ] {
        let server = Server::start([plain("200 OK", error)]).await;
        let builder = Client::builder(&server.url).retry(Retry::never()).dialect(dialect);
        let refused = builder.direct().unwrap().task("t").await.unwrap_err();
        assert_eq!(Failure::from(refused).row(), row);
    }
}

#[tokio::test]
async fn json_rpc_ids_are_unique_per_call() {
    let task = r#"{"id":"t","status":{"state":"TASK_STATE_COMPLETED"}}"#;
    let server = Server::start((0..50).map(|_| result(task))).await;
    let client = Client::new(&server.url).unwrap();
    for _ in 0..50 {
        client.task("t").await.unwrap();
    }
    let id = |request: String| -> String {
        let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
        serde_json::from_str::<serde_json::Value>(body).unwrap()["id"].to_string()
    };
    let ids: BTreeSet<_> = server.seen().into_iter().map(id).collect();
    assert_eq!(ids.len(), 50);
}
