//! The retry decisions of the coordinator as text: why a task was retried, and why not.

use faultline_proto::{
    Failure,
    reason::Retry,
    v1::{Attempt, InspectResponse, NotRetried},
};

use crate::output::text::{between, span};

/// The reason why a failed task was not retried; `None`: no failure of this task could have been
/// retried.
pub(crate) fn not_retried_text(shown: &InspectResponse) -> Option<&'static str> {
    let failure = shown.failure.as_ref();
    let says_no = failure.is_some_and(|failure| failure.retryable == Some(false));
    let is_declined = failure.is_some_and(|failure| failure.declined);
    Some(match shown.not_retried() {
        NotRetried::Unspecified | NotRetried::Below => return None,
        NotRetried::Reason if is_declined => "a person refused it",
        // A stored failure always has the flag, so only the retry class shows its source.
        NotRetried::Reason => match class(shown) {
            Some(Retry::Idempotent) => {
                "the outcome is unknown, and the agent is not declared idempotent"
            }
            Some(Retry::Enclosing) => "only the whole unit of work can be tried again",
            Some(Retry::Never | Retry::Reauthenticate) => {
                "its reason says that this makes no sense"
            }
            _ if says_no => "the failure itself says no",
            // Records of coordinators without a default delay.
            Some(Retry::Delay) => "no delay came with it",
            Some(Retry::Yes) | None => "its reason says that this makes no sense",
        },
        NotRetried::Pause => "it asked for a longer pause than is allowed",
        NotRetried::Spent => "all attempts that it may have were made",
        NotRetried::Budget => "too many tasks of this agent fail, its retry budget is spent",
        NotRetried::Deadline => "its time would have been over",
        NotRetried::Asking => "a question was open, and its answer would have been lost",
    })
}

fn class(shown: &InspectResponse) -> Option<Retry> {
    shown.failure.clone().map(|record| Failure::from_record(record).row().retry)
}

/// The duration of an attempt that is over.
pub(crate) fn duration_text(attempt: &Attempt) -> Option<String> {
    between(attempt.started.as_ref()?, attempt.ended.as_ref()?).map(span)
}

/// The pause between an attempt and the next one. Empty for the last attempt.
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
    fn text_after_an_attempt_names_the_pause_before_the_next() {
        let all = attempts();
        let told: Vec<_> = all.iter().map(|attempt| next_attempt_text(attempt, &all)).collect();
        assert_eq!(told, [", tried again 2.5s later", ", tried again at once", ""]);
        assert_eq!(duration_text(&all[1]).as_deref(), Some("500ms"));
        assert_eq!(duration_text(&all[2]), None);
    }

    #[test]
    fn every_decision_against_a_retry_has_a_text() {
        let shown = |text: &str| json::from_str::<InspectResponse>(text).unwrap();
        let words = |number: i32| {
            let shown = InspectResponse { not_retried: number, ..InspectResponse::default() };
            not_retried_text(&shown)
        };
        for number in 2..=7 {
            assert!(NotRetried::try_from(number).is_ok() && words(number).is_some(), "{number}");
        }
        assert!(NotRetried::try_from(8).is_err(), "a new decision needs a text");
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
