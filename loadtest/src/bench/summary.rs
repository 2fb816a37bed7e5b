//! Medians over rounds, and ratios within them.

use serde::Serialize;

use super::{
    contestant::Contestant,
    rounds::{Case, Sample},
};
use crate::load::table::{Table, number};

/// What one contestant did in one case, round by round.
#[derive(Debug)]
pub(super) struct Samples {
    contestant: String,
    other_build: bool,
    pub(super) rounds: Vec<Sample>,
}

/// All rounds of one contestant in one case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) contestant: String,
    pub(super) median: Sample,
    /// Speed in relation to the first contestant, median over the rounds.
    pub(super) to_direct: f64,
    /// Speed in relation to the nginx proxy.
    pub(super) to_nginx: Option<f64>,
    /// Of another build: its speed in relation to this one.
    pub(super) to_kas: Option<f64>,
    pub(super) rounds: Vec<Sample>,
}

impl Samples {
    /// Before the first round.
    pub(super) fn none(contestant: &Contestant) -> Self {
        let Contestant { name, other_build, .. } = contestant;
        Self { contestant: name.clone(), other_build: *other_build, rounds: Vec::new() }
    }
}

/// The samples of one case. The first contestant is what the others are compared with.
pub(super) fn rows(case: Case, samples: &[Samples]) -> Vec<Row> {
    let ratio = |mine: &[Sample], base: &[Sample]| {
        median(mine.iter().zip(base).map(|(mine, base)| mine.speed(&case) / base.speed(&case)))
    };
    let named = |name| samples.iter().find(|one| one.contestant == name).map(|one| &one.rounds);
    let rows = samples.iter().map(|Samples { contestant, other_build, rounds }| {
        let of = |field: fn(&Sample) -> f64| median(rounds.iter().map(field));
        Row {
            case,
            contestant: contestant.clone(),
            median: Sample {
                per_second: of(|sample| sample.per_second),
                megabytes_per_second: of(|sample| sample.megabytes_per_second),
                p50_ms: of(|sample| sample.p50_ms),
                p99_ms: of(|sample| sample.p99_ms),
                near_us: of(|sample| sample.near_us),
                far_us: of(|sample| sample.far_us),
                errors: rounds.iter().map(|sample| sample.errors).sum(),
            },
            to_direct: samples.first().map_or(f64::NAN, |direct| ratio(rounds, &direct.rounds)),
            to_nginx: named("nginx proxy").map(|nginx| ratio(rounds, nginx)),
            to_kas: named("kas").filter(|_| *other_build).map(|kas| ratio(rounds, kas)),
            rounds: rounds.clone(),
        }
    });
    rows.collect()
}

/// A table for one kind of case: by requests, or by megabytes.
pub(super) fn table(rows: &[Row], bulk: bool) -> Table {
    let (speed, unit) = if bulk { ("MB/s", "µs/MB") } else { ("req/s", "µs/req") };
    let (near, far) = (format!("kas {unit}"), format!("agentk {unit}"));
    let builds = rows.iter().any(|row| row.to_kas.is_some());
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
    let headings =
        ["what", "conns", "path", speed, "p50 ms", "p99 ms", &near, &far, "× first", "× nginx", "errors"];
    let mut table = Table::new(headings.into_iter().chain(builds.then_some("× kas")));
    for row in rows.iter().filter(|row| row.case.is_bulk() == bulk) {
        let Sample { p50_ms, p99_ms, near_us, far_us, .. } = row.median;
        let cells = [
            row.case.what.to_owned(),
            row.case.connections.to_string(),
            row.contestant.clone(),
            number(row.median.speed(&row.case)),
            number(p50_ms),
            number(p99_ms),
            used(near_us),
            used(far_us),
            format!("{:.3}", row.to_direct),
            ratio(row.to_nginx),
            row.median.errors.to_string(),
        ];
        table.row(cells.into_iter().chain(builds.then(|| ratio(row.to_kas))));
    }
    table
}

/// Nothing is what has no such process.
fn used(microseconds: f64) -> String {
    if microseconds == 0.0 { "-".to_owned() } else { number(microseconds) }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
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
        let samples = |contestant: &str, speeds: [f64; 3]| {
            let rounds = speeds.map(|per_second| Sample { per_second, ..Sample::default() }).to_vec();
            Samples { contestant: contestant.to_owned(), other_build: contestant == "before", rounds }
        };
        // The machine was ever slower: ours is half of direct in each round.
        let rows = rows(
            case,
            &[
                samples("direct", [100.0, 50.0, 10.0]),
                samples("kas", [50.0, 25.0, 5.0]),
                samples("before", [40.0, 20.0, 4.0]),
            ],
        );
        assert_eq!((rows[0].to_direct, rows[1].to_direct, rows[1].to_nginx), (1.0, 0.5, None));
        // Only another build is compared with this one, and only then is there a column for it.
        assert_eq!([&rows[0], &rows[1], &rows[2]].map(|row| row.to_kas), [None, None, Some(0.8)]);
        assert!(table(&rows, false).to_string().contains("× kas"));
        assert!(!table(&rows[..2], false).to_string().contains("× kas"));
    }
}
