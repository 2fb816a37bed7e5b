//! OCI artifacts with manifests, as `flux push artifact`, `oras push` and `helm push` make them.
//!
//! An artifact is a [`Repository`](git::Repository) whose commit is the digest of its manifest. Layers that are archives are unpacked
//! in memory; other layers are files. Nothing of an artifact is executed or written to a disk.
#![warn(missing_docs)]

mod artifact;
mod registry;
mod settings;
#[cfg(test)]
mod tests;
mod unpack;

pub use self::{
    artifact::OciRepository,
    settings::{OciSettings, VersionError},
};
