//! Medians over rounds, and ratios within them.

use serde::Serialize;

use super::rounds::{Case, Sample};
use crate::load::table::{Table, number};

/// All rounds of one contestant in one case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) contestant: &'static str,
    pub(super) median: Sample,
    /// Speed in relation to the first contestant, median over the rounds.
    pub(super) to_direct: f64,
    /// Speed in relation to the nginx proxy.
    pub(super) to_nginx: Option<f64>,
    pub(super) rounds: Vec<Sample>,
}

/// The samples of one case: for each contestant its rounds. The first is what the others are compared with.
pub(super) fn rows(case: Case, samples: &[(&'static str, Vec<Sample>)]) -> Vec<Row> {
    let ratio = |mine: &[Sample], base: &[Sample]| {
        median(mine.iter().zip(base).map(|(mine, base)| mine.speed(&case) / base.speed(&case)))
    };
    let named = |name| samples.iter().find(|(other, _)| *other == name).map(|(_, rounds)| rounds);
    let rows = samples.iter().map(|(contestant, rounds)| {
        let of = |field: fn(&Sample) -> f64| median(rounds.iter().map(field));
        Row {
            case,
            contestant,
            median: Sample {
                per_second: of(|sample| sample.per_second),
                megabytes_per_second: of(|sample| sample.megabytes_per_second),
                p50_ms: of(|sample| sample.p50_ms),
                p99_ms: of(|sample| sample.p99_ms),
                near_us: of(|sample| sample.near_us),
                far_us: of(|sample| sample.far_us),
                errors: rounds.iter().map(|sample| sample.errors).sum(),
            },
            to_direct: samples.first().map_or(f64::NAN, |(_, direct)| ratio(rounds, direct)),
            to_nginx: named("nginx proxy").map(|nginx| ratio(rounds, nginx)),
            rounds: rounds.clone(),
        }
    });
    rows.collect()
}

/// A table for one kind of case: by requests, or by megabytes.
pub(super) fn table(rows: &[Row], bulk: bool) -> Table {
    let (speed, unit) = if bulk { ("MB/s", "µs/MB") } else { ("req/s", "µs/req") };
    let (near, far) = (format!("kas {unit}"), format!("agentk {unit}"));
    let headings =
        ["what", "conns", "path", speed, "p50 ms", "p99 ms", &near, &far, "× first", "× nginx", "errors"];
    let mut table = Table::new(headings);
    for row in rows.iter().filter(|row| row.case.is_bulk() == bulk) {
        let Sample { p50_ms, p99_ms, near_us, far_us, .. } = row.median;
        table.row([
            row.case.what.to_owned(),
            row.case.connections.to_string(),
            row.contestant.to_owned(),
            number(row.median.speed(&row.case)),
            number(p50_ms),
            number(p99_ms),
            used(near_us),
            used(far_us),
            format!("{:.3}", row.to_direct),
            row.to_nginx.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            row.median.errors.to_string(),
        ]);
    }
    table
}

/// Nothing is what has no such process.
fn used(microseconds: f64) -> String {
    if microseconds == 0.0 { "-".to_owned() } else { number(microseconds) }
}

/// The middle one, or the mean of the two in the middle.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
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
    fn medians_ignore_an_outlier() {
        assert_eq!(median([3.0, 1.0, 1000.0].into_iter()), 3.0);
        assert_eq!(median([4.0, 1.0, 2.0, 1000.0].into_iter()), 3.0);
        assert!(median([].into_iter()).is_nan());
    }

    #[test]
    fn ratios_are_within_a_round_and_not_of_medians() {
        let case = Case { what: "x", path: "/one/200", connections: 1 };
        let samples =
            |speeds: [f64; 3]| speeds.map(|per_second| Sample { per_second, ..Sample::default() }).to_vec();
        // The machine was ever slower: ours is half of direct in each round.
        let rows =
            rows(case, &[("direct", samples([100.0, 50.0, 10.0])), ("kas", samples([50.0, 25.0, 5.0]))]);
        assert_eq!((rows[0].to_direct, rows[1].to_direct, rows[1].to_nginx), (1.0, 0.5, None));
    }
}
