//! The reports `target/differential/report.md` and `report.json`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::support::KubectlVersion;

/// The outcome of a row.
#[derive(Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) command: String,
    /// The descriptions of differences, empty if both sides are equal.
    pub(super) differences: Vec<String>,
    /// The names of headers with documented differences.
    pub(super) headers: Vec<String>,
    pub(super) direct: Duration,
    pub(super) through: Duration,
}

/// A row that was skipped because kubectl is too old.
#[derive(Serialize, Deserialize)]
pub(super) struct SkippedRow {
    pub(super) command: String,
    /// The oldest kubectl that has the command.
    pub(super) needs: String,
}

/// The outcomes of the rows of a table.
#[derive(Serialize, Deserialize)]
pub(super) struct GroupReport {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) skipped: Vec<SkippedRow>,
}

impl Outcome {
    /// Describes the differences, or returns `None` if there are none.
    pub(super) fn description(&self) -> Option<String> {
        (!self.differences.is_empty()).then(|| format!("$ {}\n{}", self.command, self.differences.join("\n")))
    }
}

/// Writes what became of a group, and the report of all groups that have run: each runs in a process of its own.
pub(super) fn write(group: &str, report: &GroupReport) {
    let directory = directory();
    // Each kubectl has rows of its own.
    let groups = directory.join(format!("groups-{}", KubectlVersion::installed()));
    fs::create_dir_all(&groups).unwrap();
    let lock = File::create(directory.join("lock")).unwrap();
    lock.lock().unwrap();
    fs::write(groups.join(format!("{group}.json")), serde_json::to_vec_pretty(report).unwrap()).unwrap();
    let groups: BTreeMap<String, GroupReport> = fs::read_dir(&groups)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&fs::read(&path).unwrap()).unwrap())
        })
        .collect();
    fs::write(directory.join("report.json"), serde_json::to_vec_pretty(&groups).unwrap()).unwrap();
    fs::write(directory.join("report.md"), markdown(&groups)).unwrap();
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("differential")
}

fn markdown(groups: &BTreeMap<String, GroupReport>) -> String {
    let mut text =
        "| group | rows | same | different | skipped | without the tunnel | through it |\n|---|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    let mut line = |name: &str, outcomes: &[&Outcome], skipped: usize| {
        let different = outcomes.iter().filter(|outcome| !outcome.differences.is_empty()).count();
        let seconds = |time: fn(&Outcome) -> Duration| {
            outcomes.iter().map(|outcome| time(outcome)).sum::<Duration>().as_secs_f64()
        };
        let (direct, through) = (seconds(|outcome| outcome.direct), seconds(|outcome| outcome.through));
        let (rows, same) = (outcomes.len(), outcomes.len() - different);
        writeln!(
            text,
            "| {name} | {rows} | {same} | {different} | {skipped} | {direct:.1} s | {through:.1} s |"
        )
        .unwrap();
    };
    for (name, report) in groups {
        line(name, &report.outcomes.iter().collect::<Vec<_>>(), report.skipped.len());
    }
    let all: Vec<_> = groups.values().flat_map(|report| &report.outcomes).collect();
    let skipped: Vec<_> = groups.values().flat_map(|report| &report.skipped).collect();
    line("**all**", &all, skipped.len());

    let mut headers: BTreeMap<&str, usize> = BTreeMap::new();
    for name in all.iter().flat_map(|outcome| &outcome.headers) {
        *headers.entry(name).or_default() += 1;
    }
    text += "\nHeaders with a documented difference (`docs/protocol.md`):";
    let counts: Vec<_> = headers.iter().map(|(name, count)| format!(" `{name}` in {count}")).collect();
    writeln!(text, "{}.", counts.join(",")).unwrap();
    if !skipped.is_empty() {
        writeln!(text, "\nSkipped, because this is kubectl {}:\n", KubectlVersion::installed()).unwrap();
    }
    for row in skipped {
        writeln!(text, "* needs kubectl >= {}: `{}`", row.needs, row.command).unwrap();
    }
    for description in all.iter().filter_map(|outcome| outcome.description()) {
        write!(text, "\n```diff\n{description}\n```\n").unwrap();
    }
    text
}
