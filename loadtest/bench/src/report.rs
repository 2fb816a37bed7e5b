//! The report of all measurements: `report.json`, and tables in `report.md`.

use std::{fmt, path::Path};

use anyhow::Context as _;
use loadtest::{
    installation::directory::DirectoryReport,
    load::{
        options::write_json,
        report::{Table, number},
    },
};
use serde::Serialize;

use crate::{
    idle::{IdleProcesses, IdleTunnels},
    peer,
    rounds::Rounds,
    sample::{self, Row},
    steps::{self, Step},
    system_calls::{self, SystemCalls},
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
    pub(super) system_calls: Vec<SystemCalls>,
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
            system_calls: Vec::new(),
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
                let table = sample::table(rows, bulk);
                if !table.is_empty() {
                    write!(f, "\n{table}")?;
                }
            }
        }
        if !self.peer.is_empty() {
            write!(f, "\n### Through a peer\n\n{}", peer::table(&self.peer))?;
        }
        let rows = self.sections.iter().flat_map(|section| &section.rows).chain(&self.peer);
        let latencies = sample::latency_table(rows);
        if !latencies.is_empty() {
            write!(f, "\n### Distribution of latencies\n\n{latencies}")?;
        }
        if !self.steps.is_empty() {
            write!(f, "\n### Cost of the steps of a request\n\n{}", steps::table(&self.steps))?;
        }
        if !self.system_calls.is_empty() {
            let table = system_calls::table(&self.system_calls);
            write!(f, "\n### System calls for each request\n\n{}\n\n{table}", system_calls::NOTE)?;
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
