//! The version and the files of a project.

use std::fmt;

use globset::GlobMatcher;
use serde::{Deserialize, Serialize};

use super::{InvalidManifestProject, MAX_ID};
use crate::path_glob;

/// A version of a repository. Exactly one key is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GitRef {
    /// The newest commit of a branch.
    Branch(String),
    /// The commit of a tag.
    Tag(String),
    /// A commit, by its full id.
    Commit(String),
}

/// Files of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestPath {
    /// A pattern with `*`, `?`, `[a-z]`, `{a,b}` and `**`. It begins at the root of the repository.
    pub glob: String,
}

/// Matches the files of a glob.
#[derive(Clone, Debug)]
pub struct PathMatcher {
    glob: GlobMatcher,
    /// The glob names files that begin with `.`.
    names_hidden: bool,
}

impl GitRef {
    pub(super) fn validate(&self) -> Result<(), InvalidManifestProject> {
        match self {
            Self::Commit(id) => {
                let digits = id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                (digits && matches!(id.len(), 40 | 64)).then_some(()).ok_or(InvalidManifestProject::Commit)
            }
            Self::Branch(name) | Self::Tag(name) => is_reference_name(name)
                .then_some(())
                .ok_or_else(|| InvalidManifestProject::Reference(name.clone())),
        }
    }
}

impl fmt::Display for GitRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::Commit(id) => write!(f, "commit {id}"),
        }
    }
}

impl ManifestPath {
    /// Returns a matcher. `*` matches no `/`, as in GitLab's kas.
    pub(super) fn matcher(&self) -> Result<PathMatcher, InvalidManifestProject> {
        let glob = self.glob.strip_prefix("./").unwrap_or(&self.glob).trim_start_matches('/');
        if glob.is_empty() {
            return Err(InvalidManifestProject::EmptyGlob);
        }
        let glob_matcher = path_glob(glob).map_err(InvalidManifestProject::Glob)?;
        let names_hidden = file_name(glob).starts_with('.');
        Ok(PathMatcher { glob: glob_matcher, names_hidden })
    }
}

impl PathMatcher {
    /// Returns whether a path is one of these files. Files that begin with `.`, such as `.gitlab-ci.yml`, are for programs, unless the glob
    /// names them.
    pub fn is_match(&self, path: &str) -> bool {
        (self.names_hidden || !file_name(path).starts_with('.')) && self.glob.is_match(path)
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns whether a text is the name of a branch or a tag, without `refs/heads/` (`git check-ref-format`).
fn is_reference_name(name: &str) -> bool {
    let special = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let segment = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    !name.starts_with('-')
        && !name.ends_with('.')
        && name.len() <= MAX_ID
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(special)
        && name.split('/').all(segment)
}
