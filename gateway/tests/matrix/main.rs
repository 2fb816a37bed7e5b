//! Everything that can meet, meets in a test: pairs of callers, agents, transports, replicas, names, requests, sizes, events and policies, with the
//! real programs.
//!
//! `make matrix` runs all cases; the name of a case is its values, and a part of a name selects cases:
//! `cargo test -p gateway --test matrix -- pat/independent`. `MATRIX_CASES` has the names of any cases to run in place of the generated ones,
//! also of those that no list has, to find out which of its values makes a case fail.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and the tests run programs without a runtime whose threads could block"
)]

mod callers;
mod clients;
mod events;
mod expectations;
mod fixtures;
mod pairs;
mod proxies;
mod requests;
mod values;
mod world;

#[path = "../e2e/support/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the end-to-end tests use the rest")]
mod support;

use std::{panic, process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial};

use self::{
    expectations::{Expectation, Table},
    fixtures::Fixtures,
    values::Case,
};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let fixtures = Arc::new(Fixtures::default());
    let mut trials = vec![Trial::test("every_allowed_pair_is_in_a_case", || run(pairs::check_generator))];
    for (case, expectation) in cases() {
        let fixtures = Arc::clone(&fixtures);
        trials.push(Trial::test(case.text(), move || {
            let try_case = || run(|| world::try_case(&fixtures, case, expectation));
            // As with the other end-to-end tests: a shared machine may stall for seconds.
            try_case().or_else(|_| {
                println!("FLAKY or broken, tried again: {}", case.text());
                try_case()
            })
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The namespace is deleted before the process exits.
    drop(fixtures);
    conclusion.exit_code()
}

/// Returns all cases: those in which everything works, and one for each pair that is refused.
fn cases() -> Vec<(Case, Expectation)> {
    let table = Table::new();
    if let Ok(names) = std::env::var("MATRIX_CASES") {
        let case = |name| Case::parse(name).unwrap_or_else(|| panic!("{name} is no case"));
        return names.split_whitespace().map(|name| (case(name), Expectation::Works)).collect();
    }
    let value = |(dimension, index)| Case::value(dimension, index);
    let rows = pairs::covering_rows(Case::counts(), |a, b| table.is_allowed(value(a), value(b)));
    let working = rows.into_iter().map(|row| (Case::from_indices(row), Expectation::Works));
    working.chain(table.refused_cases()).collect()
}

/// Runs a test. libtest-mimic does not say what a panic printed otherwise.
fn run(test: impl FnOnce()) -> Result<(), Failed> {
    panic::catch_unwind(panic::AssertUnwindSafe(test)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Failed::from(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
    })
}
