//! The invalid settings of projects. The author of the configuration mends them.

use super::{MAX_ID, MAX_PATHS, MAX_RELEASE_NAME};

/// A setting of a project that cannot be used. The text names the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts of the errors document them")]
pub enum InvalidManifestProject {
    #[error("id must be the path of a project, of at most {MAX_ID} bytes")]
    Id,
    #[error("name must have at most 63 characters: a-z, 0-9, and - in the middle")]
    Name,
    #[error("ref.commit must be the full id of a commit: 40 or 64 hexadecimal digits")]
    Commit,
    #[error("ref: {0:?} is not the name of a branch or tag")]
    Reference(String),
    #[error("directory: {0:?} is not a path from the root of the repository")]
    Directory(String),
    #[error("namespaces, default_namespace: {0:?} is not a namespace")]
    Namespace(String),
    #[error("namespaces: name at least one namespace, or remove the key to allow all")]
    NoNamespaces,
    #[error("paths must have at most {MAX_PATHS} entries")]
    TooManyPaths,
    #[error("paths: a glob must not be empty")]
    EmptyGlob,
    #[error("paths: {0}")]
    Glob(globset::Error),
    #[error("max_prune_percent must be from 0 to 100")]
    PrunePercent,
    #[error("run_as.service_account must be a name, or namespace/name")]
    ServiceAccount,
    #[error("helm: it has no effect without render: helm")]
    HelmUnused,
    #[error(
        "helm.release_name must have at most {MAX_RELEASE_NAME} characters: a-z, 0-9, and - in the middle"
    )]
    ReleaseName,
    #[error("helm.values_files must have at most {MAX_PATHS} entries")]
    TooManyValuesFiles,
    #[error("helm.values_files: {0:?} is not a path from the root of the repository")]
    ValuesFile(String),
    #[error("allow_unstable_rendering: it has no effect without render: helm")]
    UnstableRenderingUnused,
    #[error("ignore_differences must have at most {MAX_PATHS} entries with {MAX_PATHS} paths each")]
    TooManyDifferences,
    #[error("ignore_differences: each entry needs kinds and paths; '*' is all kinds")]
    EmptyDifference,
    #[error("resource_inclusions, resource_exclusions: each entry needs api_groups and kinds; '*' is all")]
    EmptyFilter,
}
