//! What was tried again and what was not, in words: the decisions of the coordinator as people ask
//! for them.

use faultline_proto::{
    Failure,
    reason::Retry,
    v1::{Attempt, InspectResponse, NotRetried},
};

use crate::output::text::{between, span};

/// Why the last attempt of a task was the last; `None`: nothing failed here that could have been
/// tried again.
pub(crate) fn not_retried_text(shown: &InspectResponse) -> Option<&'static str> {
    let failure = shown.failure.as_ref();
    let says_no = failure.is_some_and(|failure| failure.retryable == Some(false));
    let is_declined = failure.is_some_and(|failure| failure.declined);
    Some(match shown.not_retried() {
        NotRetried::Unspecified | NotRetried::Below => return None,
        NotRetried::Reason if is_declined => "a person refused it",
        // A stored failure always has the flag, so only the class tells where it comes from.
        NotRetried::Reason => match class(shown) {
            Some(Retry::Idempotent) => {
                "the outcome is unknown, and the agent is not declared idempotent"
            }
            Some(Retry::Enclosing) => "only the whole unit of work can be tried again",
            Some(Retry::Never | Retry::Reauthenticate) => {
                "its reason says that this makes no sense"
            }
            _ if says_no => "the failure itself says no",
            // As coordinators decided that had no default delay.
            Some(Retry::Delay) => "no delay came with it",
            Some(Retry::Yes) | None => "its reason says that this makes no sense",
        },
        NotRetried::Pause => "it asked for a longer pause than is allowed",
        NotRetried::Spent => "all attempts that it may have were made",
        NotRetried::Budget => "too many tasks of this agent fail, its retry budget is spent",
        NotRetried::Deadline => "its time would have been over",
        NotRetried::Asking => "somebody was being asked, and would have answered to nobody",
    })
}

fn class(shown: &InspectResponse) -> Option<Retry> {
    shown.failure.clone().map(|record| Failure::from_record(record).row().retry)
}

/// How long an attempt took, if it is over.
pub(crate) fn duration_text(attempt: &Attempt) -> Option<String> {
    between(attempt.started.as_ref()?, attempt.ended.as_ref()?).map(span)
}

/// What followed an attempt: the next one, or nothing yet. Empty for the last one.
pub(crate) fn next_attempt_text(attempt: &Attempt, all: &[Attempt]) -> String {
    let next = all.iter().find(|other| other.number > attempt.number);
    let pause = next.and_then(|next| between(attempt.ended.as_ref()?, next.started.as_ref()?));
    match (next, pause) {
        (None, _) => String::new(),
        (Some(_), Some(pause)) if pause.as_millis() > 0 => {
            format!(", tried again {} later", span(pause))
        }
        (Some(_), _) => ", tried again at once".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use faultline_proto::json;

    use super::*;

    fn attempts() -> Vec<Attempt> {
        let attempt = |text: &str| json::from_str(text).unwrap();
        vec![
            attempt(
                r#"{"number":1,"started":"2026-01-01T00:00:00Z","ended":"2026-01-01T00:00:01Z"}"#,
            ),
            attempt(
                r#"{"number":2,"started":"2026-01-01T00:00:03.5Z","ended":"2026-01-01T00:00:04Z"}"#,
            ),
            attempt(r#"{"number":3,"started":"2026-01-01T00:00:04Z"}"#),
        ]
    }

    #[test]
    fn what_follows_an_attempt_is_told_with_its_pause() {
        let all = attempts();
        let told: Vec<_> = all.iter().map(|attempt| next_attempt_text(attempt, &all)).collect();
        assert_eq!(told, [", tried again 2.5s later", ", tried again at once", ""]);
        assert_eq!(duration_text(&all[1]).as_deref(), Some("500ms"));
        assert_eq!(duration_text(&all[2]), None);
    }

    #[test]
    fn every_decision_not_to_try_again_has_words() {
        let shown = |text: &str| json::from_str::<InspectResponse>(text).unwrap();
        let words = |number: i32| {
            let shown = InspectResponse { not_retried: number, ..InspectResponse::default() };
            not_retried_text(&shown)
        };
        for number in 2..=7 {
            assert!(NotRetried::try_from(number).is_ok() && words(number).is_some(), "{number}");
        }
        assert!(NotRetried::try_from(8).is_err(), "teach the words");
        assert_eq!((words(0), words(1)), (None, None));
        let why = |failure: &str| {
            let text = format!(r#"{{"notRetried":"NOT_RETRIED_REASON","failure":{failure}}}"#);
            not_retried_text(&shown(&text))
        };
        // The coordinator stores the flag with every failure.
        let stored = |reason: &str| {
            let row = faultline_proto::reason::named(reason).unwrap();
            let code = row.code as i32;
            let domain = row.domain;
            why(&format!(
                r#"{{"reason":"{reason}","domain":"{domain}","code":{code},"retryable":false}}"#
            ))
        };
        assert_eq!(stored("UNAVAILABLE"), Some("the failure itself says no"));
        assert_eq!(stored("RATE_LIMITED"), Some("the failure itself says no"));
        let unknown = Some("the outcome is unknown, and the agent is not declared idempotent");
        assert_eq!((stored("UNKNOWN"), stored("DEADLINE_EXCEEDED")), (unknown, unknown));
        assert_eq!(stored("INTERNAL"), Some("its reason says that this makes no sense"));
        let declined = r#"{"reason":"FAILED_PRECONDITION","code":9,"declined":true}"#;
        assert_eq!(why(declined), Some("a person refused it"));
    }
}
