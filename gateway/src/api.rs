//! The internal API: programs ask here who is connected, to whichever replica.
//!
//! `GET /api/v1/agents` and `GET /api/v1/agents/<id or name>`, for whoever has the secret of `api.listen`. The shapes are
//! documented in `docs/api.md`. A page costs the directory one question for each 500 agents, whatever their number.

mod answer;
mod query;
mod token;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Router,
    extract::{ConnectInfo, Path, RawQuery, Request, State, rejection::PathRejection},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use http::Uri;
use proto::{AgentId, ReplicaId};
use router::RouteStore;
use telemetry::log_limit::LogLimit;

use self::answer::{Agent, One, Page, Refusal};
pub use self::{
    query::{BadQuery, Query},
    token::{Denied, Verifier},
};
use crate::{
    agents::Agents,
    http_server::HttpServer,
    identity::{Identities, Identity},
    metrics::Metrics,
    whereabouts::{Presence, Whereabouts},
};

/// How long a program may take to send a request's head, or leave its connection idle.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How often one kind of refusal is logged.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Serves programs.
#[derive(Debug)]
pub struct Api {
    verifier: Verifier,
    identities: Identities,
    store: Arc<dyn RouteStore>,
    replica: ReplicaId,
    metrics: Metrics,
    refusals: LogLimit<&'static str>,
}

impl Api {
    /// Tells what these and other replicas serve, to whoever shows a token that is good.
    pub fn of(agents: &Agents, verifier: Verifier) -> Self {
        Self {
            verifier,
            identities: agents.identities.clone(),
            store: Arc::clone(&agents.store),
            replica: agents.replica,
            metrics: agents.metrics.clone(),
            refusals: LogLimit::new(LOG_PERIOD),
        }
    }

    /// Returns a server for connections of the internal API.
    pub fn server(self: Arc<Self>) -> HttpServer {
        let routes = Router::new()
            .route("/api/v1/agents", get_only(get(list)))
            .route("/api/v1/agents/{agent}", get_only(get(one)))
            .method_not_allowed_fallback(async || Refusal::Method)
            .fallback(async |uri: Uri| Refusal::no_path(uri.path()))
            .layer(from_fn_with_state(Arc::clone(&self), authenticate))
            .with_state(self);
        HttpServer { name: "api", routes, header_read_timeout: HEADER_READ_TIMEOUT }
    }

    fn record(&self, response: &Response, peer: SocketAddr) {
        let refusal = response.extensions().get::<Refusal>();
        let reason = refusal.map_or("ok", Refusal::as_str);
        self.metrics.api_request(reason);
        if let Some(refusal) = refusal
            && let Some(suppressed) = self.refusals.admit(reason, Instant::now())
        {
            tracing::info!(%peer, reason = %refusal, suppressed, "the internal API refused a request");
        }
    }
}

/// Refuses HEAD, which axum would answer with the handler of GET.
fn get_only(route: MethodRouter<Arc<Api>>) -> MethodRouter<Arc<Api>> {
    route.head(async || Refusal::Method)
}

/// Refuses requests without a valid token, on unknown paths too: without one a program learns nothing.
async fn authenticate(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let response = match api.verifier.verify(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(denied) => Refusal::from(denied).into_response(),
    };
    api.record(&response, peer);
    response
}

async fn list(State(api): State<Arc<Api>>, RawQuery(query): RawQuery) -> Result<Page, Refusal> {
    let query: Query = query.as_deref().unwrap_or_default().parse()?;
    let identity = api.identities.load_full();
    let wanted = |id: &AgentId| {
        query.admits(*id, identity.project(*id), identity.name(*id).expect("it is one of them").as_str())
    };
    let mut ids: Vec<AgentId> = identity.agents().into_iter().map(|(_, id)| id).filter(wanted).collect();
    ids.sort();
    let more = ids.len() > query.limit;
    ids.truncate(query.limit);
    let mut whereabouts = Whereabouts::of(&*api.store, &ids).await;
    let all = ids.iter().map(|id| agent(&identity, *id, &mut whereabouts));
    let agents = all.filter(|agent| agent.presence == Presence::Connected).collect();
    Ok(Page {
        replica: api.replica,
        time: SystemTime::now(),
        missing: whereabouts.missing,
        agents,
        next: ids.last().filter(|_| more).map(AgentId::to_string),
    })
}

async fn one(
    State(api): State<Arc<Api>>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<One, Refusal> {
    // Fails if the name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(Refusal::no_path(uri.path())) };
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(BadQuery::Nothing.into());
    }
    let identity = api.identities.load_full();
    let id = identity.find(&name).ok_or_else(|| Refusal::no_agent(&name))?;
    let mut whereabouts = Whereabouts::of(&*api.store, &[id]).await;
    let agent = agent(&identity, id, &mut whereabouts);
    Ok(One { replica: api.replica, time: SystemTime::now(), missing: whereabouts.missing, agent })
}

fn agent(identity: &Identity, id: AgentId, whereabouts: &mut Whereabouts) -> Agent {
    let replicas = whereabouts.take(id);
    let presence = if replicas.is_empty() { whereabouts.absent(id) } else { Presence::Connected };
    let name = identity.name(id).expect("it is one of them").clone();
    Agent { id, name, project_id: identity.project(id), presence, replicas }
}
