//! Signed tokens with which an attempt calls other agents. A token names task, attempt and
//! principal, so an agent can act for no other task. Pure: whether the attempt is still current
//! (fencing) is checked elsewhere.

use faultline_proto::id::TaskId;
use ring::hmac::{self, HMAC_SHA256};

use crate::{store::SigningSecret, task::Task};

/// Makes tokens and knows its own.
#[derive(Clone)]
pub(crate) struct Tokens(hmac::Key);

/// The claims of a token, not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptClaims<'a> {
    pub(crate) task: TaskId,
    pub(crate) attempt: u32,
    signature: &'a str,
}

impl<'a> AttemptClaims<'a> {
    /// `v1.<task>.<attempt>.<signature in hex>`.
    pub(crate) fn read(token: &'a str) -> Option<Self> {
        let (task, rest) = token.strip_prefix("v1.")?.split_once('.')?;
        let (attempt, signature) = rest.split_once('.')?;
        Some(Self { task: task.parse().ok()?, attempt: attempt.parse().ok()?, signature })
    }
}

impl Tokens {
    pub(crate) fn new(secret: &SigningSecret) -> Self {
        Self(hmac::Key::new(HMAC_SHA256, secret))
    }

    /// Of the task's current attempt.
    pub(crate) fn of(&self, task: &Task) -> String {
        let signature = hmac::sign(&self.0, &signed(task, task.attempt));
        let mut token = format!("v1.{}.{}.", task.id, task.attempt);
        for byte in signature.as_ref() {
            token.push(char::from(HEX[usize::from(byte >> 4)]));
            token.push(char::from(HEX[usize::from(byte & 15)]));
        }
        token
    }

    /// Was it made here, for this task? Takes as long for a wrong one as for the right one.
    pub(crate) fn verify(&self, task: &Task, said: AttemptClaims<'_>) -> bool {
        let Some(signature) = bytes_of(said.signature) else { return false };
        task.id == said.task
            && hmac::verify(&self.0, &signed(task, said.attempt), &signature).is_ok()
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The principal is last: it is the only part that may hold any character.
fn signed(task: &Task, attempt: u32) -> Vec<u8> {
    format!("v1.{}.{attempt}.{}", task.id, task.principal).into_bytes()
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use faultline_proto::v1::{Assigned, Submitted, event};

    use super::*;

    fn attempt(number: u32, principal: &str) -> Task {
        let principal = principal.to_owned();
        let submitted = Submitted { principal, ..Submitted::default() };
        let id = TaskId::from_bytes([7; 16]);
        let (mut task, _) = Task::submit(id, "a", "c".into(), submitted, 0);
        let assigned = Assigned { attempt: number, ..Assigned::default() };
        task.apply_now(event::Body::Assigned(assigned), 0);
        task
    }

    #[test]
    fn attempt_token_names_task_attempt_and_principal() {
        let (tokens, ann) = (Tokens::new(&[1; 32]), attempt(2, "ann"));
        let token = tokens.of(&ann);
        let said = AttemptClaims::read(&token).unwrap();
        assert_eq!((said.task, said.attempt), (ann.id, 2));
        assert!(tokens.verify(&ann, said));
        assert!(!tokens.verify(&attempt(2, "bob"), said), "another's");
        assert!(!Tokens::new(&[2; 32]).verify(&ann, said), "made elsewhere");
        let later = token.replacen(".2.", ".3.", 1);
        assert!(!tokens.verify(&ann, AttemptClaims::read(&later).unwrap()), "changed");
        let mut other = ann.clone();
        other.id = TaskId::from_bytes([8; 16]);
        assert!(!tokens.verify(&other, said), "of another task");
    }

    #[test]
    fn malformed_or_forged_token_is_rejected() {
        let (tokens, ann) = (Tokens::new(&[1; 32]), attempt(1, "ann"));
        let token = tokens.of(&ann);
        for bad in ["", "v1", "v1.x.1.00", "v2.", &token[3..], &token.replacen(".1.", ".-1.", 1)] {
            assert_eq!(AttemptClaims::read(bad), None, "{bad}");
        }
        for bad in [&token[..token.len() - 1], &token[..token.len() - 2], &format!("{token}é")] {
            assert!(!tokens.verify(&ann, AttemptClaims::read(bad).unwrap()), "{bad}");
        }
    }
}
