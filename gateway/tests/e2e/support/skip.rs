//! Tests that cannot run here say so.

use std::{
    io::Write as _,
    thread::{self, Thread},
};

/// Says that the running test is left out, in a place that the test harness does not capture.
///
/// # Panics
///
/// With `E2E_REQUIRE=1`: where everything has to be there, leaving a test out is a failure.
pub(crate) fn skipped(why: &str) {
    let thread = thread::current();
    let name = name(&thread);
    let required = std::env::var("E2E_REQUIRE").is_ok_and(|required| required == "1");
    assert!(!required, "{name} is required: {why}");
    report(name, why);
}

/// Reports that the running test skips a part of itself, or all of it, because a program is too old.
///
/// `E2E_REQUIRE=1` does not make this a failure: a distribution decides which version a machine has.
pub(super) fn skipped_by_version(why: &str) {
    report(name(&thread::current()), why);
}

fn name(thread: &Thread) -> &str {
    thread.name().unwrap_or("a test")
}

fn report(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
}

/// Whether a program is installed.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
