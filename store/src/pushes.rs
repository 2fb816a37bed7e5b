//! Pushes to Git projects, which every replica learns of.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// The longest path of a project in bytes.
const MAX_PATH: usize = 2048;
/// The number of pushes that a slow receiver may be behind.
const CAPACITY: usize = 1024;

/// A push to a Git project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u64, String)", into = "(u64, String)")]
pub struct GitPush {
    project: u64,
    path: Arc<str>,
}

/// The error of a project that cannot exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a project: its id must be greater than 0, and its path at most {MAX_PATH} letters, digits and any of _.-/"
)]
pub struct InvalidProject;

/// The pushes that replicas send to each other.
pub trait PushStore: fmt::Debug + Send + Sync + 'static {
    /// Sends a push to the receivers from [`PushStore::pushes`] of all replicas, this one included.
    ///
    /// While the store is degraded, the other replicas receive it later, or never if there are too many.
    fn send_push(&self, push: GitPush);

    /// Returns a receiver of every later push. It reports an error if it misses some.
    fn pushes(&self) -> broadcast::Receiver<GitPush>;
}

/// Sends pushes to the tasks of this process that wait for them.
#[derive(Clone, Debug)]
pub(crate) struct PushEvents(broadcast::Sender<GitPush>);

impl GitPush {
    /// Creates a push to the project with this id and this full path, such as `group/project`.
    pub fn new(project: u64, path: &str) -> Result<Self, InvalidProject> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
        if project == 0 || path.is_empty() || path.len() > MAX_PATH || !path.bytes().all(valid) {
            return Err(InvalidProject);
        }
        Ok(Self { project, path: path.into() })
    }

    /// Creates a push to the project with this full path, whose id is not known.
    pub fn of_path(path: &str) -> Result<Self, InvalidProject> {
        let known = Self::new(1, path)?;
        Ok(Self { project: 0, ..known })
    }

    /// Returns the id of the project, or 0 if it is not known.
    pub fn project(&self) -> u64 {
        self.project
    }

    /// Returns the full path of the project.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl TryFrom<(u64, String)> for GitPush {
    type Error = InvalidProject;

    fn try_from((project, path): (u64, String)) -> Result<Self, InvalidProject> {
        match project {
            0 => Self::of_path(&path),
            _ => Self::new(project, &path),
        }
    }
}

impl From<GitPush> for (u64, String) {
    fn from(push: GitPush) -> Self {
        (push.project, push.path.as_ref().to_owned())
    }
}

impl Default for PushEvents {
    fn default() -> Self {
        Self(broadcast::Sender::new(CAPACITY))
    }
}

impl PushEvents {
    pub(crate) fn send(&self, push: GitPush) {
        // Fails if no task waits for pushes.
        _ = self.0.send(push);
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<GitPush> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_without_an_id_passes_other_replicas() {
        let push = GitPush::of_path("group/project").unwrap();
        let text = serde_json::to_string(&push).unwrap();
        assert_eq!(serde_json::from_str::<GitPush>(&text).unwrap(), push);
        assert_eq!((push.project(), GitPush::of_path("a b")), (0, Err(InvalidProject)));
    }

    #[test]
    fn project_has_an_id_and_a_path_of_gitlab() {
        let push = GitPush::new(7, "Group/sub-group/my_project.v2").unwrap();
        assert_eq!((push.project(), push.path()), (7, "Group/sub-group/my_project.v2"));
        for (project, path) in [
            (0, "a/b"),
            (7, ""),
            (7, "a b"),
            (7, "a/b\n"),
            (7, "a/\""),
            (7, "\u{e9}"),
            (7, &"a".repeat(2049)),
        ] {
            assert_eq!(GitPush::new(project, path), Err(InvalidProject), "{project} {path:?}");
        }
    }
}
