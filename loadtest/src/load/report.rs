//! The report of a run as a table and as JSON.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use super::{Plan, Tally, tally::Second};

/// The result of one run; its JSON is this struct.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the command.
    pub command: &'static str,
    /// The URL of the target.
    pub target: String,
    /// The number of connections.
    pub connections: usize,
    /// The requested rate; `null` in a closed loop.
    pub rate: Option<f64>,
    /// The seed of the random choices.
    pub seed: u64,
    /// The length of the measured time.
    pub seconds: f64,
    /// True if the run was stopped early.
    pub interrupted: bool,
    /// Requests with a response.
    pub answers: u64,
    /// Responses per second in the measured time.
    pub per_second: f64,
    /// Bytes of bodies per second, in megabytes (10⁶).
    pub megabytes_per_second: f64,
    /// Latency in milliseconds; in an open loop, from when the request was due.
    pub latency_ms: Latency,
    /// In an open loop: the delay of this program's own timers, 99th percentile in milliseconds.
    pub own_lag_p99_ms: Option<f64>,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a response, by reason.
    pub failures: BTreeMap<String, u64>,
    /// Requests that were due but never sent, because the connection still waited for a response.
    pub unsent: u64,
    /// Latency at quantiles, for plots: pairs of quantile and milliseconds.
    pub quantiles: Vec<(f64, f64)>,
    /// The measurements of each second.
    pub timeline: Vec<Second>,
    #[serde(skip)]
    causes: String,
}

/// Latency percentiles in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    /// Computes the percentiles of a tally.
    pub fn of(tally: &Tally) -> Self {
        let [p50, p90, p99, p999, max] =
            [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| tally.quantile(quantile));
        Self { mean: tally.mean(), p50, p90, p99, p999, max }
    }
}

impl Report {
    /// Creates the report. `ran` is the duration of the run if it was stopped early.
    pub fn new(
        command: &'static str,
        target: &str,
        plan: &Plan,
        tally: &Tally,
        ran: Option<Duration>,
    ) -> Self {
        let measured = ran.map_or(plan.duration, |ran| ran.saturating_sub(plan.warm_up).min(plan.duration));
        let seconds = measured.as_secs_f64().max(1e-9);
        let nines = (0..=60).map(|step| 1.0 - 10f64.powf(-f64::from(step) / 12.0));
        Self {
            command,
            target: target.to_owned(),
            connections: plan.connections,
            rate: plan.rate,
            seed: plan.seed,
            seconds,
            interrupted: ran.is_some(),
            answers: tally.answers(),
            per_second: tally.in_time as f64 / seconds,
            megabytes_per_second: tally.bytes as f64 / seconds / 1e6,
            latency_ms: Latency::of(tally),
            own_lag_p99_ms: plan.rate.map(|_| tally.lag(0.99)),
            statuses: tally.statuses.clone(),
            failures: tally.failures.clone(),
            unsent: tally.unsent,
            quantiles: nines.map(|quantile| (quantile, tally.quantile(quantile))).collect(),
            timeline: tally.timeline.clone(),
            causes: tally.causes(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.rate {
            Some(rate) => format!("open loop of {} requests per second", number(rate)),
            None => "closed loop".to_owned(),
        };
        let early = if self.interrupted { ", stopped early" } else { "" };
        writeln!(
            f,
            "{}: {} connections for {} s{early}, {mode}, seed {}",
            self.target,
            self.connections,
            number(self.seconds),
            self.seed
        )?;
        writeln!(f)?;
        let mut table =
            Table::new(["responses", "per s", "MB/s", "mean ms", "p50", "p90", "p99", "p99.9", "max"]);
        let Latency { mean, p50, p90, p99, p999, max } = self.latency_ms;
        let rates = [self.per_second, self.megabytes_per_second, mean, p50, p90, p99, p999, max].map(number);
        let [rate, megabytes, mean, p50, p90, p99, p999, max] = rates;
        table.row([self.answers.to_string(), rate, megabytes, mean, p50, p90, p99, p999, max]);
        write!(f, "{table}")?;
        let statuses: Vec<_> =
            self.statuses.iter().map(|(status, count)| format!("{count} × {status}")).collect();
        writeln!(
            f,
            "\nstatus: {}",
            if statuses.is_empty() { "none".to_owned() } else { statuses.join(", ") }
        )?;
        if !self.causes.is_empty() {
            writeln!(f, "errors: {}", self.causes)?;
        }
        if let Some(lag) = self.own_lag_p99_ms {
            writeln!(
                f,
                "own timer delay of this program: {} ms (p99, not included in latency)",
                number(lag)
            )?;
        }
        Ok(())
    }
}

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
