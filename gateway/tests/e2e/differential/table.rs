//! The parser of tables. Each line has the expected exit code or status, and a command.
//!
//! ```text
//! # a comment
//! setup kubectl create configmap colours
//! 0     kubectl get configmaps
//! 404   api /no/such/path
//! 0@1.24 kubectl create token robot
//! ```
//!
//! `setup` prepares objects for the rows, and is not compared. `api`, `send` and `patch` run curl with the
//! side's server, credential and certificate authority, and their expected result is the status. For other commands,
//! it is the exit code. Without an expected result, a row that fails at both sides by mistake would count as equal.
//! A row that clusters answer differently has several results, as in `406/415`: that of the cluster at hand decides.
//! The version after `@` is the oldest kubectl with the command. An older one skips the row, and the report lists it.
//! Indented lines continue a command: a row becomes one line, a setup keeps its lines.

use crate::support::KubectlVersion;

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) expected: Expected,
    /// The oldest kubectl that has this command.
    pub(super) since: Option<KubectlVersion>,
    /// The bash command.
    pub(super) command: String,
}

/// The expected result of a row, at both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The line is a setup for the rows, and must exit with 0.
    Setup,
    /// The exit code of a program, one of these.
    Code(Vec<i32>),
    /// The status of an HTTP response, one of these.
    Status(Vec<i32>),
}

/// The shell functions that print head and body of an HTTP response.
const HTTP: [&str; 3] = ["api", "send", "patch"];

/// Parses a table.
pub(super) fn parse(table: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in table.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if line.starts_with(' ') {
            let row = rows.last_mut().expect("a row before the indented line");
            row.command += if row.expected == Expected::Setup { "\n" } else { " " };
            row.command += line.trim();
            continue;
        }
        let (expected, command) = line.split_once(' ').expect("an expected result and a command");
        let command = command.trim().to_owned();
        let (expected, since) = match expected.split_once('@') {
            Some((expected, since)) => (expected, Some(since.parse().unwrap())),
            None => (expected, None),
        };
        let numbers = || expected.split('/').map(|number| number.parse().unwrap()).collect();
        let expected = match expected {
            "setup" => Expected::Setup,
            _ if HTTP.contains(&command.split(' ').next().unwrap()) => Expected::Status(numbers()),
            _ => Expected::Code(numbers()),
        };
        rows.push(Row { expected, since, command });
    }
    rows
}

#[test]
fn table_is_parsed_by_line() {
    let table = "# words\n\nsetup true\n0     kubectl get pods\n      | wc\n404   api /none\n406/415 send x\n1@1.24 kubectl x\n";
    let row = |expected, command: &str| Row { expected, since: None, command: command.to_owned() };
    let since = |version: &str, row| Row { since: Some(version.parse().unwrap()), ..row };
    assert_eq!(
        parse(table),
        [
            row(Expected::Setup, "true"),
            row(Expected::Code(vec![0]), "kubectl get pods | wc"),
            row(Expected::Status(vec![404]), "api /none"),
            row(Expected::Status(vec![406, 415]), "send x"),
            since("1.24", row(Expected::Code(vec![1]), "kubectl x")),
        ]
    );
}
