//! The crates of the workspace and their dependencies, as `cargo metadata` lists them.

use crate::root;
use serde::Deserialize;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A crate of the workspace.
#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

/// A library, a program, a test or an example of a crate.
#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`, and nothing for a normal dependency.
    kind: Option<String>,
    /// The folder of a crate of this workspace.
    path: Option<PathBuf>,
}

impl Package {
    /// The folder of the crate, relative to the root of the repository.
    pub fn folder(&self) -> &Path {
        let folder = self.manifest_path.parent().expect("a manifest is in a folder");
        folder.strip_prefix(root()).expect("the crates are below the root")
    }

    /// The first source files of the library and of the programs.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        let targets = self.targets.iter().filter(|target| target.kind == ["lib"] || target.kind == ["bin"]);
        targets.map(|target| target.src_path.as_path())
    }

    /// The names of the crates of this workspace that the library and the programs need.
    pub fn dependencies(&self) -> impl Iterator<Item = &str> {
        let normal = self.dependencies.iter().filter(|dependency| dependency.kind.is_none());
        normal.filter(|dependency| dependency.path.is_some()).map(|dependency| dependency.name.as_str())
    }
}

/// All crates of the workspace, in order of their names.
pub fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let mut packages = metadata.packages;
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    packages
}
