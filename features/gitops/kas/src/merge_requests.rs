//! Previews in merge requests: what a sync of the source branch would change, as a note that kas keeps up to date.
//!
//! ```text
//!   push ─► LookTimes ─► open merge requests ─► PreviewProgress ─► diff of agentk ─► NoteWriter ─► GitLab
//! ```
//!
//! The replica that agentk uses as its source of manifests does it for this agent. A note has sections of several agents, so that replicas
//! claim the notes before they write. Only the project with the configuration of the agent has previews, as it has statuses: the authors of
//! that configuration can name any public project, and must not be able to write there with the token of the operator. Merge requests of
//! forks have none: each user of GitLab can open one, and a diff has values of the cluster.

mod diff;
mod mac;
mod note;
mod schedule;
mod writer;

use std::{future::pending, time::Duration};

use git::{Commit, CommitId};
use gitops_wire::{MergeRequest, MergeRequestError, NotePlace};
use proto::agent_configuration::gitops::{GitRef, ManifestProject};
use tokio::time::{Instant, sleep_until};
use tunnel::Tunnel;

pub(crate) use self::writer::NoteWriter;
use self::{
    diff::diff_section,
    note::SectionSubject,
    schedule::{LookTimes, PreviewProgress},
    writer::{NoteTarget, PreviewResult},
};
use super::{Pushes, feed::GitopsFeed};

/// The age of a look at the repository, which has the name of the default branch.
const AGE: Duration = Duration::from_secs(60);

/// A project of an agent whose merge requests have previews.
struct PreviewedProject<'a> {
    writer: &'a NoteWriter,
    project: &'a ManifestProject,
    /// The id of the project with the configuration of the agent.
    own: &'a str,
    /// The name among the projects of the agent.
    name: &'a str,
}

impl GitopsFeed {
    /// Writes the changes of each merge request of a project into a note. The future never completes.
    pub(super) async fn follow_merge_requests(&self, tunnel: &Tunnel, project: &ManifestProject, own: &str) {
        let Some(previewed) = self.previewed(project, own) else { return pending().await };
        let (mut pushes, mut progress) = (self.service.pushes(), PreviewProgress::default());
        let mut looks = LookTimes::new(Instant::now());
        loop {
            tokio::select! {
                () = sleep_until(looks.next()) => {}
                () = pushed(&mut pushes, own) => {
                    looks.push(Instant::now());
                    continue;
                }
            }
            match self.look_at_merge_requests(tunnel, &previewed, &mut progress).await {
                Ok(due) => looks.looked(due, Instant::now()),
                Err(error) => {
                    self.count_preview(&previewed, None, &Err(error.clone()));
                    looks.failed(&error, Instant::now());
                }
            }
        }
    }

    /// Returns the project if its merge requests have previews.
    fn previewed<'a>(&'a self, project: &'a ManifestProject, own: &'a str) -> Option<PreviewedProject<'a>> {
        let writer = self.service.0.notes.as_ref()?;
        let name = project.name().unwrap_or(own);
        let is_own = project.id.as_deref().is_none_or(|id| id == own);
        if is_own && matches!(project.r#ref, None | Some(GitRef::Branch(_))) {
            return Some(PreviewedProject { writer, project, own, name });
        }
        tracing::warn!(
            agent.name = %self.agent().name, project = name,
            "merge_request_previews has no effect: only branches of the project with the configuration of the agent have previews"
        );
        None
    }

    /// Previews the first merge request that needs it. Returns the time of the next look: others may have changed since the list was read.
    async fn look_at_merge_requests(
        &self,
        tunnel: &Tunnel,
        previewed: &PreviewedProject<'_>,
        progress: &mut PreviewProgress,
    ) -> Result<Option<Instant>, MergeRequestError> {
        let (project, branch) = self.target(previewed).await?;
        let open = previewed.writer.open_merge_requests(project, &branch).await?;
        progress.retain(&open);
        let now = Instant::now();
        let Some(request) = open.iter().find(|request| progress.is_due(request, now)) else {
            return Ok(progress.due(&open));
        };
        let place = NotePlace { project, merge_request: request.number };
        let target = NoteTarget { place, branch: &branch, commit: &request.commit };
        let result = self.preview_merge_request(tunnel, previewed, target, request, progress).await;
        self.count_preview(previewed, Some(place), &result);
        progress.finish(request, result.as_ref().map(|_| ()), Instant::now());
        Ok(Some(Instant::now()))
    }

    /// Checks that the operator of kas has not disabled GitOps for the agent.
    fn check_previews(&self) -> Result<(), MergeRequestError> {
        self.check_enabled().map_err(|error| unavailable(error.into_message()))
    }

    /// Returns the id of the project in GitLab, and the branch that the agent follows.
    async fn target(&self, previewed: &PreviewedProject<'_>) -> Result<(u64, String), MergeRequestError> {
        let PreviewedProject { project, own, .. } = previewed;
        self.check_previews()?;
        let agent = (self.agent(), &self.reader.token);
        let followed = self.service.0.sources.follow(agent, project, own).await;
        let followed = followed.map_err(|error| unavailable(error.to_string()))?;
        let id = followed.gitlab_project.ok_or_else(|| {
            MergeRequestError::Refused(
                "the project with the configuration of the agent is not in GitLab".to_owned(),
            )
        })?;
        let commit = followed.newest(AGE).await.map_err(|error| unavailable(error.to_string()))?;
        let Some(Commit { branch, .. }) = commit else {
            return Err(unavailable("the repository has no commit yet".to_owned()));
        };
        Ok((id, branch))
    }

    async fn preview_merge_request(
        &self,
        tunnel: &Tunnel,
        previewed: &PreviewedProject<'_>,
        target: NoteTarget<'_>,
        request: &MergeRequest,
        progress: &mut PreviewProgress,
    ) -> Result<PreviewResult, MergeRequestError> {
        if request.is_of_fork {
            return Ok(PreviewResult::Fork);
        }
        let commit = request.commit.parse::<CommitId>();
        let commit = commit.map_err(|_| MergeRequestError::Refused("its head is no commit".to_owned()))?;
        let agent = self.agent();
        let subject = SectionSubject {
            agent: (agent.id, &agent.name),
            project: previewed.name,
            commit: commit.as_str(),
        };
        let section = if let Some(section) = progress.section(request) {
            section
        } else {
            // agentk makes few diffs at the same time, and people wait for theirs.
            let _turn = self.preview_turn.acquire().await.expect("the semaphore is never closed");
            self.check_previews()?;
            let section = diff_section(tunnel, &self.subscription, &subject).await?;
            progress.keep_section(request, &section);
            section
        };
        previewed.writer.write(target, &section, || self.check_previews()).await
    }

    fn count_preview(
        &self,
        previewed: &PreviewedProject<'_>,
        place: Option<NotePlace>,
        result: &Result<PreviewResult, MergeRequestError>,
    ) {
        let (agent, project) = (&self.agent().name, previewed.name);
        let merge_request = place.map(|place| place.merge_request);
        self.service.0.commits.metrics.count_merge_request_preview(match result {
            Ok(PreviewResult::Created) => "created",
            Ok(PreviewResult::Updated) => "updated",
            Ok(PreviewResult::Unchanged) => "unchanged",
            Ok(PreviewResult::Fork) => "fork",
            Err(MergeRequestError::Refused(_)) => "refused",
            Err(MergeRequestError::Unavailable { .. }) => "failed",
        });
        match result {
            Ok(result) => {
                tracing::debug!(agent.name = %agent, project, merge_request, ?result, "preview of a merge request");
            }
            Err(error @ MergeRequestError::Refused(_)) => tracing::warn!(
                agent.name = %agent, project, merge_request, %error,
                "a preview was refused; after 401 or 403, the token (gitlab.comment_token_file) needs the scope api and the role Reporter"
            ),
            Err(error @ MergeRequestError::Unavailable { .. }) => tracing::info!(
                agent.name = %agent, project, merge_request, %error, "a preview is tried again later"
            ),
        }
    }
}

fn unavailable(message: String) -> MergeRequestError {
    MergeRequestError::Unavailable { message, retry_after: AGE }
}

/// Waits for a push to a project, or for one that may have been missed.
async fn pushed(pushes: &mut Pushes, project: &str) {
    while pushes.recv().await.is_some_and(|path| path != project) {}
}
