//! The advice of every reason as a text that people read: `advice.txt`. After a change,
//! `FAULTLINE_GOLDEN=write cargo test -p faultline-proto --test advice` writes it anew; read the
//! difference for sense before it is committed.

use std::fmt::Write;

use tonic::Code;

use faultline_proto::{
    Failure,
    advice::{REMOTE_SETUP, Reader, advise},
    reason::{self, Reason, TABLE},
    v1::{self, Origin},
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/advice.txt");
const HEAD: &str = "\
Advice for every reason: caller (C) and operator (O). Cases with the same advice stand together.

mesh     a service of the mesh refused the call of the caller
mesh1    a service of the mesh failed a call that agent 'billing' made, which the caller called
door     the coordinator ended, or did not start, the task of agent 'ledger', which the caller sent
door1    the same, called by agent 'billing', which the caller called
door4    the same, called by agent 'billing', which agents 'planner', 'desk' and 'front' are above
0        the code of agent 'ledger' failed, which the caller called
1        the same, called by agent 'billing', which the caller called
4        the same, called by agent 'billing', which agents 'planner', 'desk' and 'front' are above
remote   a server outside the mesh failed, for which agent 'ledger' stands, which the caller called
remote1  the same, called by agent 'billing'
setup    the configuration of agent 'ledger', which stands for a server outside the mesh, is wrong
setup1   the same, called by agent 'billing'

";

const FOUR: [&str; 4] = ["billing", "planner", "desk", "front"];

fn born(row: &'static Reason, agent: &str, service: &str) -> Failure {
    let origin = Origin { agent: agent.into(), service: service.into(), ..Origin::default() };
    let time = Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 });
    let record = Failure::new(row).into_record();
    Failure::from_record(v1::Failure { id: "F".into(), time, ..record }).born_at(origin)
}

fn through(failure: Failure, agents: &[&str]) -> Failure {
    agents.iter().fold(failure, |failure, agent| failure.wrap(agent, "t", "c"))
}

/// As the agent that stands for a remote one quotes it.
fn remote(row: &'static Reason, agents: &[&str]) -> Failure {
    let mut record = born(row, "ledger:theirs", "remote").into_record();
    record.causes[0].task_id = "R".into();
    record.origin =
        Some(Origin { agent: "ledger".into(), service: "remote".into(), ..<_>::default() });
    record.foreign = true;
    through(Failure::from_record(record), agents)
}

fn cases(row: &'static Reason) -> Vec<(&'static str, Failure)> {
    let (door, code) = (born(row, "ledger", "coordinator"), born(row, "ledger", "worker"));
    let mesh = born(row, "", "coordinator");
    let mut cases = vec![("mesh", mesh.clone())];
    // Any other refusal of such a call is a failure of the agent that made it.
    let faults = [Code::Unavailable, Code::Internal, Code::DataLoss];
    if faults.contains(&row.code) || row == &reason::OVERLOADED {
        cases.push(("mesh1", through(mesh, &["billing"])));
    }
    cases.extend([
        ("door", door.clone()),
        ("door1", through(door.clone(), &["billing"])),
        ("door4", through(door, &FOUR)),
        ("0", code.clone()),
        ("1", through(code.clone(), &["billing"])),
        ("4", through(code, &FOUR)),
        ("remote", remote(row, &["ledger"])),
        ("remote1", remote(row, &["ledger", "billing"])),
    ]);
    cases
}

fn changed(failure: Failure, change: impl FnOnce(&mut v1::Failure)) -> Failure {
    let mut record = failure.into_record();
    change(&mut record);
    Failure::from_record(record)
}

/// The failures whose record says more than the reason does.
fn marked() -> Vec<(String, Vec<(&'static str, Failure)>)> {
    let mut all = Vec::new();
    let mut add = |title: &str, row, change: &dyn Fn(&mut v1::Failure)| {
        let cases = cases(row).into_iter().map(|(name, f)| (name, changed(f, change)));
        all.push((title.to_owned(), cases.collect()));
    };
    for row in [&reason::TASK_REJECTED, &reason::PERMISSION_DENIED, &reason::UNAVAILABLE] {
        let title = format!("{}, declined by a person, retryable", row.name);
        add(&title, row, &|f| (f.declined, f.retryable) = (true, Some(true)));
    }
    for initiator in ["user", "parent", "deadline", "disconnect", "agent"] {
        let cancel = v1::Cancellation { initiator: initiator.into(), ..<_>::default() };
        let title = format!("CANCELLED by {initiator}");
        add(&title, &reason::CANCELLED, &|f| f.cancel = Some(cancel.clone()));
    }
    for row in [&reason::INTERNAL, &reason::UNKNOWN, &reason::TASK_TIMEOUT] {
        add(&format!("{}, retryable", row.name), row, &|f| f.retryable = Some(true));
    }
    for row in [
        &reason::UNAVAILABLE,
        &reason::RATE_LIMITED,
        &reason::ABORTED,
        &reason::WORKER_LOST,
        &reason::STORE_UNAVAILABLE,
    ] {
        add(&format!("{}, not retryable", row.name), row, &|f| f.retryable = Some(false));
    }
    for row in [&reason::UNAVAILABLE, &reason::STORE_UNAVAILABLE] {
        let title = format!("{}, retryable after 2s with the key of the call", row.name);
        let delay = prost_types::Duration { seconds: 2, nanos: 0 };
        add(&title, row, &|f| {
            (f.repeat_with_key, f.retryable, f.retry_after) = (true, Some(true), Some(delay));
        });
    }
    for row in [&reason::INVALID_AGENT_RESPONSE, &reason::UNAUTHENTICATED] {
        let failure = born(row, "ledger", REMOTE_SETUP);
        let above = through(failure.clone(), &["billing"]);
        let title = format!("{}, by the configuration", row.name);
        all.push((title, vec![("setup", failure), ("setup1", above)]));
    }
    let of_gateway = born(&reason::CONTENT_TYPE_NOT_SUPPORTED, "", "gateway");
    let title = "CONTENT_TYPE_NOT_SUPPORTED, by the gateway".to_owned();
    all.push((title, vec![("mesh", of_gateway)]));
    all
}

/// One paragraph: the names of the cases that share an advice, then that advice.
fn paragraph(out: &mut String, title: &str, cases: &[(&str, Failure)]) {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, failure) in cases {
        let [caller, operator] = [Reader::Caller, Reader::Operator].map(|r| advise(failure, r));
        let verdict = caller.verdict.word();
        let lines = match caller.text == operator.text {
            true => format!("    {verdict:<6} CO  {}\n", caller.sentence()),
            false => format!(
                "    {verdict:<6} C   {}\n    {verdict:<6} O   {}\n",
                caller.sentence(),
                operator.sentence()
            ),
        };
        match groups.iter_mut().find(|(known, _)| *known == lines) {
            Some((_, names)) => names.push(name),
            None => groups.push((lines, vec![name])),
        }
    }
    writeln!(out, "{title}").expect("a string grows");
    for (lines, names) in groups {
        write!(out, "  {}\n{lines}", names.join(" ")).expect("a string grows");
    }
}

fn written() -> String {
    let mut out = HEAD.to_owned();
    for row in TABLE {
        paragraph(&mut out, row.name, &cases(row));
    }
    for (title, cases) in marked() {
        paragraph(&mut out, &title, &cases);
    }
    out
}

#[test]
fn the_advice_of_every_reason_is_as_it_was_read() {
    let now = written();
    if std::env::var_os("FAULTLINE_GOLDEN").is_some() {
        std::fs::write(PATH, &now).unwrap();
    }
    let before = std::fs::read_to_string(PATH).unwrap();
    for (at, (now, before)) in now.lines().zip(before.lines()).enumerate() {
        assert_eq!(now, before, "advice.txt:{}", at + 1);
    }
    assert_eq!(now.lines().count(), before.lines().count());
}

#[test]
fn a_store_that_may_have_taken_the_call_is_checked_before_sending_again() {
    let failure = born(&reason::STORE_UNAVAILABLE, "", "coordinator");
    for reader in [Reader::Caller, Reader::Operator] {
        let unknown = advise(&failure.clone().with_retryable(false), reader);
        assert_eq!(unknown.verdict.word(), "check");
        assert!(unknown.sentence().contains("the same Idempotency-Key"), "{}", unknown.sentence());
        let undone = advise(&failure.clone().with_retryable(true), reader);
        assert_eq!(undone.verdict.word(), "retry");
    }
}
