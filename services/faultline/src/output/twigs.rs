//! The lines of a tree: hops with columns that line up, notes between them, and which of many
//! siblings are worth a line.

use std::collections::BTreeMap;

use faultline_client::{is_final, is_waiting};
use faultline_proto::{a2a::TaskState, failure::state_word};

use crate::{
    output::paint::Paint,
    tree::{Below, Tree},
};

/// Siblings that went well, of one parent, and those that did not: each a line, the rest counted.
const QUIET_MAX: usize = 8;
const LOUD_MAX: usize = 16;

pub(super) enum Line {
    Hop(Hop),
    Note { margin: String, text: String },
}

pub(super) struct Hop {
    pub(super) twig: String,
    pub(super) agent: String,
    pub(super) state: TaskState,
    /// Nobody needs to look here.
    pub(super) is_quiet: bool,
    pub(super) broke: bool,
    /// How long, on which worker, why, and its id.
    pub(super) cells: [String; 4],
}

/// Two spaces from the edge and between columns, as wide as the widest cell.
pub(super) fn aligned(lines: &[Line], paint: Paint) -> String {
    let hops = || {
        lines.iter().filter_map(|line| match line {
            Line::Hop(hop) => Some(hop),
            Line::Note { .. } => None,
        })
    };
    let chars = |text: &str| text.chars().count();
    let name = hops().map(|h| chars(&h.twig) + chars(&h.agent)).max().unwrap_or(0);
    let state = hops().map(|h| chars(state_word(h.state))).max().unwrap_or(0);
    let width = |at: usize| hops().map(|h| chars(&h.cells[at])).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut out = String::new();
    for line in lines {
        match line {
            Line::Note { margin, text } => {
                out.push_str(&format!("  {}{text}\n", paint.dim(margin)));
            }
            Line::Hop(hop) => {
                let gap = " ".repeat(name - chars(&hop.twig) - chars(&hop.agent));
                let word = format!("{:<state$}", state_word(hop.state));
                let [took, tried, reason, id] =
                    std::array::from_fn(|at| format!("{:<1$}", hop.cells[at], widths[at]));
                let why = if widths[2] > 0 { format!("  {}", reason) } else { String::new() };
                let row = match hop.is_quiet {
                    true => {
                        let agent = &hop.agent;
                        paint.dim(format!("{agent}{gap}  {word}  {took}  {tried}{why}  {id}"))
                    }
                    false => format!(
                        "{}{gap}  {}  {took}  {tried}{}  {id}",
                        paint.cyan(&hop.agent),
                        painted(hop.state, &word, paint),
                        paint.bold(why),
                    ),
                };
                let here = if hop.broke { paint.red("  ← it broke here") } else { String::new() };
                out.push_str(&format!("  {}{}{here}\n", paint.dim(&hop.twig), row.trim_end()));
            }
        }
    }
    out
}

fn painted(state: TaskState, word: &str, paint: Paint) -> String {
    match state {
        TaskState::Completed => paint.green(word),
        TaskState::Failed | TaskState::Rejected => paint.red(word),
        _ if is_waiting(state) => paint.yellow(word),
        _ if is_final(state) => paint.dim(word),
        _ => paint.cyan(word),
    }
}

/// The siblings that get a line, in their order, and in words how many do not.
#[derive(Default)]
pub(super) struct Shown<'a> {
    pub(super) below: Vec<&'a Below>,
    pub(super) rest: String,
}

/// `matters`: it gets a line however many there are.
pub(super) fn shown(below: &[Below], matters: impl Fn(&Tree) -> bool) -> Shown<'_> {
    let (mut quiet, mut loud) = (0, 0);
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    let mut shown = Vec::new();
    for one in below {
        let state = match one {
            Below::Seen(tree) => tree.state(),
            Below::Unseen(child) => child.state(),
        };
        let (count, max) = match state {
            TaskState::Completed | TaskState::Canceled => (&mut quiet, QUIET_MAX),
            _ => (&mut loud, LOUD_MAX),
        };
        let always = matches!(one, Below::Seen(tree) if matters(tree));
        if always || *count < max {
            *count += 1;
            shown.push(one);
        } else {
            *left.entry(state_word(state)).or_default() += 1;
        }
    }
    let rest: Vec<_> = left.iter().map(|(word, count)| format!("{count} more {word}")).collect();
    Shown { below: shown, rest: rest.join(", ") }
}
