//! The runbook in the README of the chart: it covers every reason and cluster alert for operators,
//! and names no unknown reason.

use std::{collections::BTreeSet, fs};

use faultline_proto::reason::{Actor, TABLE};
use yaml_rust2::YamlLoader;

use crate::{chart, root};

/// The last part of the README.
fn runbook() -> String {
    let text = fs::read_to_string(chart().join("README.md")).expect("there is a README");
    let (_, runbook) = text.split_once("\n## Runbook").expect("it has a runbook");
    runbook.to_owned()
}

#[test]
fn every_reason_that_an_operator_acts_on_is_in_the_runbook() {
    let runbook = runbook();
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

/// Operators have no tasks of their own: without `--all` the list would be empty.
#[test]
fn runbook_lists_tasks_of_all_principals() {
    let rules = fs::read_to_string(root().join("deploy/prometheus/rules.yaml"));
    for text in [runbook(), rules.expect("there are rules")] {
        let mut lists = text.split("`faultline list").skip(1).peekable();
        assert!(lists.peek().is_some(), "it lists tasks");
        for list in lists {
            assert!(list.starts_with(" --all "), "faultline list{list:.40}");
        }
    }
}

/// Faults between coordinators and their database have alerts instead of reasons.
#[test]
fn every_alert_of_the_cluster_is_in_the_runbook() {
    let rules = root().join("deploy/prometheus/rules.yaml");
    let rules = fs::read_to_string(rules).expect("there are rules");
    let rules = &YamlLoader::load_from_str(&rules).expect("it is YAML")[0];
    let groups = rules["groups"].as_vec().expect("there are groups").iter();
    let mut cluster = groups.filter(|group| group["name"].as_str() == Some("faultline-cluster"));
    let alerts = cluster.next().and_then(|group| group["rules"].as_vec());
    let runbook = runbook();
    let rows: Vec<_> = runbook.lines().filter(|line| line.starts_with('|')).collect();
    for alert in alerts.expect("the cluster has alerts") {
        let name = format!("`{}`", alert["alert"].as_str().expect("it has a name"));
        let seen = |row: &&str| row.split('|').nth(1).is_some_and(|cell| cell.contains(&name));
        assert!(rows.iter().any(seen), "{name} is not in the runbook");
    }
}
