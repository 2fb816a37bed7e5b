//! The messages of GitLab and Hubble are those that the program `protobuf` made of their `.proto` files.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use structure::root;

/// Returns the folders of crates below `features` with `.proto` files.
fn crates_with_messages() -> Vec<PathBuf> {
    let folders = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let features = folders(&root().join("features"));
    let crates = features.filter(|feature| feature.is_dir()).flat_map(|feature| folders(&feature));
    crates.filter(|folder| folder.join("proto").is_dir()).collect()
}

#[test]
fn messages_and_their_proto_files_have_the_recorded_hashes() {
    let crates = crates_with_messages();
    assert!(!crates.is_empty());
    for folder in crates {
        let recorded = fs::read_to_string(folder.join("proto/SHA256SUMS")).unwrap();
        let files = recorded.lines().map(|line| line.split_once("  ").unwrap());
        let differing: Vec<_> = files
            .filter(|(digits, file)| {
                let digest = Sha256::digest(fs::read(folder.join(file)).unwrap());
                digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>() != *digits
            })
            .map(|(_, file)| file)
            .collect();
        assert!(
            differing.is_empty() && recorded.lines().count() == 2,
            "{}: {differing:?} changed: run `cargo run --manifest-path protobuf/Cargo.toml`",
            folder.display()
        );
    }
}
