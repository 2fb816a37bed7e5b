//! The RPC `GitPushEvent`, with which GitLab reports a push.

use std::time::SystemTime;

use axum::Router;
use prost::Message;
use proto::notify::{ProjectEvent, ProjectEventFields};
use store::GitPush;
use tonic::Status;

use super::{
    EventOrigin, NotifyService,
    api::{random_id, record},
};
use kas_core::api::grpc::{positive, unary};

/// `gitlab.agent.notifications.rpc.GitPushEventRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GitPushEventRequest {
    /// The event.
    #[prost(message, optional, tag = "1")]
    pub event: Option<GitPushEvent>,
}

/// `gitlab.agent.event.GitPushEvent`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GitPushEvent {
    /// The project.
    #[prost(message, optional, tag = "1")]
    pub project: Option<Project>,
}

/// `gitlab.agent.event.Project`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Project {
    /// Its id.
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// Its full path.
    #[prost(string, tag = "2")]
    pub full_path: String,
}

/// Returns the route of the RPC.
pub(super) fn routes(notify: NotifyService) -> Router {
    let method = "/gitlab.agent.notifications.rpc.Notifications/GitPushEvent";
    Router::new().route(method, unary(git_push_event)).with_state(notify)
}

async fn git_push_event(
    notify: NotifyService,
    GitPushEventRequest { event }: GitPushEventRequest,
) -> Result<(), Status> {
    let project = event.and_then(|event| event.project);
    let project = project.ok_or_else(|| Status::invalid_argument("the event has no project"))?;
    let push = GitPush::new(positive("id", project.id)?, &project.full_path);
    notify.0.store.send_push(push.map_err(|error| Status::invalid_argument(error.to_string()))?);
    // GitLab names neither the branch nor the commit.
    let fields = ProjectEventFields {
        id: random_id(),
        sequence: 0,
        project: project.full_path,
        reference: None,
        before: None,
        after: None,
        urls: Vec::new(),
        time: SystemTime::now(),
    };
    let event =
        ProjectEvent::try_from(fields).map_err(|error| Status::invalid_argument(error.to_string()))?;
    match record(&notify, &event, EventOrigin::GitLab).await {
        // GitLab reports the pushes to all its projects.
        Ok(_) => Ok(()),
        Err(error) => Err(Status::unavailable(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_has_the_fields_of_gitlab() {
        let project = Project { id: 7, full_path: "a/b".into() };
        // Fields 1 (a varint) and 2 (bytes with their length).
        assert_eq!(project.encode_to_vec(), b"\x08\x07\x12\x03a/b");
    }
}
