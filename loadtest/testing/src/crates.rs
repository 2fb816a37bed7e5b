//! The crates of the workspace of which a program consists.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Returns the names of the package in `folder` and of all packages of the workspace that it needs, directly or not, as in paths of Rust.
///
/// # Panics
///
/// A manifest is missing.
pub fn within(folder: &str) -> Vec<String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let workspace = read(&root.join("Cargo.toml"));
    let members: BTreeMap<&str, PathBuf> = workspace
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" = { path = \"")?;
            Some((name, root.join(rest.split_once('"')?.0)))
        })
        .collect();
    let (mut found, mut open) = (BTreeSet::new(), vec![PathBuf::from(folder)]);
    while let Some(folder) = open.pop() {
        let manifest = read(&folder.join("Cargo.toml"));
        let (_, rest) = manifest.split_once("\nname = \"").expect("a name");
        let (name, rest) = rest.split_once('"').expect("a name");
        if found.insert(name.replace('-', "_")) {
            let dependencies = rest.split_once("\n[dependencies]\n").map_or("", |(_, rest)| rest);
            let dependencies = dependencies.split("\n\n").next().unwrap_or_default();
            let names = dependencies.lines().filter_map(|line| line.split(['.', ' ']).next());
            open.extend(names.filter_map(|name| members.get(name).cloned()));
        }
    }
    found.into_iter().collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
