//! Text in aligned columns, and numbers for people.

use std::time::Duration;

pub(crate) use manifest_diff::{is_unprintable, printable};
use unicode_width::UnicodeWidthStr as _;

/// The spaces between two columns.
const GAP: usize = 2;

/// A table with two spaces between columns and no trailing spaces.
#[derive(Debug)]
pub struct Table {
    /// The headings and the rows, each with as many cells as there are headings.
    lines: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these headings.
    pub fn new(heads: &[&str]) -> Self {
        Self { lines: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row. An empty cell is shown as `-`, so that all lines have the same number of words.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.lines[0].len());
        self.lines.push(cells.map(cell).into());
    }

    /// Adds a row whose cells are for people only: they may contain spaces.
    pub(crate) fn row_for_people<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.lines[0].len());
        self.lines.push(cells.map(|text| printable(&text)).into());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths = vec![0; self.lines[0].len()];
        for line in &self.lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.width().max(*width);
            }
        }
        for line in &self.lines {
            let mut text = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                text.push_str(cell);
                text.extend(std::iter::repeat_n(' ', width - cell.width() + GAP));
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a duration in its two largest units.
pub fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{}s", seconds % 60),
        3600..86400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// Formats milliseconds with one decimal below 10.
pub fn milliseconds(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}ms") } else { format!("{value:.0}ms") }
}

/// Replaces characters that a terminal does not show in their place, and whitespace that would look like the space between two columns.
pub(crate) fn phrase(text: &str) -> String {
    let mut before = None;
    let replace = |c: char| {
        let is_space = c.is_whitespace() && (c != ' ' || before == Some(' '));
        before = Some(c);
        if is_unprintable(c) || is_space { '?' } else { c }
    };
    text.chars().map(replace).collect()
}

/// Replaces characters that a terminal does not show in their place, and whitespace, which would look like two columns.
fn cell(text: String) -> String {
    match &*text {
        "" => "-".to_owned(),
        _ => text.chars().map(|c| if is_unprintable(c) || c.is_whitespace() { '?' } else { c }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let mut table = Table::new(&["ID", "NAME", "POD"]);
        table.row(["1".into(), "production".into(), String::new()]);
        table.row(["1234".into(), "a".into(), "evil\u{1b}[31m pod".into()]);
        table.row(["7".into(), "日本".into(), "wide".into()]);
        let lines = [
            "ID    NAME        POD",
            "1     production  -",
            "1234  a           evil?[31m?pod",
            "7     日本        wide",
            "",
        ];
        assert_eq!(table.to_string(), lines.join("\n"));
    }

    #[test]
    fn text_cannot_change_its_place_or_its_order() {
        for (text, expected) in [
            ("alice, job 3", "alice, job 3"),
            ("Zoë 日本 😀", "Zoë 日本 😀"),
            ("admin   kas  get", "admin ??kas ?get"),
            ("a\u{202e}b\u{2066}c\u{200b}d\u{feff}", "a?b?c?d?"),
            ("a\u{a0}b\u{2003}c\u{9b}d\ne", "a?b?c?d?e"),
        ] {
            assert_eq!(phrase(text), expected);
        }
        assert_eq!(printable("  - name: \u{202e}a"), "  - name: ?a", "indentation stays");
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m0s"),
            (3599, "59m59s"),
            (3600, "1h0m"),
            (86_399, "23h59m"),
            (86_400, "1d0h"),
            (1_000_000, "11d13h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn small_round_trips_have_one_decimal() {
        assert_eq!(
            [0.04, 0.51, 9.94, 10.2, 250.4].map(milliseconds),
            ["0.0ms", "0.5ms", "9.9ms", "10ms", "250ms"]
        );
    }
}
