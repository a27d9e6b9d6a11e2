//! Delegation: calls that an agent makes with the token of its attempt, as the principal of its
//! task. The idempotency key of a child is unique in its parent, so a repeated call finds the
//! child, also from a later attempt.

use faultline_chassis::{
    credential::{Binding, Identity},
    limits,
};
use faultline_proto::v1;
use http::request::Parts;

use crate::{
    calls::{
        attempt_token::AttemptClaims,
        caller::{Caller, CallingAttempt},
        roles::{A2A, TASK},
    },
    engine::core::Core,
    error::Error,
    store::{Digest, Scope},
    task::Millis,
};

/// The keys of children do not expire.
pub(crate) const NEVER_EXPIRES: Millis = Millis::MAX;

/// The key alone identifies a child: an agent that runs again may word its message differently.
pub(crate) const ANY_MESSAGE: Digest = [0; 32];

/// The credentials of a call by an attempt, before they are checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptCredentials {
    pub(crate) token: String,
    /// The key of the child that the call starts, or of its answer; empty: the call does neither,
    /// or cannot be repeated.
    pub(crate) key: String,
    /// The child outlives its parent.
    pub(crate) detached: bool,
    /// The credential of the calling worker; `None` where all roles share one.
    pub(crate) binding: Option<Binding>,
}

impl Core {
    /// Rejects a call with an attempt token before its body is read, if no attempt known here could
    /// have sent it: the token is malformed or forged, the attempt is over, or it runs on a worker
    /// with another credential. Memory only; the call itself asks the store.
    pub(crate) fn check_attempt_token(
        &self,
        identity: &Identity,
        head: &Parts,
    ) -> Result<(), Error> {
        let token = head.headers.get(TASK).filter(|_| head.uri.path().starts_with(A2A));
        let Some(token) = token else { return Ok(()) };
        let claimed = AttemptCredentials {
            token: token.to_str().unwrap_or_default().to_owned(),
            binding: identity.role().map(|_| identity.binding()),
            ..AttemptCredentials::default()
        };
        let caller = Caller::from(v1::Caller::default());
        match self.authenticate_attempt(caller, claimed) {
            Err(Error::AttemptOver) => Err(Error::AttemptOver),
            // The call itself reports other refusals, with a span.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Authenticates a call by the token of an attempt (fencing token): it acts as the principal of
    /// the task, while the attempt is current.
    pub(crate) fn authenticate_attempt(
        &self,
        caller: Caller,
        claimed: AttemptCredentials,
    ) -> Result<Caller, Error> {
        let AttemptCredentials { token, key, detached, binding } = claimed;
        if key.len() > limits::KEY_BYTES_MAX {
            let what = format!("at most {} bytes", limits::KEY_BYTES_MAX);
            return Err(Error::Invalid { field: "faultline-key", what });
        }
        let said = AttemptClaims::read(&token).ok_or(Error::AttemptOver)?;
        let state = self.lock();
        state.check_served()?;
        let Some(active) = state.tasks.get(&said.task) else { return Err(state.not_current()) };
        if !state.tokens.verify(active.pending(), said) {
            return Err(Error::AttemptOver);
        }
        if !active.pending().is_current(said.attempt) {
            return Err(state.not_current());
        }
        if let Some(binding) = binding {
            state.check_runs_for(&active.pending().worker, binding)?;
        }
        // Children of the agent that it stands in for are not its own, even with equal keys.
        let key = match active.pending().runner() {
            runner if runner != active.pending().agent && !key.is_empty() => {
                format!("{runner}/{key}")
            }
            _ => key,
        };
        let calling = CallingAttempt {
            task: said.task,
            attempt: said.attempt,
            context_id: active.pending().context_id.clone(),
            key,
            detached,
        };
        let principal = active.pending().principal.clone();
        Ok(Caller { principal, agents: Vec::new(), calling: Some(Box::new(calling)), ..caller })
    }
}

impl Core {
    /// Authenticates an attempt, with the store if necessary: an attempt that is not current here
    /// is over, or runs at another coordinator. The copy in memory may be stale, or ahead of the
    /// store.
    pub(crate) async fn authenticate_attempt_with_store(
        &self,
        caller: Caller,
        claimed: AttemptCredentials,
    ) -> Result<Caller, Error> {
        let token = claimed.token.clone();
        match self.authenticate_attempt(caller, claimed) {
            Err(Error::NotOwner) => Err(self.moved_or_over(&token).await?),
            believed => believed,
        }
    }

    async fn moved_or_over(&self, token: &str) -> Result<Error, Error> {
        let Some(said) = AttemptClaims::read(token) else { return Ok(Error::AttemptOver) };
        let (id, attempt) = (said.task, said.attempt);
        let stored = self.store.task(id, Scope::default()).await?;
        let lives = stored.is_some_and(|stored| stored.task.is_current(attempt));
        Ok(if lives { Error::NotOwner } else { Error::AttemptOver })
    }
}
