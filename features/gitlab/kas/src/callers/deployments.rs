//! The deployments of jobs: each is recorded at the first request of the job, and described as GitLab answers the job's own token.
//!
//! GitLab answers the token while the job runs, so that kas learns that the job has ended, and not how. Without a token of the operator
//! for that, the result stays unknown.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use environments_wire::{Deployment, DeploymentRecords, DeploymentStatus};
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use parking_lot::Mutex;
use secrecy::SecretString;
use store::StoreError;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{BudgetShare, GitLabClient, GitLabError};

/// The most jobs that are described or followed. The oldest are followed no more.
const MAX_JOBS: usize = 200;
/// The requests in flight.
const AT_ONCE: usize = 8;
/// The time after which a running job is asked about again.
const PERIOD: Duration = Duration::from_secs(60);

/// Records the deployments of jobs, and follows these jobs.
#[derive(Debug)]
pub(super) struct JobDeployments {
    client: GitLabClient,
    records: Arc<dyn DeploymentRecords>,
    added: Notify,
    jobs: Mutex<VecDeque<FollowedJob>>,
}

/// A job whose end is not known.
#[derive(Clone, Debug)]
struct FollowedJob {
    /// The last record.
    deployment: Deployment,
    token: SecretString,
    /// The time at which GitLab is asked.
    due: Instant,
}

impl JobDeployments {
    pub(super) fn new(client: &GitLabClient, records: Arc<dyn DeploymentRecords>) -> Self {
        let client = client.with_share(BudgetShare::KnownCallers);
        Self { client, records, added: Notify::new(), jobs: Mutex::default() }
    }

    /// Records the deployment of the job with this token.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub(super) async fn record(
        &self,
        deployment: Deployment,
        token: &SecretString,
    ) -> Result<(), StoreError> {
        self.records.record(deployment.clone()).await?;
        let mut jobs = self.jobs.lock();
        jobs.push_back(FollowedJob { deployment, token: token.clone(), due: Instant::now() });
        if jobs.len() > MAX_JOBS {
            jobs.pop_front();
        }
        drop(jobs);
        self.added.notify_one();
        Ok(())
    }

    /// Describes the deployments that are recorded, and follows their jobs until they end. The future never completes.
    pub(super) async fn run(&self) {
        loop {
            let next = self.jobs.lock().iter().map(|job| job.due).min();
            match next {
                Some(due) => {
                    let _ = timeout_at(due, self.added.notified()).await;
                }
                None => self.added.notified().await,
            }
            let due = self.take_due(Instant::now());
            let followed = due.into_iter().map(|job| self.ask(job));
            let followed: Vec<_> = stream::iter(followed).buffer_unordered(AT_ONCE).collect().await;
            let mut jobs = self.jobs.lock();
            // New jobs, of which GitLab has not been asked yet, are the last ones that are left out.
            let later = std::mem::take(&mut *jobs);
            jobs.extend(followed.into_iter().flatten().chain(later));
            let surplus = jobs.len().saturating_sub(MAX_JOBS);
            jobs.drain(..surplus);
        }
    }

    /// Removes the jobs that are due.
    fn take_due(&self, now: Instant) -> Vec<FollowedJob> {
        let mut jobs = self.jobs.lock();
        let (due, later) = jobs.drain(..).partition(|job| job.due <= now);
        *jobs = later;
        Vec::from(due)
    }

    /// Asks GitLab about a job, and updates its record. Returns the job if it still runs.
    async fn ask(&self, job: FollowedJob) -> Option<FollowedJob> {
        let FollowedJob { deployment, token, .. } = job;
        let (new, is_running) = match self.client.job(&token).await {
            Ok(found) => {
                let new = deployment.with_facts(found);
                let is_running = !new.facts.status.is_final();
                (new, is_running)
            }
            Err(GitLabError::Status {
                status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND,
                ..
            }) => (ended(&deployment, SystemTime::now()), false),
            // It is asked again in the next period.
            Err(error) => {
                tracing::debug!(job = deployment.job, %error, "GitLab does not describe the job of a deployment");
                (deployment.clone(), true)
            }
        };
        let is_new = new != deployment;
        if is_new && let Err(error) = self.records.replace(&deployment, &new).await {
            tracing::debug!(job = new.job, %error, "the record of a deployment was not updated");
            // The old record stays, and the next answer replaces it.
            return Some(FollowedJob { deployment, token, due: Instant::now() + PERIOD });
        }
        // With a token of the operator, the result is asked for when somebody reads it.
        let is_followed = is_running && self.client.deployment_token_file().is_none();
        is_followed.then(|| FollowedJob { deployment: new, token, due: Instant::now() + PERIOD })
    }
}

/// Returns the record of a deployment whose job has ended with an unknown result.
fn ended(deployment: &Deployment, now: SystemTime) -> Deployment {
    let mut deployment = deployment.clone();
    deployment.facts.status = DeploymentStatus::Unknown;
    deployment.facts.finished = Some(now);
    deployment
}
