//! The table of docs/interop.md: a row for each check, a column for each client, and in each cell
//! the bindings on which the check passed.

use std::fmt::Write as _;

use serde_json::Value;

const BEGIN: &str = "<!-- clients: written by tests/run clients -->\n";
const END: &str = "<!-- /clients -->\n";

/// One line of the output of a client.
///
/// Read from its stdout, and kept until the table is written.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) client: String,
    pub(crate) binding: String,
    pub(crate) check: String,
    pub(crate) ok: bool,
    pub(crate) why: String,
}

impl Line {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| line[name].as_str().map(str::to_owned);
        Some(Self {
            client: field("client")?,
            binding: field("binding")?,
            check: field("check")?,
            ok: line["ok"].as_bool()?,
            why: field("why").unwrap_or_default(),
        })
    }
}

/// In the order in which the lines first name each client and each check.
pub(crate) fn table(lines: &[Line]) -> String {
    let clients = in_order(lines.iter().map(|line| line.client.as_str()));
    let checks = in_order(lines.iter().map(|line| line.check.as_str()));
    let mut table = format!("| |{}\n", cells(clients.iter().map(|client| format!(" {client} "))));
    let rule = cells(clients.iter().map(|_| "---".to_owned()));
    let _ = writeln!(table, "|---|{rule}");
    for check in checks {
        let done = clients.iter().map(|client| {
            let of_cell = lines.iter().filter(|line| line.client == *client && line.check == check);
            let bindings: Vec<_> =
                of_cell.filter(|line| line.ok).map(|line| short(&line.binding)).collect();
            format!(" {} ", bindings.join(" "))
        });
        let _ = writeln!(table, "| {check} |{}", cells(done));
    }
    table
}

fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn cells(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| format!("{cell}|")).collect()
}

fn short(binding: &str) -> &str {
    match binding {
        "JSONRPC" => "J",
        "HTTP+JSON" => "R",
        "GRPC" => "G",
        other => other,
    }
}

/// The document with this table between its markers; none if it has no markers.
pub(crate) fn replace(document: &str, table: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}
