//! One row of the table of reasons, for people and for programs.

use faultline_proto::reason::{self, Reason};
use serde_json::json;

use crate::{
    exit::Exit,
    output::{
        style::Style,
        text::{columns, wrapped},
    },
};

pub(crate) fn card(row: &Reason, style: Style) -> String {
    let facts = [
        ("domain", row.domain.to_owned()),
        ("gRPC", format!("{} ({})", reason::code_name(row.code), row.code as i32)),
        ("HTTP", row.http.to_string()),
        ("JSON-RPC", row.jsonrpc.to_string()),
        ("retry", row.retry.describe().to_owned()),
        ("acts", row.actor.describe().to_owned()),
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

/// All of them, a line each.
pub(crate) fn table(style: Style) -> String {
    let head = ["REASON", "gRPC", "HTTP", "JSON-RPC", "RETRY", "ACTS"];
    let mut rows = vec![head.map(|h| (h.to_owned(), style.dim(h))).to_vec()];
    for row in reason::TABLE {
        let facts = [
            reason::code_name(row.code).to_owned(),
            row.http.to_string(),
            row.jsonrpc.to_string(),
            if row.retry.may_retry() { "yes" } else { "no" }.to_owned(),
            row.actor.describe().to_owned(),
        ];
        let name = (row.name.to_owned(), style.bold(row.name));
        let facts = facts.into_iter().map(|fact| (fact.clone(), fact));
        rows.push(std::iter::once(name).chain(facts).collect());
    }
    columns(&rows)
}

pub(crate) fn json(row: &Reason) -> String {
    json!({
        "reason": row.name,
        "domain": row.domain,
        "grpc": { "name": reason::code_name(row.code), "number": row.code as i32 },
        "http": row.http,
        "jsonrpc": row.jsonrpc,
        "retry": row.retry.describe(),
        "actor": row.actor.describe(),
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
    fn a_reason_explains_itself() {
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
    fn every_reason_fits_a_terminal() {
        for row in reason::TABLE {
            let card = card(row, Style::plain());
            assert!(card.lines().all(|l| l.chars().count() <= 80), "{card}");
            assert!(serde_json::from_str::<serde_json::Value>(&json(row)).is_ok());
        }
    }
}
