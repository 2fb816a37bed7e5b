//! A deployment: a job with an environment that was allowed to use an agent, or an entry in GitLab's list of deployments.

use std::{fmt, sync::Arc, time::SystemTime};

use futures_util::future::BoxFuture;
use proto::{AgentId, ServiceName, Verb};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::StoreError;

use super::{Environment, Tier};

/// The records of the deployments of CI jobs.
pub trait DeploymentRecords: fmt::Debug + Send + Sync {
    /// Records a deployment, unless the same job has been recorded for the same agent.
    ///
    /// # Errors
    ///
    /// Redis did not answer. The deployment is not recorded, and the next request of the job tries again.
    fn record(&self, deployment: Deployment) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Replaces the record of a deployment by one of the same job and agent.
    ///
    /// # Errors
    ///
    /// Redis did not answer. The record stays as it was.
    fn replace<'a>(
        &'a self,
        old: &'a Deployment,
        new: &'a Deployment,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Returns all records as they are, the newest first. They may be some seconds old.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    fn known(&self) -> BoxFuture<'_, Result<Arc<[Deployment]>, StoreError>>;

    /// Returns all records, the newest first, and completes those of jobs that have ended, as far as GitLab answers. They may be some seconds
    /// old.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    fn list(&self) -> BoxFuture<'_, Result<Arc<[Deployment]>, StoreError>>;
}

/// Returns whether a job with an environment that uses the service deploys. A job that only reads the graph or the state of manifests
/// deploys nothing.
pub fn deploys(service: &ServiceName) -> bool {
    !matches!(service.verbs(), [Verb::Read, ..])
}

/// A source of the results of jobs, for the records of their deployments.
pub trait JobResults: fmt::Debug + Send + Sync {
    /// Returns what is known about the job of a deployment now, or `None` if nothing is.
    fn facts<'a>(&'a self, deployment: &'a Deployment) -> BoxFuture<'a, Option<JobFacts>>;
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
    /// The full path of the project, if it is known.
    #[serde(default)]
    pub project: Option<String>,
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
    /// The other facts.
    #[serde(flatten)]
    pub facts: DeploymentFacts,
}

/// The facts of a deployment that may be unknown. Earlier versions of kas have recorded none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeploymentFacts {
    /// The status.
    pub status: DeploymentStatus,
    /// The branch or tag.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// The name of the author of the commit.
    pub author: Option<String>,
    /// The id of the pipeline.
    pub pipeline: Option<u64>,
    /// The URL of the job in GitLab.
    pub job_url: Option<String>,
    /// The URL of the pipeline in GitLab.
    pub pipeline_url: Option<String>,
    /// The URL of the commit in GitLab.
    pub commit_url: Option<String>,
    /// The number of the merge request in its project.
    pub merge_request: Option<u64>,
    /// The URL of the merge request in GitLab.
    pub merge_request_url: Option<String>,
    /// The start of the job.
    #[serde(with = "optional_time")]
    pub started: Option<SystemTime>,
    /// The end of the job.
    #[serde(with = "optional_time")]
    pub finished: Option<SystemTime>,
}

/// The facts of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    /// The full path of the project.
    pub project: Option<String>,
    /// The commit.
    pub commit: Option<String>,
    /// The other facts.
    pub facts: DeploymentFacts,
}

/// The status of a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum DeploymentStatus {
    Running,
    Success,
    Failed,
    Canceled,
    /// kas cannot know it. A later version of kas may know further ones.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The last deployments to an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastDeployments {
    /// Where kas knows them from.
    pub source: DeploymentOrigin,
    /// The last one, with any status.
    pub last: Option<EnvironmentDeployment>,
    /// The last successful one.
    pub last_successful: Option<EnvironmentDeployment>,
    /// The error because of which they are not known.
    pub missing: Option<String>,
}

/// The origin of the deployments to an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentOrigin {
    /// GitLab's list of deployments, which has all.
    GitLab,
    /// The records of the jobs that have used an agent.
    Jobs,
}

/// A deployment to an environment that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentDeployment {
    /// The commit, if it is known.
    pub commit: Option<String>,
    /// The user who started it, if that is known.
    pub username: Option<String>,
    /// The id of the job. A deployment that a program has reported to GitLab has none.
    pub job: Option<u64>,
    /// The other facts.
    #[serde(flatten)]
    pub facts: DeploymentFacts,
}

impl Deployment {
    /// Returns the deployment with these facts of its job. The project and the commit stay if the job has none.
    pub fn with_facts(&self, found: JobFacts) -> Self {
        let JobFacts { project, commit, facts } = found;
        let (project, commit) =
            (project.or_else(|| self.project.clone()), commit.or_else(|| self.commit.clone()));
        Self { project, commit, facts, ..self.clone() }
    }

    /// Returns whether the deployment is to an environment. Without the path of its project, it may be to another one with the same slug.
    pub fn is_to(&self, environment: &Environment) -> bool {
        self.project.as_ref() == Some(&environment.project) && self.environment == environment.slug
    }
}

impl DeploymentStatus {
    /// Every status with its name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("running", Self::Running),
        ("success", Self::Success),
        ("failed", Self::Failed),
        ("canceled", Self::Canceled),
        ("unknown", Self::Unknown),
    ];

    /// Returns the status that GitLab calls so, or [`DeploymentStatus::Unknown`].
    pub fn of(name: &str) -> Self {
        match name {
            "canceling" => Self::Running,
            name => Self::ALL.iter().find(|(known, _)| *known == name).map_or(Self::Unknown, |(_, it)| *it),
        }
    }

    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, status)| *status == self).map_or("unknown", |(name, _)| name)
    }

    /// Returns whether the deployment has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Failed | Self::Canceled)
    }
}

impl LastDeployments {
    /// Returns the last deployments to an environment among records, of which the newest is the first.
    pub fn of_records<'a>(
        environment: &Environment,
        records: impl IntoIterator<Item = &'a Deployment>,
    ) -> Self {
        let (mut last, mut last_successful) = (None, None);
        for record in records.into_iter().filter(|record| record.is_to(environment)) {
            let found = || EnvironmentDeployment::from(record);
            last = last.or_else(|| Some(found()));
            if record.facts.status == DeploymentStatus::Success {
                last_successful = Some(found());
                break;
            }
        }
        Self { source: DeploymentOrigin::Jobs, last, last_successful, missing: None }
    }

    /// Returns deployments that are not known.
    pub fn unknown(source: DeploymentOrigin, error: impl Into<String>) -> Self {
        Self { source, last: None, last_successful: None, missing: Some(error.into()) }
    }
}

impl From<&Deployment> for EnvironmentDeployment {
    fn from(record: &Deployment) -> Self {
        let Deployment { commit, username, job, facts, .. } = record.clone();
        Self { commit, username, job: Some(job), facts }
    }
}

/// Times that may be absent, for `#[serde(with)]`.
mod optional_time {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use settings::rfc3339;

    #[derive(Serialize, Deserialize)]
    struct Time(#[serde(with = "rfc3339")] SystemTime);

    pub(super) fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(Time).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<Time>::deserialize(deserializer)?.map(|Time(time)| time))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn record(job: u64, project: Option<&str>, status: DeploymentStatus) -> Deployment {
        Deployment {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(job),
            agent: AgentId(1),
            namespace: None,
            project_id: 7,
            project: project.map(str::to_owned),
            environment: "live".to_owned(),
            tier: Tier::Production,
            job,
            commit: Some(format!("{job:040x}")),
            username: None,
            facts: DeploymentFacts { status, ..DeploymentFacts::default() },
        }
    }

    #[test]
    fn last_deployments_are_those_of_the_project_and_the_slug() {
        use DeploymentStatus::{Failed, Running, Success, Unknown};
        let environment = Environment {
            id: 1,
            project: "shop/web".to_owned(),
            slug: "live".to_owned(),
            name: "live".to_owned(),
            tier: Tier::Production,
            group: None,
            agents: Vec::new(),
        };
        let last = |records: &[Deployment]| {
            let LastDeployments { last, last_successful, .. } =
                LastDeployments::of_records(&environment, records);
            [last, last_successful].map(|found| found.and_then(|found| found.job))
        };
        let web = Some("shop/web");
        let elsewhere = Deployment { environment: "dev".to_owned(), ..record(9, web, Success) };
        assert_eq!(
            last(&[elsewhere, record(8, Some("shop/api"), Success), record(7, None, Success)]),
            [None, None]
        );
        let records = [record(5, web, Running), record(4, web, Failed), record(3, web, Success)];
        assert_eq!(last(&records), [Some(5), Some(3)]);
        assert_eq!(last(&records[..2]), [Some(5), None]);
        assert_eq!(last(&[record(6, web, Unknown), record(2, web, Success)]), [Some(6), Some(2)]);
    }

    #[test]
    fn status_of_gitlab_and_of_later_versions_is_read() {
        assert_eq!(DeploymentStatus::of("canceling"), DeploymentStatus::Running);
        assert_eq!(DeploymentStatus::of("blocked"), DeploymentStatus::Unknown);
        for (name, status) in DeploymentStatus::ALL {
            assert_eq!((DeploymentStatus::of(name), status.as_str()), (status, name));
        }
        let facts: DeploymentFacts =
            serde_json::from_value(json!({"status": "rolled-back", "finished": "2026-11-20T08:00:00Z"}))
                .unwrap();
        assert_eq!(facts.status, DeploymentStatus::Unknown);
        assert!(facts.finished.is_some() && facts.started.is_none());
    }
}
