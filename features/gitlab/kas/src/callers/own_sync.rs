//! The right of a job to sync what an agent applies from the job's own project.
//!
//! Both ids of the comparison are GitLab's: that of the job's project comes with the answer about its token, and that of the manifests with
//! the repository that kas reads them from.

use std::time::Duration;

use access::{RequestError, Target};
use gitops_wire::ManifestOriginError;
use proto::{AgentId, Reason, ServiceName, Verb, gitops::ProjectPath};

use super::{GitLabAuthorizer, caller::GitLabCaller};

/// `Retry-After` while kas does not know where manifests are.
const RETRY_AFTER: Duration = Duration::from_secs(5);

impl GitLabAuthorizer {
    /// Returns whether a job that has the default rights syncs the manifests of its own project.
    ///
    /// # Errors
    ///
    /// * `identity-unavailable`: kas does not know now where the manifests are.
    /// * `unknown-service`: agentk runs without GitOps, so that there are none.
    pub(super) async fn syncs_own(
        &self,
        caller: &GitLabCaller,
        agent: AgentId,
        target: &Target<'_>,
    ) -> Result<bool, RequestError> {
        let Some((own, name)) = caller.project_with_default_sync(agent).zip(synced_project(target)) else {
            return Ok(false);
        };
        let found = self.agents.manifests.project_with_manifests(agent, &name).await;
        match found {
            Ok(project) => Ok(project == Some(own)),
            Err(ManifestOriginError::Unknown(what)) => Err(unknown(&what)),
            Err(ManifestOriginError::WithoutGitops) => Err(without_gitops(agent)),
        }
    }
}

/// Returns the name of the project that a request syncs, if it syncs one.
fn synced_project(target: &Target<'_>) -> Option<String> {
    let is_sync = target.service.as_str() == ServiceName::GITOPS && target.verb() == Verb::Sync;
    let path = ProjectPath::parse(target.path).filter(|_| is_sync)?;
    Some(path.project.into_owned())
}

fn without_gitops(agent: AgentId) -> RequestError {
    let what = format!(
        "there is nothing to sync: agentk of agent {agent} runs without GitOps; set gitops.enabled of its \
         chart, or use the agentk of kas in place of GitLab's"
    );
    RequestError::new(Reason::UnknownService, what)
}

fn unknown(what: &str) -> RequestError {
    let what = format!("kas does not know whether the manifests are in the project of this job: {what}");
    RequestError::new(Reason::IdentityUnavailable, what).with_retry_after(RETRY_AFTER)
}
