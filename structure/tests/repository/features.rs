//! Core never names a feature, and a feature names another one only through its crate `wire`.
//!
//! The folder of a crate says to which feature it belongs. The command line of kas and the admission webhook are no such crates:
//! [`MODULES`] names the feature of each of their modules.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod parts;

use self::parts::{CORE, MODULES, PROGRAM};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use structure::{
    references::SourceTree,
    workspace::{Package, packages},
};

/// The feature of a crate below `features/`.
fn feature(package: &Package) -> Option<&str> {
    let mut folders = package.folder().iter().map(|folder| folder.to_str().unwrap());
    if folders.next() == Some("features") { folders.next() } else { None }
}

fn is_wire(package: &Package) -> bool {
    package.folder().ends_with("wire")
}

/// Returns whether a crate is of no feature, and not of a program or of tests either.
fn is_core(package: &Package) -> bool {
    let core = [
        "proto",
        "tunnel",
        "router",
        "store",
        "common",
        "gateway/access",
        "gateway/core",
        "gateway/listen",
        "agent/core",
        "agent/policy",
    ]
    .map(Path::new);
    core.iter().any(|folder| package.folder().starts_with(folder))
}

#[test]
fn crates_depend_on_no_crate_of_another_feature_but_its_wire() {
    let packages = packages();
    let by_name: BTreeMap<&str, &Package> =
        packages.iter().map(|package| (package.name.as_str(), package)).collect();
    let mut forbidden = Vec::new();
    for package in packages.iter().filter(|package| is_core(package) || feature(package).is_some()) {
        for dependency in package.dependencies().map(|name| by_name[name]) {
            let other = feature(dependency).filter(|other| Some(*other) != feature(package));
            if other.is_some() && (is_core(package) || !is_wire(dependency)) {
                forbidden.push(format!("{} depends on {}", package.name, dependency.name));
            }
        }
    }
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

/// The part of a module: a feature, the program or core. The longest name in the table decides.
fn part(krate: &str, module: &str) -> &'static str {
    let is_above = |above: &str| {
        module.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let rows = MODULES.iter().filter(|(of, name, _)| *of == krate && is_above(name));
    rows.max_by_key(|(_, name, _)| name.len()).map_or(CORE, |(.., part)| part)
}

/// Returns whether a part may not name another one.
fn is_forbidden(from: &str, to: &str) -> bool {
    from != to && from != PROGRAM && to != CORE
}

/// The forbidden imports, as `module → module` or `module → crate`, by their crate and both parts.
fn forbidden_imports() -> BTreeMap<(String, &'static str, String), BTreeSet<String>> {
    let packages = packages();
    let features: BTreeMap<String, &str> = packages
        .iter()
        .filter(|package| !is_wire(package))
        .filter_map(|package| Some((package.name.replace('-', "_"), feature(package)?)))
        .collect();
    let mut forbidden: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for package in packages.iter().filter(|package| MODULES.iter().any(|(krate, ..)| *krate == package.name))
    {
        let krate = &package.name;
        for tree in package.roots().map(SourceTree::read) {
            let references = tree.references();
            let internal = references.iter().map(|reference| {
                let to = tree.name(reference.to);
                (reference.from, part(krate, &to).to_owned(), to)
            });
            let external = (0..tree.modules.len()).flat_map(|from| {
                let names = tree.foreign_names(from).into_iter().map(str::to_owned);
                names
                    .filter_map(|name| Some((from, (*features.get(&name)?).to_owned(), name)))
                    .collect::<Vec<_>>()
            });
            for (from, to_part, to) in internal.chain(external) {
                let from = tree.name(from);
                let from_part = part(krate, &from);
                if is_forbidden(from_part, &to_part) {
                    let imports = forbidden.entry((krate.clone(), from_part, to_part)).or_default();
                    imports.insert(format!("{from} → {to}"));
                }
            }
        }
    }
    forbidden
}

#[test]
fn modules_name_no_module_of_another_feature() {
    let forbidden = forbidden_imports();
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}

#[test]
fn modules_of_the_table_exist() {
    let mut modules = BTreeSet::new();
    for package in
        packages().iter().filter(|package| MODULES.iter().any(|(krate, ..)| *krate == package.name))
    {
        for tree in package.roots().map(SourceTree::read) {
            modules.extend((0..tree.modules.len()).map(|id| (package.name.clone(), tree.name(id))));
        }
    }
    let missing: Vec<_> = MODULES
        .iter()
        .filter(|(krate, name, _)| !modules.contains(&((*krate).to_owned(), (*name).to_owned())))
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
