//! The report of all measurements: `report.json`, and tables in `report.md`.

use std::{fmt, path::Path};

use anyhow::Context as _;
use loadtest::{
    installation::directory::DirectoryReport,
    load::{
        median,
        options::write_json,
        report::{Table, number},
    },
};
use serde::Serialize;

use crate::{
    candidate::Candidate,
    idle::{IdleProcesses, IdleTunnels},
    peer,
    rounds::{Case, Rounds, Sample},
    steps::{self, Step},
};

#[derive(Debug, Serialize)]
pub(super) struct BenchReport {
    quick: bool,
    rounds: u32,
    seconds: f64,
    cores: usize,
    load_average_before: f64,
    load_average_after: f64,
    interrupted: bool,
    pub(super) sections: Vec<Section>,
    /// Rows of one hop and of two hops, in turn.
    pub(super) peer: Vec<Row>,
    pub(super) steps: Vec<Step>,
    pub(super) directory: Option<DirectoryReport>,
    pub(super) idle: Vec<IdleTunnels>,
    pub(super) processes: Vec<IdleProcesses>,
}

/// The rows of candidates that were compared with each other.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) rows: Vec<Row>,
}

impl BenchReport {
    pub(super) fn new(quick: bool, rounds: Rounds, load_average_before: f64) -> Self {
        Self {
            quick,
            rounds: rounds.repeats,
            seconds: rounds.duration.as_secs_f64(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            load_average_before,
            load_average_after: f64::NAN,
            interrupted: false,
            sections: Vec::new(),
            peer: Vec::new(),
            steps: Vec::new(),
            directory: None,
            idle: Vec::new(),
            processes: Vec::new(),
        }
    }

    pub(super) fn finish(&mut self, load_average_after: f64, interrupted: bool) {
        (self.load_average_after, self.interrupted) = (load_average_after, interrupted);
    }

    pub(super) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write_json(&directory.join("report.json"), self)?;
        let path = directory.join("report.md");
        std::fs::write(&path, self.to_string()).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Medians of {} rounds of {} s on {} cores; load average before {:.1}, after {:.1}.{}",
            self.rounds,
            self.seconds,
            self.cores,
            self.load_average_before,
            self.load_average_after,
            if self.interrupted { " Interrupted: not all rounds." } else { "" }
        )?;
        for Section { title, rows } in &self.sections {
            writeln!(f, "\n### {title}")?;
            for bulk in [false, true] {
                let table = table(rows, bulk);
                if !table.is_empty() {
                    write!(f, "\n{table}")?;
                }
            }
        }
        if !self.peer.is_empty() {
            write!(f, "\n### Through a peer\n\n{}", peer::table(&self.peer))?;
        }
        if !self.steps.is_empty() {
            write!(f, "\n### Cost of the steps of a request\n\n{}", steps::table(&self.steps))?;
        }
        if let Some(cost) = &self.directory {
            write!(f, "\n### Load of idle agents on Redis\n\n{cost}\n")?;
        }
        if self.processes.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(["idle processes", "kas MiB", "agentk MiB"]);
        for IdleProcesses { tls, kas_mib, agentk_mib } in &self.processes {
            table.row([legs(*tls), number(*kas_mib), number(*agentk_mib)]);
        }
        write!(f, "\n### Memory\n\n{table}")?;
        if self.idle.is_empty() {
            return Ok(());
        }
        let mut table =
            Table::new(["idle tunnels", "tunnels", "kas KiB each", "agent KiB each", "all open after s"]);
        for idle in &self.idle {
            table.row([
                legs(idle.tls),
                idle.tunnels.to_string(),
                number(idle.kas_kib),
                number(idle.agent_kib),
                number(idle.open_seconds),
            ]);
        }
        write!(f, "\n{table}")
    }
}

fn legs(tls: bool) -> String {
    if tls { "TLS" } else { "plain" }.to_owned()
}

/// The samples of one candidate in one case, by round.
#[derive(Debug)]
pub(super) struct Samples {
    candidate: String,
    other_build: bool,
    pub(super) rounds: Vec<Sample>,
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
    pub(super) rounds: Vec<Sample>,
}

impl Samples {
    /// Creates a candidate without samples.
    pub(super) fn none(candidate: &Candidate) -> Self {
        let Candidate { name, other_build, .. } = candidate;
        Self { candidate: name.clone(), other_build: *other_build, rounds: Vec::new() }
    }
}

/// Summarizes the samples of one case. The others are compared with the first candidate.
pub(super) fn rows(case: Case, samples: &[Samples]) -> Vec<Row> {
    let ratio = |mine: &[Sample], base: &[Sample]| {
        median(mine.iter().zip(base).map(|(mine, base)| mine.speed(&case) / base.speed(&case)))
    };
    let named = |name| samples.iter().find(|one| one.candidate == name).map(|one| &one.rounds);
    let rows = samples.iter().map(|Samples { candidate, other_build, rounds }| {
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

/// Formats a CPU time, or an empty text for candidates without such a process.
fn used(microseconds: f64) -> String {
    if microseconds == 0.0 { "-".to_owned() } else { number(microseconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_computed_within_rounds() {
        let case = Case { what: "x", path: "/one/200", connections: 1 };
        let samples = |candidate: &str, speeds: [f64; 3]| {
            let rounds = speeds.map(|per_second| Sample { per_second, ..Sample::default() }).to_vec();
            Samples { candidate: candidate.to_owned(), other_build: candidate == "before", rounds }
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
}
