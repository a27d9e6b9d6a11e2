//! `faultline top`: the whole mesh on one screen. A pure function of the snapshot and the size of
//! the screen.

use faultline_proto::v1::{
    ActivityResponse, Agent, AgentsResponse, FailureCount, FailuresResponse, Worker,
    WorkersResponse, health::Circuit,
};
use prost_types::Timestamp;

use crate::output::{
    failures::{self, SPARK_MIN, ago},
    grid::{Cell, CellStyle, Grid, cell, cut, number},
    sparkline::sparkline,
    style::Style,
    text::line,
};

/// The number of seconds over which a rate is averaged.
const RATE_OVER: usize = 10;
/// The buckets of the last minute and of the current second; also the longest sparkline.
const SECONDS: usize = 61;
const BAR: usize = 10;

/// The responses of one refresh. `fetch_snapshot` builds it; nothing changes it later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) agents: AgentsResponse,
    pub(crate) workers: WorkersResponse,
    /// Activity of the last minute in buckets of a second.
    pub(crate) activity: ActivityResponse,
    pub(crate) failures: FailuresResponse,
    pub(crate) at: Timestamp,
}

/// The size and style of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) columns: usize,
    /// `None`: unlimited.
    pub(crate) rows: Option<usize>,
    pub(crate) style: Style,
}

/// The text around the tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScreenContext<'a> {
    pub(crate) gateway: &'a str,
    /// The time window of failures.
    pub(crate) since: &'a str,
    /// The index of the selected failure; `None`: no selection, as in printed output.
    pub(crate) selected: Option<usize>,
    /// The last line.
    pub(crate) foot: &'a str,
    /// A warning in place of the last line.
    pub(crate) trouble: &'a str,
}

pub(crate) fn frame(seen: &Snapshot, around: &ScreenContext<'_>, screen: Screen) -> Vec<String> {
    let Screen { columns, rows, style } = screen;
    let agents: Vec<_> = seen.agents.agents.iter().map(|agent| Row::of(agent, seen)).collect();
    let tables = [agents.len(), seen.workers.workers.len(), seen.failures.failures.len()];
    // Fixed lines: head, blank line, three table heads, two blank lines, and the last line.
    let fixed = 7 + usize::from(rows.is_some());
    let room = rows.map_or(tables, |rows| divide_rows(tables, rows.saturating_sub(fixed)));
    let mut out = vec![head(&agents, around, screen), String::new()];
    let part = |out: &mut Vec<String>, grid: Grid, left: usize, none: &str| {
        let lines = grid.lines(columns, style);
        match lines.len() {
            1 => out.extend([lines[0].clone(), style.dim(cut(none, columns))]),
            _ => out.extend(lines),
        }
        if left > 0 {
            out.push(style.dim(cut(&format!("and {left} more"), columns)));
        }
    };
    let (shown, left) = select_rows(&agents, room[0], Row::is_busy);
    part(&mut out, agent_grid(&shown, columns), left, "no agent was ever offered");
    out.push(String::new());
    let (shown, left) = select_rows(&seen.workers.workers, room[1], is_notable);
    part(&mut out, worker_grid(&shown, &seen.at), left, "no worker is attached");
    out.push(String::new());
    let all = &seen.failures.failures;
    let (from, shown) = window(all, around.selected, room[2]);
    let selected = around.selected.map(|at| at.saturating_sub(from));
    let grid = failures::grid(shown, selected, columns, &seen.at);
    let none = format!("nothing failed in the last {}", around.since);
    part(&mut out, grid, all.len() - from - shown.len(), &none);
    if let Some(rows) = rows {
        out.truncate(rows.saturating_sub(1));
        out.resize(rows.saturating_sub(1), String::new());
        out.push(match around.trouble {
            "" => style.dim(cut(around.foot, columns)),
            trouble => style.yellow(cut(&line(trouble), columns)),
        });
    }
    out
}

/// An agent with its activity.
struct Row<'a> {
    agent: &'a Agent,
    ended: Vec<u32>,
    failed: Vec<u32>,
}

impl<'a> Row<'a> {
    fn of(agent: &'a Agent, seen: &Snapshot) -> Self {
        let activity = seen.activity.agents.iter().find(|one| one.agent == agent.name);
        let none = || vec![0; SECONDS];
        let Some(activity) = activity else { return Self { agent, ended: none(), failed: none() } };
        let ends = activity.completed.iter().zip(&activity.failed).zip(&activity.stopped);
        let ended: Vec<_> = ends.map(|((done, failed), stopped)| done + failed + stopped).collect();
        Self { agent, ended, failed: activity.failed.clone() }
    }

    fn is_busy(&self) -> bool {
        let agent = self.agent;
        let healthy = agent.health.as_ref().is_none_or(|health| health.healthy);
        let tasks = agent.queued + agent.computing + agent.waiting;
        !healthy || tasks > 0 || self.ended.iter().any(|n| *n > 0)
    }
}

/// The mean per second over the last complete seconds.
fn rate(numbers: &[u32]) -> f64 {
    let over = &numbers[..numbers.len().saturating_sub(1)];
    let last = &over[over.len().saturating_sub(RATE_OVER)..];
    last.iter().map(|n| u64::from(*n)).sum::<u64>() as f64 / RATE_OVER as f64
}

fn format_rate(rate: f64) -> String {
    if rate >= 99.95 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

fn head(agents: &[Row<'_>], around: &ScreenContext<'_>, screen: Screen) -> String {
    let style = screen.style;
    let sum = |of: fn(&Agent) -> u32| agents.iter().map(|row| of(row.agent)).sum::<u32>();
    let total = |of: fn(&Row<'_>) -> f64| agents.iter().map(of).fold(0.0, |sum, one| sum + one);
    let ended = total(|row| rate(&row.ended));
    let failed = total(|row| rate(&row.failed));
    let numbers = format!(
        "{} done/s  {} failed/s  {} queued  {} busy  {} waiting",
        format_rate(ended),
        format_rate(failed),
        sum(|agent| agent.queued),
        sum(|agent| agent.computing),
        sum(|agent| agent.waiting)
    );
    let name = format!("faultline  {}", line(around.gateway));
    let left = cut(&name, screen.columns.saturating_sub(numbers.chars().count() + 2));
    let gap = screen.columns.saturating_sub(left.chars().count() + numbers.chars().count());
    let painted = left.replacen("faultline", &style.bold("faultline"), 1);
    if left.is_empty() {
        cut(&numbers, screen.columns)
    } else {
        format!("{painted}{}{numbers}", " ".repeat(gap.min(screen.columns)))
    }
}

fn agent_grid(rows: &[&Row<'_>], columns: usize) -> Grid {
    let cells = |row: &&Row<'_>| -> Vec<Cell> {
        let agent = row.agent;
        let up = if agent.workers == 0 { CellStyle::Yellow } else { CellStyle::Plain };
        let queued = if agent.queued > 0 { CellStyle::Yellow } else { CellStyle::Plain };
        vec![
            cell(line(&agent.name), CellStyle::Cyan),
            circuit(agent),
            match agent.workers {
                0 => number("none", up),
                workers => number(workers, up),
            },
            number(agent.queued, queued),
            number(agent.computing, CellStyle::Plain),
            number(agent.waiting, CellStyle::Plain),
            number(format_rate(rate(&row.ended)), CellStyle::Plain),
            number(format_rate(rate(&row.failed)), CellStyle::Red),
        ]
    };
    let heads = ["AGENT", "CIRCUIT", "WORKERS", "QUEUED", "BUSY", "WAITING", "DONE/S", "FAIL/S"];
    let mut grid = Grid::new(&heads, rows.iter().map(cells).collect());
    // Two sparklines if both fit, otherwise only that of the failures.
    let rest = columns.saturating_sub(grid.width() + 2);
    let each = (rest.saturating_sub(2) / 2).min(SECONDS);
    let both = each >= SPARK_MIN;
    if both {
        let done = rows.iter().map(|row| cell(sparkline(&row.ended, each), CellStyle::Green));
        grid.push("DONE", done);
    }
    if rest >= SPARK_MIN {
        let width = if both { each } else { rest };
        grid.push(
            "FAILED",
            rows.iter().map(|row| cell(sparkline(&row.failed, width), CellStyle::Red)),
        );
    }
    grid
}

fn circuit(agent: &Agent) -> Cell {
    let health = agent.health.unwrap_or_default();
    match health.circuit() {
        Circuit::Unspecified => cell("", CellStyle::Dim),
        Circuit::Closed if health.consecutive_failures > 0 => {
            cell(format!("closed {}✗", health.consecutive_failures), CellStyle::Yellow)
        }
        Circuit::Closed => cell("closed", CellStyle::Dim),
        Circuit::Open => cell("open", CellStyle::Red),
        Circuit::HalfOpen => cell("half-open", CellStyle::Yellow),
    }
}

fn is_notable(worker: &Worker) -> bool {
    worker.draining || !worker.attached || worker.orphans > 0 || worker.used > 0
}

fn worker_grid(workers: &[&Worker], now: &Timestamp) -> Grid {
    let cells = |worker: &&Worker| -> Vec<Cell> {
        let (word, cell_style) = match (worker.attached, worker.draining) {
            (false, _) => ("away", CellStyle::Red),
            (true, true) => ("draining", CellStyle::Yellow),
            (true, false) => ("attached", CellStyle::Dim),
        };
        let full = worker.slots > 0 && worker.used >= worker.slots;
        let used = if full { CellStyle::Yellow } else { CellStyle::Plain };
        let agents: Vec<_> = worker.agents.iter().map(|agent| line(agent)).collect();
        vec![
            cell(line(&worker.name), CellStyle::Cyan),
            cell(word, cell_style),
            cell(bar(worker.used, worker.slots), used),
            number(worker.used, used),
            number(worker.slots, CellStyle::Plain),
            number(worker.orphans, CellStyle::Red),
            cell(ago(worker.since.as_ref(), now), CellStyle::Plain),
            cell(agents.join(" "), CellStyle::Plain),
        ]
    };
    let heads = ["WORKER", "STATE", "SLOTS", "USED", "OF", "ORPHANS", "FOR", "AGENTS"];
    Grid::new(&heads, workers.iter().map(cells).collect())
}

fn bar(used: u32, slots: u32) -> String {
    let full = match slots {
        0 => 0,
        slots => (used as usize * BAR).div_ceil(slots as usize).min(BAR),
    };
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

/// Divides lines among three tables: each receives its demand up to a third of the lines; the rest
/// goes to failures, agents and workers, in this order.
fn divide_rows(wants: [usize; 3], lines: usize) -> [usize; 3] {
    let mut given = wants.map(|want| want.max(1).min(lines / 3));
    let mut left = lines.saturating_sub(given.iter().sum());
    for at in [2, 0, 1] {
        let more = wants[at].saturating_sub(given[at]).min(left);
        given[at] += more;
        left -= more;
    }
    given
}

/// The rows that fit, in their order, and the number of hidden rows. Rows that matter are
/// preferred; the line with the number of hidden rows takes the place of one.
fn select_rows<T>(all: &[T], room: usize, matters: impl Fn(&T) -> bool) -> (Vec<&T>, usize) {
    if all.len() <= room {
        return (all.iter().collect(), 0);
    }
    let fit = room.saturating_sub(1);
    let mut ranked: Vec<_> = all.iter().enumerate().collect();
    ranked.sort_by_key(|(at, one)| (!matters(one), *at));
    ranked.truncate(fit);
    ranked.sort_by_key(|(at, _)| *at);
    (ranked.into_iter().map(|(_, one)| one).collect(), all.len() - fit)
}

/// The part of the list that contains the selected row, and the index of its first row.
fn window(all: &[FailureCount], selected: Option<usize>, room: usize) -> (usize, &[FailureCount]) {
    if all.len() <= room {
        return (0, all);
    }
    let fit = room.saturating_sub(1);
    let from = selected.map_or(0, |at| (at + 1).saturating_sub(fit)).min(all.len() - fit);
    (from, &all[from..from + fit])
}

#[cfg(test)]
mod tests;
