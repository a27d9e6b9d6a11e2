//! The table of failures by root reason and origin, the most frequent first.

use std::time::Duration;

use faultline_proto::v1::{FailureCount, FailuresResponse};
use prost_types::Timestamp;

use crate::output::{
    grid::{Cell, CellStyle, Grid, cell, number},
    sparkline::sparkline,
    style::Style,
    text::{between, instant, line, span},
};

/// The longest sparkline, and the shortest one that is still useful.
const SPARK_MAX: usize = 61;
pub(crate) const SPARK_MIN: usize = 5;

/// The time since `time`, in whole seconds.
pub(crate) fn ago(time: Option<&Timestamp>, now: &Timestamp) -> String {
    let past = time.and_then(|time| between(time, now)).unwrap_or(Duration::ZERO);
    // Milliseconds would be noise for a past event.
    match past.as_secs() {
        0 => "0s".to_owned(),
        seconds => span(Duration::from_secs(seconds)),
    }
}

/// A time window as a person types it: `15m` and not `15m 0s`.
pub(crate) fn round(time: Duration) -> String {
    let text = span(time);
    let text = text.strip_suffix(" 0s").or_else(|| text.strip_suffix(" 0m")).unwrap_or(&text);
    text.to_owned()
}

/// The table. The selected row begins with a pointer; `None`: no column for pointers.
pub(crate) fn grid(
    failures: &[FailureCount],
    selected: Option<usize>,
    columns: usize,
    now: &Timestamp,
) -> Grid {
    let row = |(at, count): (usize, &FailureCount)| -> Vec<Cell> {
        let mark = match selected {
            Some(chosen) if chosen == at => "› ",
            Some(_) => "  ",
            None => "",
        };
        let cell_style = if selected == Some(at) { CellStyle::Bold } else { CellStyle::Red };
        vec![
            cell(format!("{mark}{}", line(&count.reason)), cell_style),
            cell(line(&count.origin), CellStyle::Cyan),
            number(count.failures, CellStyle::Plain),
            number(count.tasks, CellStyle::Plain),
            cell(ago(count.last.as_ref(), now), CellStyle::Plain),
        ]
    };
    let rows = failures.iter().enumerate().map(row).collect();
    let reason = if selected.is_some() { "  REASON" } else { "REASON" };
    let mut grid = Grid::new(&[reason, "ORIGIN", "FAILURES", "TASKS", "LAST"], rows);
    let rest = columns.saturating_sub(grid.width() + 2).min(SPARK_MAX);
    if rest >= SPARK_MIN {
        let sparks =
            failures.iter().map(|count| cell(sparkline(&count.buckets, rest), CellStyle::Red));
        grid.push("OVER TIME", sparks);
    }
    grid
}

/// `faultline failures`: a table for people, bare lines with tabs for programs.
pub(crate) fn table(
    found: &FailuresResponse,
    for_people: bool,
    columns: usize,
    now: &Timestamp,
    style: Style,
) -> String {
    if for_people {
        let lines = grid(&found.failures, None, columns, now).lines(columns, style);
        return lines.iter().map(|line| format!("{}\n", line.trim_end())).collect();
    }
    let bare = |count: &FailureCount| {
        let last = count.last.as_ref().map(instant).unwrap_or_default();
        format!(
            "{}\t{}\t{}\t{}\t{last}\t{}\n",
            line(&count.reason),
            line(&count.origin),
            count.failures,
            count.tasks,
            line(&count.last_task_id)
        )
    };
    found.failures.iter().map(bare).collect()
}

#[cfg(test)]
mod tests {
    use faultline_proto::json;

    use super::*;

    #[test]
    fn failures_are_a_table_for_people_and_tab_separated_for_programs() {
        let found: FailuresResponse = json::from_str(
            r#"{"failures":[
            {"reason":"RATE_LIMITED","origin":"bank","failures":3,"tasks":12,
             "last":"2026-01-01T00:00:00Z","lastTaskId":"t-1","buckets":[0,1,4,7]},
            {"reason":"INTERNAL","origin":"front","failures":1,"tasks":1,
             "last":"2026-01-01T00:02:00Z","lastTaskId":"t-2","buckets":[0,0,0,1]}]}"#,
        )
        .unwrap();
        let now = Timestamp { seconds: 1_767_225_600 + 123, nanos: 0 };
        let text = table(&found, true, 80, &now, Style::plain());
        assert_eq!(
            text,
            "\
REASON        ORIGIN  FAILURES  TASKS  LAST   OVER TIME
RATE_LIMITED  bank           3     12  2m 3s  ·▂▅█
INTERNAL      front          1      1  3s     ···█
"
        );
        let bare = table(&found, false, 80, &now, Style::plain());
        let first = "RATE_LIMITED\tbank\t3\t12\t2026-01-01T00:00:00.000Z\tt-1\n";
        assert!(bare.starts_with(first), "{bare}");
    }
}
