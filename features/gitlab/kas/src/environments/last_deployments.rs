//! The last deployments to environments, as the holder of a token sees them in GitLab.
//!
//! One request lists the newest deployments of a project. For an environment without a successful one among them, GitLab is asked for its
//! last successful deployment.

use environments_wire::{
    DeploymentOrigin, DeploymentStatus, EnvironmentDeployment, GitLabToken, LastDeployments,
};
use http::StatusCode;

use super::{answers::TokenAnswers, credential};
use crate::{CacheTtls, GitLabClient, GitLabError, ProjectDeployment};

/// The most deployments of all cached answers. They use some 1000 bytes each.
const CAPACITY: u64 = 20_000;

/// The deployments of projects and environments. Each answer is cached for the token.
#[derive(Debug)]
pub(super) struct DeploymentLookup {
    client: GitLabClient,
    answers: TokenAnswers<Found>,
    ttls: CacheTtls,
}

/// The deployments of a project or of one environment, the newest first, or `None` if the holder of the token cannot see the project.
type Found = Result<Option<Vec<ProjectDeployment>>, String>;

impl DeploymentLookup {
    pub(super) fn new(client: GitLabClient, ttls: CacheTtls) -> Self {
        let count = |found: &Found| found.as_ref().map_or(0, |found| found.as_ref().map_or(0, Vec::len));
        let answers = TokenAnswers::new(CAPACITY, ttls, count);
        Self { client, answers, ttls }
    }

    /// Returns the newest deployments of a project.
    pub(super) async fn of_project(&self, project: &str, token: &GitLabToken) -> Found {
        let (_, _, credential) = credential(token);
        self.cached(project, token, self.client.project_deployments(project, credential)).await
    }

    /// Returns the last successful deployment to an environment of a project.
    pub(super) async fn of_environment(
        &self,
        (project, slug, id): (&str, &str, u64),
        token: &GitLabToken,
    ) -> Result<Option<EnvironmentDeployment>, String> {
        let (_, _, credential) = credential(token);
        let request = async {
            let found = self.client.last_successful_deployment(project, id, credential).await?;
            let entry = |deployment| ProjectDeployment { environment: slug.to_owned(), deployment };
            Ok(Some(found.map(entry).into_iter().collect()))
        };
        let found = self.cached(&format!("{project}\n{id}"), token, request).await?;
        Ok(found.unwrap_or_default().into_iter().next().map(|found| found.deployment))
    }

    async fn cached(
        &self,
        name: &str,
        token: &GitLabToken,
        request: impl Future<Output = Result<Option<Vec<ProjectDeployment>>, GitLabError>>,
    ) -> Found {
        let request = async {
            match request.await {
                Ok(found) => (Ok(found), self.ttls.responses),
                Err(error) => (Err(describe(error)), self.ttls.errors),
            }
        };
        self.answers.get(name, token, request).await
    }
}

/// Returns the last deployments to an environment among those of its project, of which the newest is the first.
///
/// As in GitLab, the successful one that finished last is the last one: a deployment that began before it may finish after it.
pub(super) fn last_of(slug: &str, deployments: &[ProjectDeployment]) -> LastDeployments {
    let of_environment = || {
        let here = deployments.iter().filter(|found| found.environment == slug);
        here.map(|found| &found.deployment)
    };
    let is_success = |found: &&EnvironmentDeployment| found.facts.status == DeploymentStatus::Success;
    let successful = of_environment().filter(is_success).rev().max_by_key(|found| found.facts.finished);
    LastDeployments {
        source: DeploymentOrigin::GitLab,
        last: of_environment().next().cloned(),
        last_successful: successful.cloned(),
        missing: None,
    }
}

fn describe(error: GitLabError) -> String {
    match error {
        GitLabError::Status { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, message } => format!(
            "GitLab refuses the token of the caller for deployments, which needs the scope read_api and, in most projects, the role \
             Reporter: {message}"
        ),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use environments_wire::DeploymentFacts;

    use super::*;

    fn deployment(job: u64, slug: &str, status: DeploymentStatus, finished: u64) -> ProjectDeployment {
        let finished = (finished > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(finished));
        let facts = DeploymentFacts { status, finished, ..DeploymentFacts::default() };
        let deployment = EnvironmentDeployment { commit: None, username: None, job: Some(job), facts };
        ProjectDeployment { environment: slug.to_owned(), deployment }
    }

    #[test]
    fn last_successful_deployment_is_the_one_that_finished_last() {
        use DeploymentStatus::{Failed, Running, Success};
        let newest_first = [
            deployment(6, "live", Running, 0),
            deployment(5, "dev", Success, 90),
            deployment(4, "live", Success, 50),
            deployment(3, "live", Failed, 70),
            deployment(2, "live", Success, 60),
        ];
        let last = |slug| {
            let LastDeployments { last, last_successful, .. } = last_of(slug, &newest_first);
            [last, last_successful].map(|found| found.and_then(|found| found.job))
        };
        assert_eq!(last("live"), [Some(6), Some(2)]);
        assert_eq!(last("dev"), [Some(5), Some(5)]);
        assert_eq!(last("test"), [None, None]);
    }
}
