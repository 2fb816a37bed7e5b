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

/// Features that packages have in tests alone. The clock of tests is one of them; the others are of a client for Kubernetes with TLS and
/// exec, which is tried as a caller, and of what these need.
const ONLY_IN_TESTS: [(&str, &[&str]); 11] = [
    ("hyper-rustls", &["aws-lc-rs", "log", "logging", "native-tokio", "rustls-native-certs"]),
    ("idna", &["default"]),
    ("kube", &["aws-lc-rs", "rustls-tls", "ws"]),
    ("kube-client", &["aws-lc-rs", "hyper-rustls", "rustls", "rustls-tls", "tokio-tungstenite", "ws"]),
    ("kube-core", &["ws"]),
    ("rustix", &["thread"]),
    ("semver", &["serde"]),
    ("testing", &["json-schema", "test-cluster"]),
    ("tokio", &["test-util"]),
    ("tokio-tungstenite", &["connect", "default"]),
    ("url", &["serde"]),
];

/// All keys of `deny.toml`: one that the tests do not know is an error, because it would have no effect here.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Licences {
    allow: BTreeSet<String>,
    exceptions: Vec<LicenceException>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LicenceException {
    allow: Vec<String>,
    #[serde(rename = "crate")]
    package: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Bans {
    multiple_versions: String,
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Sources {
    unknown_registry: String,
    unknown_git: String,
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

fn rules() -> Rules {
    toml::from_str(&read("deny.toml")).unwrap()
}

/// Returns the values of a key of all packages in a lock file, such as `name`.
fn locked(lock_file: &str, key: &str) -> BTreeSet<String> {
    let text = read(lock_file);
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
    values.map(|value| value.trim_matches('"').to_owned()).collect()
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

/// Returns the features of each package with these kinds of dependencies, by its name and version.
fn features(edges: &str) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--edges", edges])
        .args(["--prefix", "none", "--format", "{p}\t{f}\t", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()) {
        let (package, rest) = line.split_once('\t').unwrap();
        // After it is a mark where the package was printed before.
        let (features, _) = rest.split_once('\t').unwrap();
        let name = package.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let features = features.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned);
        packages.entry(name).or_default().extend(features);
    }
    packages
}

/// CI never compiles the programs without the features of tests. Code of a program that needs one of [`ONLY_IN_TESTS`] is found by `make
/// lint` alone.
#[test]
fn programs_have_the_features_with_which_they_are_tested() {
    let programs = features("normal,build");
    let tests = features("normal,build,dev");
    assert!(programs.len() > 300, "{} packages were read", programs.len());
    let more: BTreeMap<_, Vec<_>> = programs
        .iter()
        .map(|(package, features)| {
            let name = package.split(' ').next().unwrap();
            (name, tests[package].difference(features).map(String::as_str).collect())
        })
        .filter(|(_, more): &(_, Vec<_>)| !more.is_empty())
        .collect();
    assert_eq!(more, BTreeMap::from(ONLY_IN_TESTS.map(|(package, features)| (package, features.to_vec()))));
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

/// Fuzz targets compile packages of this workspace. The packages that only their lock file has are those of libFuzzer.
#[test]
fn banned_packages_are_not_compiled() {
    let Rules { graph, bans, .. } = rules();
    let packages = packages(&graph.targets);
    let of_workspace = locked("Cargo.lock", "name");
    let of_fuzzing: BTreeSet<_> =
        locked("fuzz/Cargo.lock", "name").difference(&of_workspace).cloned().collect();
    assert!(of_fuzzing.contains("libfuzzer-sys"), "{of_fuzzing:?}");
    assert!(!bans.deny.is_empty());
    let is_used = |name: &str| packages.contains_key(name) || of_fuzzing.contains(name);
    let found = bans.deny.iter().filter(|ban| is_used(&ban.name));
    let found: Vec<_> = found.map(|ban| format!("{}: {}", ban.name, ban.reason)).collect();
    assert!(found.is_empty(), "`cargo tree --invert` finds the users of these banned packages: {found:#?}");
    assert_eq!(bans.multiple_versions, "warn", "no test here refuses several versions of a package");
}

#[test]
fn packages_come_from_the_registry() {
    let Sources { unknown_registry, unknown_git } = rules().sources;
    assert_eq!((&*unknown_registry, &*unknown_git), ("deny", "deny"));
    for lock_file in ["Cargo.lock", "fuzz/Cargo.lock"] {
        assert_eq!(locked(lock_file, "source"), BTreeSet::from([REGISTRY.to_owned()]), "{lock_file}");
    }
}

#[test]
fn key_without_a_test_is_an_error() {
    let text = read("deny.toml");
    for section in ["[graph]", "[licenses]", "[bans]", "[sources]"] {
        let with_another = text.replace(section, &format!("{section}\nanother = true"));
        let error = toml::from_str::<Rules>(&with_another).unwrap_err().to_string();
        assert!(error.contains("another"), "{section}: {error}");
    }
}
