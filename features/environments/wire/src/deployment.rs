//! A deployment: a job with an environment that was allowed to use an agent.

use std::{fmt, time::SystemTime};

use futures_util::future::BoxFuture;
use proto::AgentId;
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::StoreError;

use super::Tier;

/// Records the deployments of CI jobs.
pub trait DeploymentRecorder: fmt::Debug + Send + Sync {
    /// Records a deployment, unless the same job has been recorded for the same agent.
    ///
    /// # Errors
    ///
    /// Redis did not answer. The deployment is not recorded, and the next request of the job tries again.
    fn record(&self, deployment: Deployment) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// A job that was allowed to deploy to an environment with an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deployment {
    /// The time of the first request of the job to the agent.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// The agent.
    pub agent: AgentId,
    /// The default namespace of the job, if it is known.
    pub namespace: Option<String>,
    /// The id of the project of the job.
    pub project_id: u64,
    /// The slug of the environment.
    pub environment: String,
    /// The tier of the environment.
    pub tier: Tier,
    /// The id of the job.
    pub job: u64,
    /// The commit of the job, if it is known.
    pub commit: Option<String>,
    /// The user who started the job, if it is known.
    pub username: Option<String>,
}
