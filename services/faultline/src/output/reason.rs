//! The reason table, as text for people and as JSON.

use faultline_proto::{
    Failure,
    advice::{Party, Reader, advise},
    reason::{self, Reason},
    v1::Origin,
};
use serde_json::json;

use crate::{
    exit::Exit,
    output::{
        style::Style,
        text::{columns, wrapped},
    },
};

/// The actor of a reason for which the advice depends on the place of the failure.
const DEPENDS: &str = "depends on where it failed: see the task's advice";

/// The party that the advice names, if it is the same at every place at which this reason may
/// arise; otherwise `None`.
fn actor(row: &'static Reason) -> Option<String> {
    let born = |agent: &str, service: &str| {
        let origin = Origin { agent: agent.into(), service: service.into(), ..Origin::default() };
        Failure::new(row).born_at(origin)
    };
    let agent = born("agent", "worker");
    let mut theirs = agent.record().clone();
    theirs.foreign = true;
    let places = [
        born("", "gateway"),
        born("agent", "coordinator"),
        agent.clone(),
        agent.wrap("caller", "", ""),
        Failure::from_record(theirs),
    ];
    let mut actors = places.iter().map(|failure| advise(failure, Reader::Caller).actor);
    let first = actors.next()?;
    let is_one = actors.all(|other| other.word() == first.word());
    is_one.then(|| match first {
        Party::Nobody => "nobody".to_owned(),
        // The name of an agent is that of a place above.
        Party::Owner(_) => Party::Owner(String::new()).describe(),
        Party::Remote(_) => Party::Remote(String::new()).describe(),
        party => party.describe(),
    })
}

/// One reason with all of its facts.
pub(crate) fn card(row: &'static Reason, style: Style) -> String {
    let facts = [
        ("domain", row.domain.to_owned()),
        ("gRPC", format!("{} ({})", reason::code_name(row.code), row.code as i32)),
        ("HTTP", row.http.to_string()),
        ("JSON-RPC", row.jsonrpc.to_string()),
        ("retry", row.retry.describe().to_owned()),
        ("acts", actor(row).unwrap_or_else(|| DEPENDS.to_owned())),
        ("exit code", Exit::of_row(row).to_string()),
    ];
    let rows: Vec<_> = facts
        .into_iter()
        .map(|(name, value)| {
            let name = format!("  {name}");
            vec![(name.clone(), style.dim(name)), (value.clone(), value)]
        })
        .collect();
    let help = wrapped(row.help, "  ", 80);
    format!("{}   {}\n\n{}\n{help}\n", style.bold(row.name), row.title, columns(&rows))
}

/// All reasons, one per line.
pub(crate) fn table(style: Style) -> String {
    let head = ["REASON", "gRPC", "HTTP", "JSON-RPC", "RETRY", "ACTS"];
    let mut rows = vec![head.map(|h| (h.to_owned(), style.dim(h))).to_vec()];
    for row in reason::TABLE {
        let facts = [
            reason::code_name(row.code).to_owned(),
            row.http.to_string(),
            row.jsonrpc.to_string(),
            if row.retry.may_retry() { "yes" } else { "no" }.to_owned(),
            actor(row).unwrap_or_else(|| "depends".to_owned()),
        ];
        let name = (row.name.to_owned(), style.bold(row.name));
        let facts = facts.into_iter().map(|fact| (fact.clone(), fact));
        rows.push(std::iter::once(name).chain(facts).collect());
    }
    columns(&rows)
}

pub(crate) fn json(row: &'static Reason) -> String {
    json!({
        "reason": row.name,
        "domain": row.domain,
        "grpc": { "name": reason::code_name(row.code), "number": row.code as i32 },
        "http": row.http,
        "jsonrpc": row.jsonrpc,
        "retry": row.retry.describe(),
        "actor": actor(row).unwrap_or_else(|| DEPENDS.to_owned()),
        "exitCode": Exit::of_row(row).number(),
        "title": row.title,
        "help": row.help,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_card_lists_all_facts() {
        assert_eq!(
            card(&reason::RATE_LIMITED, Style::plain()),
            "\
RATE_LIMITED   rate limited

  domain     faultline.dev
  gRPC       RESOURCE_EXHAUSTED (8)
  HTTP       429
  JSON-RPC   -31008
  retry      yes, after the delay that came with it, or 1s
  acts       the caller
  exit code  75

  Too much at once. The delay that came with it says when there is room again.
"
        );
    }

    #[test]
    fn actor_of_a_reason_does_not_contradict_the_advice() {
        for row in [&reason::INTERNAL, &reason::INVALID_ARGUMENT, &reason::UNAUTHENTICATED] {
            assert!(card(row, Style::plain()).contains(&format!("acts       {DEPENDS}\n")));
            assert!(json(row).contains(DEPENDS), "{}", row.name);
        }
        for row in [&reason::RATE_LIMITED, &reason::TASK_TIMEOUT, &reason::WORKER_LOST] {
            assert_eq!(actor(row).as_deref(), Some("the caller"), "{}", row.name);
        }
        let timeout = card(&reason::TASK_TIMEOUT, Style::plain());
        let retry = "retry      only if repeating does no harm: the work may have been done\n";
        assert!(timeout.contains(retry) && timeout.contains("exit code  70\n"), "{timeout}");
    }

    #[test]
    fn reason_cards_fit_a_terminal() {
        for row in reason::TABLE {
            let card = card(row, Style::plain());
            assert!(card.lines().all(|l| l.chars().count() <= 80), "{card}");
            assert!(serde_json::from_str::<serde_json::Value>(&json(row)).is_ok());
        }
    }
}
