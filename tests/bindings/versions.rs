//! Version negotiation: A2A 1.x, A2A 0.3, and refusals of other versions.

use faultline_tests::{Binding, Rpc, rpc::message};
use serde_json::json;

use crate::{on_every_binding, start, start_with};

on_every_binding! {
    versions_1_x_are_served_as_1_0
    unknown_version_is_refused
}

async fn versions_1_x_are_served_as_1_0(binding: Binding) {
    let up = start(binding).await;
    for version in ["1", "1.0", "1.0.1", "1.7", " 1.0 "] {
        let endpoint = up.agent("echo").header("a2a-version", version);
        let sent = endpoint.call("SendMessage", message("x")).await;
        assert!(sent.is_ok(), "{version}: {sent:?}");
    }
}

async fn unknown_version_is_refused(binding: Binding) {
    let up = start(binding).await;
    for version in ["2.0", "0.2", "0.3", "abc", "1.x", "10"] {
        let endpoint = up.agent("echo").header("a2a-version", version);
        let refused = endpoint.call("SendMessage", message("x")).await.expect_err(version);
        assert_eq!(refused.reason(), ("a2a-protocol.org", "VERSION_NOT_SUPPORTED"), "{version}");
        match binding {
            Binding::JsonRpc => assert_eq!(refused.jsonrpc, Some(-32009), "{version}"),
            Binding::Rest => assert_eq!(refused.http, Some(400), "{version}"),
            Binding::Grpc => {
                assert_eq!(refused.status.as_deref(), Some("FAILED_PRECONDITION"));
                assert!(!refused.message.contains("or 0.3"), "gRPC has no 0.3: {refused:?}");
            }
        }
    }
    if binding != Binding::Grpc {
        // Without a version header the request is 0.3, which lacks this operation.
        let endpoint = up.agent("echo").header("a2a-version", "");
        let refused = endpoint.call("SendMessage", message("x")).await.unwrap_err();
        assert_eq!(refused.reason().1, "VERSION_NOT_SUPPORTED", "{refused:?}");
        assert!(
            refused.message.contains("A2A-Version"),
            "the message names the header: {refused:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn version_may_be_in_the_query() {
    let up = start(Binding::JsonRpc).await;
    let bare = Rpc::bare(up.mesh.gateway_addr());
    let sent = bare.path("/agents/echo?A2A-Version=1.0").call("SendMessage", message("x")).await;
    assert!(sent.is_ok(), "{sent:?}");
    let listed = bare.path("/tasks?A2A-Version=1.0").get().await;
    assert_eq!(listed.status, 200, "{:?}", listed.body);
    assert_eq!(listed.headers["content-type"], "application/a2a+json");
}

#[tokio::test(flavor = "multi_thread")]
async fn a2a_0_3_is_served_unless_switched_off() {
    let up = start(Binding::JsonRpc).await;
    let old = json!({"message": {
        "kind": "message", "messageId": "1", "role": "user",
        "parts": [{"kind": "text", "text": "hello"}]
    }});
    let bare = Rpc::bare(up.mesh.gateway_addr()).agent("echo");
    let task = bare.call("message/send", old.clone()).await.unwrap();
    assert_eq!((&task["kind"], &task["status"]["state"]), (&json!("task"), &json!("completed")));
    let part = json!({"kind": "text", "text": "hello"});
    assert_eq!(task["artifacts"][0]["parts"], json!([part]), "{task}");
    let off = start_with(Binding::JsonRpc, |config| config.gateway.serve_v03 = false).await;
    let bare = Rpc::bare(off.mesh.gateway_addr()).agent("echo");
    let refused = bare.call("message/send", old).await.unwrap_err();
    assert_eq!(refused["code"], -32009, "{refused}");
}
