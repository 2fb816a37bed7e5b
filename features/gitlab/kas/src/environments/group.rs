//! The environments of all projects of a group: a bounded number of requests, which end at the same time.

use std::time::Duration;

use access::SourceUnavailable;
use environments_wire::{
    EnvironmentError, EnvironmentQuery, EnvironmentSelection, GitLabToken, MissingEnvironments, is_project,
};
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{GitLabEnvironments, RETRY_AFTER, answers::TokenAnswers, credential};
use crate::{CacheTtls, GitLabClient, GitLabError, GroupProjects};

/// The projects that are asked at the same time.
const AT_ONCE: usize = 8;
/// The time for all requests of a list.
const DEADLINE: Duration = Duration::from_secs(20);
/// The lists of groups that are made at the same time.
const MAX_LISTS: usize = 2;
/// The most projects of all cached answers. They use some 100 bytes each.
const CAPACITY: u64 = 20_000;

/// The projects of groups. Each answer is cached for the token.
#[derive(Debug)]
pub(super) struct GroupLookup {
    client: GitLabClient,
    answers: TokenAnswers<Found>,
    ttls: CacheTtls,
    lists: Semaphore,
}

/// The projects, or `None` if the holder of the token cannot see the group.
type Found = Result<Option<GroupProjects>, String>;

impl GroupLookup {
    pub(super) fn new(client: GitLabClient, ttls: CacheTtls) -> Self {
        let count =
            |found: &Found| found.as_ref().map_or(0, |found| found.as_ref().map_or(0, |all| all.paths.len()));
        let answers = TokenAnswers::new(CAPACITY, ttls, count);
        Self { client, answers, ttls, lists: Semaphore::new(MAX_LISTS) }
    }

    /// Returns the first projects of a group.
    async fn projects(&self, group: &str, token: &GitLabToken) -> Found {
        let request = async {
            let (_, _, credential) = credential(token);
            match self.client.group_projects(group, credential).await {
                Ok(found) => (Ok(found), self.ttls.responses),
                Err(error) => (Err(describe(error)), self.ttls.errors),
            }
        };
        self.answers.get(group, token, request).await
    }
}

impl GitLabEnvironments {
    /// Returns the environments of the projects of a group that the query selects. A project that cannot be read hides no other one.
    pub(super) async fn of_group(
        &self,
        group: &str,
        query: &EnvironmentQuery,
        token: &GitLabToken,
    ) -> Result<EnvironmentSelection, EnvironmentError> {
        let _permit = self.groups.lists.try_acquire().map_err(|_| SourceUnavailable {
            message: format!("{MAX_LISTS} lists of the environments of a group are being made"),
            retry_after: RETRY_AFTER,
        })?;
        let end = Instant::now() + DEADLINE;
        let found = timeout_at(end, self.groups.projects(group, token)).await.unwrap_or_else(|_| Err(late()));
        let GroupProjects { paths, is_cut } = match found {
            Ok(Some(projects)) => projects,
            Ok(None) => {
                return Ok(without(group, "GitLab does not show the group to the holder of the token"));
            }
            Err(reason) => return Ok(without(group, reason)),
        };
        let count = paths.len();
        let asked = paths.into_iter().filter(|path| is_project(path)).map(async |project| {
            let found = timeout_at(end, self.of_project(&project, query, token)).await;
            let found = found.map_or_else(|_| Err(late()), |found| found.map_err(|error| error.to_string()));
            found.map_err(|reason| missing_project(project, reason))
        });
        let asked = asked.collect::<Vec<_>>();
        let all: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
        let mut selection =
            if is_cut { without(group, surplus(count)) } else { EnvironmentSelection::default() };
        for found in all {
            match found {
                Ok(environments) => selection.environments.extend(environments),
                Err(missing) => selection.missing.push(missing),
            }
        }
        selection.environments.sort_by_key(|environment| environment.id);
        Ok(selection)
    }
}

fn late() -> String {
    format!("GitLab did not respond within {} s", DEADLINE.as_secs())
}

fn surplus(count: usize) -> String {
    format!(
        "kas asks GitLab for the environments of {count} projects of a group at once, and it has more: select with project, or with a group below it"
    )
}

/// Returns no environments of a group, with the reason.
pub(super) fn without(group: &str, reason: impl Into<String>) -> EnvironmentSelection {
    let missing = MissingEnvironments {
        group: Some(group.to_owned()),
        reason: reason.into(),
        ..MissingEnvironments::default()
    };
    EnvironmentSelection { environments: Vec::new(), missing: vec![missing] }
}

/// Returns the reason why a project has no environments in a list.
pub(super) fn missing_project(project: String, reason: String) -> MissingEnvironments {
    MissingEnvironments { project: Some(project), reason, ..MissingEnvironments::default() }
}

fn describe(error: GitLabError) -> String {
    match error {
        GitLabError::Status { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, message } => format!(
            "GitLab refuses the token for the projects of the group, which needs the scope read_api and may not be that of a job: {message}"
        ),
        error => error.to_string(),
    }
}
