//! Runs a table.

use std::{thread, time::Duration};

use super::{
    compare::differences,
    headers::AllowedDifferences,
    report::{self, GroupReport, Outcome, SkippedRow},
    result::RowResult,
    side::Side,
    table::{Expected, Row, parse},
};
use crate::support::{Cluster, Installation};

/// The number of retries of a row whose result differs between two runs without the tunnel.
const ATTEMPTS: usize = 20;

/// The objects that the rows of a table use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupKind {
    /// Both sides read the same objects. Results are equal byte for byte, except for ages.
    Shared,
    /// Each side has its own namespace. Rows change objects, in the order of the table.
    Twin,
}

/// A table and the way to run it.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) kind: GroupKind,
    pub(super) table: &'static str,
}

impl Group {
    /// Runs every row at both sides, writes the report, and panics if a row differs.
    pub(super) fn run(&self) {
        let Some(cluster) = Cluster::or_skip() else { return };
        let world = Installation::with_cluster(&cluster.kubeconfig);
        let namespaces = match self.kind {
            GroupKind::Shared => vec![cluster.namespace(self.name)],
            GroupKind::Twin => vec![cluster.namespace(self.name), cluster.namespace(self.name)],
        };
        let [mine, theirs] = [&namespaces[0].name, &namespaces[namespaces.len() - 1].name];
        let tunnel = world.kubectl().kubeconfig().to_owned();
        let node = cluster.kubectl.ok(&["get", "nodes", "--output=jsonpath={.items[0].metadata.name}"]);
        let direct = Side::new("sidea", &cluster.kubeconfig, (mine, &node), world.directory());
        let through = Side::new("sideb", &tunnel, (theirs, &node), world.directory());
        let (Some(direct), Some(through)) = (direct, through) else {
            crate::support::skipped("KUBECONFIG has no token, or no certificate authority");
            return;
        };

        let (rows, skipped) = runnable(parse(self.table));
        let outcomes = match self.kind {
            GroupKind::Shared => shared(&rows, &direct, &through),
            GroupKind::Twin => twin(&rows, &direct, &through),
        };
        let report = GroupReport { outcomes, skipped };
        report::write(self.name, &report);
        // A panic would print the logs of both programs, too.
        drop(world);
        let different: Vec<_> = report.outcomes.iter().filter_map(Outcome::description).collect();
        assert!(
            different.is_empty(),
            "{} of {} rows of {} differ:\n\n{}",
            different.len(),
            report.outcomes.len(),
            self.name,
            different.join("\n\n")
        );
    }
}

/// Splits rows into runnable rows and rows that need a newer kubectl than the one on the `PATH`.
fn runnable(rows: Vec<Row>) -> (Vec<Row>, Vec<SkippedRow>) {
    let (mut runnable, mut skipped) = (Vec::new(), Vec::new());
    for row in rows {
        match row.since {
            Some(since) if !since.or_skip(&row.command) => {
                skipped.push(SkippedRow { command: row.command, needs: since.to_string() });
            }
            _ => runnable.push(row),
        }
    }
    (runnable, skipped)
}

/// Runs row by row, both sides at once.
///
/// Other tests change the cluster at the same time. A row that differs is therefore run again, and counts
/// as different if two direct runs, before and after the run through the tunnel, are equal.
fn shared(rows: &[Row], direct: &Side, through: &Side) -> Vec<Outcome> {
    let allowed = AllowedDifferences::documented();
    let compare = |row: &Row, mine, theirs| {
        outcome(GroupKind::Shared, &allowed, row, (direct, mine), (through, theirs))
    };
    let mut outcomes = Vec::new();
    for row in rows {
        if row.expected == Expected::Setup {
            set_up(direct, row);
            continue;
        }
        let [mine, theirs] = run_both(|| direct.run(row), || through.run(row));
        let mut outcome = compare(row, mine, theirs);
        for _ in 0..ATTEMPTS {
            if outcome.differences.is_empty() {
                break;
            }
            let [before, between, after] = [direct, through, direct].map(|side| side.run(row));
            let moved = differences(GroupKind::Shared, &allowed, (direct, &before.0), (direct, &after.0)).0;
            outcome = compare(row, before, between);
            if moved.is_empty() {
                break;
            }
        }
        outcomes.push(outcome);
    }
    outcomes
}

/// Runs all rows in their order, at both sides at once.
fn twin(rows: &[Row], direct: &Side, through: &Side) -> Vec<Outcome> {
    let all = |side: &Side| -> Vec<_> {
        let run = |row: &Row| match row.expected {
            Expected::Setup => {
                set_up(side, row);
                None
            }
            _ => Some((row.clone(), side.run(row))),
        };
        rows.iter().filter_map(run).collect()
    };
    let allowed = AllowedDifferences::documented();
    let [mine, theirs] = run_both(|| all(direct), || all(through));
    let pairs = mine.into_iter().zip(theirs);
    pairs
        .map(|((row, mine), (_, theirs))| {
            outcome(GroupKind::Twin, &allowed, &row, (direct, mine), (through, theirs))
        })
        .collect()
}

fn set_up(side: &Side, row: &Row) {
    let result = side.run(row).0;
    assert_eq!(result.code_or_status(), 0, "{}: {result}", row.command);
}

fn outcome(
    kind: GroupKind,
    allowed: &AllowedDifferences,
    row: &Row,
    (direct, mine): (&Side, (RowResult, Duration)),
    (through, theirs): (&Side, (RowResult, Duration)),
) -> Outcome {
    let (mut found, seen) = differences(kind, allowed, (direct, &mine.0), (through, &theirs.0));
    if let Expected::Code(expected) | Expected::Status(expected) = &row.expected
        && !expected.contains(&mine.0.code_or_status())
    {
        let result = mine.0.code_or_status();
        found.push(format!("result {result} instead of {expected:?} without the tunnel: {}", mine.0));
    }
    Outcome {
        command: row.command.clone(),
        differences: found,
        headers: seen,
        direct: mine.1,
        through: theirs.1,
    }
}

fn run_both<T: Send>(one: impl FnOnce() -> T + Send, other: impl FnOnce() -> T) -> [T; 2] {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        [one.join().unwrap(), other]
    })
}
