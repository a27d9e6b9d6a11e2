//! Every way an agent can fail, through real processes, to the client and into the store: nothing
//! of it may be lost or changed on the way, however the client asks.

use faultline_tests::{
    Plan, Rpc,
    rpc::message,
    task::{self, FAILED},
};
use serde_json::{Value, json};

/// Every code of gRPC that is not OK.
const CODES: [(&str, u32); 16] = [
    ("CANCELLED", 1),
    ("UNKNOWN", 2),
    ("INVALID_ARGUMENT", 3),
    ("DEADLINE_EXCEEDED", 4),
    ("NOT_FOUND", 5),
    ("ALREADY_EXISTS", 6),
    ("PERMISSION_DENIED", 7),
    ("RESOURCE_EXHAUSTED", 8),
    ("FAILED_PRECONDITION", 9),
    ("ABORTED", 10),
    ("OUT_OF_RANGE", 11),
    ("UNIMPLEMENTED", 12),
    ("INTERNAL", 13),
    ("UNAVAILABLE", 14),
    ("DATA_LOSS", 15),
    ("UNAUTHENTICATED", 16),
];

/// What the agent said, and what everybody must hear.
struct Said {
    reason: &'static str,
    number: u32,
    business_code: String,
    text: String,
    retryable: bool,
    trace_id: String,
}

impl Said {
    fn script(&self) -> String {
        let Said { reason, business_code, text, retryable, .. } = self;
        let text = text.replace('"', "\\\"");
        format!(
            "say before; fail {reason} code={business_code} text=\"{text}\" \
             retryable={retryable} retry_after=2s"
        )
    }

    /// Checks a record as the client reads it.
    fn check(&self, failure: &Value, task_id: &str) {
        let expected = json!({
            "code": self.number,
            "reason": self.reason,
            "domain": "faultline.dev",
            "businessCode": self.business_code,
            "publicMessage": self.text,
            "retryable": self.retryable,
            "retryAfter": "2s",
            "plane": "PLANE_EXECUTION",
            "taskId": task_id,
            "traceId": self.trace_id,
        });
        for (key, value) in expected.as_object().expect("written above") {
            assert_eq!(&failure[key], value, "{key} of {failure}");
        }
        assert_eq!(failure["origin"]["agent"], "script", "{failure}");
        assert_eq!(failure["origin"]["service"], "worker", "{failure}");
        assert!(failure["retryable"].is_boolean(), "no table is needed to know: {failure}");
        assert!(failure["id"].as_str().is_some_and(|id| id.len() == 36), "{failure}");
        assert!(failure["spanId"].as_str().is_some_and(|id| id.len() == 16), "{failure}");
        let causes = failure["causes"].as_array().expect("a failure has its root");
        assert_eq!(causes.len(), 1, "{failure}");
        assert_eq!(causes[0]["reason"], self.reason, "{failure}");
        assert_eq!(causes[0]["agent"], "script", "{failure}");
    }

    /// Checks the flat keys, which are on a task or event and mirrored in its message.
    fn check_flat(&self, metadata: &Value) {
        let flat = json!({
            "object_type": "error",
            "error_type": "flow_error",
            "error_code": self.business_code,
            "error_message": self.text,
            "task_state": "failed",
        });
        for (key, value) in flat.as_object().expect("written above") {
            assert_eq!(&metadata[key], value, "{key} of {metadata}");
        }
    }

    /// Checks a task or a status update, around its status and in its message.
    fn check_status(&self, carrier: &Value, task_id: &str) {
        assert_eq!(task::state(carrier), FAILED, "{carrier}");
        self.check(&carrier["metadata"]["faultline.dev/failure"], task_id);
        self.check_flat(&carrier["metadata"]);
        let message = &carrier["status"]["message"];
        self.check_flat(&message["metadata"]);
        assert_eq!(message["metadata"].get("faultline.dev/failure"), None, "it is said once");
        assert_eq!(task::text(message), self.text, "{message}");
        assert_eq!(message["role"], "ROLE_AGENT", "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_any_code_arrives_whole() {
    // Each is to arrive as it is, and nobody is to be left alone for it.
    let plan = Plan::default().with("retries = 0").with("breaker_failures = 0");
    let cluster = plan.start().await;
    let mut failures = 0;
    for (reason, number) in CODES {
        for retryable in [true, false] {
            let (trace_id, header) = crate::trace();
            let text = format!("{reason}; {{said}} \"so\", ünïcode and all");
            let business_code = format!("BIZ_{number}");
            let said = Said { reason, number, business_code, text, retryable, trace_id };
            let rpc = cluster.rpc().agent("script").header("traceparent", header);
            check_unary(&rpc, &said).await;
            check_stream(&rpc, &said).await;
            failures += 1;
        }
    }
    assert_eq!(failures, 32);
}

async fn check_unary(rpc: &Rpc, said: &Said) {
    let task = rpc.send(&said.script()).await;
    let id = task::id(&task);
    said.check_status(&task, id);
    assert_eq!(rpc.task(id).await, task, "what is stored is what was answered");
    check_inspect(rpc, said, id).await;
}

async fn check_stream(rpc: &Rpc, said: &Said) {
    let stream = rpc.stream("SendStreamingMessage", message(&said.script())).await;
    let frames = stream.expect("a failing task is a stream like any other").all().await;
    let id = task::id(&frames[0].body["task"]);
    let last = &frames[frames.len() - 1].body["statusUpdate"];
    said.check_status(last, id);
    assert_eq!(last["taskId"], id);
    let finals = frames.iter().filter(|f| {
        let state = f.body["statusUpdate"]["status"]["state"].as_str();
        state.is_some_and(task::is_final)
    });
    assert_eq!(finals.count(), 1, "{frames:?}");
    said.check_status(&rpc.task(id).await, id);
    check_inspect(rpc, said, id).await;
}

async fn check_inspect(rpc: &Rpc, said: &Said, id: &str) {
    let inspected = rpc.inspect(id).await;
    said.check(&inspected["failure"], id);
    assert_eq!(inspected["traceId"], said.trace_id.as_str(), "{inspected}");
    assert_eq!(inspected["agent"], "script");
    let attempts = inspected["attempts"].as_array().expect("there was an attempt");
    assert_eq!(attempts.len(), 1, "it is tried once: {inspected}");
    assert_eq!(attempts[0]["outcome"], "OUTCOME_ENDED", "{inspected}");
}
