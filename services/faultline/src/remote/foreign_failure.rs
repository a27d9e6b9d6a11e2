//! Conversion of a foreign failure, which a remote agent reports, into a failure of this mesh. The
//! agent names in it are untrusted and get the local name of the remote agent as a prefix, so that
//! no claim can point at an agent of this mesh.

use faultline_client::{self as client, CardProblem, Ending};
use faultline_proto::{
    Failure,
    advice::REMOTE_SETUP,
    disposition::BRANCHES_MAX,
    failure::{CAUSES_MAX, MESSAGE_BYTES_MAX},
    reason::{self, Reason},
    v1::{self, Aggregate, Branch, Cause, FieldViolation, Origin, Plane},
};
use faultline_worker::Error;
use tonic::Code;

/// The URI of the failure extension. A server that lists it on its card uses this mesh's records.
pub(super) const FAILURE_EXTENSION: &str = "https://faultline.dev/a2a/ext/failure/v1";

/// Bound on foreign names and ids.
const NAME_CHARS_MAX: usize = 63;
const VIOLATIONS_MAX: usize = 16;
/// The reasons of the local client for a peer that did not answer.
const UNANSWERED: [&Reason; 7] = [
    &reason::UNAVAILABLE,
    &reason::CONNECT_TIMEOUT,
    &reason::WRITE_TIMEOUT,
    &reason::POOL_TIMEOUT,
    &reason::READ_TIMEOUT,
    &reason::CALL_TIMEOUT,
    &reason::RECONNECT_EXHAUSTED,
];

/// The error of a local task of `agent` whose remote task failed or could not be started. `peer` is
/// the name on the remote card, used where the foreign failure names no agent.
pub(super) fn to_error(agent: &str, peer: &str, error: client::Error) -> Error {
    match error {
        client::Error::Ended(ended) if ended.how == Ending::Rejected => {
            Error::rejected_with(quote_failure(agent, peer, ended.failure))
        }
        client::Error::InvalidCard {
            problem: CardProblem::OtherOrigin { card, called }, ..
        } => {
            let text = format!(
                "the card at {card} leads to {called}, where the token is not sent: the operator \
                 of this mesh may add that to `remote.{agent}.allow_origins`"
            );
            misconfigured(&reason::INVALID_AGENT_RESPONSE, text)
        }
        client::Error::InvalidCard { problem: CardProblem::NotPublic { card, called }, .. } => {
            let text = format!(
                "the card at {card} leads to {called}, which is not a public address: the \
                 operator of this mesh may add that to `remote.{agent}.allow_origins`"
            );
            misconfigured(&reason::INVALID_AGENT_RESPONSE, text)
        }
        client::Error::InvalidCard { problem, .. } => {
            let text = format!("the card of the remote agent cannot be used: {problem}");
            protocol_violation(agent, peer, text)
        }
        client::Error::Ended(ended) => Error::from(quote_failure(agent, peer, ended.failure)),
        other => call_failed(agent, peer, Failure::from(other)),
    }
}

/// The remote server no longer knows the task, as after a restart that lost its tasks. The work may
/// have been done, so the outcome is unknown and only an idempotent agent is called again.
pub(super) fn task_lost(agent: &str, peer: &str) -> Error {
    let text = format!(
        "the server of remote agent '{agent}' no longer knows the task that it had accepted from \
         this mesh: it may have restarted without its tasks, and the work may have been done"
    );
    Error::from(quote_failure(agent, peer, Failure::new(&reason::OUTCOME_UNKNOWN).because(text)))
}

/// The configuration of the remote agent in this mesh is wrong: the operator has to correct it.
fn misconfigured(row: &'static Reason, text: String) -> Error {
    let record = Failure::new(row).because(text).with_retryable(false).into_record();
    // The worker adds the name of the agent.
    let origin = Some(Origin { service: REMOTE_SETUP.to_owned(), ..Origin::default() });
    Error::from(Failure::from_record(v1::Failure { origin, ..record }))
}

/// The remote agent violated the protocol.
fn protocol_violation(agent: &str, peer: &str, text: String) -> Error {
    Error::from(quote_failure(
        agent,
        peer,
        Failure::new(&reason::INVALID_AGENT_RESPONSE).because(text),
    ))
}

/// The failure of a call that was not executed, or whose outcome is unknown.
fn call_failed(agent: &str, peer: &str, failure: Failure) -> Error {
    let is_ours = failure.plane() == Plane::Transport
        && UNANSWERED.contains(&failure.row())
        && failure.origin.is_none()
        && failure.causes.is_empty();
    if is_ours {
        let row = match failure.row() {
            row if row == &reason::UNAVAILABLE => &reason::AGENT_UNAVAILABLE,
            row => row,
        };
        let text = format!("remote agent '{agent}': {}", failure.public_message);
        let mut error = Error::new(row).because(text);
        // An idempotency key protects the call and not the work: the agent's setting decides about
        // a second run.
        if let Some(retryable) = failure.retryable.filter(|_| !failure.repeat_with_key) {
            error = error.retryable(retryable);
        }
        return match failure.private() {
            Some(private) => error.caused_by(private.for_log()),
            None => error,
        };
    }
    // The rejected credentials are those of this mesh, not of the local caller.
    if failure.code() == Code::Unauthenticated {
        let text = format!(
            "the server of remote agent '{agent}' does not accept our credentials: the operator of \
             this mesh has to renew `remote.{agent}.token`"
        );
        return misconfigured(&reason::UNAUTHENTICATED, text);
    }
    // The call started a new task, so an unknown id is none that the local caller named.
    if failure.row() == &reason::TASK_NOT_FOUND {
        let text = format!(
            "the server reports an unknown task, although the call names none: {}",
            failure.public_message
        );
        return protocol_violation(agent, peer, text);
    }
    Error::from(quote_failure(agent, peer, failure))
}

/// The foreign failure as a failure of this mesh: reason, code, texts, advice and trace are kept
/// within bounds; the names of agents get a prefix.
fn quote_failure(agent: &str, peer: &str, failure: Failure) -> Failure {
    let record = failure.into_record();
    let mut causes: Vec<Cause> =
        record.causes.iter().cloned().map(|c| qualify_cause(agent, peer, c)).collect();
    if causes.is_empty() {
        let named = record.origin.as_ref().map(|origin| origin.agent.clone());
        causes.push(qualify_cause(agent, peer, single_cause(&record, named.unwrap_or_default())));
    }
    // One place is reserved for the hop of the local agent.
    let dropped = causes.len().saturating_sub(CAUSES_MAX - 1);
    if dropped > 0 {
        let root = causes.pop();
        causes.truncate(CAUSES_MAX - 2);
        causes.extend(root);
    }
    for (hop, cause) in causes.iter_mut().rev().enumerate() {
        cause.hop = hop as u32;
    }
    let violations = record.violations.into_iter().take(VIOLATIONS_MAX);
    let violations = violations.map(|v| FieldViolation {
        field: cut(v.field, MESSAGE_BYTES_MAX),
        description: cut(v.description, MESSAGE_BYTES_MAX),
    });
    let fresh = Failure::new(&reason::TASK_FAILED).into_record();
    Failure::from_record(v1::Failure {
        id: Some(name(&record.id)).filter(|id| !id.is_empty()).unwrap_or(fresh.id),
        code: record.code,
        reason: name(&record.reason),
        domain: name(&record.domain),
        severity: record.severity,
        disposition: record.disposition,
        aggregate: record.aggregate.map(|all| qualify_branches(agent, all)),
        business_code: record.business_code,
        error_type: record.error_type,
        public_message: record.public_message,
        retryable: record.retryable,
        retry_after: record.retry_after,
        plane: Plane::Execution as i32,
        origin: Some(Origin {
            agent: agent.to_owned(),
            service: REMOTE_SETUP.to_owned(),
            ..Origin::default()
        }),
        hop: causes.len() as u32 - 1,
        causes,
        causes_dropped: record.causes_dropped.saturating_add(dropped as u32).min(999),
        violations: violations.collect(),
        trace_id: hex(record.trace_id, 32),
        span_id: hex(record.span_id, 16),
        llm_response_id: name(&record.llm_response_id),
        declined: record.declined,
        retries_spent: record.retries_spent.min(999),
        foreign: true,
        ..fresh
    })
}

/// The single cause of a failure without causes.
fn single_cause(record: &v1::Failure, agent: String) -> Cause {
    Cause {
        agent,
        code: record.code,
        reason: record.reason.clone(),
        business_code: record.business_code.clone(),
        public_message: record.public_message.clone(),
        task_id: record.task_id.clone(),
        time: record.time,
        span_id: record.span_id.clone(),
        retryable: record.retryable,
        ..Cause::default()
    }
}

/// A foreign cause with the prefixed agent name and within bounds.
fn qualify_cause(agent: &str, peer: &str, cause: Cause) -> Cause {
    let claimed = Some(name(&cause.agent)).filter(|name| !name.is_empty());
    Cause {
        agent: format!("{agent}:{}", claimed.unwrap_or_else(|| name(peer))),
        reason: name(&cause.reason),
        business_code: cut(cause.business_code, 255),
        public_message: cut(cause.public_message, MESSAGE_BYTES_MAX),
        task_id: name(&cause.task_id),
        span_id: hex(cause.span_id, 16),
        ..cause
    }
}

/// The branches of a foreign fan-out, likewise.
fn qualify_branches(agent: &str, all: Aggregate) -> Aggregate {
    let quoted = |theirs: &str| format!("{agent}:{}", name(theirs));
    let branches = all.branches.into_iter().take(BRANCHES_MAX).map(|branch| Branch {
        agent: quoted(&branch.agent),
        task_id: name(&branch.task_id),
        failure_id: name(&branch.failure_id),
        reason: name(&branch.reason),
        origin_agent: quoted(&branch.origin_agent),
        root_reason: name(&branch.root_reason),
        path: branch.path.iter().take(CAUSES_MAX).map(|theirs| quoted(theirs)).collect(),
        ..branch
    });
    Aggregate { branches: branches.collect(), ..all }
}

fn name(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect()
}

fn cut(mut text: String, bytes_max: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes_max));
    text
}

/// A trace or span id, or an empty text if it is malformed.
fn hex(text: String, digits: usize) -> String {
    let fits = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    if fits { text } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use faultline_client::Ended;
    use faultline_proto::{
        a2a::Task,
        advice::{Party, Reader, advise},
        v1::{Disposition, Severity},
    };

    use super::*;

    fn born(agent: &str) -> Failure {
        let origin = Origin { agent: agent.to_owned(), ..Origin::default() };
        Failure::new(&reason::RATE_LIMITED)
            .because("slow down")
            .with_business_code("40401")
            .with_retry_after(Duration::from_secs(2))
            .with_trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
            .born_at(origin)
    }

    fn as_failure_of_billing(failure: Failure) -> Failure {
        to_error("billing", "Billing Inc.", failure.into()).failure().unwrap().clone()
    }

    #[test]
    fn foreign_causes_get_the_local_name_as_prefix() {
        let theirs = born("script").wrap("plan", "t-2", "c");
        let failure = as_failure_of_billing(theirs.clone());
        assert!(failure.foreign && failure.plane() == Plane::Execution);
        assert_eq!((failure.origin_agent(), failure.id.as_str()), ("billing", theirs.id.as_str()));
        let names: Vec<_> = failure.causes.iter().map(|c| (c.agent.as_str(), c.hop)).collect();
        assert_eq!(names, [("billing:plan", 1), ("billing:script", 0)]);
        assert_eq!(failure.causes[1].public_message, "slow down");
        assert_eq!(
            (failure.row(), failure.business_code.as_str()),
            (&reason::RATE_LIMITED, "40401")
        );
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(failure.trace_id, theirs.trace_id);
    }

    #[test]
    fn foreign_failure_stays_within_bounds() {
        let mut record = born("script").into_record();
        record.hop = u32::MAX;
        record.causes_dropped = u32::MAX;
        record.id = "x\r\n".repeat(1000);
        record.trace_id = "not hex".to_owned();
        record.reason = "BRAND_NEW".to_owned();
        let cause = Cause {
            agent: format!("script\u{7}{}", "n".repeat(10_000)),
            public_message: "m".repeat(100_000),
            hop: 15,
            ..Cause::default()
        };
        record.causes = vec![cause; 500];
        record.violations = vec![FieldViolation::default(); 500];
        // As decoded from the wire.
        let failure = as_failure_of_billing(Failure::from_record(record));
        let failure = failure.wrap("billing", "t", "c").wrap("front", "t", "c");
        assert!(failure.causes.len() <= CAUSES_MAX);
        assert!(failure.hop < 64 && failure.violations.len() <= VIOLATIONS_MAX);
        assert_eq!(failure.row(), &reason::RESOURCE_EXHAUSTED, "by its code");
        assert_eq!((failure.trace_id.as_str(), failure.id.len()), ("", NAME_CHARS_MAX));
        let bytes = prost::Message::encoded_len(failure.record());
        assert!(bytes < 32 * 1024, "{bytes}");
        let ours = |cause: &&Cause| cause.agent == "script";
        assert_eq!(failure.causes.iter().find(ours), None);
    }

    #[test]
    fn reason_disposition_and_branches_of_a_foreign_failure_are_kept() {
        let branch = Branch {
            agent: "script".to_owned(),
            origin_agent: "code".to_owned(),
            path: vec!["script".to_owned(), "code".to_owned()],
            ..Branch::default()
        };
        let quoted = as_failure_of_billing(Failure::from_record(v1::Failure {
            code: 3,
            reason: "ORDER_SOLD_OUT".to_owned(),
            domain: "shop.example".to_owned(),
            severity: Severity::Recoverable as i32,
            disposition: Disposition::ModelRetry as i32,
            aggregate: Some(Aggregate {
                asked: 2,
                required: 2,
                branches: vec![branch],
                succeeded: 1,
            }),
            ..v1::Failure::default()
        }));
        assert_eq!((&*quoted.reason, &*quoted.domain), ("ORDER_SOLD_OUT", "shop.example"));
        assert_eq!(quoted.code(), Code::InvalidArgument);
        assert_eq!(quoted.severity(), Severity::Recoverable);
        assert_eq!(quoted.disposition(), Disposition::ModelRetry);
        let all = quoted.aggregate.as_ref().unwrap();
        assert_eq!((all.asked, all.required, all.succeeded), (2, 2, 1));
        let branch = &all.branches[0];
        assert_eq!((&*branch.agent, &*branch.origin_agent), ("billing:script", "billing:code"));
        assert_eq!(
            branch.path,
            ["billing:script", "billing:code"],
            "no agent of this mesh is named"
        );
    }

    #[test]
    fn rejection_keeps_its_code_and_its_causes() {
        let failure = born("script");
        let ended = Ended { how: Ending::Rejected, task: Box::new(Task::default()), failure };
        let error = to_error("billing", "Billing Inc.", ended.into());
        let rejection = error.rejection().expect("the error is a rejection");
        assert_eq!((&*rejection.business_code, rejection.foreign), ("40401", true));
        assert_eq!(rejection.causes[0].agent, "billing:script");
        assert!(error.failure().is_none());
    }

    #[test]
    fn cause_without_an_agent_gets_the_name_of_the_card() {
        let bare = Failure::new(&reason::TASK_FAILED).because("no");
        let failure = as_failure_of_billing(bare);
        assert_eq!(failure.causes[0].agent, "billing:Billing Inc.");
    }

    #[test]
    fn unanswered_call_is_a_failure_of_this_mesh() {
        let away = Failure::new(&reason::UNAVAILABLE)
            .because("the server cannot be reached")
            .privately("10.0.0.1:443")
            .with_plane(Plane::Transport);
        let failure = as_failure_of_billing(away);
        assert_eq!((failure.row(), failure.foreign), (&reason::AGENT_UNAVAILABLE, false));
        assert!(failure.public_message.contains("'billing'") && failure.may_retry());
        assert_eq!(failure.private().unwrap().for_log(), "10.0.0.1:443");
    }

    #[test]
    fn rejected_credentials_are_an_error_of_the_operator() {
        let failure = as_failure_of_billing(
            Failure::new(&reason::UNAUTHENTICATED_CALLER).because("who are you?"),
        );
        assert!(failure.public_message.contains("`remote.billing.token`"), "{failure}");
        assert!(!failure.may_retry());
        assert_eq!(failure.origin.as_ref().unwrap().service, REMOTE_SETUP);
        assert_eq!(advise(&failure, Reader::Caller).actor, Party::Operator);
    }
}
