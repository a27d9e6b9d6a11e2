//! Tables that fit a screen: aligned columns, numbers flush right. If the table is too wide, the
//! first column is shortened before the end of the line is cut.

use crate::output::style::Style;

/// Between two columns.
const GAP: usize = 2;
/// The minimum width of the shortened first column.
const NAME_MIN: usize = 8;

/// The colour or weight of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellStyle {
    Plain,
    Dim,
    Bold,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl CellStyle {
    pub(crate) fn on(self, text: &str, style: Style) -> String {
        match self {
            CellStyle::Plain => text.to_owned(),
            CellStyle::Dim => style.dim(text),
            CellStyle::Bold => style.bold(text),
            CellStyle::Red => style.red(text),
            CellStyle::Green => style.green(text),
            CellStyle::Yellow => style.yellow(text),
            CellStyle::Cyan => style.cyan(text),
        }
    }
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    cell_style: CellStyle,
    is_number: bool,
}

pub(crate) fn cell(text: impl Into<String>, cell_style: CellStyle) -> Cell {
    Cell { text: text.into(), cell_style, is_number: false }
}

/// A number, flush right. Zeros are dimmed.
pub(crate) fn number(number: impl std::fmt::Display, cell_style: CellStyle) -> Cell {
    let text = number.to_string();
    let cell_style =
        if text.trim_matches(['0', '.']).is_empty() { CellStyle::Dim } else { cell_style };
    Cell { text, cell_style, is_number: true }
}

/// A table before it is laid out.
pub(crate) struct Grid {
    heads: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    pub(crate) fn new(heads: &[&'static str], rows: Vec<Vec<Cell>>) -> Self {
        Self { heads: heads.to_vec(), rows }
    }

    fn widths(&self) -> Vec<usize> {
        let chars = |text: &str| text.chars().count();
        let cells = |at: usize| self.rows.iter().filter_map(move |row| row.get(at));
        let widest = |at: usize| cells(at).map(|cell| chars(&cell.text)).max().unwrap_or(0);
        self.heads.iter().enumerate().map(|(at, head)| widest(at).max(chars(head))).collect()
    }

    /// The width of the table.
    pub(crate) fn width(&self) -> usize {
        self.widths().iter().map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
    }

    /// Appends a column.
    pub(crate) fn push(&mut self, head: &'static str, cells: impl IntoIterator<Item = Cell>) {
        self.heads.push(head);
        self.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }

    /// The head and one line per row, none longer than `columns`.
    pub(crate) fn lines(&self, columns: usize, style: Style) -> Vec<String> {
        let mut widths = self.widths();
        let excess = self.width().saturating_sub(columns);
        if let Some(name) = widths.first_mut() {
            *name = (*name).saturating_sub(excess).max((*name).min(NAME_MIN));
        }
        let is_number =
            |at: usize| self.rows.iter().any(|row| row.get(at).is_some_and(|c| c.is_number));
        let heads = self.heads.iter().enumerate().map(|(at, head)| Cell {
            text: (*head).to_owned(),
            cell_style: CellStyle::Dim,
            is_number: is_number(at),
        });
        let heads: Vec<_> = heads.collect();
        let rows = std::iter::once(&heads).chain(&self.rows);
        rows.map(|row| line(row, &widths, columns, style)).collect()
    }
}

fn line(row: &[Cell], widths: &[usize], columns: usize, style: Style) -> String {
    let mut out = String::new();
    let mut used = 0;
    for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
        let width = (*width).min(columns.saturating_sub(used));
        let text = cut(&cell.text, width);
        let pad = " ".repeat(width - text.chars().count());
        let painted = cell.cell_style.on(&text, style);
        match (cell.is_number, at + 1 == row.len()) {
            (true, _) => out.push_str(&format!("{pad}{painted}")),
            (false, true) => out.push_str(&painted),
            (false, false) => out.push_str(&format!("{painted}{pad}")),
        }
        used += width + GAP;
        if used >= columns {
            break;
        }
        if at + 1 < row.len() {
            out.push_str(&" ".repeat(GAP));
        }
    }
    out
}

/// At most `chars_max` characters; a cut is marked with an ellipsis.
pub(crate) fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) if chars_max == 0 => String::new(),
        Some(_) => text.chars().take(chars_max - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let row = |name: &str, count: u32, word: &str| {
            vec![
                cell(name, CellStyle::Cyan),
                number(count, CellStyle::Plain),
                cell(word, CellStyle::Plain),
            ]
        };
        let rows = vec![row("a-long-name-indeed", 7, "x"), row("b", 1234, "some words")];
        Grid::new(&["NAME", "N", "WORDS"], rows)
    }

    #[test]
    fn columns_align_and_numbers_are_flush_right() {
        assert_eq!(
            grid().lines(80, Style::plain()),
            [
                "NAME                   N  WORDS",
                "a-long-name-indeed     7  x",
                "b                   1234  some words",
            ]
        );
        assert_eq!(grid().width(), 36);
    }

    #[test]
    fn too_wide_tables_shorten_the_first_column_first() {
        assert_eq!(
            grid().lines(30, Style::plain()),
            [
                "NAME             N  WORDS",
                "a-long-name…     7  x",
                "b             1234  some words",
            ]
        );
        for columns in 0..40 {
            for line in grid().lines(columns, Style::plain()) {
                assert!(line.chars().count() <= columns, "{columns}: '{line}'");
            }
        }
        assert_eq!(grid().lines(20, Style::plain())[2], "b         1234  som…");
    }
}
