//! Reads the sources of this repository, for tests that hold its structure and its documents.
//!
//! The package depends on no other crate of the workspace, so that its tests are built in seconds.

pub mod circles;
pub mod licences;
pub mod modules;
pub mod references;
pub mod workspace;

use std::path::Path;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package has a folder of its own")
}
