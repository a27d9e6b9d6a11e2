//! Failures with every gRPC code, through real processes: the record reaches the client and the
//! store complete and unchanged, by unary call, stream and inspection.

use faultline_tests::{
    Plan, Rpc,
    rpc::message,
    task::{self, FAILED},
};
use serde_json::{Value, json};

/// Every gRPC code except OK.
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

/// The failure of the agent, and the expected values at every reader. Immutable, one per case.
struct ExpectedFailure {
    reason: &'static str,
    number: u32,
    business_code: String,
    text: String,
    retryable: bool,
    trace_id: String,
}

impl ExpectedFailure {
    fn script(&self) -> String {
        let ExpectedFailure { reason, business_code, text, retryable, .. } = self;
        let text = text.replace('"', "\\\"");
        format!(
            "say before; fail {reason} code={business_code} text=\"{text}\" \
             retryable={retryable} retry_after=2s"
        )
    }

    /// Checks a failure record of a client.
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
        assert!(failure["retryable"].is_boolean(), "the record has the flag itself: {failure}");
        assert!(failure["id"].as_str().is_some_and(|id| id.len() == 36), "{failure}");
        assert!(failure["spanId"].as_str().is_some_and(|id| id.len() == 16), "{failure}");
        let causes = failure["causes"].as_array().expect("a failure has its root");
        assert_eq!(causes.len(), 1, "{failure}");
        assert_eq!(causes[0]["reason"], self.reason, "{failure}");
        assert_eq!(causes[0]["agent"], "script", "{failure}");
    }

    /// Checks the flat keys of a task, an event or a message.
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

    /// Checks a task or a status update, and its message.
    fn check_status(&self, carrier: &Value, task_id: &str) {
        assert_eq!(task::state(carrier), FAILED, "{carrier}");
        self.check(&carrier["metadata"]["faultline.dev/failure"], task_id);
        self.check_flat(&carrier["metadata"]);
        let message = &carrier["status"]["message"];
        self.check_flat(&message["metadata"]);
        assert_eq!(
            message["metadata"].get("faultline.dev/failure"),
            None,
            "the record occurs once"
        );
        assert_eq!(task::text(message), self.text, "{message}");
        assert_eq!(message["role"], "ROLE_AGENT", "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_of_any_code_arrives_complete() {
    // No retries, and no circuit breaker.
    let plan = Plan::default().with("retries = 0").with("breaker_failures = 0");
    let cluster = plan.start().await;
    let mut failures = 0;
    for (reason, number) in CODES {
        for retryable in [true, false] {
            let (trace_id, header) = crate::trace();
            let text = format!("{reason}; {{x}} \"so\", ünïcode and all");
            let business_code = format!("BIZ_{number}");
            let expected =
                ExpectedFailure { reason, number, business_code, text, retryable, trace_id };
            let rpc = cluster.rpc().agent("script").header("traceparent", header);
            check_unary(&rpc, &expected).await;
            check_stream(&rpc, &expected).await;
            failures += 1;
        }
    }
    assert_eq!(failures, 32);
}

async fn check_unary(rpc: &Rpc, expected: &ExpectedFailure) {
    let task = rpc.send(&expected.script()).await;
    let id = task::id(&task);
    expected.check_status(&task, id);
    assert_eq!(rpc.task(id).await, task, "the stored task is the answer");
    check_inspect(rpc, expected, id).await;
}

async fn check_stream(rpc: &Rpc, expected: &ExpectedFailure) {
    let stream = rpc.stream("SendStreamingMessage", message(&expected.script())).await;
    let frames = stream.expect("the stream of a failing task opens").all().await;
    let id = task::id(&frames[0].body["task"]);
    let last = &frames[frames.len() - 1].body["statusUpdate"];
    expected.check_status(last, id);
    assert_eq!(last["taskId"], id);
    let finals = frames.iter().filter(|f| {
        let state = f.body["statusUpdate"]["status"]["state"].as_str();
        state.is_some_and(task::is_final)
    });
    assert_eq!(finals.count(), 1, "{frames:?}");
    expected.check_status(&rpc.task(id).await, id);
    check_inspect(rpc, expected, id).await;
}

async fn check_inspect(rpc: &Rpc, expected: &ExpectedFailure, id: &str) {
    let inspected = rpc.inspect(id).await;
    expected.check(&inspected["failure"], id);
    assert_eq!(inspected["traceId"], expected.trace_id.as_str(), "{inspected}");
    assert_eq!(inspected["agent"], "script");
    let attempts = inspected["attempts"].as_array().expect("there was an attempt");
    assert_eq!(attempts.len(), 1, "one attempt: {inspected}");
    assert_eq!(attempts[0]["outcome"], "OUTCOME_ENDED", "{inspected}");
}
