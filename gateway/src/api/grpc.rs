//! The RPCs that GitLab calls, over gRPC.
//!
//! The messages are derived by hand from their field numbers: there are few, and no compiler of `.proto` files is needed.

pub mod messages;
mod services;

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::{MethodRouter, post},
};
use http::{Version, header::CONTENT_TYPE};
use prost::Message;
use tokio::time::timeout;
use tonic::{Code, Status, server::Grpc};
use tonic_prost::ProstCodec;
use tower::{ServiceExt as _, service_fn};

use super::{ApiServer, response::with_error};

/// The largest request in bytes.
const MAX_REQUEST: usize = 1 << 20;

/// The time for a request. GitLab waits for 5 s.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Returns the routes of the RPCs.
pub(super) fn routes(api: Arc<ApiServer>) -> Router {
    let tracker = "/gitlab.agent.agent_tracker.rpc.AgentTracker";
    // Versions of GitLab call one method by different names.
    let by_ids = ["GetConnectedAgentsByAgentIDs", "GetConnectedAgentksByAgentIDs"];
    let routes = by_ids.into_iter().fold(Router::new(), |routes, name| {
        routes.route(&format!("{tracker}/{name}"), unary(services::get_connected_agents_by_ids))
    });
    routes
        .route(&format!("{tracker}/GetConnectedAgents"), unary(services::get_connected_agents))
        .route("/gitlab.agent.server_info.rpc.ServerInfo/GetServerInfo", unary(services::get_server_info))
        .route(
            "/gitlab.agent.configuration_project.rpc.ConfigurationProject/ListAgentConfigFiles",
            unary(services::list_agent_config_files),
        )
        .route("/kas.agent_views.rpc.AgentViews/GetAgentViews", unary(services::get_agent_views))
        .route("/gitlab.agent.notifications.rpc.Notifications/GitPushEvent", unary(services::git_push_event))
        .route("/gitlab.agent.managed_resources.rpc.Provisioner/{method}", post(no_provisioner))
        .method_not_allowed_fallback(async || refuse(Status::internal("the method of gRPC is POST")))
        .fallback(async || refuse(Status::unimplemented("this kas has no such method")))
        .with_state(api)
}

/// Refuses the methods with which GitLab makes the objects of environments before a job starts: the numbers of their fields are not
/// published. GitLab shows the message in the log of the job.
async fn no_provisioner() -> Response {
    refuse(Status::unimplemented(
        "kas makes the objects of environments itself, before the first request of a job to the cluster: set \
         environment.kubernetes.managed_resources.enabled to false in the job, so that GitLab does not ask for them before",
    ))
}

/// Returns whether the client expects a response of gRPC.
pub(super) fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    let grpc = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    grpc && request.version() == Version::HTTP_2
}

/// Sends a request to the RPCs.
pub(super) async fn handle(routes: Router, request: Request) -> Response {
    let response = match timeout(TIME_LIMIT, routes.oneshot(request)).await {
        Ok(Ok::<_, Infallible>(response)) => response,
        Err(_) => refuse(Status::deadline_exceeded("kas needed too long for this request")),
    };
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() != Code::Ok => with_error(response, status),
        _ => response,
    }
}

/// Returns the response of a failed RPC.
fn refuse(status: Status) -> Response {
    status.into_http()
}

/// Returns the route of a method with one request and one response.
fn unary<Q, R, F>(method: fn(Arc<ApiServer>, Q) -> F) -> MethodRouter<Arc<ApiServer>>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    post(move |State(api): State<Arc<ApiServer>>, request: Request| async move {
        let service = service_fn(move |request: tonic::Request<Q>| {
            let response = method(Arc::clone(&api), request.into_inner());
            async move { response.await.map(tonic::Response::new) }
        });
        let mut grpc = Grpc::new(ProstCodec::<R, Q>::default()).max_decoding_message_size(MAX_REQUEST);
        grpc.unary(service, request).await.map(Body::new)
    })
}
