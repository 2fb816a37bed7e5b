//! The measurements of each candidate in each case, and their table.

use loadtest::load::{
    Tally, median,
    report::{Latency, Table, number},
};
use serde::Serialize;

use crate::candidate::Candidate;

/// The numbers of connections in [`latency_table`].
const LATENCY_CONNECTIONS: [usize; 2] = [64, 256];

/// A request path and a number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Case {
    pub(super) what: &'static str,
    pub(super) path: &'static str,
    pub(super) connections: usize,
}

/// The measurements of one candidate in one case of one round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sample {
    pub(super) per_second: f64,
    pub(super) megabytes_per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// CPU time in microseconds per request or per megabyte: of the process near the caller, and of the one near the upstream.
    pub(super) near_us: f64,
    pub(super) far_us: f64,
    pub(super) errors: u64,
}

impl Case {
    /// Returns whether a word of `--only` is part of its text or its number of connections.
    pub(super) fn is_about(&self, word: &str) -> bool {
        self.what.contains(word) || self.connections.to_string() == word
    }

    /// Returns whether the case is measured in bytes instead of requests.
    pub(super) fn is_bulk(&self) -> bool {
        self.path == "/bulk"
    }
}

impl Sample {
    /// Returns requests or megabytes per second.
    pub(super) fn speed(&self, case: &Case) -> f64 {
        if case.is_bulk() { self.megabytes_per_second } else { self.per_second }
    }
}

/// The samples of one candidate in one case, by round.
#[derive(Debug)]
pub(super) struct Samples {
    candidate: String,
    other_build: bool,
    rounds: Vec<Sample>,
    /// The sum of the tallies of all rounds.
    tally: Option<Tally>,
}

/// The summary of one candidate in one case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) candidate: String,
    pub(super) median: Sample,
    /// The ratio of its speed to that of the first candidate, as median over the rounds.
    pub(super) to_direct: f64,
    /// The ratio of its speed to that of the nginx proxy.
    pub(super) to_nginx: Option<f64>,
    /// For another build, the ratio of its speed to that of this build.
    pub(super) to_kas: Option<f64>,
    /// The latencies of the requests of all rounds together.
    pub(super) latency_ms: Option<Latency>,
    pub(super) rounds: Vec<Sample>,
}

impl Samples {
    /// Creates a candidate without samples.
    pub(super) fn none(candidate: &Candidate) -> Self {
        let Candidate { name, other_build, .. } = candidate;
        Self { candidate: name.clone(), other_build: *other_build, rounds: Vec::new(), tally: None }
    }

    /// Adds the measurements of a round.
    pub(super) fn add(&mut self, sample: Sample, tally: Tally) {
        self.rounds.push(sample);
        match &mut self.tally {
            Some(sum) => sum.add(&tally),
            None => self.tally = Some(tally),
        }
    }
}

/// Summarizes the samples of one case. The others are compared with the first candidate.
pub(super) fn rows(case: Case, samples: &[Samples]) -> Vec<Row> {
    let ratio = |mine: &[Sample], base: &[Sample]| {
        median(mine.iter().zip(base).map(|(mine, base)| mine.speed(&case) / base.speed(&case)))
    };
    let named = |name| samples.iter().find(|one| one.candidate == name).map(|one| &one.rounds);
    let rows = samples.iter().map(|Samples { candidate, other_build, rounds, tally }| {
        let of = |field: fn(&Sample) -> f64| median(rounds.iter().map(field));
        Row {
            case,
            candidate: candidate.clone(),
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
            latency_ms: tally.as_ref().map(Latency::of),
            rounds: rounds.clone(),
        }
    });
    rows.collect()
}

/// Returns the table of the cases in requests or of those in megabytes.
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
            row.candidate.clone(),
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

/// Returns the table of the latencies with many connections.
pub(super) fn latency_table<'a>(rows: impl Iterator<Item = &'a Row>) -> Table {
    let mut table = Table::new(["what", "conns", "path", "p50 ms", "p90", "p99", "p99.9", "max"]);
    for row in rows.filter(|row| LATENCY_CONNECTIONS.contains(&row.case.connections)) {
        let Some(Latency { p50, p90, p99, p999, max, .. }) = row.latency_ms else { continue };
        let cells = [row.case.what.to_owned(), row.case.connections.to_string(), row.candidate.clone()];
        table.row(cells.into_iter().chain([p50, p90, p99, p999, max].map(number)));
    }
    table
}

/// Formats a CPU time, or an empty text for candidates without such a process.
fn used(microseconds: f64) -> String {
    if microseconds == 0.0 { "-".to_owned() } else { number(microseconds) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn ratios_are_computed_within_rounds() {
        let case = Case { what: "x", path: "/one/200", connections: 1 };
        let samples = |candidate: &str, speeds: [f64; 3]| {
            let rounds = speeds.map(|per_second| Sample { per_second, ..Sample::default() }).to_vec();
            Samples {
                candidate: candidate.to_owned(),
                other_build: candidate == "before",
                rounds,
                tally: None,
            }
        };
        // The machine becomes slower: kas has half the speed of direct in each round.
        let rows = rows(
            case,
            &[
                samples("direct", [100.0, 50.0, 10.0]),
                samples("kas", [50.0, 25.0, 5.0]),
                samples("before", [40.0, 20.0, 4.0]),
            ],
        );
        assert_eq!((rows[0].to_direct, rows[1].to_direct, rows[1].to_nginx), (1.0, 0.5, None));
        // The column exists only if there is another build.
        assert_eq!([&rows[0], &rows[1], &rows[2]].map(|row| row.to_kas), [None, None, Some(0.8)]);
        assert!(table(&rows, false).to_string().contains("× kas"));
        assert!(!table(&rows[..2], false).to_string().contains("× kas"));
    }

    #[test]
    fn percentiles_are_those_of_the_requests_of_all_rounds() {
        let start = Instant::now();
        let tally = |requests: u32, milliseconds: u64| {
            let mut tally = Tally::new(start, start + Duration::from_secs(1));
            for _ in 0..requests {
                tally.answered(start, start + Duration::from_millis(milliseconds), 200, true);
            }
            tally
        };
        let mut samples =
            Samples { candidate: "kas".to_owned(), other_build: false, rounds: Vec::new(), tally: None };
        // A slow round has fewer requests. The average of both medians would be 5 ms.
        samples.add(Sample::default(), tally(950, 1));
        samples.add(Sample::default(), tally(50, 9));
        let row = |connections| {
            let case = Case { what: "x", path: "/one/200", connections };
            rows(case, std::slice::from_ref(&samples)).remove(0)
        };
        let table = latency_table([row(1), row(64)].iter()).to_string();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(rows.len(), 3, "only the case with 64 connections: {table}");
        assert_eq!(rows[2][1..4], ["x", "64", "kas"]);
        assert_eq!(rows[2][4..9], ["1.00", "1.00", "9.00", "9.00", "9.00"]);
    }
}
