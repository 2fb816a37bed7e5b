//! The faults of a file that has no manifests. Its author mends them.

use crate::{folded::FoldError, yaml::YamlError};

/// The reason why the objects of a file cannot be read, with its line.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub(super) struct ManifestError {
    /// The line, from 1.
    pub(super) line: u64,
    pub(super) fault: ManifestFault,
}

/// The fault of a file or of an object in it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestFault {
    #[error("the file is a pointer to Git LFS, and kas does not fetch from LFS: commit the manifest itself")]
    LfsPointer,
    #[error("the file is not UTF-8 text")]
    NotUtf8,
    #[error("{0}")]
    Yaml(YamlError),
    #[error(
        "{0}; {{{{ }}}} is of a template, which only helm fills in: use render: helm, or leave the file out with paths"
    )]
    Template(YamlError),
    #[error("a document is not an object: it must have apiVersion, kind and metadata")]
    NotObject,
    #[error("a document has no {0}")]
    MissingField(&'static str),
    #[error("{0} is not a text")]
    FieldNotText(&'static str),
    #[error(
        "a kustomization is no object: commit what `kustomize build` prints, and leave this file out with paths"
    )]
    Kustomization,
    #[error(
        "the {kind} is encrypted with SOPS, and agentk does not decrypt: commit it in another form, or leave the file out with paths"
    )]
    Encrypted { kind: String },
    #[error("{0:?} is not an apiVersion")]
    InvalidApiVersion(String),
    #[error("the {kind} has no metadata")]
    MissingMetadata { kind: String },
    #[error("the {kind} has no metadata.name")]
    MissingName { kind: String },
    #[error("the {kind} has generateName: each sync would create another object; give it a name")]
    GeneratedName { kind: String },
    /// `object` is the kind, and the name if it is known.
    #[error("metadata.{field} of the {object} is not a text: write it in quotes")]
    MetadataNotText { field: String, object: String },
    #[error("metadata.{field} of the {object} is not a mapping")]
    MetadataNotMapping { field: &'static str, object: String },
    #[error("{name:?} cannot be the name of a {kind} or of its namespace")]
    InvalidName { name: String, kind: String },
    #[error(transparent)]
    Fold(#[from] FoldError),
}

impl ManifestFault {
    /// Returns the error of a line with this fault.
    pub(super) fn at(self, line: u64) -> ManifestError {
        ManifestError { line, fault: self }
    }
}
