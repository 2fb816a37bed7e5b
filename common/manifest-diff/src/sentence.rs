//! One sentence about a whole diff.

use std::fmt::Write as _;

use proto::gitops::DiffSummary;

use super::printable::printable;

/// The characters of a commit that people see.
const SHORT: usize = 12;

/// Returns one sentence about everything. `show` makes the names of the version harmless.
pub fn sentence(summary: &DiffSummary, errors: usize, show: impl Fn(&str) -> String) -> String {
    let DiffSummary { reference, commit, create, change, recreate, delete, keep, unchanged, .. } = summary;
    let counts = [
        (create, "to create"),
        (change, "to change"),
        (recreate, "to delete and create again"),
        (delete, "to delete"),
        (keep, "left Git and stay"),
        (unchanged, "unchanged"),
    ];
    let counts = counts.iter().filter(|(count, _)| **count > 0);
    let mut parts: Vec<_> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    if parts.is_empty() {
        parts.push("no objects".to_owned());
    }
    let mut sentence = parts.join(", ");
    if let Some(commit) = commit {
        let version = format!("{reference}, commit {}", short_commit(&commit.id));
        // Writing to a string does not fail.
        let _ = write!(sentence, " ({})", show(&printable(&version)));
    }
    match errors {
        0 => {}
        1 => sentence += "; 1 error, which stops a sync",
        errors => {
            let _ = write!(sentence, "; {errors} errors, which stop a sync");
        }
    }
    sentence
}

/// Returns the beginning of the id of a commit.
pub fn short_commit(commit: &str) -> String {
    commit.chars().take(SHORT).collect()
}
