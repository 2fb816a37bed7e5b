//! The internal API, with which programs list the connected agents of all replicas, the environments and the deployments, and which
//! GitLab calls.
//!
//! GitLab uses gRPC: see `grpc`. Other programs use HTTP: `GET /api/v1/agents`, `GET /api/v1/agents/<id or name>`,
//! `GET /api/v1/agents/<id or name>/views`, `GET` and `POST /api/v1/events`, `GET /api/v1/environments` and `GET /api/v1/deployments`. Clients need the secret of `api.listen`. The shapes are documented in
//! `docs/api.md`. One page needs one lookup in the route store for up to 500 agents.

mod environment_health;
mod environments;
mod events;
pub(crate) mod grpc;
#[cfg(test)]
mod openapi;
mod project_events;
mod query;
mod response;
mod views;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Router,
    extract::{ConnectInfo, Path, RawQuery, Request, State, rejection::PathRejection},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use http::Uri;
use process::LogLimiter;
use proto::{AgentId, ReplicaId};
use store::Store;
use strangers::Stranger;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub use self::environment_health::HealthInquiry;
use self::environments::{list_deployments, list_environments};
use self::events::get_events;
use self::project_events::record_event;
pub use self::query::Query;
use self::query::QueryError;
use self::response::{AgentInfo, AgentPage, AgentResponse, ApiError, with_error};
use self::views::get_views;
use crate::{
    addresses::AddressRules,
    agent_locations::{AgentLocations, AgentLookup, AgentState, KnownAgent},
    agents::AgentServer,
    configuration::ConfigurationService,
    features::{Features, events::Events, graph::views::ViewsService, notify::NotifyService},
    http_server::HttpServer,
    listen::LOG_PERIOD,
    metrics::Metrics,
};
use gitlab::{Verifier, deployments::Deployments, environments::EnvironmentSources, gitaly::GitalyClient};

/// The time that a client may take for the head of a request, or leave its connection idle.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves the internal API.
#[derive(Debug)]
pub struct ApiServer {
    verifier: Verifier,
    addresses: AddressRules,
    lookup: AgentLookup,
    store: Arc<dyn Store>,
    configuration: ConfigurationService,
    views: ViewsService,
    notify: NotifyService,
    events: Events,
    /// Cancelled when the replica stops.
    draining: CancellationToken,
    replica: ReplicaId,
    environments: EnvironmentSources,
    health: HealthInquiry,
    deployments: Deployments,
    gitaly: GitalyClient,
    metrics: Metrics,
    log_limit: LogLimiter<&'static str>,
}

/// The parts of the API beside the agents and the features.
#[derive(Debug)]
pub struct ApiParts {
    /// Clients are those whose token passes it.
    pub verifier: Verifier,
    /// The rules of the listener about addresses.
    pub addresses: AddressRules,
    /// The environments of all sources.
    pub environments: EnvironmentSources,
    /// Asks agents for the health of environments.
    pub health: HealthInquiry,
    /// The deployments of CI jobs.
    pub deployments: Deployments,
    /// The Git servers of GitLab.
    pub gitaly: GitalyClient,
}

impl ApiServer {
    /// Creates the API of a replica.
    pub fn new(agents: &AgentServer, features: &Features, parts: ApiParts) -> Self {
        let ApiParts { verifier, addresses, environments, health, deployments, gitaly } = parts;
        Self {
            verifier,
            addresses,
            lookup: AgentLookup::new(agents),
            store: Arc::clone(&agents.store),
            configuration: agents.configuration.clone(),
            views: features.views.clone(),
            notify: features.notify.clone(),
            events: features.events.log().clone(),
            draining: agents.connections.draining.clone(),
            replica: agents.replica,
            environments,
            health,
            deployments,
            gitaly,
            metrics: agents.metrics.clone(),
            log_limit: LogLimiter::new(LOG_PERIOD),
        }
    }

    /// Returns a server for connections of the internal API.
    pub fn server(self: Arc<Self>) -> HttpServer {
        let routes = Router::new()
            .route("/api/v1/agents", get(list_agents))
            .route("/api/v1/agents/{agent}", get(get_agent))
            .route("/api/v1/agents/{agent}/views", get(get_views))
            .route("/api/v1/environments", get(list_environments))
            .route("/api/v1/deployments", get(list_deployments))
            .route("/api/v1/events", get(get_events).post(record_event).fallback(get_or_post))
            .method_not_allowed_fallback(async || ApiError::Method("GET, HEAD"))
            .fallback(async |uri: Uri| ApiError::no_path(uri.path()))
            .layer(from_fn_with_state((Arc::clone(&self), grpc::routes(Arc::clone(&self))), authenticate))
            .with_state(self);
        HttpServer { name: "api", routes, header_read_timeout: HEADER_READ_TIMEOUT }
    }

    fn record(&self, response: &Response, client: IpAddr) {
        let error = response.extensions().get::<ApiError>();
        let reason = error.map_or("ok", ApiError::as_str);
        self.metrics.count_api_request(reason);
        if let Some(error) = error
            && let Some(suppressed) = self.log_limit.admit(reason, Instant::now())
        {
            tracing::info!(peer = %client, reason, %error, suppressed, "API request refused");
        }
    }
}

async fn get_or_post() -> ApiError {
    ApiError::Method("GET, HEAD, POST")
}

/// Refuses requests without a valid token, also on unknown paths: without a token a client gets no information.
async fn authenticate(
    State((api, rpcs)): State<(Arc<ApiServer>, Router)>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let client = api.addresses.client(request.headers(), peer);
    let checked = if api.addresses.allows(client) {
        api.verifier.verify(request.headers()).map_err(ApiError::from)
    } else {
        Err(ApiError::Address(client))
    };
    if let (Ok(()), Some(stranger)) = (&checked, request.extensions().get::<Arc<Stranger>>()) {
        stranger.admit();
    }
    let response = match (checked, grpc::is_grpc(&request)) {
        (Ok(()), false) => next.run(request).await,
        (Ok(()), true) => grpc::handle(rpcs, request).await,
        (Err(error), false) => error.into_response(),
        (Err(error), true) => {
            let status = match &error {
                ApiError::Address(_) => Status::permission_denied(error.to_string()),
                _ => Status::unauthenticated("JWT validation failed"),
            };
            with_error(status.into_http(), error)
        }
    };
    api.record(&response, client);
    response
}

async fn list_agents(
    State(api): State<Arc<ApiServer>>,
    RawQuery(query): RawQuery,
) -> Result<AgentPage, ApiError> {
    let query: Query = query.as_deref().unwrap_or_default().parse()?;
    let mut known = api.lookup.list(query.project()).await;
    known.agents.retain(|agent| query.matches(agent.id, agent.project, agent.name.as_str()));
    known.agents.sort_by_key(|agent| agent.id);
    let more = known.agents.len() > query.limit;
    known.agents.truncate(query.limit);
    let ids: Vec<AgentId> = known.agents.iter().map(|agent| agent.id).collect();
    let mut locations = AgentLocations::lookup(&*api.store, &ids).await;
    let all = known.agents.into_iter().map(|known| agent(known, &mut locations));
    let agents = all.filter(|agent| agent.state == AgentState::Connected).collect();
    Ok(AgentPage {
        replica: api.replica,
        time: SystemTime::now(),
        missing: locations.missing.or(known.missing),
        agents,
        next: ids.last().filter(|_| more).map(AgentId::to_string),
    })
}

async fn get_agent(
    State(api): State<Arc<ApiServer>>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<AgentResponse, ApiError> {
    // Fails if the name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(ApiError::no_path(uri.path())) };
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(QueryError::Unexpected.into());
    }
    let known = api.lookup.find(&name).await.ok_or_else(|| ApiError::no_agent(&name))?;
    let mut locations = AgentLocations::lookup(&*api.store, &[known.id]).await;
    let configuration = api.configuration.status(known.id);
    let agent = agent(known, &mut locations);
    let missing = locations.missing;
    Ok(AgentResponse { replica: api.replica, time: SystemTime::now(), missing, agent, configuration })
}

fn agent(known: KnownAgent, locations: &mut AgentLocations) -> AgentInfo {
    let KnownAgent { id, name, project, project_path: _ } = known;
    let replicas = locations.take_owners(id);
    let state = if replicas.is_empty() { locations.state_without_owner(id) } else { AgentState::Connected };
    AgentInfo { id, name, project_id: project, state, replicas }
}
