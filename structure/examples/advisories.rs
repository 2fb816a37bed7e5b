//! Fails where an advisory of RustSec is open against a lock file: a vulnerability, or a crate that is unmaintained or unsound.
//!
//! `cargo audit` is a larger program around the same library, and compiles for two minutes.
//!
//! usage: `advisories DATABASE`, a checkout of github.com/rustsec/advisory-db
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]
#![allow(clippy::print_stdout, reason = "this is a program of CI")]

use std::{env, error::Error, path::Path, process::ExitCode};

use rustsec::{
    Database, Lockfile,
    advisory::Informational,
    report::{Report, Settings},
};
use structure::root;

/// Advisories that do not concern the product.
const ACCEPTED: [&str; 1] = [
    // bincode is unmaintained: promql-parser reads its own built-in tables with it, and nothing foreign.
    "RUSTSEC-2025-0141",
];

fn settings() -> Result<Settings, rustsec::Error> {
    Ok(Settings {
        ignore: ACCEPTED.iter().map(|id| id.parse()).collect::<Result<_, _>>()?,
        informational_warnings: vec![
            Informational::Notice,
            Informational::Unmaintained,
            Informational::Unsound,
        ],
        ..Settings::default()
    })
}

/// Returns a line for each advisory against the packages of a lock file.
fn open_advisories(database: &Database, lock_file: &Path) -> Result<Vec<String>, rustsec::Error> {
    let report = Report::generate(database, &Lockfile::load(lock_file)?, &settings()?);
    let vulnerabilities = report.vulnerabilities.list.iter().map(|found| {
        let (package, advisory) = (&found.package, &found.advisory);
        format!("{} {}: {}: {}", package.name, package.version, advisory.id, advisory.title)
    });
    let warnings = report.warnings.values().flatten().map(|warning| {
        let (package, kind) = (&warning.package, warning.kind.as_str());
        let advisory =
            warning.advisory.as_ref().map(|advisory| format!("{}: {}", advisory.id, advisory.title));
        format!("{} {}: {kind}: {}", package.name, package.version, advisory.unwrap_or_default())
    });
    Ok(vulnerabilities.chain(warnings).collect())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("usage: advisories DATABASE")?;
    let database = Database::open(Path::new(&path))?;
    let mut open = 0;
    for name in ["Cargo.lock", "fuzz/Cargo.lock", "protobuf/Cargo.lock"] {
        for line in open_advisories(&database, &root().join(name))? {
            println!("{name}: {line}");
            open += 1;
        }
    }
    println!("{} advisories were read, {open} are open", database.iter().count());
    Ok(if open == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
