//! The advice of every reason as a text that people read: `advice.txt`. After a change,
//! `FAULTLINE_GOLDEN=write cargo test -p faultline-proto --test advice` writes it anew; read the
//! difference for sense before it is committed.

use std::fmt::Write;

use faultline_proto::{
    Failure,
    advice::{Reader, advise},
    reason::TABLE,
    v1::{self, Origin},
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/advice.txt");
const HEAD: &str = "\
Advice for every reason: caller (C) and operator (O).

mesh     a service of the mesh refused the call of the caller
door     the coordinator ended, or did not start, the task of agent 'ledger', which the caller sent
0        the code of agent 'ledger' failed, which the caller called
1        the same, called by agent 'billing', which the caller called
4        the same, called by agent 'billing', which agents 'planner', 'desk' and 'front' are above
remote   a server outside the mesh failed, for which agent 'ledger' stands, which the caller called
remote1  the same, called by agent 'billing'

";

fn born(row: &'static faultline_proto::reason::Reason, agent: &str, service: &str) -> Failure {
    let origin = Origin { agent: agent.into(), service: service.into(), ..Origin::default() };
    let record = Failure::new(row).into_record();
    Failure::from_record(v1::Failure { id: "F".into(), ..record }).born_at(origin)
}

fn through(failure: Failure, agents: &[&str]) -> Failure {
    agents.iter().fold(failure, |failure, agent| failure.wrap(agent, "t", "c"))
}

/// As the agent that stands for a remote one quotes it.
fn remote(row: &'static faultline_proto::reason::Reason, agents: &[&str]) -> Failure {
    let mut record = born(row, "ledger:theirs", "remote").into_record();
    record.origin =
        Some(Origin { agent: "ledger".into(), service: "remote".into(), ..<_>::default() });
    record.foreign = true;
    through(Failure::from_record(record), agents)
}

fn written() -> String {
    let mut out = HEAD.to_owned();
    for row in TABLE {
        let cases = [
            ("mesh", born(row, "", "gateway")),
            ("door", born(row, "ledger", "coordinator")),
            ("0", born(row, "ledger", "worker")),
            ("1", through(born(row, "ledger", "worker"), &["billing"])),
            ("4", through(born(row, "ledger", "worker"), &["billing", "planner", "desk", "front"])),
            ("remote", remote(row, &["ledger"])),
            ("remote1", remote(row, &["ledger", "billing"])),
        ];
        writeln!(out, "{}", row.name).expect("a string grows");
        for (name, failure) in cases {
            let [caller, operator] =
                [Reader::Caller, Reader::Operator].map(|r| advise(&failure, r));
            let verdict = caller.verdict.word();
            if caller.text == operator.text {
                writeln!(out, "  {name:<7} {verdict:<6} CO  {}", caller.sentence())
                    .expect("a string grows");
            } else {
                writeln!(out, "  {name:<7} {verdict:<6} C   {}", caller.sentence())
                    .expect("a string grows");
                writeln!(out, "  {:<7} {verdict:<6} O   {}", "", operator.sentence())
                    .expect("a string grows");
            }
        }
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
    let failure = born(&faultline_proto::reason::STORE_UNAVAILABLE, "", "coordinator");
    for reader in [Reader::Caller, Reader::Operator] {
        let unknown = advise(&failure.clone().with_retryable(false), reader);
        assert_eq!(unknown.verdict.word(), "check");
        assert!(unknown.sentence().contains("the same Idempotency-Key"), "{}", unknown.sentence());
        let undone = advise(&failure.clone().with_retryable(true), reader);
        assert_eq!(undone.verdict.word(), "retry");
    }
}
