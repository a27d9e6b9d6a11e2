//! `faultline explain`: the meaning of a reason, or the history of a task and its subtasks.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use faultline_chassis::config::nearest;
use faultline_proto::{id::TaskId, reason};

use crate::{
    client::connect::Connect,
    exit::Exit,
    output::{self, style::Style, task},
    task_tree::{self, TaskTree},
};

const EXAMPLES: &str = "\
Examples:
  faultline explain                     every reason
  faultline explain RATE_LIMITED        its meaning, the retry class, the party that acts
  faultline explain 0199a1b2-…          a task: the origin of its failure, the path, the advice";

/// Explain a reason, or the history of a task and its failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The id of a task or the name of a reason. Without it, every reason is listed.
    #[arg(value_name = "TASK-OR-REASON")]
    what: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let json = self.connect.json;
        let Some(what) = &self.what else {
            return print(&if json {
                reason::TABLE.iter().map(|r| output::reason::json(r) + "\n").collect()
            } else {
                output::reason::table(Style::stdout())
            });
        };
        if let Some(row) = reason::named(what) {
            return print(&if json {
                output::reason::json(row) + "\n"
            } else {
                output::reason::card(row, Style::stdout())
            });
        }
        if what.parse::<TaskId>().is_err() {
            return Ok(unknown(what));
        }
        self.connect.run(async |client| match task_tree::load(&client, what).await {
            Ok(found) if json => print(&format!("{}\n", found.to_json())),
            Ok(found) => print(&render_explanation(&found, Style::stdout())),
            Err(error) => {
                self.connect.report_error(error, &format!("explain of task {what} failed"))
            }
        })
    }
}

/// A task with subtasks as a tree, any other task as its own history.
pub(crate) fn render_explanation(found: &TaskTree, style: Style) -> String {
    if found.subtasks.is_empty() {
        task::history(&found.task, style)
    } else {
        output::tree::render(found, &SystemTime::now().into(), style)
    }
}

fn print(text: &str) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::OK)
}

fn unknown(what: &str) -> Exit {
    eprintln!("'{what}' is neither the id of a task nor a known reason.");
    match nearest(what, reason::TABLE.iter().map(|row| row.name)) {
        Some(near) => eprintln!("Did you mean {near}?"),
        None => eprintln!("`faultline explain` lists every reason."),
    }
    Exit::BAD_INPUT
}
