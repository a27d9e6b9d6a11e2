//! The next step after a failure: one pure function from the failure, its chain and the reader to a
//! verdict, the party that acts, and a sentence. The CLI, the console and every JSON answer use it,
//! so that no two of them can disagree.
//!
//! Three rules hold for every failure:
//! - The verdict is [`Verdict::Retry`] only if the failure may be retried ([`Failure::may_retry`]),
//!   for every reader, and the text names a delay exactly when there is one ([`Failure::delay`]).
//!   After an unknown outcome ([`Retry::Idempotent`](crate::reason::Retry)) it is
//!   [`Verdict::Check`]. A refusal by a person precedes everything else.
//! - A caller is told to correct a request only if the caller wrote it. A request that failed
//!   further down was written by the agent above the origin, so the owner of that agent acts.
//! - A fault in the code of an agent is a matter of the agent's owner, a fault of a remote agent of
//!   the remote's owner, and a fault of the mesh or of its configuration of the operator.

use std::time::Duration;

use prost_types::{Value, value::Kind};

use crate::{Failure, json, v1};

mod step;

/// Where a failed task carries the advice for its caller.
pub const ADVICE_KEY: &str = "faultline.dev/advice";

/// The person or program that reads the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Sent the request at the top of the chain.
    Caller,
    /// Runs the mesh.
    Operator,
}

/// The kind of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the same again, after the delay if there is one.
    Retry,
    /// Look at what was done already, then decide.
    Check,
    /// Send the same again with fresh credentials.
    Authenticate,
    /// Change something first.
    Fix,
    /// Tell the party that can change something. The caller cannot.
    Report,
    /// Do nothing.
    Stop,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Retry => "retry",
            Verdict::Check => "check",
            Verdict::Authenticate => "authenticate",
            Verdict::Fix => "fix",
            Verdict::Report => "report",
            Verdict::Stop => "stop",
        }
    }
}

/// The party that takes the next step. The names are of agents, empty where they are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Party {
    Caller,
    /// Of an agent of this mesh.
    Owner(String),
    Operator,
    /// The owner of an agent outside the mesh.
    Remote(String),
    Person,
    /// There is nothing to do.
    Nobody,
}

impl Party {
    /// As JSON has it; the name of the agent is beside it.
    pub fn word(&self) -> &'static str {
        match self {
            Party::Caller => "caller",
            Party::Owner(_) => "owner",
            Party::Operator => "operator",
            Party::Remote(_) => "remote",
            Party::Person => "person",
            Party::Nobody => "nobody",
        }
    }

    pub fn agent(&self) -> &str {
        match self {
            Party::Owner(name) | Party::Remote(name) => name,
            Party::Caller | Party::Operator | Party::Person | Party::Nobody => "",
        }
    }

    /// In words; empty: nobody.
    pub fn describe(&self) -> String {
        match self {
            Party::Caller => "the caller".to_owned(),
            Party::Owner(name) if name.is_empty() => "the owner of the agent".to_owned(),
            Party::Owner(name) => format!("the owner of agent '{name}'"),
            Party::Operator => "the operator of the mesh".to_owned(),
            Party::Remote(name) if name.is_empty() => "the owner of the remote server".to_owned(),
            Party::Remote(name) => format!("the owner of remote agent '{name}'"),
            Party::Person => "a person".to_owned(),
            Party::Nobody => String::new(),
        }
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    pub verdict: Verdict,
    pub actor: Party,
    /// Clauses without a capital letter and a full stop.
    pub text: String,
    /// Only beside [`Verdict::Retry`].
    pub retry_after: Option<Duration>,
}

impl Advice {
    /// See [`sentence`].
    pub fn sentence(&self) -> String {
        sentence(&self.to_record())
    }

    pub fn to_record(&self) -> v1::Advice {
        let ms = |delay: Duration| u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
        v1::Advice {
            verdict: self.verdict.word().to_owned(),
            actor: self.actor.word().to_owned(),
            agent: self.actor.agent().to_owned(),
            text: self.text.clone(),
            retry_after_ms: self.retry_after.map(ms),
            party: self.actor.describe(),
        }
    }

    /// As the metadata of a task has it.
    pub fn to_value(&self) -> Value {
        Value { kind: Some(Kind::StructValue(json::to_struct(&self.to_record()))) }
    }
}

/// The next step after a failure, for this reader. The verdict and the actor are the same for every
/// reader; the text tells the reader's part in it.
pub fn advise(failure: &Failure, reader: Reader) -> Advice {
    let view = step::View { failure, row: failure.row(), chain: Chain::of(failure), reader };
    let (verdict, actor, text) = view.step();
    let retry_after = failure.delay().filter(|_| verdict == Verdict::Retry);
    Advice { verdict, actor, text, retry_after }
}

/// The text of a record, and the party that acts unless the text names it.
pub fn sentence(record: &v1::Advice) -> String {
    let (text, party) = (&record.text, &record.party);
    match text.contains(party.as_str()) {
        true => text.clone(),
        false => format!("{text} ({party})"),
    }
}

/// As people say it: 350ms, 1.2s, 2m 3s.
pub fn span(time: Duration) -> String {
    let (ms, seconds) = (time.as_millis(), time.as_secs());
    let tenths = (ms + 50) / 100;
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..59_950 if tenths % 10 == 0 => format!("{}s", tenths / 10),
        1_000..59_950 => format!("{}.{}s", tenths / 10, tenths % 10),
        59_950..3_600_000 => format!("{}m {}s", seconds.max(60) / 60, seconds.max(60) % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// The service at the origin of a failure that the configuration of a remote agent in this mesh
/// caused. Beside `foreign` it stands for the remote server itself.
pub const REMOTE_SETUP: &str = "remote";

/// The place at which a failure was born.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Birth {
    /// A service of the mesh refused a call before there was a task.
    Mesh,
    /// The configuration of a remote agent in this mesh.
    Setup,
    /// The coordinator could not give an agent its task, or ended it.
    Coordinator,
    /// The code of an agent.
    Agent,
    /// A server outside the mesh.
    Remote,
}

/// The author of the request that failed.
enum Writer<'a> {
    Caller,
    /// The agent above the origin, or the agent whose call the mesh refused; empty: the chain lost
    /// its name.
    Agent(&'a str),
    /// An agent of the remote mesh.
    Remote,
}

/// The part of the chain that the advice depends on.
struct Chain<'a> {
    birth: Birth,
    /// The agent at the origin; of a remote failure the agent that stands for it here.
    origin: &'a str,
    writer: Writer<'a>,
}

impl<'a> Chain<'a> {
    fn of(failure: &'a Failure) -> Self {
        let origin = failure.record().origin.as_ref();
        let agent = origin.map_or("", |origin| origin.agent.as_str());
        let birth = match origin.map_or("", |origin| origin.service.as_str()) {
            _ if failure.foreign => Birth::Remote,
            REMOTE_SETUP => Birth::Setup,
            _ if agent.is_empty() => Birth::Mesh,
            "coordinator" | "gateway" => Birth::Coordinator,
            _ => Birth::Agent,
        };
        // `ours:theirs` is a hop of a remote mesh, quoted below the agent that stands for it.
        let is_theirs = |name: &&str| birth == Birth::Remote && name.contains(':');
        let names = || failure.causes.iter().map(|cause| cause.agent.as_str());
        let ours: Vec<_> = names().filter(|name| !is_theirs(name)).collect();
        let writer = match ours.as_slice() {
            _ if names().filter(is_theirs).count() > 1 => Writer::Remote,
            [] | [_] => Writer::Caller,
            [.., _, _] if failure.causes_dropped > 0 => Writer::Agent(""),
            [.., above, _] => Writer::Agent(above),
        };
        Self { birth, origin: agent, writer }
    }
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
