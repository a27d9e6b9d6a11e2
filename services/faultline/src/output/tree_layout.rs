//! The layout of a tree: hops with aligned columns, notes between them, and the selection of the
//! siblings that get a line.

use std::collections::BTreeMap;

use faultline_client::{is_final, is_waiting};
use faultline_proto::{a2a::TaskState, failure::state_word};

use crate::{
    output::style::Style,
    task_tree::{Subtask, TaskTree},
};

/// Bounds per parent on the lines for completed or cancelled tasks and for all others; the rest is
/// counted.
const UNREMARKABLE_MAX: usize = 8;
const NOTABLE_MAX: usize = 16;

/// One line of the tree.
pub(super) enum Line {
    Hop(Hop),
    Note { margin: String, text: String },
}

/// The line of one task. `TreeView` builds it; nothing changes it later.
pub(super) struct Hop {
    pub(super) connector: String,
    pub(super) agent: String,
    pub(super) state: TaskState,
    /// Off the failure path, or completed.
    pub(super) is_dimmed: bool,
    /// The failure originated here.
    pub(super) is_origin: bool,
    /// Duration, worker or attempts, reason, task id.
    pub(super) cells: [String; 4],
}

/// The heads of the columns.
const HEADS: [&str; 6] = ["AGENT", "STATE", "TOOK", "TRIED", "REASON", "TASK"];

/// Aligns the columns: two spaces at the edge and between columns, each as wide as its widest cell.
/// An empty column is left out.
pub(super) fn align(lines: &[Line], style: Style) -> String {
    let hops = || {
        lines.iter().filter_map(|line| match line {
            Line::Hop(hop) => Some(hop),
            Line::Note { .. } => None,
        })
    };
    let chars = |text: &str| text.chars().count();
    let widths: [usize; 6] =
        std::array::from_fn(|at| match hops().map(|hop| chars(&hop.cell(at))).max().unwrap_or(0) {
            0 => 0,
            widest => widest.max(chars(HEADS[at])),
        });
    let row = |cell: &dyn Fn(usize) -> String, style: &dyn Fn(usize, &str) -> String| {
        let mut row = String::new();
        let last = (0..6).rfind(|at| !cell(*at).is_empty()).unwrap_or(0);
        for at in (0..=last).filter(|at| widths[*at] > 0) {
            let text = cell(at);
            row.push_str(&style(at, &text));
            if at < last {
                row.push_str(&" ".repeat(widths[at] - chars(&text) + 2));
            }
        }
        row
    };
    let head = row(&|at| HEADS[at].to_owned(), &|_, text| style.dim(text));
    let mut out = format!("  {head}\n");
    for line in lines {
        match line {
            Line::Note { margin, text } => {
                out.push_str(&format!("  {}{text}\n", style.dim(margin)));
            }
            Line::Hop(hop) => {
                let row = row(&|at| hop.cell(at), &|at, text| hop.painted(at, text, style));
                let here =
                    if hop.is_origin { style.red("  ← it broke here") } else { String::new() };
                out.push_str(&format!("  {row}{here}\n"));
            }
        }
    }
    out
}

impl Hop {
    fn cell(&self, at: usize) -> String {
        match at {
            0 => format!("{}{}", self.connector, self.agent),
            1 => state_word(self.state).to_owned(),
            at => self.cells[at - 2].clone(),
        }
    }

    fn painted(&self, at: usize, text: &str, style: Style) -> String {
        match at {
            _ if self.is_dimmed => style.dim(text),
            0 => format!("{}{}", style.dim(&self.connector), style.cyan(&self.agent)),
            1 => painted(self.state, text, style),
            4 => style.bold(text),
            _ => text.to_owned(),
        }
    }
}

fn painted(state: TaskState, word: &str, style: Style) -> String {
    match state {
        TaskState::Completed => style.green(word),
        TaskState::Failed | TaskState::Rejected => style.red(word),
        _ if is_waiting(state) => style.yellow(word),
        _ if is_final(state) => style.dim(word),
        _ => style.cyan(word),
    }
}

/// The siblings that get a line, in their order, and a text with the number of hidden ones.
#[derive(Default)]
pub(super) struct VisibleSubtasks<'a> {
    pub(super) subtasks: Vec<&'a Subtask>,
    pub(super) rest: String,
}

/// Selects the siblings that get a line; those for which `matters` holds always do.
pub(super) fn select_visible(
    below: &[Subtask],
    matters: impl Fn(&TaskTree) -> bool,
) -> VisibleSubtasks<'_> {
    let mut unremarkable = 0;
    let mut notable = 0;
    let mut hidden: BTreeMap<&str, usize> = BTreeMap::new();
    let mut shown = Vec::new();
    for one in below {
        let state = match one {
            Subtask::Loaded(tree) => tree.state(),
            Subtask::NotLoaded(child) => child.state(),
        };
        let (count, max) = match state {
            TaskState::Completed | TaskState::Canceled => (&mut unremarkable, UNREMARKABLE_MAX),
            _ => (&mut notable, NOTABLE_MAX),
        };
        let always = matches!(one, Subtask::Loaded(tree) if matters(tree));
        if always || *count < max {
            *count += 1;
            shown.push(one);
        } else {
            *hidden.entry(state_word(state)).or_default() += 1;
        }
    }
    let rest: Vec<_> = hidden.iter().map(|(word, count)| format!("{count} more {word}")).collect();
    VisibleSubtasks { subtasks: shown, rest: rest.join(", ") }
}
