//! The last deployments to environments, as the holder of a token sees them in GitLab.
//!
//! One request lists the newest deployments of a project. For an environment without a successful one among them, GitLab is asked for its
//! last successful deployment.

use std::sync::Arc;

use access::token::TokenHash;
use environments_wire::{
    DeploymentOrigin, DeploymentStatus, EnvironmentDeployment, GitLabToken, LastDeployments,
};
use http::StatusCode;
use moka::future::Cache;
use tokio::time::Instant;

use super::credential;
use crate::{CacheTtls, Credential, GitLabClient, GitLabError, ProjectDeployment};

/// The most deployments of all cached answers. They use some 1000 bytes each.
const CAPACITY: u64 = 20_000;

/// The deployments of projects and environments. Each answer is cached for the token.
#[derive(Debug)]
pub(super) struct DeploymentLookup {
    client: GitLabClient,
    answers: Cache<TokenHash, Arc<Answer>>,
    ttls: CacheTtls,
}

/// The deployments of a project or of one environment, the newest first, or `None` if the holder of the token cannot see the project.
type Found = Result<Option<Vec<ProjectDeployment>>, String>;

#[derive(Debug)]
struct Answer {
    result: Found,
    expires: Instant,
}

impl DeploymentLookup {
    pub(super) fn new(client: GitLabClient, ttls: CacheTtls) -> Self {
        let answers = Cache::builder()
            .max_capacity(CAPACITY)
            .weigher(|_, answer: &Arc<Answer>| answer.weight())
            .time_to_live(ttls.responses.max(ttls.errors))
            .build();
        Self { client, answers, ttls }
    }

    /// Returns the newest deployments of a project.
    pub(super) async fn of_project(&self, project: &str, token: &GitLabToken) -> Found {
        let request =
            async |credential: Credential<'_>| self.client.project_deployments(project, credential).await;
        self.cached(&format!("deployments {project}"), token, request).await
    }

    /// Returns the last successful deployment to an environment of a project.
    pub(super) async fn of_environment(
        &self,
        (project, slug, id): (&str, &str, u64),
        token: &GitLabToken,
    ) -> Result<Option<EnvironmentDeployment>, String> {
        let request = async |credential: Credential<'_>| {
            let found = self.client.last_successful_deployment(project, id, credential).await?;
            let entry = |deployment| ProjectDeployment { environment: slug.to_owned(), deployment };
            Ok(Some(found.map(entry).into_iter().collect()))
        };
        let found = self.cached(&format!("deployments {project}\n{id}"), token, request).await?;
        Ok(found.unwrap_or_default().into_iter().next().map(|found| found.deployment))
    }

    async fn cached(
        &self,
        name: &str,
        token: &GitLabToken,
        request: impl AsyncFnOnce(Credential<'_>) -> Result<Option<Vec<ProjectDeployment>>, GitLabError>,
    ) -> Found {
        let (kind, secret, credential) = credential(token);
        let answer = async {
            let (result, ttl) = match request(credential).await {
                Ok(found) => (Ok(found), self.ttls.responses),
                Err(error) => (Err(describe(error)), self.ttls.errors),
            };
            Arc::new(Answer { result, expires: Instant::now() + ttl })
        };
        let key = TokenHash::of_credential(&format!("{kind} {name}"), secret, None);
        let expired = |answer: &Arc<Answer>| answer.expires <= Instant::now();
        self.answers.entry(key).or_insert_with_if(answer, expired).await.into_value().result.clone()
    }
}

impl Answer {
    fn weight(&self) -> u32 {
        let deployments = self.result.as_ref().map_or(0, |found| found.as_ref().map_or(0, Vec::len));
        u32::try_from(deployments + 1).unwrap_or(u32::MAX)
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
