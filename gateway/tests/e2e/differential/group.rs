//! A table at work.

use std::{thread, time::Duration};

use super::{
    answer::Answer,
    headers::Allowed,
    normal::differences,
    report::{self, GroupReport, Outcome, SkippedRow},
    side::Side,
    table::{Expected, Row, parse},
};
use crate::support::{Cluster, World};

/// How often a row is run again because the cluster itself did not say the same twice.
const ATTEMPTS: usize = 4;

/// What rows look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The same objects: rows change nothing of them, and answers are the same to the byte, but for ages.
    Shared,
    /// Twin namespaces: rows change what they like, in the order of the table.
    Twin,
}

/// A table and how it is run.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) table: &'static str,
}

impl Group {
    /// Runs every row at both sides, writes the report, and fails if a row differs.
    pub(super) fn run(&self) {
        let Some(cluster) = Cluster::or_skip() else { return };
        let world = World::of_cluster(&cluster.kubeconfig);
        let namespaces = match self.kind {
            Kind::Shared => vec![cluster.namespace(self.name)],
            Kind::Twin => vec![cluster.namespace(self.name), cluster.namespace(self.name)],
        };
        let [mine, theirs] = [&namespaces[0].name, &namespaces[namespaces.len() - 1].name];
        let tunnel = world.kubectl().kubeconfig().to_owned();
        let direct = Side::new("sidea", &cluster.kubeconfig, mine, world.directory());
        let through = Side::new("sideb", &tunnel, theirs, world.directory());
        let (Some(direct), Some(through)) = (direct, through) else {
            crate::support::skipped("KUBECONFIG has no token, or no certificate authority");
            return;
        };

        let (rows, skipped) = runnable(parse(self.table));
        let outcomes = match self.kind {
            Kind::Shared => shared(&rows, &direct, &through),
            Kind::Twin => twin(&rows, &direct, &through),
        };
        let report = GroupReport { outcomes, skipped };
        report::write(self.name, &report);
        // Before a failure is told, which would show the logs of both programs besides.
        drop(world);
        let different: Vec<_> = report.outcomes.iter().filter_map(Outcome::complaint).collect();
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

/// Splits rows into those that the kubectl on the `PATH` can run and those that it is too old for.
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

/// Row by row, both sides at once. Other tests change the cluster meanwhile: a row that differs is run again, and counts
/// as different once the cluster itself said the same before and after the tunnel said something else.
fn shared(rows: &[Row], direct: &Side, through: &Side) -> Vec<Outcome> {
    let allowed = Allowed::documented();
    let compare =
        |row: &Row, mine, theirs| judge(Kind::Shared, &allowed, row, (direct, mine), (through, theirs));
    let mut outcomes = Vec::new();
    for row in rows {
        if row.expected == Expected::Setup {
            set_up(direct, row);
            continue;
        }
        let [mine, theirs] = at_once(|| direct.run(row), || through.run(row));
        let mut outcome = compare(row, mine, theirs);
        for _ in 0..ATTEMPTS {
            if outcome.differences.is_empty() {
                break;
            }
            let [before, between, after] = [direct, through, direct].map(|side| side.run(row));
            let moved = differences(Kind::Shared, &allowed, (direct, &before.0), (direct, &after.0)).0;
            outcome = compare(row, before, between);
            if moved.is_empty() {
                break;
            }
        }
        outcomes.push(outcome);
    }
    outcomes
}

/// All rows in their order, at both sides at once.
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
    let allowed = Allowed::documented();
    let [mine, theirs] = at_once(|| all(direct), || all(through));
    let pairs = mine.into_iter().zip(theirs);
    pairs
        .map(|((row, mine), (_, theirs))| {
            judge(Kind::Twin, &allowed, &row, (direct, mine), (through, theirs))
        })
        .collect()
}

fn set_up(side: &Side, row: &Row) {
    let answer = side.run(row).0;
    assert_eq!(answer.end(), 0, "{}: {answer}", row.command);
}

fn judge(
    kind: Kind,
    allowed: &Allowed,
    row: &Row,
    (direct, mine): (&Side, (Answer, Duration)),
    (through, theirs): (&Side, (Answer, Duration)),
) -> Outcome {
    let (mut found, seen) = differences(kind, allowed, (direct, &mine.0), (through, &theirs.0));
    let expected = match row.expected {
        Expected::Code(code) => code,
        Expected::Status(status) => i32::from(status),
        Expected::Setup => 0,
    };
    if mine.0.end() != expected {
        found.push(format!(
            "ends with {} instead of {expected} without the tunnel: {}",
            mine.0.end(),
            mine.0
        ));
    }
    Outcome {
        command: row.command.clone(),
        differences: found,
        headers: seen,
        direct: mine.1,
        through: theirs.1,
    }
}

fn at_once<T: Send>(one: impl FnOnce() -> T + Send, other: impl FnOnce() -> T) -> [T; 2] {
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        [one.join().unwrap(), other]
    })
}
