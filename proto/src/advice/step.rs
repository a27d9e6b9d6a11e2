//! The texts of the advice, and the choice between them.

use std::time::Duration;

use tonic::Code;

use super::{Birth, Chain, Party, Reader, Verdict, Writer, span};
use crate::{
    Failure,
    reason::{self, A2A, Actor, Reason, Retry},
};

pub(super) struct View<'a> {
    pub(super) failure: &'a Failure,
    pub(super) row: &'static Reason,
    pub(super) chain: Chain<'a>,
    pub(super) reader: Reader,
}

pub(super) type Step = (Verdict, Party, String);

impl View<'_> {
    fn is(&self, rows: &[&'static Reason]) -> bool {
        rows.contains(&self.row)
    }

    /// The place of birth, as the subject of a sentence.
    fn place(&self) -> String {
        match (self.chain.birth, self.chain.origin) {
            (Birth::Mesh, _) => "the mesh".to_owned(),
            (Birth::Remote, "") => "the remote server".to_owned(),
            (Birth::Remote, name) => format!("remote agent '{name}'"),
            (Birth::Coordinator | Birth::Agent, name) => format!("agent '{name}'"),
        }
    }

    /// The party that answers for the place of birth.
    fn responsible(&self) -> Party {
        match self.chain.birth {
            Birth::Mesh | Birth::Coordinator => Party::Operator,
            Birth::Agent => Party::Owner(self.chain.origin.to_owned()),
            Birth::Remote => Party::Remote(self.chain.origin.to_owned()),
        }
    }

    /// `fault`, then the part of the reader: a caller reports, and an operator is told which party
    /// does what.
    fn report(&self, actor: Party, fault: impl std::fmt::Display, remedy: &str) -> Step {
        let text = match (self.reader, &actor) {
            (Reader::Operator, Party::Operator) => format!("{fault}: {remedy}"),
            (Reader::Operator, actor) => format!("{fault}: {} has to {remedy}", actor.describe()),
            (Reader::Caller, actor) => format!("{fault}: report it to {}", actor.describe()),
        };
        (Verdict::Report, actor, text)
    }

    // Failures that may be retried.

    pub(super) fn retry(&self, delay: Option<Duration>) -> String {
        let step = match self.row {
            row if row.retry == Retry::Enclosing => "start the whole unit of work again",
            row if row == &reason::TASK_TIMEOUT => "send again with more time",
            row if row == &reason::RECONNECT_EXHAUSTED => {
                "see whether the task goes on, and send again if not"
            }
            _ => "send again",
        };
        let step = match delay {
            Some(delay) => format!("wait {}, then {step}", span(delay)),
            None => step.to_owned(),
        };
        let step = match self.reader {
            Reader::Caller => step,
            Reader::Operator => format!("the caller may {step}"),
        };
        match self.lasting() {
            Some(lasting) => format!("{step}; if it happens again, {lasting}"),
            None => step,
        }
    }

    /// The step after the next one, if retries do not help. Most reasons with which the caller
    /// deals alone have none.
    fn lasting(&self) -> Option<String> {
        let (birth, origin) = (self.chain.birth, self.chain.origin);
        let is_mesh = matches!(birth, Birth::Mesh | Birth::Coordinator);
        let step = match self.row {
            row if row == &reason::MIN_RESULTS_NOT_MET => "read why each branch failed",
            _ if !is_mesh || self.reader == Reader::Caller => {
                let is_callers = self.row.actor == Actor::Caller;
                return (!is_callers).then(|| format!("tell {}", self.responsible().describe()));
            }
            row if row.code == Code::ResourceExhausted => "add workers or raise the limit",
            row if row == &reason::AGENT_UNAVAILABLE && birth == Birth::Coordinator => {
                return Some(format!("start a worker that offers agent '{origin}'"));
            }
            row if row == &reason::WORKER_LOST && birth == Birth::Coordinator => {
                return Some(format!("look for a crash in the log of the worker of '{origin}'"));
            }
            row if row == &reason::CIRCUIT_OPEN && birth == Birth::Coordinator => {
                return Some(format!("find out why the last tasks of agent '{origin}' failed"));
            }
            row if row == &reason::STORE_UNAVAILABLE => {
                "check the disk and the database of the coordinator"
            }
            row if row == &reason::TASK_TIMEOUT => "find the hop that used up the time",
            row if row.actor == Actor::Caller => return None,
            _ => return Some(format!("read the log under failure id {}", self.failure.id)),
        };
        Some(step.to_owned())
    }

    // Failures that may not.

    pub(super) fn no_retry(&self) -> Step {
        let row = self.row;
        if self.failure.declined {
            let text = "a person refused this: do not send it again unless that decision changes";
            return (Verdict::Stop, Party::Person, text.to_owned());
        }
        match row.retry {
            // Otherwise it may be sent again.
            _ if row == &reason::STORE_UNAVAILABLE && self.chain.birth == Birth::Mesh => {
                (Verdict::Check, Party::Caller, self.check())
            }
            Retry::Idempotent => (Verdict::Check, Party::Caller, self.check()),
            Retry::Yes | Retry::Delay | Retry::Enclosing => {
                let fault = format!("{} says that sending again would fail again", self.place());
                self.report(self.responsible(), fault, "find out why")
            }
            Retry::Reauthenticate => self.authenticate(),
            Retry::Never => match row.code {
                Code::Cancelled => self.cancelled(),
                Code::DeadlineExceeded => self.too_late(),
                Code::Internal | Code::DataLoss => self.broken(),
                _ if row.actor != Actor::Caller => self.broken(),
                _ => self.refused(),
            },
        }
    }

    fn check(&self) -> String {
        let step = "check that before sending again, and repeat it only if that does no harm";
        if self.chain.birth == Birth::Mesh {
            return match self.row {
                row if [&reason::OUTCOME_UNKNOWN, &reason::STORE_UNAVAILABLE].contains(&row) => {
                    "the call may have been done: look for the task first, or repeat the send with \
                     the same Idempotency-Key"
                        .to_owned()
                }
                _ => format!("the work may have been done, or go on: {step}"),
            };
        }
        let (place, id) = (self.place(), &self.failure.id);
        match self.chain.birth {
            Birth::Agent if self.is(&[&reason::UNKNOWN, &reason::TASK_FAILED]) => format!(
                "{place} failed without a reason and may have done part of the work: {step}; its \
                 owner finds the cause in the log of its worker under failure id {id}"
            ),
            _ => format!("{place} may have done the work: {step}"),
        }
    }

    fn authenticate(&self) -> Step {
        match (self.chain.birth, self.reader) {
            (Birth::Mesh, Reader::Caller) => {
                let text = "get fresh credentials, then send again";
                (Verdict::Authenticate, Party::Caller, text.to_owned())
            }
            (Birth::Mesh, Reader::Operator) => {
                let text = "the caller needs credentials that are configured here and not expired";
                (Verdict::Authenticate, Party::Caller, text.to_owned())
            }
            _ => {
                let fault =
                    format!("the credentials that {} itself uses were refused", self.place());
                self.report(self.responsible(), fault, "renew them")
            }
        }
    }

    fn cancelled(&self) -> Step {
        let initiator = self.failure.cancel.as_ref().map_or("", |cancel| cancel.initiator.as_str());
        match initiator {
            "deadline" => self.too_late(),
            "agent" if self.chain.birth == Birth::Agent => {
                let fault = format!("{} stopped by itself", self.place());
                self.report(self.responsible(), fault, "find out why")
            }
            _ => {
                let text = "the work was cancelled: send it again only if that was a mistake";
                (Verdict::Stop, Party::Caller, text.to_owned())
            }
        }
    }

    fn too_late(&self) -> Step {
        match self.row {
            row if row == &reason::INPUT_TIMEOUT => {
                let text = format!(
                    "nobody answered the question of {} in time: send it again when a person can \
                     answer",
                    self.asker()
                );
                (Verdict::Fix, Party::Person, text)
            }
            _ => {
                let text = "too little time was left: send it again with more time";
                (Verdict::Fix, Party::Caller, text.to_owned())
            }
        }
    }

    fn asker(&self) -> String {
        match self.chain.birth {
            Birth::Mesh => "the agent".to_owned(),
            _ => self.place(),
        }
    }

    /// A fault that no request can avoid.
    fn broken(&self) -> Step {
        let (place, id, origin) = (self.place(), &self.failure.id, self.chain.origin);
        let owner = || match self.chain.birth {
            Birth::Remote => Party::Remote(origin.to_owned()),
            _ => Party::Owner(origin.to_owned()),
        };
        let agent = self.asker();
        match self.row {
            row if row == &reason::TASK_TOO_LARGE => {
                let fault = format!("{agent} wrote more than one task may hold");
                self.report(owner(), fault, "let it write less")
            }
            row if row == &reason::DELEGATION_TOO_DEEP => {
                let fault = format!("{agent} called others too deep, most likely in a circle");
                self.report(owner(), fault, "end the circle")
            }
            row if row == &reason::INVALID_AGENT_RESPONSE => {
                let fault = format!("{agent} broke the protocol (failure id {id})");
                self.report(owner(), fault, "correct its answers")
            }
            row if row == &reason::EXTENDED_AGENT_CARD_NOT_CONFIGURED => {
                let fault = format!("{place} promises an extended card and has none");
                self.report(self.responsible(), fault, "add the card or withdraw the promise")
            }
            row => {
                let what = if row.code == Code::DataLoss { "lost data" } else { "has a bug" };
                let party = match row.actor {
                    Actor::Author => owner(),
                    _ => self.responsible(),
                };
                let subject = if matches!(party, Party::Operator) { "the mesh" } else { &agent };
                let log = match (&party, row.code) {
                    (Party::Operator, Code::DataLoss) => "restore the store from a backup",
                    (Party::Operator, _) => "read the log of the service under this id",
                    (Party::Remote(_), _) => "look for this id in the log of the server",
                    _ => "read the log of its worker under this id",
                };
                self.report(party, format!("{subject} {what} (failure id {id})"), log)
            }
        }
    }

    /// Something about the request: its writer can change it, and nobody else.
    fn refused(&self) -> Step {
        let place = self.place();
        // Such a refusal meets a call and never a task, so it met a call of the agent itself.
        if self.chain.birth == Birth::Agent && is_of_protocol(self.row) {
            let fault = format!("a call that {place} made was refused ({})", self.row.name);
            return self.report(self.responsible(), fault, "correct the call");
        }
        if self.chain.birth == Birth::Remote && is_of_protocol(self.row) {
            let fault = format!("{place} refused a call of this mesh ({})", self.row.name);
            return self.report(self.responsible(), fault, "find out why");
        }
        let above = match self.chain.writer {
            Writer::Caller if self.row == &reason::TASK_NOT_CANCELABLE => {
                let text = "the task has ended, and its state is final";
                return (Verdict::Stop, Party::Caller, text.to_owned());
            }
            Writer::Caller => return (Verdict::Fix, Party::Caller, self.correct()),
            Writer::Remote => {
                let fault = format!("one agent of {place} sent another a request that it refused");
                let owner = Party::Remote(self.chain.origin.to_owned());
                return self.report(owner, fault, "correct that request");
            }
            Writer::Agent(above) => above,
        };
        let name = if above.is_empty() {
            "the agent that called it".to_owned()
        } else {
            format!("agent '{above}'")
        };
        let (fault, remedy) = match self.row {
            row if row == &reason::AGENT_NOT_FOUND => {
                (format!("{name} called {place}, which does not exist"), "correct that call")
            }
            row if row.code == Code::PermissionDenied => {
                (format!("{place} denied {name} the right"), "ask for that right")
            }
            row if row == &reason::TASK_REJECTED => {
                (format!("{place} declined a task of {name}"), "change the task or the agent")
            }
            _ => (format!("{place} refused the request that {name} wrote"), "correct that request"),
        };
        self.report(Party::Owner(above.to_owned()), fault, remedy)
    }

    /// The step of a caller that wrote the request.
    fn correct(&self) -> String {
        let place = self.place();
        let card = match self.chain.birth {
            Birth::Mesh => "the agent card".to_owned(),
            _ => format!("the card of {place}"),
        };
        match self.row.name {
            "TASK_NOT_FOUND" => "check the task id".to_owned(),
            "AGENT_NOT_FOUND" => match self.chain.origin {
                "" => "check the name of the agent".to_owned(),
                name => format!("there is no agent '{name}': check the name"),
            },
            "SKILL_NOT_FOUND" => format!("use a skill that {card} lists"),
            "PUSH_NOTIFICATION_NOT_SUPPORTED" => {
                "follow the stream or poll: the agent sends no push notifications".to_owned()
            }
            "UNSUPPORTED_OPERATION" => {
                "read the state of the task and the agent card: one of them rules this out".into()
            }
            "CONTENT_TYPE_NOT_SUPPORTED" => format!("send a media type that {card} lists"),
            "CONTENT_TOO_LARGE" => "send less, or a URL instead of the bytes".to_owned(),
            "EXTENSION_SUPPORT_REQUIRED" => {
                "name the extension that the agent card requires in A2A-Extensions".to_owned()
            }
            "VERSION_NOT_SUPPORTED" => {
                "send A2A-Version with a version that the server speaks".to_owned()
            }
            "METHOD_NOT_FOUND" => "use a method of A2A 1.0, such as SendMessage".to_owned(),
            "TASK_REJECTED" => format!(
                "{} declined the task: read its message, then change the request or use another \
                 agent",
                self.asker()
            ),
            _ => match self.row.code {
                Code::NotFound => format!("check the name or id: {place} does not know it"),
                Code::AlreadyExists => "use the existing one, or a new key".to_owned(),
                Code::PermissionDenied => {
                    format!("ask {} for the right", self.responsible().describe())
                }
                Code::FailedPrecondition => format!(
                    "{place} cannot do this in the present state: read the message, change the \
                     state, then send again"
                ),
                Code::Unimplemented => format!("use an operation that {card} offers"),
                _ if !self.failure.violations.is_empty() => {
                    "correct the named fields, then send again".to_owned()
                }
                _ => "correct the request, then send again".to_owned(),
            },
        }
    }
}

/// Whether a reason is about a call of the protocol and not about the content of a message.
fn is_of_protocol(row: &'static Reason) -> bool {
    let of_content = [&reason::INVALID_PARAMS, &reason::CONTENT_TYPE_NOT_SUPPORTED];
    let of_ours = [&reason::AGENT_NOT_FOUND, &reason::INSUFFICIENT_SCOPE];
    row.domain == A2A && !of_content.contains(&row) || of_ours.contains(&row)
}
