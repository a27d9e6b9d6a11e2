//! The runbook: whatever an operator has to act on is in it, and it names nothing that is not.

use std::{collections::BTreeSet, fs};

use faultline_proto::reason::{Actor, TABLE};

use crate::chart;

#[test]
fn every_reason_that_an_operator_acts_on_is_in_the_runbook() {
    let text = fs::read_to_string(chart().join("README.md")).expect("there is a README");
    let (_, runbook) = text.split_once("\n## Runbook").expect("it has a runbook");
    let cells = runbook.lines().filter(|line| line.starts_with("| `"));
    let names = cells.flat_map(|line| line.split('|').nth(1).unwrap_or_default().split('`'));
    let is_name =
        |word: &&str| word.len() > 3 && word.chars().all(|c| c == '_' || c.is_ascii_uppercase());
    let named: BTreeSet<&str> = names.filter(is_name).collect();
    let known: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
    assert!(named.is_subset(&known), "not in the table: {:?}", named.difference(&known));
    let acts: BTreeSet<&str> =
        TABLE.iter().filter(|row| row.actor == Actor::Operator).map(|row| row.name).collect();
    assert!(acts.is_subset(&named), "not in the runbook: {:?}", acts.difference(&named));
}
