//! The texts of the advice, and the choice between them.

use std::time::Duration;

use tonic::Code;

use super::{Birth, Chain, Party, Reader, Verdict, Writer, span};
use crate::{
    Failure,
    reason::{self, A2A, Actor, Reason, Retry},
    v1::Cause,
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
            (Birth::Mesh | Birth::Setup, _) => "the mesh".to_owned(),
            (Birth::Remote, "") => "the remote server".to_owned(),
            (Birth::Remote, name) => format!("remote agent '{name}'"),
            (Birth::Coordinator | Birth::Agent, name) => format!("agent '{name}'"),
        }
    }

    /// The party that answers for the place of birth.
    fn responsible(&self) -> Party {
        match self.chain.birth {
            Birth::Mesh | Birth::Setup | Birth::Coordinator => Party::Operator,
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

    /// A refusal by a person comes first, then work that may have been done, then the retry class.
    pub(super) fn step(&self) -> Step {
        if self.failure.declined {
            let text = "a person refused this: do not send it again unless that decision changes";
            return (Verdict::Stop, Party::Person, text.to_owned());
        }
        if self.failure.may_retry() {
            return (Verdict::Retry, Party::Caller, self.retry(self.failure.delay()));
        }
        self.no_retry()
    }

    // Failures that may be retried.

    fn retry(&self, delay: Option<Duration>) -> String {
        let is_enclosing = self.row.retry == Retry::Enclosing;
        let is_callers =
            matches!((self.chain.birth, &self.chain.writer), (Birth::Mesh, Writer::Caller));
        let is_keyed = self.failure.repeat_with_key && is_callers;
        let send = match () {
            () if is_enclosing => "send the whole request again from its beginning",
            () if is_keyed => "send again with the same Idempotency-Key",
            () => "send again",
        };
        let step = match (self.reader, delay) {
            (Reader::Caller, Some(delay)) => format!("wait {}, then {send}", span(delay)),
            (Reader::Caller, None) => send.to_owned(),
            (Reader::Operator, Some(delay)) => {
                format!("the caller can {send} after {}", span(delay))
            }
            (Reader::Operator, None) => format!("the caller can {send}"),
        };
        let step = match is_enclosing {
            true => format!("other work came first: {step}"),
            false => step,
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
        let is_mesh = matches!(birth, Birth::Mesh | Birth::Setup | Birth::Coordinator);
        let step = match self.row {
            row if row == &reason::MIN_RESULTS_NOT_MET => "read why each branch failed",
            // The coordinator notes the loss of a worker in the name of that worker.
            row if row == &reason::WORKER_LOST && birth != Birth::Remote => {
                return Some(match (self.reader, origin) {
                    (Reader::Caller, _) => format!("tell {}", Party::Operator.describe()),
                    (Reader::Operator, "") => "look for a crash in the log of the worker".into(),
                    (Reader::Operator, name) => {
                        format!("look for a crash in the log of the worker of agent '{name}'")
                    }
                });
            }
            _ if !is_mesh || self.reader == Reader::Caller => {
                let is_callers = self.row.actor == Actor::Caller;
                return (!is_callers).then(|| format!("tell {}", self.responsible().describe()));
            }
            row if row.code == Code::ResourceExhausted => "add workers or raise the limit",
            row if row == &reason::AGENT_UNAVAILABLE && birth == Birth::Coordinator => {
                return Some(format!("start a worker that offers agent '{origin}'"));
            }
            row if row == &reason::CIRCUIT_OPEN && birth == Birth::Coordinator => {
                return Some(format!("find out why the last tasks of agent '{origin}' failed"));
            }
            row if row == &reason::STORE_UNAVAILABLE => {
                "check the disk and the database of the coordinator"
            }
            row if row.actor == Actor::Caller => return None,
            _ => return Some(format!("read the log under failure id {}", self.failure.id)),
        };
        Some(step.to_owned())
    }

    // Failures that may not.

    fn no_retry(&self) -> Step {
        let row = self.row;
        if self.chain.birth == Birth::Setup {
            return self.misconfigured();
        }
        match row.retry {
            // The flag of both says that the work may have been done.
            _ if row == &reason::WORKER_LOST => self.check(),
            _ if row == &reason::STORE_UNAVAILABLE && self.chain.birth == Birth::Mesh => {
                self.check()
            }
            Retry::Idempotent => self.check(),
            Retry::Yes | Retry::Delay | Retry::Enclosing => {
                let place = match self.chain.birth {
                    Birth::Coordinator => "the mesh".to_owned(),
                    _ => self.place(),
                };
                let fault = format!("{place} marked this as not retryable");
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

    /// The mesh and a remote server do not fit: only the configuration can change that.
    fn misconfigured(&self) -> Step {
        let (agent, section) = match self.chain.origin {
            "" => ("a remote agent".to_owned(), "the section of that agent".to_owned()),
            name => (format!("remote agent '{name}'"), format!("`remote.{name}`")),
        };
        let fault = format!("the configuration of {agent} does not fit its server");
        self.report(Party::Operator, fault, &format!("correct {section} as the message says"))
    }

    fn check(&self) -> Step {
        (Verdict::Check, Party::Caller, self.look())
    }

    fn look(&self) -> String {
        let step = "check that before sending again, and repeat it only if that does no harm";
        let (place, id, row) = (self.place(), &self.failure.id, self.row);
        if row == &reason::RECONNECT_EXHAUSTED {
            let step = "see whether the task goes on, and send again only if it does not and \
                        repeating does no harm";
            return match self.chain.birth {
                Birth::Mesh | Birth::Setup => step.to_owned(),
                _ => format!("{place} lost sight of the task that it had started: {step}"),
            };
        }
        match (self.chain.birth, &self.chain.writer) {
            (Birth::Mesh, Writer::Agent(_)) => {
                return format!("a call that {} made may have been done: {step}", self.above());
            }
            (Birth::Mesh, _) if row == &reason::STORE_UNAVAILABLE && self.has_task() => {
                return "the task is stored: read it later instead of sending again".to_owned();
            }
            (Birth::Mesh, _)
                if self.is(&[&reason::OUTCOME_UNKNOWN, &reason::STORE_UNAVAILABLE]) =>
            {
                return "the call may have been done: look for the task before sending again, \
                        unless the send can be repeated with the same Idempotency-Key"
                    .to_owned();
            }
            (Birth::Mesh, _) => {
                return format!("the work may have been done or still be running: {step}");
            }
            _ => {}
        }
        let outside = [&reason::READ_TIMEOUT, &reason::WRITE_TIMEOUT, &reason::CALL_TIMEOUT];
        match row {
            row if row == &reason::TASK_TIMEOUT => self.out_of_time(),
            row if row == &reason::WORKER_LOST && self.chain.birth != Birth::Remote => {
                let lasting = self.lasting().unwrap_or_default();
                format!(
                    "the worker of {place} was lost and may have done part of the work: {step}; if \
                     it happens again, {lasting}"
                )
            }
            _ if self.is(&outside) => {
                format!("the server that {place} called may have done the work: {step}")
            }
            _ if self.chain.birth == Birth::Agent
                && self.is(&[&reason::UNKNOWN, &reason::TASK_FAILED]) =>
            {
                format!(
                    "{place} failed without a reason and may have done part of the work: {step}; \
                     its owner finds the cause in the log of its worker under failure id {id}"
                )
            }
            _ => format!("{place} may have done the work: {step}"),
        }
    }

    /// The time of the task, or of the task above it, ran out while an agent worked.
    fn out_of_time(&self) -> String {
        let hop = match self.reader {
            Reader::Caller => "",
            Reader::Operator => "; if it happens again, find the hop that used up the time",
        };
        format!(
            "{} ran out of time and may have done part of the work: check that before sending \
             again, and repeat it only if that does no harm, with more time{hop}",
            self.asker()
        )
    }

    fn has_task(&self) -> bool {
        !self.failure.task_id.is_empty()
    }

    fn authenticate(&self) -> Step {
        let is_callers = matches!(self.chain.writer, Writer::Caller);
        match (self.chain.birth, self.reader) {
            (Birth::Mesh, Reader::Caller) if is_callers => {
                let text = "get fresh credentials, then send again";
                (Verdict::Authenticate, Party::Caller, text.to_owned())
            }
            (Birth::Mesh, Reader::Operator) if is_callers => {
                let text = "the caller needs credentials that are configured here and not expired";
                (Verdict::Authenticate, Party::Caller, text.to_owned())
            }
            (Birth::Mesh, _) => {
                let fault = format!("the mesh refused the credentials of {}", self.above());
                self.report(Party::Operator, fault, "renew them")
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
            "deadline" => (Verdict::Check, Party::Caller, self.out_of_time()),
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
                (Verdict::Fix, Party::Caller, text)
            }
            _ => {
                let text = "too little time was left: send it again with more time";
                (Verdict::Fix, Party::Caller, text.to_owned())
            }
        }
    }

    fn asker(&self) -> String {
        match self.chain.birth {
            Birth::Mesh | Birth::Setup => match self.chain.writer {
                Writer::Agent(_) => self.above(),
                _ => "the agent".to_owned(),
            },
            _ => self.place(),
        }
    }

    /// The agent that wrote the request, as the subject of a sentence.
    fn above(&self) -> String {
        match self.chain.writer {
            Writer::Agent(name) if !name.is_empty() => format!("agent '{name}'"),
            _ => "the agent that called it".to_owned(),
        }
    }

    /// A fault that no request can avoid.
    fn broken(&self) -> Step {
        let place = self.place();
        let origin = self.chain.origin;
        let id = self.mark();
        let owner = || match (self.chain.birth, &self.chain.writer) {
            (Birth::Remote, _) => Party::Remote(origin.to_owned()),
            (Birth::Mesh, Writer::Agent(above)) => Party::Owner((*above).to_owned()),
            _ => Party::Owner(origin.to_owned()),
        };
        let agent = self.asker();
        match self.row {
            row if row == &reason::TASK_TOO_LARGE => {
                let fault = format!("{agent} wrote more than one task may hold");
                self.report(owner(), fault, "make it write less")
            }
            row if row == &reason::DELEGATION_TOO_DEEP => {
                let fault = format!("{agent} delegated too deeply, most likely in a circle");
                self.report(owner(), fault, "end the circle")
            }
            row if row == &reason::INVALID_AGENT_RESPONSE => {
                let fault = format!("{agent} broke the protocol ({id})");
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
                    (Party::Remote(_), _) => "look in the log of the server at this time",
                    _ => "read the log of its worker under this id",
                };
                self.report(party, format!("{subject} {what} ({id})"), log)
            }
        }
    }

    /// The words by which the log of the place of birth is searched. The log of a remote server
    /// has neither the failure id nor the task id of this mesh.
    fn mark(&self) -> String {
        if self.chain.birth != Birth::Remote {
            return format!("failure id {}", self.failure.id);
        }
        let time = self.failure.time.map(|time| {
            // The log of another server is not to be compared to a part of a second.
            prost_types::Timestamp { nanos: 0, ..time }.to_string()
        });
        let is_theirs = |cause: &&Cause| cause.agent.contains(':') && !cause.task_id.is_empty();
        let theirs = self.failure.causes.iter().find(is_theirs);
        let task = theirs.map(|cause| format!("remote task {}", cause.task_id));
        let marks: Vec<_> = task.into_iter().chain(time).collect();
        marks.join(", ")
    }

    /// Something about the request: its writer can change it, and nobody else.
    fn refused(&self) -> Step {
        let place = self.place();
        // Such a refusal meets a call and never a task, so it met a call of the agent itself.
        if self.chain.birth == Birth::Agent && is_of_protocol(self.row) {
            let fault = format!("a call that {place} made was refused ({})", self.row.name);
            let remedy = match self.row {
                row if row == &reason::INSUFFICIENT_SCOPE => "get the missing scope",
                _ => "correct the call",
            };
            return self.report(self.responsible(), fault, remedy);
        }
        if self.chain.birth == Birth::Remote && is_of_protocol(self.row) {
            let fault = format!("{place} refused a call of this mesh ({})", self.row.name);
            return self.report(self.responsible(), fault, "find out why");
        }
        if self.is(&[&reason::TASK_REJECTED, &reason::FAILED_PRECONDITION]) {
            return (Verdict::Fix, Party::Caller, self.no());
        }
        let above = match self.chain.writer {
            Writer::Caller if self.row == &reason::TASK_NOT_CANCELABLE => {
                let text = "the task has ended, and its state is final";
                return (Verdict::Stop, Party::Nobody, text.to_owned());
            }
            Writer::Caller => return (Verdict::Fix, Party::Caller, self.correct()),
            Writer::Remote => {
                let fault = format!("one agent of {place} sent another a request that it refused");
                let owner = Party::Remote(self.chain.origin.to_owned());
                return self.report(owner, fault, "correct that request");
            }
            Writer::Agent(above) => above,
        };
        let name = self.above();
        let (fault, remedy) = match self.row {
            row if row == &reason::AGENT_NOT_FOUND && self.chain.origin.is_empty() => {
                (format!("{name} called an agent that does not exist"), "correct that call")
            }
            row if row == &reason::AGENT_NOT_FOUND => {
                (format!("{name} called {place}, which does not exist"), "correct that call")
            }
            // The principal of the caller goes down the chain, and the mesh decides about it.
            row if row.code == Code::PermissionDenied
                && matches!(self.chain.birth, Birth::Mesh | Birth::Coordinator) =>
            {
                let fault = match self.chain.birth {
                    Birth::Coordinator => format!("calls of {name} to {place} are not permitted"),
                    _ => format!("the mesh refused a call of {name}"),
                };
                return self.report(Party::Operator, fault, "permit it, if it should be");
            }
            row if row.code == Code::PermissionDenied => {
                let fault = format!("{place} does not permit what {name} asked for");
                let remedy = format!("ask {} for permission", self.responsible().describe());
                return self.report(Party::Owner(above.to_owned()), fault, &remedy);
            }
            _ => (format!("{place} refused the request that {name} wrote"), "correct that request"),
        };
        self.report(Party::Owner(above.to_owned()), fault, remedy)
    }

    /// An agent that works as it should said no: to the request ("the amount is over the limit")
    /// or because of the state of things ("the order is closed"). The message tells, and only its
    /// reader knows whether the request at the top of the chain can change that, at each depth.
    fn no(&self) -> String {
        let said = match self.row {
            row if row == &reason::TASK_REJECTED => format!("{} declined the task", self.asker()),
            _ => format!("{} cannot do this in the present state", self.place()),
        };
        let owner = match self.chain.writer {
            Writer::Caller => None,
            Writer::Agent(above) => Some(Party::Owner(above.to_owned())),
            Writer::Remote => Some(Party::Remote(self.chain.origin.to_owned())),
        };
        let step = match (owner, self.reader) {
            (None, _) if self.row == &reason::TASK_REJECTED => {
                ", change the request or use another agent, then send again".to_owned()
            }
            (None, _) => ", change the state, then send again".to_owned(),
            (Some(owner), Reader::Caller) => format!(
                "; if the caller can change that, do so and send again, else report it to {}",
                owner.describe()
            ),
            (Some(owner), Reader::Operator) => format!(
                "; if the caller cannot change that, {} has to change the request",
                owner.describe()
            ),
        };
        format!("{said}: read the message{step}")
    }

    /// The step after a refusal for want of a right, by the party that can grant it.
    fn permission(&self) -> String {
        let right = match self.row {
            row if row == &reason::INSUFFICIENT_SCOPE => "the missing scope",
            _ => "permission",
        };
        match (self.reader, self.responsible()) {
            (Reader::Caller, party) => format!("ask {} for {right}", party.describe()),
            (Reader::Operator, Party::Operator) => {
                format!("grant the caller {right}, if the caller should have it")
            }
            (Reader::Operator, party) => {
                format!("the caller can ask {} for {right}", party.describe())
            }
        }
    }

    /// The gateway itself read the request, and no agent was asked.
    fn is_of_gateway(&self) -> bool {
        self.failure.origin.as_ref().is_some_and(|origin| origin.service == "gateway")
    }

    /// The step of a caller that wrote the request.
    fn correct(&self) -> String {
        let place = self.place();
        let card = match self.chain.birth {
            Birth::Mesh | Birth::Setup => "the agent card".to_owned(),
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
            "CONTENT_TYPE_NOT_SUPPORTED" if self.is_of_gateway() => {
                "send the body as application/json, without a Content-Encoding".to_owned()
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
            _ => match self.row.code {
                Code::NotFound => format!("check the name or id: {place} does not know it"),
                Code::AlreadyExists => {
                    "it exists already: use it, or (only for a reused Idempotency-Key) another key"
                        .to_owned()
                }
                Code::PermissionDenied => self.permission(),
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
