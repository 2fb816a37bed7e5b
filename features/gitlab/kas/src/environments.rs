//! Environments of GitLab, as the holder of a token sees them. Each answer is cached for the token and the project.

mod answers;
mod group;
mod last_deployments;

use std::{collections::BTreeMap, time::Duration};

use access::SourceUnavailable;
use environments_wire::{
    DeploymentOrigin, Environment, EnvironmentAgent, EnvironmentDeployment, EnvironmentError,
    EnvironmentQuery, EnvironmentReader, EnvironmentSelection, EnvironmentSource, GitLabToken,
    LastDeployments, NamePattern, Tier, is_label, is_project,
};
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use http::StatusCode;
use secrecy::SecretString;
use tokio::time::{Instant, timeout, timeout_at};

use self::{
    answers::TokenAnswers,
    group::{GroupLookup, missing_project, without},
    last_deployments::{DeploymentLookup, last_of},
};
use crate::{BudgetShare, CacheTtls, Credential, GitLabClient, GitLabError, ProjectEnvironment};

/// The time that a caller waits for GitLab, with all attempts and pages.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// `Retry-After` after this time.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The most environments of all cached answers. They use some 300 bytes each.
const CAPACITY: u64 = 50_000;
/// The most projects of whose deployments one request asks, and those that are asked at the same time.
const MAX_PROJECTS: usize = 20;
const PROJECTS_AT_ONCE: usize = 4;
/// The most environments of a project that are asked for their last successful deployment.
const MAX_LOOKUPS: usize = 20;

/// The environments of a project.
type Found = Result<Vec<Environment>, EnvironmentError>;

/// The environments of GitLab.
#[derive(Debug)]
pub struct GitLabEnvironments {
    client: GitLabClient,
    answers: TokenAnswers<Found>,
    deployments: DeploymentLookup,
    groups: GroupLookup,
    ttls: CacheTtls,
}

impl GitLabEnvironments {
    /// Asks `client` for the callers of the internal API, which GitLab and other trusted programs are, and caches lists and errors.
    pub fn new(client: GitLabClient, ttls: CacheTtls) -> Self {
        let answers = TokenAnswers::new(CAPACITY, ttls, |found: &Found| found.as_ref().map_or(0, Vec::len));
        let client = client.with_share(BudgetShare::KnownCallers);
        let deployments = DeploymentLookup::new(client.clone(), ttls);
        let groups = GroupLookup::new(client.clone(), ttls);
        Self { client, answers, deployments, groups, ttls }
    }

    /// Returns the environments of a project, or the one with this name, from the cache or from GitLab.
    async fn environments(
        &self,
        project: &str,
        name: Option<&str>,
        token: &GitLabToken,
    ) -> Result<Vec<Environment>, EnvironmentError> {
        let request = async {
            let result = self.request(project, name, token).await;
            let ttl = match &result {
                Ok(_) => self.ttls.responses,
                Err(EnvironmentError::Unavailable(error)) => error.retry_after.min(self.ttls.errors),
                Err(_) => self.ttls.errors,
            };
            (result, ttl)
        };
        // The path of a project has no line feed.
        let name_of_answer = name.map_or_else(|| project.to_owned(), |name| format!("{project}\n{name}"));
        self.answers.get(&name_of_answer, token, request).await
    }

    /// Requests the environments of a project from GitLab.
    async fn request(
        &self,
        project: &str,
        name: Option<&str>,
        token: &GitLabToken,
    ) -> Result<Vec<Environment>, EnvironmentError> {
        let (_, _, credential) = credential(token);
        let response = timeout(LOOKUP_TIMEOUT, self.client.project_environments(project, name, credential));
        let found = response.await.map_err(|_| SourceUnavailable {
            message: format!("GitLab did not respond within {} s", LOOKUP_TIMEOUT.as_secs()),
            retry_after: RETRY_AFTER,
        })?;
        let found = found.map_err(|error| match error {
            GitLabError::Status { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, message } => {
                EnvironmentError::Refused(message)
            }
            error => EnvironmentError::Unavailable(error.into()),
        })?;
        let mut environments: Vec<_> = found.into_iter().map(|found| environment(project, found)).collect();
        environments.sort_by_key(|environment| environment.id);
        Ok(environments)
    }

    /// Returns the environments of a project that the query selects.
    async fn of_project(
        &self,
        project: &str,
        query: &EnvironmentQuery,
        token: &GitLabToken,
    ) -> Result<Vec<Environment>, EnvironmentError> {
        let selected = async |name: Option<&str>| {
            let mut environments = self.environments(project, name, token).await?;
            environments.retain(|environment| query.selects(environment));
            Ok(environments)
        };
        if let Some(name) = query.name.as_ref().and_then(NamePattern::literal) {
            return selected(Some(name)).await;
        }
        // The slug of most environments is their name, so that one of thousands needs no list.
        if let Some(slug) = &query.slug {
            let environments: Vec<_> = selected(Some(slug)).await?;
            if !environments.is_empty() {
                return Ok(environments);
            }
        }
        selected(None).await
    }

    /// Returns the environments that the query selects, with the token of the operator. GitLab may refuse it or be slow, and the
    /// other sources have their environments then, too.
    async fn of_operator(&self, query: &EnvironmentQuery) -> Result<EnvironmentSelection, EnvironmentError> {
        let (project, group) = (query.project.as_deref(), query.group.as_deref());
        let missing = |reason| match (project, group) {
            (Some(project), _) => EnvironmentSelection {
                environments: Vec::new(),
                missing: vec![missing_project(project.to_owned(), reason)],
            },
            (None, group) => without(group.unwrap_or_default(), reason),
        };
        if project.is_none() && group.is_none() {
            return Ok(EnvironmentSelection::default());
        }
        let token = match self.client.deployment_token().await {
            Some(Ok(token)) => GitLabToken::Personal(token),
            Some(Err(reason)) => return Ok(missing(reason)),
            None => return Ok(EnvironmentSelection::default()),
        };
        match self.select(query, &token).await {
            Err(EnvironmentError::Refused(reason)) => {
                Ok(missing(format!("GitLab refuses the token of gitlab.deployment_token_file: {reason}")))
            }
            Err(EnvironmentError::Unavailable(error)) => Ok(missing(error.to_string())),
            found => found,
        }
    }

    /// Returns the environments that the query selects and the holder of the token may see.
    async fn select(
        &self,
        query: &EnvironmentQuery,
        token: &GitLabToken,
    ) -> Result<EnvironmentSelection, EnvironmentError> {
        let path = query.project.as_deref().or(query.group.as_deref()).ok_or(EnvironmentError::NoProject)?;
        if !is_project(path) {
            return Ok(EnvironmentSelection::default());
        }
        match &query.project {
            Some(project) => Ok(self.of_project(project, query, token).await?.into()),
            None => self.of_group(path, query, token).await,
        }
    }

    /// Returns the last deployments to environments of one project, with their positions, as far as GitLab answers until `end`.
    async fn deployments_of_project(
        &self,
        project: &str,
        environments: Vec<(usize, &str)>,
        token: &GitLabToken,
        end: Instant,
    ) -> Vec<(usize, LastDeployments)> {
        let deployments = match until(end, self.deployments.of_project(project, token)).await {
            Ok(Some(deployments)) => deployments,
            // Records of jobs would show the holder of the token a project that it may not see.
            Ok(None) => {
                return all_unknown(
                    environments,
                    "GitLab does not show the project to the holder of the token",
                );
            }
            Err(error) => return all_unknown(environments, &error),
        };
        let (mut found, mut lookups) = (Vec::with_capacity(environments.len()), 0);
        for (at, slug) in environments {
            let mut last = last_of(slug, &deployments);
            if last.last_successful.is_none() {
                lookups += 1;
                let looked_up = match lookups {
                    ..=MAX_LOOKUPS => until(end, self.last_successful(project, slug, token)).await,
                    _ => Err(format!(
                        "kas asks GitLab for {MAX_LOOKUPS} environments of a project that have no recent deployment: select with slug"
                    )),
                };
                match looked_up {
                    Ok(successful) => {
                        last.last = last.last.or_else(|| successful.clone());
                        last.last_successful = successful;
                    }
                    Err(error) => last.missing = Some(error),
                }
            }
            found.push((at, last));
        }
        found
    }

    /// Returns the last successful deployment to an environment, which is not among the newest deployments of its project.
    async fn last_successful(
        &self,
        project: &str,
        slug: &str,
        token: &GitLabToken,
    ) -> Result<Option<EnvironmentDeployment>, String> {
        let query = EnvironmentQuery {
            project: Some(project.to_owned()),
            slug: Some(slug.to_owned()),
            ..EnvironmentQuery::default()
        };
        let found = self.of_project(project, &query, token).await.map_err(|error| error.to_string())?;
        match found.first() {
            Some(environment) => {
                self.deployments.of_environment((project, slug, environment.id), token).await
            }
            None => Ok(None),
        }
    }
}

impl EnvironmentSource for GitLabEnvironments {
    fn list<'a>(
        &'a self,
        query: &'a EnvironmentQuery,
        reader: EnvironmentReader<'a>,
    ) -> BoxFuture<'a, Result<EnvironmentSelection, EnvironmentError>> {
        Box::pin(async move {
            match reader {
                EnvironmentReader::Public => Ok(EnvironmentSelection::default()),
                EnvironmentReader::Operator => self.of_operator(query).await,
                EnvironmentReader::Holder(token) => self.select(query, token).await,
            }
        })
    }

    fn last_deployments<'a>(
        &'a self,
        environments: &'a [Environment],
        token: &'a GitLabToken,
    ) -> BoxFuture<'a, Vec<Option<LastDeployments>>> {
        Box::pin(async move {
            let mut projects = BTreeMap::<&str, Vec<(usize, &str)>>::new();
            for (at, Environment { project, slug, .. }) in environments.iter().enumerate() {
                if is_project(project) {
                    projects.entry(project).or_default().push((at, slug));
                }
            }
            let end = Instant::now() + LOOKUP_TIMEOUT;
            let asked = projects.into_iter().enumerate().map(|(count, (project, environments))| async move {
                if count >= MAX_PROJECTS {
                    let what = format!(
                        "kas asks GitLab for the deployments of {MAX_PROJECTS} projects at once: select with project"
                    );
                    return all_unknown(environments, &what);
                }
                self.deployments_of_project(project, environments, token, end).await
            });
            let asked = asked.collect::<Vec<_>>();
            let found: Vec<Vec<_>> = stream::iter(asked).buffered(PROJECTS_AT_ONCE).collect().await;
            let mut all: Vec<_> = environments.iter().map(|_| None).collect();
            for (at, last) in found.into_iter().flatten() {
                all[at] = Some(last);
            }
            all
        })
    }
}

/// Returns the kind of a token, its text, and how it is sent to GitLab.
fn credential(token: &GitLabToken) -> (&'static str, &SecretString, Credential<'_>) {
    match token {
        GitLabToken::Personal(token) => ("user", token, Credential::User(token)),
        GitLabToken::Job(token) => ("job", token, Credential::Job(token)),
    }
}

/// Returns an environment of a project, with the labels that GitLab's documentation gives its resources.
fn environment(project: &str, found: ProjectEnvironment) -> Environment {
    let place = found.place.filter(|(_, namespace)| is_label(namespace));
    let agents = place.map(|(agent, namespace)| {
        let id = found.project_id.map(|id| ("app.gitlab.com/project_id".to_owned(), id.to_string()));
        let slug = ("app.gitlab.com/environment_slug".to_owned(), found.slug.clone());
        let labels = id.into_iter().chain([slug]).collect::<BTreeMap<_, _>>();
        EnvironmentAgent { agent: agent.to_string(), namespace, labels }
    });
    Environment {
        id: found.id,
        project: project.to_owned(),
        tier: Tier::of(&found.tier),
        group: project.rsplit_once('/').map(|(group, _)| group.to_owned()),
        agents: agents.into_iter().collect(),
        name: found.name.unwrap_or_else(|| found.slug.clone()),
        slug: found.slug,
    }
}

/// Waits for an answer of GitLab until the time for all questions of a caller is over. After it, GitLab is not asked.
async fn until<T>(end: Instant, answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || Err(format!("GitLab did not respond within {} s", LOOKUP_TIMEOUT.as_secs()));
    if Instant::now() >= end {
        return late();
    }
    timeout_at(end, answer).await.unwrap_or_else(|_| late())
}

/// Returns for each environment that its deployments are not known.
fn all_unknown(environments: Vec<(usize, &str)>, error: &str) -> Vec<(usize, LastDeployments)> {
    let unknown = |(at, _)| (at, LastDeployments::unknown(DeploymentOrigin::GitLab, error));
    environments.into_iter().map(unknown).collect()
}
