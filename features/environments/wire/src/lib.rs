//! The environments of projects, and the deployments to them, as the features of kas share them. An environment is a place to which a
//! project deploys: namespaces of agents.
//!
//! Each source of environments implements [`EnvironmentSource`]: the file `environments.file`, the configurations of agents, and GitLab.
//! A feature that sees CI jobs gives their deployments to the [`DeploymentRecords`], and the results of the jobs as [`JobResults`].
#![warn(missing_docs)]

mod deployment;
mod names;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    future::ready,
    sync::Arc,
};

use access::SourceUnavailable;
use futures_util::future::{BoxFuture, FutureExt as _};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

pub use self::{
    deployment::{
        Deployment, DeploymentFacts, DeploymentOrigin, DeploymentRecords, DeploymentStatus,
        EnvironmentDeployment, JobFacts, JobResults, LastDeployments,
    },
    names::{is_label, is_project},
};

/// A source of answers: which environments exist?
pub trait EnvironmentSource: fmt::Debug + Send + Sync {
    /// Returns the environments that the query selects, in order of their ids. Without a token, GitLab has none.
    ///
    /// # Errors
    ///
    /// The source cannot answer now, or refuses the token.
    fn list<'a>(
        &'a self,
        query: &'a EnvironmentQuery,
        token: Option<&'a GitLabToken>,
    ) -> BoxFuture<'a, Result<Vec<Environment>, EnvironmentError>>;

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
    #[error("project is missing: GitLab lists the environments of one project")]
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

/// Selects environments. An empty field selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentQuery {
    /// The full path of the project.
    pub project: Option<String>,
    /// The slug of the environment.
    pub slug: Option<String>,
    /// The tier.
    pub tier: Option<Tier>,
    /// The group.
    pub group: Option<String>,
    /// The agent, as the environment names it.
    pub agent: Option<String>,
}

impl EnvironmentSources {
    /// Returns the environments of all sources. If two sources have an environment, that of the first one is used.
    ///
    /// # Errors
    ///
    /// A source cannot answer now, or refuses the token.
    pub async fn list(
        &self,
        query: &EnvironmentQuery,
        token: Option<&GitLabToken>,
    ) -> Result<Vec<Environment>, EnvironmentError> {
        let (mut environments, mut known) = (Vec::new(), HashSet::new());
        for source in &self.0 {
            let found = source.list(query, token).await?;
            let new = |environment: &Environment| {
                known.insert((environment.project.clone(), environment.slug.clone()))
            };
            environments.extend(found.into_iter().filter(new));
        }
        Ok(environments)
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

impl EnvironmentQuery {
    /// Returns whether the query selects an environment.
    pub fn selects(&self, environment: &Environment) -> bool {
        fn is<T: PartialEq + ?Sized>(wanted: Option<&T>, value: Option<&T>) -> bool {
            wanted.is_none() || wanted == value
        }
        is(self.project.as_deref(), Some(&*environment.project))
            && is(self.slug.as_deref(), Some(&*environment.slug))
            && is(self.tier.as_ref(), Some(&environment.tier))
            && is(self.group.as_deref(), environment.group.as_deref())
            && self.agent.as_ref().is_none_or(|agent| environment.agents.iter().any(|at| at.agent == *agent))
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
