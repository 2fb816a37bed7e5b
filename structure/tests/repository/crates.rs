//! The crates stand in the layers of `docs/architecture.md`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use structure::{
    root,
    workspace::{Package, packages},
};

/// The number of crates in the longest chain of dependencies. It may only get smaller.
const LONGEST_CHAIN: usize = 8;

/// Collects the Rust files below a folder, without paths that are not wanted.
fn collect(folder: &Path, is_wanted: &impl Fn(&Path) -> bool, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !is_wanted(&path) {
        } else if path.is_dir() {
            collect(&path, is_wanted, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}

/// Each line of the drawing is a layer: a crate depends only on crates in lines below its own.
#[test]
fn crates_depend_only_on_crates_in_layers_below() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, section) = text.split_once("\n## Crates\n").unwrap();
    let drawing = section.split("```").nth(1).unwrap().strip_prefix("text\n").unwrap();
    let layers: BTreeMap<&str, usize> = drawing
        .lines()
        .rev()
        .enumerate()
        .flat_map(|(height, line)| line.split_whitespace().map(move |name| (name, height)))
        .collect();
    let packages = packages();
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let drawn: BTreeSet<&str> = layers.keys().copied().collect();
    let differing: Vec<_> = names.symmetric_difference(&drawn).collect();
    assert!(differing.is_empty(), "in the drawing or in the workspace, and not in both: {differing:?}");
    let mut wrong = Vec::new();
    for package in &packages {
        let is_below = |name: &&str| layers[*name] < layers[package.name.as_str()];
        for dependency in package.dependencies().filter(|name| !is_below(name)) {
            wrong.push(format!("{} depends on {dependency}, which is not below it", package.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The crates from one to the most distant one that it needs, both included.
fn longest_chain<'a>(packages: &'a [Package], name: &'a str) -> Vec<&'a str> {
    let package = packages.iter().find(|package| package.name == name).unwrap();
    let chains = package.dependencies().map(|dependency| longest_chain(packages, dependency));
    let longest = chains.max_by_key(Vec::len).unwrap_or_default();
    [&[name], longest.as_slice()].concat()
}

/// A type that comes through a long chain is hard to find, and a change at its end builds everything.
#[test]
fn longest_chain_of_dependencies_is_the_recorded_one() {
    let packages = packages();
    let chains = packages.iter().map(|package| longest_chain(&packages, &package.name));
    let longest = chains.max_by_key(Vec::len).unwrap();
    assert_eq!(longest.len(), LONGEST_CHAIN, "set the number if it is lower: {}", longest.join(" → "));
}

/// A small system does not have each of these programs.
#[test]
fn no_program_is_started_where_a_system_call_does_it() {
    let mut files = Vec::new();
    for package in packages() {
        // The folders of crates contain those of others, and of builds.
        let is_wanted =
            |path: &Path| path.file_name().is_some_and(|name| name != "target" && name != "node_modules");
        collect(&root().join(package.folder()), &is_wanted, &mut files);
    }
    let starts = ["kill", "mkfifo"].map(|program| format!("Command::new(\"{program}\")"));
    files.retain(|file| starts.iter().any(|start| fs::read_to_string(file).unwrap().contains(start)));
    assert!(files.is_empty(), "they start programs: {files:?}");
}
