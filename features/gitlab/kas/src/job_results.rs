//! The results of the jobs of deployments, for which the operator has given kas a token. A job itself can be asked only while it runs.

use std::{sync::Arc, time::Duration};

use environments_wire::{Deployment, JobFacts, JobResults};
use futures_util::future::BoxFuture;
use http::StatusCode;
use moka::future::Cache;
use tokio::time::Instant;

use crate::{BudgetShare, Credential, GitLabClient};

/// The time for which an answer about a job is used.
const TTL: Duration = Duration::from_secs(15);
/// The most cached answers.
const CAPACITY: u64 = 10_000;

/// The results of jobs in a GitLab.
#[derive(Debug)]
pub struct GitLabJobResults {
    client: GitLabClient,
    /// The answers by project and job. Failures are answers, so that readers of a list do not repeat them.
    answers: Cache<(u64, u64), Arc<Answer>>,
}

#[derive(Debug)]
struct Answer {
    facts: Option<JobFacts>,
    expires: Instant,
}

impl GitLabJobResults {
    /// Returns the results of jobs of a GitLab, if the operator has given kas a token for them.
    pub fn new(client: &GitLabClient) -> Option<Self> {
        client.deployment_token_file()?;
        let answers = Cache::builder().max_capacity(CAPACITY).time_to_live(TTL).build();
        Some(Self { client: client.with_share(BudgetShare::KnownCallers), answers })
    }

    async fn request(&self, project: u64, job: u64) -> Option<JobFacts> {
        let token = match self.client.deployment_token().await? {
            Ok(token) => token,
            Err(error) => {
                tracing::warn!(error, "results of deployments stay unknown");
                return None;
            }
        };
        let mut found = match self.client.project_job(project, job, Credential::User(&token)).await {
            Ok(found) => found?,
            Err(error) => {
                tracing::debug!(project, job, %error, "GitLab does not say how the job of a deployment ended");
                return None;
            }
        };
        // A record that has ended is not completed again: after an error that may pass, it stays open.
        if found.facts.status.is_final()
            && let Err(error) =
                self.client.add_merge_request(project, &mut found, Credential::User(&token)).await
        {
            tracing::debug!(project, job, %error, "GitLab does not say which merge request was deployed");
            if !error.is_status(StatusCode::UNAUTHORIZED) && !error.is_status(StatusCode::FORBIDDEN) {
                return None;
            }
        }
        Some(found)
    }
}

impl JobResults for GitLabJobResults {
    fn facts<'a>(&'a self, deployment: &'a Deployment) -> BoxFuture<'a, Option<JobFacts>> {
        Box::pin(async move {
            let Deployment { project_id, job, .. } = *deployment;
            let answer = async {
                let facts = self.request(project_id, job).await;
                Arc::new(Answer { facts, expires: Instant::now() + TTL })
            };
            let expired = |answer: &Arc<Answer>| answer.expires <= Instant::now();
            let entry = self.answers.entry((project_id, job)).or_insert_with_if(answer, expired).await;
            entry.into_value().facts.clone()
        })
    }
}
