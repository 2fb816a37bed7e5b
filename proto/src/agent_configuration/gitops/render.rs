//! The way from files to manifests.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{InvalidManifestProject, MAX_PATHS, MAX_RELEASE_NAME, is_namespace};

/// The way in which files become manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Render {
    /// The directory of each path decides: with a kustomization for kustomize, with a chart for helm, and otherwise its files are
    /// manifests.
    #[default]
    Auto,
    /// All files are manifests.
    Plain,
    /// `kustomize build` of the directory of each path.
    Kustomize,
    /// `helm template` of the directory of each path.
    Helm,
}

/// The name of the release and the values for `helm template`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Helm {
    /// The name of the release. The default is that of the directory of the chart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_name: Option<String>,
    /// Files with values, from the root of the repository. The last one is the strongest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values_files: Vec<String>,
    /// Values, which are stronger than those of files.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
}

impl Helm {
    pub(super) fn validate(&self) -> Result<(), InvalidManifestProject> {
        let is_name = |name: &String| name.len() <= MAX_RELEASE_NAME && is_namespace(name);
        if self.release_name.as_ref().is_some_and(|name| !is_name(name)) {
            return Err(InvalidManifestProject::ReleaseName);
        }
        if self.values_files.len() > MAX_PATHS {
            return Err(InvalidManifestProject::TooManyValuesFiles);
        }
        let inside = |part: &str| !matches!(part, "" | "." | "..");
        match self.values_files.iter().find(|path| !path.split('/').all(inside)) {
            Some(path) => Err(InvalidManifestProject::ValuesFile(path.clone())),
            None => Ok(()),
        }
    }
}
