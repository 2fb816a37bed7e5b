//! The internal API, with which programs list the connected agents of all replicas, and which GitLab calls.
//!
//! GitLab uses gRPC: see `grpc`. Other programs use HTTP: `GET /api/v1/agents`, `GET /api/v1/agents/<id or name>`, and the routes of
//! features. Clients need the secret of `api.listen`. The shapes are documented in `docs/api.md`. One page needs one lookup in the
//! route store for up to 500 agents.

pub mod grpc;
pub mod query;
mod response;

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
use kas_listen::{addresses::AddressRules, http_server::HttpServer, listener::LOG_PERIOD};
use process::LogLimiter;
use proto::{AgentId, ReplicaId};
use store::Store;
use strangers::Stranger;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub use self::query::Query;
pub use self::query::QueryError;
use self::response::{AgentInfo, AgentPage, AgentResponse, with_error};
pub use self::response::{InternalApiError, json, ok, unavailable};
use crate::{
    agent_locations::{AgentLocations, AgentLookup, AgentState, KnownAgent, UnreadableRecords},
    agents::AgentServer,
    configuration::ConfigurationService,
    metrics::Metrics,
};
use access::ApiTokenVerifier;

/// The time that a client may take for the head of a request, or leave its connection idle.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves the internal API.
#[derive(Debug)]
pub struct ApiServer {
    verifier: ApiTokenVerifier,
    addresses: AddressRules,
    context: ApiContext,
    configuration: ConfigurationService,
    routes: ApiRoutes,
    metrics: Metrics,
    log_limit: LogLimiter<&'static str>,
}

/// The state of all routes.
#[derive(Clone, Debug)]
pub struct ApiContext {
    /// The agents.
    pub lookup: AgentLookup,
    /// The records that replicas share.
    pub store: Arc<dyn Store>,
    /// This replica.
    pub replica: ReplicaId,
    /// Cancelled when the replica stops.
    pub draining: CancellationToken,
}

/// The routes of features.
#[derive(Debug, Default)]
pub struct ApiRoutes {
    /// The routes of programs.
    pub http: Router,
    /// The methods of gRPC.
    pub rpcs: Router,
}

/// The parts of the API beside the agents.
#[derive(Debug)]
pub struct ApiParts {
    /// Clients are those whose token passes it.
    pub verifier: ApiTokenVerifier,
    /// The rules of the listener about addresses.
    pub addresses: AddressRules,
    /// The routes of features.
    pub routes: ApiRoutes,
}

impl ApiRoutes {
    /// Returns the routes of both.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Self { http: self.http.merge(other.http), rpcs: self.rpcs.merge(other.rpcs) }
    }
}

impl ApiContext {
    /// Returns the context of the replica with this server of agents.
    pub fn new(agents: &AgentServer) -> Self {
        Self {
            lookup: AgentLookup::new(agents),
            store: Arc::clone(&agents.store),
            replica: agents.replica,
            draining: agents.connections.draining.clone(),
        }
    }
}

impl ApiServer {
    /// Creates the API of a replica.
    pub fn new(agents: &AgentServer, parts: ApiParts) -> Self {
        let ApiParts { verifier, addresses, routes } = parts;
        Self {
            verifier,
            addresses,
            context: ApiContext::new(agents),
            configuration: agents.configuration.clone(),
            routes,
            metrics: agents.metrics.clone(),
            log_limit: LogLimiter::new(LOG_PERIOD),
        }
    }

    /// Returns a server for connections of the internal API.
    pub fn server(self: Arc<Self>) -> HttpServer {
        let rpcs = grpc::with_fallbacks(self.routes.rpcs.clone());
        let routes = Router::new()
            .route("/api/v1/agents", get(list_agents))
            .route("/api/v1/agents/{agent}", get(get_agent))
            .with_state(Arc::clone(&self))
            .merge(self.routes.http.clone())
            .method_not_allowed_fallback(async || InternalApiError::Method("GET, HEAD"))
            .fallback(async |uri: Uri| InternalApiError::no_path(uri.path()))
            .layer(from_fn_with_state((self, rpcs), authenticate));
        HttpServer { name: "api", routes, header_read_timeout: HEADER_READ_TIMEOUT }
    }

    fn record(&self, response: &Response, client: IpAddr) {
        let error = response.extensions().get::<InternalApiError>();
        let reason = error.map_or("ok", InternalApiError::as_str);
        self.metrics.count_api_request(reason);
        if let Some(error) = error
            && let Some(suppressed) = self.log_limit.admit(reason, Instant::now())
        {
            tracing::info!(peer = %client, reason, %error, suppressed, "API request refused");
        }
    }
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
        api.verifier.verify(request.headers()).map_err(InternalApiError::from)
    } else {
        Err(InternalApiError::Address(client))
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
                InternalApiError::Address(_) => Status::permission_denied(error.to_string()),
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
) -> Result<AgentPage, InternalApiError> {
    let query: Query = query.as_deref().unwrap_or_default().parse()?;
    let mut known = api.context.lookup.list(query.filter.project_id()).await;
    known
        .agents
        .retain(|agent| query.is_after(agent.id) && query.filter.selects(agent.attributes(), agent.project));
    known.agents.sort_by_key(|agent| agent.id);
    let more = known.agents.len() > query.limit;
    known.agents.truncate(query.limit);
    let ids: Vec<AgentId> = known.agents.iter().map(|agent| agent.id).collect();
    let mut locations = AgentLocations::lookup(&*api.context.store, &ids).await;
    let all = known.agents.into_iter().map(|known| agent(known, &mut locations));
    let agents: Vec<_> = all.filter(|agent| agent.state == AgentState::Connected).collect();
    let missing = locations.missing.or(known.missing);
    // A page without a connected agent may have others before or after it, and its answer leads to these.
    let is_whole_list = query.is_first_page() && !more;
    UnreadableRecords::check(agents.is_empty() && is_whole_list, missing.as_deref())?;
    Ok(AgentPage {
        replica: api.context.replica,
        time: SystemTime::now(),
        missing,
        agents,
        next: ids.last().filter(|_| more).map(AgentId::to_string),
    })
}

async fn get_agent(
    State(api): State<Arc<ApiServer>>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<AgentResponse, InternalApiError> {
    // Fails if the name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(InternalApiError::no_path(uri.path())) };
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(QueryError::Unexpected.into());
    }
    let known = api.context.lookup.find(&name).await?.ok_or_else(|| InternalApiError::no_agent(&name))?;
    let mut locations = AgentLocations::lookup(&*api.context.store, &[known.id]).await;
    let configuration = api.configuration.status(known.id);
    let agent = agent(known, &mut locations);
    let missing = locations.missing;
    Ok(AgentResponse { replica: api.context.replica, time: SystemTime::now(), missing, agent, configuration })
}

fn agent(known: KnownAgent, locations: &mut AgentLocations) -> AgentInfo {
    let KnownAgent { id, name, project, project_path } = known;
    let replicas = locations.take_owners(id);
    let state = if replicas.is_empty() { locations.state_without_owner(id) } else { AgentState::Connected };
    let project_path = project_path.map(|path| path.to_string());
    AgentInfo { id, name, project_id: project, project: project_path, state, replicas }
}
