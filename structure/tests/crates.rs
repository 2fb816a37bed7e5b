//! The crates stand in the layers of `docs/architecture.md`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use structure::root;

/// The folders of the crates of the workspace.
fn crates() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, members) = manifest.split_once("members = [").unwrap();
    let (members, _) = members.split_once("\n]").unwrap();
    members.lines().filter_map(|line| line.split('"').nth(1)).map(|folder| root().join(folder)).collect()
}

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
    let drawing = section.split("```").nth(1).unwrap();
    let mut layers = BTreeMap::new();
    for (height, line) in drawing.lines().rev().enumerate() {
        for name in line.split_whitespace() {
            layers.insert(name.to_owned(), height);
        }
    }
    let mut wrong = Vec::new();
    for folder in crates() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let (head, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap_or((&manifest, ""));
        let name = head.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
        let Some(&layer) = layers.get(name) else {
            wrong.push(format!("{name} is not in the drawing"));
            continue;
        };
        let dependencies = dependencies.split("\n[").next().unwrap();
        for dependency in dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next()) {
            if layers.get(dependency).is_some_and(|below| *below >= layer) {
                wrong.push(format!("{name} depends on {dependency}, which is not below it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A small system does not have each of these programs.
#[test]
fn no_program_is_started_where_a_system_call_does_it() {
    let mut files = Vec::new();
    for folder in crates() {
        // The folders of crates contain those of others, and of builds.
        let is_wanted =
            |path: &Path| path.file_name().is_some_and(|name| name != "target" && name != "node_modules");
        collect(&folder, &is_wanted, &mut files);
    }
    let starts = ["kill", "mkfifo"].map(|program| format!("Command::new(\"{program}\")"));
    files.retain(|file| starts.iter().any(|start| fs::read_to_string(file).unwrap().contains(start)));
    assert!(files.is_empty(), "they start programs: {files:?}");
}
