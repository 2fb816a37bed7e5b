//! Tables in Markdown that are readable in a terminal.

use std::fmt;

/// A table with headings. The first column is aligned left, the others right.
#[derive(Clone, Debug)]
pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { headings: headings.into_iter().map(str::to_owned).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    ///
    /// If the number of cells is not the number of headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<_> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.headings.len(), "a cell for each heading");
        self.rows.push(cells);
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Formats the table as Markdown with aligned columns.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            cells.chain([&self.headings[column]]).map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<_> = (0..self.headings.len()).map(width).collect();
        let mut line = |cells: &[String]| {
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(f, "| {cell:<width$} ")?;
                } else {
                    write!(f, "| {cell:>width$} ")?;
                }
            }
            writeln!(f, "|")
        };
        line(&self.headings)?;
        let rule = |(column, width): (usize, &usize)| {
            if column == 0 { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) }
        };
        line(&widths.iter().enumerate().map(rule).collect::<Vec<_>>())?;
        self.rows.iter().try_for_each(|row| line(row))
    }
}

/// Formats a number with three significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_aligned_markdown() {
        let mut table = Table::new(["path", "req/s"]);
        table.row(["direct".to_owned(), "100".to_owned()]);
        table.row(["kas".to_owned(), "9".to_owned()]);
        let expected = "\
| path   | req/s |
| ------ | ----: |
| direct |   100 |
| kas    |     9 |
";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn number_has_three_significant_digits() {
        let texts = [12345.6, 12.345, 1.2345, 0.01234, f64::NAN].map(number);
        assert_eq!(texts, ["12346", "12.3", "1.23", "0.012", "-"]);
    }
}
