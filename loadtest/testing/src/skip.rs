//! Tests that are skipped because a program is missing.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
    thread::{self, Thread},
};

/// The environment variable with the file that collects what is skipped, which `make test` prints at its end.
const FILE: &str = "SKIPPED_FILE";

/// Reports on standard error that the running test is skipped, past the capture of the test harness.
///
/// # Panics
///
/// With `E2E_REQUIRE=1`, which makes a skipped test a failure.
pub fn skipped(why: &str) {
    let thread = thread::current();
    let name = name(&thread);
    let required = std::env::var("E2E_REQUIRE").is_ok_and(|required| required == "1");
    assert!(!required, "{name} is required: {why}");
    report(name, why);
}

/// Reports that the running test skips a part of itself, or all of it, because a program is too old.
///
/// `E2E_REQUIRE=1` does not make this a failure: a distribution decides which version a machine has.
pub fn skipped_by_version(why: &str) {
    report(name(&thread::current()), why);
}

fn name(thread: &Thread) -> &str {
    thread.name().unwrap_or("a test")
}

fn report(name: &str, why: &str) {
    let _ = writeln!(io::stderr(), "SKIPPED {name}: {why}");
    record(name, why);
}

/// Adds something that is skipped to the file that `SKIPPED_FILE` names, if there is one.
pub fn record(name: &str, why: &str) {
    let _ = std::env::var_os(FILE).map(|file| append(file, name, why));
}

/// Adds a line to the file with one write, because several tests run at a time.
fn append(file: OsString, name: &str, why: &str) -> io::Result<()> {
    let why = why.lines().next().unwrap_or_default();
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(format!("{name}\t{why}\n").as_bytes())
}

/// Returns the path of helm, if it is installed or built in `target`.
pub fn helm() -> Option<PathBuf> {
    program_path("helm")
}

/// Returns the path of a program, if it is on the `PATH` or `.ci/install-tools` has put it into `target`.
pub fn program_path(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let ours = ["go/bin", "clients/bin"].map(|directory| target.join(directory));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).chain(ours).map(|directory| directory.join(name));
    candidates.find(|file| file.is_file())
}

/// Returns whether a program is installed.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_test_is_a_line_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("skipped");
        append(file.clone().into(), "gitops::render::helm", "there is no helm\nexit code 1").unwrap();
        append(file.clone().into(), "charts", "there is no helm").unwrap();
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, "gitops::render::helm\tthere is no helm\ncharts\tthere is no helm\n");
    }
}
