//! The load engine that all commands of `loadtest` share: connections that send requests on a schedule, and their measurements.
//!
//! ```text
//!   LoadTarget (what to send) ─┐
//!   Plan (how much)            ├─► workers: a thread per core, many connections each ─► Tally ─► Report
//!   Schedule (when)           ─┘        client, session: one connection                    ├─► table, JSON
//!                                                                                           └─► plot (SVG)
//! ```

pub mod client;
pub mod measure;
pub mod options;
pub mod plot;
pub mod progress;
pub mod report;
pub mod schedule;
pub mod session;
pub mod tally;
pub mod target;
pub mod workers;

pub use self::{
    client::LoadError, options::Options, report::Report, tally::Tally, target::LoadTarget, workers::Plan,
};

/// Prints a line to standard output.
///
/// A closed pipe is an error like any other.
pub fn print(what: &impl std::fmt::Display) -> std::io::Result<()> {
    use std::io::Write as _;

    writeln!(std::io::stdout().lock(), "{what}")
}

/// Returns the median, or NaN without values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_an_outlier() {
        assert_eq!(median([3.0, 1.0, 1000.0].into_iter()), 3.0);
        assert_eq!(median([4.0, 1.0, 2.0, 1000.0].into_iter()), 3.0);
        assert!(median([].into_iter()).is_nan());
    }
}
