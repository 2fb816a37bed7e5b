//! The dependencies keep the rules of `deny.toml`: licences, bans and sources. `make deny` reads the same file with cargo-deny.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use serde::Deserialize;
use structure::{licences, root};

/// The only source of packages.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The parts of `deny.toml` that are tested here.
#[derive(Deserialize)]
struct Rules {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
    exceptions: Vec<LicenceException>,
}

#[derive(Deserialize)]
struct LicenceException {
    allow: Vec<String>,
    #[serde(rename = "crate")]
    package: String,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    name: String,
    reason: String,
}

fn rules() -> Rules {
    toml::from_str(&fs::read_to_string(root().join("deny.toml")).unwrap()).unwrap()
}

/// Returns the licence expression of each package that is compiled for the targets, tests included, by its name.
///
/// `cargo metadata` also has packages of features that nothing enables.
fn packages(targets: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for target in targets {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--workspace", "--locked", "--edges", "normal,build,dev", "--target", target])
            .args(["--prefix", "none", "--format", "{p}\t{l}\t", "--manifest-path"])
            .arg(root().join("Cargo.toml"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()) {
            let (package, rest) = line.split_once('\t').unwrap();
            let (licence, _) = rest.split_once('\t').unwrap();
            let (name, _) = package.split_once(' ').unwrap();
            packages.entry(name.to_owned()).or_default().insert(licence.to_owned());
        }
    }
    packages
}

#[test]
fn licences_are_allowed() {
    let Rules { graph, licenses, .. } = rules();
    let packages = packages(&graph.targets);
    assert!(packages.len() > 300, "{} packages were read", packages.len());
    let is_exception = |name: &str, licence: &str| {
        let mut exceptions = licenses.exceptions.iter().filter(|exception| exception.package == name);
        exceptions.any(|exception| exception.allow.iter().any(|allowed| allowed == licence))
    };
    let mut refused = Vec::new();
    for (name, expressions) in &packages {
        let is_allowed = |licence: &str| licenses.allow.contains(licence) || is_exception(name, licence);
        let wrong = expressions.iter().filter(|expression| !licences::is_satisfied(expression, &is_allowed));
        refused.extend(wrong.map(|expression| format!("{name}: {expression}")));
    }
    assert!(refused.is_empty(), "deny.toml does not allow these licences: {refused:#?}");
    for exception in &licenses.exceptions {
        assert!(packages.contains_key(&exception.package), "{} is no dependency any more", exception.package);
    }
}

#[test]
fn banned_packages_are_not_compiled() {
    let Rules { graph, bans, .. } = rules();
    let packages = packages(&graph.targets);
    assert!(!bans.deny.is_empty());
    let found = bans.deny.iter().filter(|ban| packages.contains_key(&ban.name));
    let found: Vec<_> = found.map(|ban| format!("{}: {}", ban.name, ban.reason)).collect();
    assert!(found.is_empty(), "`cargo tree --invert` finds the users of these banned packages: {found:#?}");
}

#[test]
fn packages_come_from_the_registry() {
    let sources = rules().sources;
    assert!(["unknown-registry", "unknown-git"].iter().all(|key| sources[*key] == "deny"), "{sources:?}");
    for lock_file in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let text = fs::read_to_string(root().join(lock_file)).unwrap();
        let sources = text.lines().filter_map(|line| line.strip_prefix("source = "));
        let sources: BTreeSet<_> = sources.map(|source| source.trim_matches('"')).collect();
        assert_eq!(sources, BTreeSet::from([REGISTRY]), "{lock_file}");
    }
}
