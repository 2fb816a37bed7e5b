//! The tables: one command a line, after what it must end with.
//!
//! ```text
//! # a comment
//! setup kubectl create configmap colours
//! 0     kubectl get configmaps
//! 404   api /no/such/path
//! 0@1.24 kubectl create token robot
//! ```
//!
//! `setup` prepares what the rows look at, and is not compared. `api`, `send` and `patch` are curl with the
//! side's server, credential and certificate authority, and what they must end with is the status; that of everything
//! else is the exit code. Without it, a row that fails at both sides for want of something would count as the same.
//! After `@` stands the oldest kubectl that has the command: an older one skips the row, and the report lists it.
//! Indented lines go on: those of a row as
//! one line.

use crate::support::KubectlVersion;

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) expected: Expected,
    /// The oldest kubectl that has this command.
    pub(super) since: Option<KubectlVersion>,
    /// For bash.
    pub(super) command: String,
}

/// What a row must end with, at both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// It is no row, but makes the rows possible.
    Setup,
    /// The exit code of a program.
    Code(i32),
    /// The status of an HTTP answer.
    Status(u16),
}

/// What prints head and body of an answer.
const HTTP: [&str; 3] = ["api", "send", "patch"];

/// Reads a table.
pub(super) fn parse(table: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in table.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if line.starts_with(' ') {
            let row = rows.last_mut().expect("a row to go on with");
            row.command += if row.expected == Expected::Setup { "\n" } else { " " };
            row.command += line.trim();
            continue;
        }
        let (expected, command) = line.split_once(' ').expect("what it ends with, and a command");
        let command = command.trim().to_owned();
        let (expected, since) = match expected.split_once('@') {
            Some((expected, since)) => (expected, Some(since.parse().unwrap())),
            None => (expected, None),
        };
        let expected = match expected {
            "setup" => Expected::Setup,
            status if HTTP.contains(&command.split(' ').next().unwrap()) => {
                Expected::Status(status.parse().unwrap())
            }
            code => Expected::Code(code.parse().unwrap()),
        };
        rows.push(Row { expected, since, command });
    }
    rows
}

#[test]
fn a_table_is_read_line_by_line() {
    let table =
        "# words\n\nsetup true\n0     kubectl get pods\n      | wc\n404   api /none\n1@1.24 kubectl x\n";
    let row = |expected, command: &str| Row { expected, since: None, command: command.to_owned() };
    let since = |version: &str, row| Row { since: Some(version.parse().unwrap()), ..row };
    assert_eq!(
        parse(table),
        [
            row(Expected::Setup, "true"),
            row(Expected::Code(0), "kubectl get pods | wc"),
            row(Expected::Status(404), "api /none"),
            since("1.24", row(Expected::Code(1), "kubectl x")),
        ]
    );
}
