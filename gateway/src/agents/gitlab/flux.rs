//! `GitLabFlux/ReconcileProjects`: pushes to the projects that agentk names, so that it makes Flux reconcile them at once.

use std::collections::HashSet;

use futures_util::stream;
use gitlab_tunnel::messages::{FluxProject, ReconcileProjectsRequest, ReconcileProjectsResponse};
use tokio::sync::broadcast::error::RecvError;
use tonic::Status;

use super::{
    GitlabConnection,
    calls::{Responses, until_leaving},
};

/// The most projects of one agent.
const MAX_PROJECTS: usize = 10_000;

/// Returns a response for each push to one of the projects.
pub(super) fn follow(
    connection: &GitlabConnection,
    request: ReconcileProjectsRequest,
) -> Result<Responses<ReconcileProjectsResponse>, Status> {
    if request.project.len() > MAX_PROJECTS {
        return Err(Status::invalid_argument(format!("the request has more than {MAX_PROJECTS} projects")));
    }
    let projects: HashSet<String> = request.project.into_iter().map(|project| project.id).collect();
    let pushes = connection.server.store.pushes();
    let pushes = stream::unfold((pushes, projects), async |(mut pushes, projects)| {
        loop {
            match pushes.recv().await {
                Ok(push) if projects.contains(push.path()) => {
                    let project = Some(FluxProject { id: push.path().to_owned() });
                    return Some((Ok(ReconcileProjectsResponse { project }), (pushes, projects)));
                }
                // Flux looks again after its own interval.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    Ok(until_leaving(connection, pushes))
}
