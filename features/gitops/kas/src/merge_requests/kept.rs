//! The progress of previews, which outlives the tunnel of an agent: a diff is expensive for the cluster.

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use proto::{AgentId, agent_configuration::gitops::ManifestProject};
use tokio::time::Instant;

use super::schedule::PreviewProgress;

/// The time for which progress is kept without a tunnel.
const RETENTION: Duration = Duration::from_secs(3600);
/// The most projects whose progress is kept without a tunnel. Each has the numbers and the heads of at most 20 merge requests.
const MAX_PROJECTS: usize = 1000;

/// The progress of projects whose agent has no tunnel to this replica now. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptProgress(Arc<Mutex<HashMap<ProjectKey, Kept>>>);

/// A project of an agent, by its name.
type ProjectKey = (AgentId, String);

#[derive(Debug)]
struct Kept {
    /// With other settings, a diff is another one.
    project: ManifestProject,
    since: Instant,
    progress: PreviewProgress,
}

/// The progress of a project, which is kept when this is dropped.
#[derive(Debug)]
pub(super) struct ProgressGuard {
    all: KeptProgress,
    key: ProjectKey,
    project: ManifestProject,
    progress: PreviewProgress,
}

impl KeptProgress {
    /// Returns the progress of a project, or begins without any. An agent may have two tunnels for a moment.
    pub(super) fn resume(&self, agent: AgentId, name: &str, project: &ManifestProject) -> ProgressGuard {
        let key = (agent, name.to_owned());
        let all = self.0.lock();
        let kept = all.get(&key).filter(|kept| kept.is_valid() && kept.project == *project);
        let progress = kept.map(|kept| kept.progress.clone()).unwrap_or_default();
        ProgressGuard { all: self.clone(), key, project: project.clone(), progress }
    }
}

impl Kept {
    fn is_valid(&self) -> bool {
        self.since.elapsed() < RETENTION
    }
}

impl Deref for ProgressGuard {
    type Target = PreviewProgress;

    fn deref(&self) -> &PreviewProgress {
        &self.progress
    }
}

impl DerefMut for ProgressGuard {
    fn deref_mut(&mut self) -> &mut PreviewProgress {
        &mut self.progress
    }
}

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        let progress = std::mem::take(&mut self.progress).without_sections();
        let kept = Kept { project: self.project.clone(), since: Instant::now(), progress };
        let mut all = self.all.0.lock();
        all.retain(|_, kept| kept.is_valid());
        if all.len() < MAX_PROJECTS || all.contains_key(&self.key) {
            all.insert(self.key.clone(), kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use gitops_wire::MergeRequest;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_outlives_its_tunnel_for_a_time_and_only_with_the_same_settings() {
        let (all, project) = (KeptProgress::default(), ManifestProject::default());
        let request = MergeRequest { number: 12, commit: "a".to_owned(), is_of_fork: false };
        let is_due = |agent, name, project: &ManifestProject| {
            all.resume(AgentId(agent), name, project).is_due(&request, Instant::now())
        };
        all.resume(AgentId(7), "shop", &project).finish(&request, Ok(()), Instant::now());
        assert!(!is_due(7, "shop", &project));
        assert!(!is_due(7, "shop", &project), "it is kept again");
        assert!(is_due(8, "shop", &project) && is_due(7, "other", &project));
        let other = ManifestProject { default_namespace: "other".to_owned(), ..project.clone() };
        assert!(is_due(7, "shop", &other));

        all.resume(AgentId(7), "shop", &project).finish(&request, Ok(()), Instant::now());
        tokio::time::advance(RETENTION).await;
        assert!(is_due(7, "shop", &project));
    }

    #[tokio::test(start_paused = true)]
    async fn progress_has_a_limit() {
        let (all, project) = (KeptProgress::default(), ManifestProject::default());
        for agent in 0..=MAX_PROJECTS as u64 {
            drop(all.resume(AgentId(agent), "shop", &project));
        }
        assert_eq!(all.0.lock().len(), MAX_PROJECTS);
    }
}
