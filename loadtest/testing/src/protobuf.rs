//! Messages that prost-build makes of a `.proto` file.

use std::{env, fs, path::Path};

/// Compares `src/messages/generated.rs` of a crate with what prost-build makes of `proto/<package>.proto`. With `UPDATE=1` it writes
/// the file. The fields in `boxed` are in a `Box`.
///
/// # Panics
///
/// The files differ.
pub fn check(root: &str, package: &str, boxed: &[&str]) {
    let root = Path::new(root);
    let files = protox::compile([format!("{package}.proto")], [root.join("proto")]).expect("a valid file");
    let directory = tempfile::tempdir().expect("a temporary folder");
    let mut config = prost_build::Config::new();
    boxed.iter().fold(&mut config, |config, field| config.boxed(field));
    config.bytes(["."]).out_dir(directory.path()).compile_fds(files).expect("generated code");
    let expected =
        fs::read_to_string(directory.path().join(format!("{package}.rs"))).expect("generated code");
    let path = root.join("src/messages/generated.rs");
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).expect("a file that can be written");
    }
    let is_current = fs::read_to_string(&path).is_ok_and(|current| current == expected);
    assert!(
        is_current,
        "proto/{package}.proto has changed: run this test with UPDATE=1 and commit {}",
        path.display()
    );
}
