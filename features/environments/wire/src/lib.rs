//! The environments of projects, and the deployments to them, as the features of kas share them. An environment is a place to which a
//! project deploys: namespaces of agents.
//!
//! Each source of environments implements [`EnvironmentSource`]: the file `environments.file`, the configurations of agents, and GitLab.
//! A feature that sees CI jobs gives their deployments to the [`DeploymentRecords`], and the results of the jobs as [`JobResults`].
#![warn(missing_docs)]

mod deployment;
mod names;
mod query;

use std::{collections::BTreeMap, fmt, future::ready, sync::Arc};

use access::SourceUnavailable;
use futures_util::future::{BoxFuture, FutureExt as _};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

pub use self::{
    deployment::{
        Deployment, DeploymentFacts, DeploymentOrigin, DeploymentRecords, DeploymentStatus,
        EnvironmentDeployment, JobFacts, JobResults, LastDeployments, deploys,
    },
    names::{is_label, is_name, is_project},
    query::{EnvironmentQuery, EnvironmentSelection, MAX_ENVIRONMENTS, MissingEnvironments, NamePattern},
};

/// A source of answers: which environments exist?
pub trait EnvironmentSource: fmt::Debug + Send + Sync {
    /// Returns the environments that the query selects, in order of their ids, and the parts that the source could not read. The
    /// reader decides what GitLab has.
    ///
    /// # Errors
    ///
    /// The source cannot answer now, or refuses the token.
    fn list<'a>(
        &'a self,
        query: &'a EnvironmentQuery,
        reader: EnvironmentReader<'a>,
    ) -> BoxFuture<'a, Result<EnvironmentSelection, EnvironmentError>>;

    /// Returns the last deployments to each of these environments, in their order, if the holder of the token may see them. `None` is an
    /// environment of which the source knows no deployments.
    fn last_deployments<'a>(
        &'a self,
        environments: &'a [Environment],
        _: &'a GitLabToken,
    ) -> BoxFuture<'a, Vec<Option<LastDeployments>>> {
        ready(environments.iter().map(|_| None).collect()).boxed()
    }
}

/// The sources of environments in their order.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSources(pub Vec<Arc<dyn EnvironmentSource>>);

/// The credential with which a caller sees environments of GitLab.
#[derive(Clone, Debug)]
pub enum GitLabToken {
    /// The personal access token of a user.
    Personal(SecretString),
    /// The token of a CI job.
    Job(SecretString),
}

/// The reader of a list of environments, for whom GitLab decides what the list has.
#[derive(Clone, Copy, Debug)]
pub enum EnvironmentReader<'a> {
    /// Anyone: GitLab has none.
    Public,
    /// A client of the internal API, which may see everything that kas sees: the token is that of `gitlab.deployment_token_file`.
    Operator,
    /// The holder of this token.
    Holder(&'a GitLabToken),
}

/// The error of a list of environments.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// A source cannot answer now.
    #[error(transparent)]
    Unavailable(#[from] SourceUnavailable),
    /// GitLab refuses the token.
    #[error("GitLab refuses the token of the caller, which needs the scope read_api: {0}")]
    Refused(String),
    /// GitLab has no list of all environments.
    #[error(
        "project and group are missing: GitLab lists the environments of one project, or of the projects of one group"
    )]
    NoProject,
}

/// A place to which a project deploys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The id, which is unique in its source.
    pub id: u64,
    /// The full path of the project, like `group/app`.
    pub project: String,
    /// The name of the environment in URLs and labels. It is unique in the project.
    pub slug: String,
    /// The name, like `production/us-1`. Where its source knows no other, it is the slug.
    pub name: String,
    /// The tier, which groups the environments of many projects.
    pub tier: Tier,
    /// The group whose environments are shown together.
    pub group: Option<String>,
    /// The places in clusters.
    pub agents: Vec<EnvironmentAgent>,
}

/// A place of an environment in the cluster of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentAgent {
    /// The id or name of the agent.
    pub agent: String,
    /// The namespace of the environment.
    pub namespace: String,
    /// The labels that all resources of the environment have.
    pub labels: BTreeMap<String, String>,
}

/// The tier of an environment, as GitLab's CI knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Tier {
    Production,
    Staging,
    Testing,
    Development,
    #[default]
    Other,
}

impl EnvironmentSources {
    /// Returns the environments of all sources, however many there are. If two sources have an environment, that of the first one
    /// is used.
    ///
    /// # Errors
    ///
    /// A source cannot answer now, or refuses the token.
    pub async fn list(
        &self,
        query: &EnvironmentQuery,
        reader: EnvironmentReader<'_>,
    ) -> Result<EnvironmentSelection, EnvironmentError> {
        let mut selection = EnvironmentSelection::default();
        for source in &self.0 {
            selection = selection.with(source.list(query, reader).await?);
        }
        Ok(selection)
    }

    /// Returns the last deployments to each of these environments, in their order. Those of the first source that knows them are used.
    pub async fn last_deployments(
        &self,
        environments: &[Environment],
        token: &GitLabToken,
    ) -> Vec<Option<LastDeployments>> {
        let mut all: Vec<_> = environments.iter().map(|_| None).collect();
        for source in &self.0 {
            let found = source.last_deployments(environments, token).await;
            all.iter_mut().zip(found).for_each(|(known, found)| *known = known.take().or(found));
        }
        all
    }
}

impl Tier {
    /// Every tier with its name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("production", Self::Production),
        ("staging", Self::Staging),
        ("testing", Self::Testing),
        ("development", Self::Development),
        ("other", Self::Other),
    ];

    /// Returns the tier with this name, or [`Tier::Other`].
    pub fn of(name: &str) -> Self {
        Self::ALL.iter().find(|(known, _)| *known == name).map_or(Self::Other, |(_, tier)| *tier)
    }
}
