//! Text in aligned columns, and numbers for people.

use std::time::Duration;

/// A table with two spaces between columns and no trailing spaces.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these headings.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row. An empty cell is shown as `-`, so that all lines have the same number of words.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.into_iter().map(cell).collect());
    }

    /// Adds a row whose cells are for people only: they may contain spaces.
    pub(crate) fn row_for_people<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.iter().map(|text| printable(text)).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..self.rows[0].len()).filter_map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, &width) in row.iter().zip(&widths) {
                line += &format!("{cell:width$}  ");
            }
            writeln!(f, "{}", line.trim_end())?;
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

/// Replaces control characters, which could move the cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Replaces control characters, which could move the cursor, and whitespace, which would look like two columns.
fn cell(text: String) -> String {
    match &*text {
        "" => "-".to_owned(),
        _ => text.chars().map(|c| if c.is_control() || c.is_whitespace() { '?' } else { c }).collect(),
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
        let lines = ["ID    NAME        POD", "1     production  -", "1234  a           evil?[31m?pod", ""];
        assert_eq!(table.to_string(), lines.join("\n"));
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
