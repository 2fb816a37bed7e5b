//! `GitLabFlux/ReconcileProjects`: pushes to the projects that agentk names, so that it makes Flux reconcile them at once.

use std::{collections::HashMap, mem, time::Duration};

use futures_util::{StreamExt as _, stream};
use gitlab_tunnel::messages::{FluxProject, ReconcileProjectsRequest, ReconcileProjectsResponse};
use kas_core::agent_memory::MemoryGuard;
use secrecy::SecretString;
use store::GitPush;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    GitlabConnection,
    call_body::CALL_BYTES,
    responses::{Responses, until_leaving},
};
use crate::GitLabClient;

/// The most projects of one agent.
const MAX_PROJECTS: usize = 10_000;
/// The bytes that a project needs besides its path.
const PROJECT_BYTES: usize = 128;
/// The time for which GitLab's answer is used that the agent may read a project, and that it may not.
const ACCESS_TTL: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(60)];

/// The pushes for one agent.
struct ProjectPushes {
    pushes: broadcast::Receiver<GitPush>,
    /// The projects that agentk names, each with the last answer of GitLab about it.
    projects: HashMap<String, Option<(Instant, bool)>>,
    gitlab: GitLabClient,
    token: SecretString,
    /// Counts the projects.
    _memory: MemoryGuard,
}

/// Returns a response for each push to one of the projects, if the agent may read it. The call ends when agentk makes another one on the
/// same connection.
pub(super) fn follow(
    connection: &GitlabConnection,
    request: ReconcileProjectsRequest,
) -> Result<Responses<ReconcileProjectsResponse>, Status> {
    if request.project.len() > MAX_PROJECTS {
        return Err(Status::invalid_argument(format!("the request has more than {MAX_PROJECTS} projects")));
    }
    let (gitlab, token) = connection.gitlab()?;
    let current = CancellationToken::new();
    mem::replace(&mut *connection.reconciling.lock(), current.clone()).cancel();
    let bytes: usize = request.project.iter().map(|project| project.id.len() + PROJECT_BYTES).sum();
    let mut memory = connection.memory();
    memory.set(CALL_BYTES + bytes).map_err(|error| Status::resource_exhausted(error.to_string()))?;
    let pushes = ProjectPushes {
        pushes: connection.server.store.pushes(),
        projects: request.project.into_iter().map(|project| (project.id, None)).collect(),
        gitlab: gitlab.clone(),
        token: token.clone(),
        _memory: memory,
    };
    let responses = stream::unfold(pushes, async |mut pushes| {
        let project = Some(FluxProject { id: pushes.next().await? });
        Some((Ok(ReconcileProjectsResponse { project }), pushes))
    });
    Ok(until_leaving(connection, responses.take_until(Box::pin(current.cancelled_owned()))))
}

impl ProjectPushes {
    /// Waits for the next push. Returns the path of its project, or `None` if kas stops.
    async fn next(&mut self) -> Option<String> {
        loop {
            match self.pushes.recv().await {
                Ok(push) if self.projects.contains_key(push.path()) => {
                    if self.may_read(push.path()).await {
                        return Some(push.path().to_owned());
                    }
                }
                // Flux looks again after its own interval.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Returns whether the agent may read a project. If GitLab does not answer, it may not.
    async fn may_read(&mut self, project: &str) -> bool {
        let Some(known) = self.projects.get_mut(project) else { return false };
        if let Some((asked, allowed)) = *known
            && asked.elapsed() < ACCESS_TTL[usize::from(!allowed)]
        {
            return allowed;
        }
        let allowed = self.gitlab.may_read_project(&self.token, project).await;
        let allowed =
            allowed.inspect_err(|error| tracing::debug!(project, %error, "no answer about a project"));
        *known = Some((Instant::now(), allowed.as_ref().is_ok_and(|allowed| *allowed)));
        allowed.unwrap_or(false)
    }
}
