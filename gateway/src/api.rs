//! The internal API: programs ask here who is connected, to whichever replica.
//!
//! `GET /api/v1/agents` and `GET /api/v1/agents/<id or name>`, for whoever has the secret of `api.listen`. The shapes are
//! documented in `docs/api.md`. A page costs the directory one question for each 500 agents, whatever their number.

mod answer;
mod query;
mod token;

use std::{
    convert::Infallible,
    fmt::Display,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use http::{Method, Request, Response};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use proto::{AgentId, ReplicaId};
use router::RouteStore;
use telemetry::log_limit::LogLimit;
use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::Body;

use self::answer::{Agent, One, Page, Refusal};
pub use self::{
    query::{BadQuery, Query},
    token::{Denied, Verifier},
};
use crate::{
    agents::Agents,
    identity::{Identities, Identity},
    metrics::Metrics,
    whereabouts::{Presence, Whereabouts},
};

const AGENTS: &str = "/api/v1/agents";

/// How long a program may take to send a request's head, or leave its connection idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of a head: a token is some hundreds.
const MAX_HEAD: usize = 16 << 10;
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

    /// Serves one connection. `address` is for logs.
    pub async fn serve<T>(self: Arc<Self>, io: T, address: impl Display)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let address = &address.to_string();
        let service = service_fn(|request| {
            let api = Arc::clone(&self);
            async move { Ok::<_, Infallible>(api.answer(&request, address).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), service);
        if let Err(error) = connection.await {
            tracing::debug!(peer = address, %error, "a connection to the internal API failed");
        }
    }

    async fn answer<B>(&self, request: &Request<B>, address: &str) -> Response<Body> {
        let answered = self.dispatch(request).await;
        self.metrics.api_request(answered.as_ref().map_or_else(Refusal::as_str, |_| "ok"));
        answered.unwrap_or_else(|refusal| {
            if let Some(suppressed) = self.refusals.admit(refusal.as_str(), Instant::now()) {
                tracing::info!(peer = address, reason = %refusal, suppressed, "the internal API refused a request");
            }
            refusal.answer()
        })
    }

    async fn dispatch<B>(&self, request: &Request<B>) -> Result<Response<Body>, Refusal> {
        // Before anything else: a stranger learns nothing, not even what there is.
        self.verifier.verify(request.headers())?;
        let path = request.uri().path();
        let rest = path.strip_prefix(AGENTS).ok_or_else(|| Refusal::no_path(path))?;
        if request.method() != Method::GET {
            return Err(Refusal::Method);
        }
        let query = request.uri().query().unwrap_or_default();
        match rest.strip_prefix('/') {
            None if rest.is_empty() => Ok(self.list(query.parse()?).await),
            Some(agent) if !agent.is_empty() && !agent.contains('/') => self.one(agent, query).await,
            _ => Err(Refusal::no_path(path)),
        }
    }

    async fn list(&self, query: Query) -> Response<Body> {
        let identity = self.identities.load_full();
        let wanted = |id: &AgentId| {
            query.admits(*id, identity.project(*id), identity.name(*id).expect("it is one of them").as_str())
        };
        let mut ids: Vec<AgentId> = identity.agents().into_iter().map(|(_, id)| id).filter(wanted).collect();
        ids.sort();
        let more = ids.len() > query.limit;
        ids.truncate(query.limit);
        let mut whereabouts = Whereabouts::of(&*self.store, &ids).await;
        let all = ids.iter().map(|id| agent(&identity, *id, &mut whereabouts));
        let agents = all.filter(|agent| agent.presence == Presence::Connected).collect();
        Page {
            replica: self.replica,
            time: SystemTime::now(),
            missing: whereabouts.missing,
            agents,
            next: ids.last().filter(|_| more).map(AgentId::to_string),
        }
        .answer()
    }

    async fn one(&self, name: &str, query: &str) -> Result<Response<Body>, Refusal> {
        if !query.is_empty() {
            return Err(BadQuery::Nothing.into());
        }
        let identity = self.identities.load_full();
        let id = identity.find(name).ok_or_else(|| Refusal::no_agent(name))?;
        let mut whereabouts = Whereabouts::of(&*self.store, &[id]).await;
        let agent = agent(&identity, id, &mut whereabouts);
        let missing = whereabouts.missing;
        Ok(One { replica: self.replica, time: SystemTime::now(), missing, agent }.answer())
    }
}

fn agent(identity: &Identity, id: AgentId, whereabouts: &mut Whereabouts) -> Agent {
    let replicas = whereabouts.take(id);
    let presence = if replicas.is_empty() { whereabouts.absent(id) } else { Presence::Connected };
    let name = identity.name(id).expect("it is one of them").clone();
    Agent { id, name, project_id: identity.project(id), presence, replicas }
}
