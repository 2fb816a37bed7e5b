//! The listener of the web page: its files, the sessions of browsers, and the requests of the page to agents.
//!
//! ```text
//!   browser ──► /web/v1/login, /web/v1/callback/…               logins at issuers (`login`)
//!           ──► origin ──► /web/v1/session, agents, environments this module
//!                     ├──► /web/v1/audit, /web/v1/requests/<id> recent entries of all replicas (`recent`)
//!                     ├──► /web/v1/live                         the stream of a tab (`live`) ──► proxy
//!                     └──► /agents/<agent>/<service>/…          the token of the session in place of the cookie ──► proxy
//!           ──► /docs/                                          the folder of documents, if there is one (`documents`)
//!           ──► everything else                                 assets
//! ```
//!
//! The proxy decides on each request as on that of any other caller with the same token. The page is on an origin of its own, and a request
//! that the page has not sent gets no response of an agent: a cluster may contain web pages (`services/proxy`), which must never run with
//! the session of the reader.
#![warn(missing_docs)]

mod agent_details;
mod agent_exchange;
mod agent_list;
mod assets;
mod config;
mod cookies;
mod disabled;
mod documents;
mod environments;
mod feature;
mod live;
mod login;
mod metrics;
mod origin;
mod recent;
mod response;
mod session_body;
mod session_record;
mod sessions;
mod static_file;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{Grant, ProjectAgents, UserSources};
use axum::body::Body;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kas_listen::addresses::{AddressRules, PeerAddress};
use prometheus_client::registry::Registry;
use proto::{Reason, ReplicaId, Verb, percent};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::{Store, StoreError};
use strangers::Stranger;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};

use self::{
    agent_details::AgentInspector,
    agent_exchange::{contain, is_web_content, with_token},
    agent_list::{SERVICES, SessionAgents},
    environments::EnvironmentList,
    login::{CALLBACK_PREFIX, CompletedLogin, LoginFailure, Logins, WebCaller},
    metrics::WebMetrics,
    response::{
        json, limited, no_session, other_caller, refusal, refused, respond, unavailable, with_cookie,
        wrong_method,
    },
    sessions::{Session, Sessions},
};
pub use self::{
    config::{WebConfig, WebListen},
    documents::DocumentSite,
    environments::WebEnvironments,
    feature::WebFeature,
    recent::Recent,
};
use kas_core::{
    agent_locations::{AgentLocations, AgentOwner, AgentState},
    agents::AgentServer,
    proxy::{CallerBody, ProxyServer, RequestGuard},
};

const SESSION_PATH: &str = "/web/v1/session";
const AGENTS_PATH: &str = "/web/v1/agents";
/// The beginning of the paths of the details of agents.
const AGENT_PREFIX: &str = "/web/v1/agents/";
const ENVIRONMENTS_PATH: &str = "/web/v1/environments";
const ISSUERS_PATH: &str = "/web/v1/issuers";
const LOGIN_PATH: &str = "/web/v1/login";
/// The beginning of the paths of agents.
const AGENTS_PREFIX: &str = "/agents/";
/// The beginning of the paths of sessions and of the list of agents.
const API_PREFIX: &str = "/web/";
/// The longest request of a login, in bytes, and the time for it.
const MAX_LOGIN: usize = 16 << 10;
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a request is worth another attempt if the store does not respond: a replica connects to Redis within it.
const RETRY_STORE: Duration = Duration::from_secs(5);
const NO_STORE: &str = "kas does not reach Redis, which has the sessions: try again in some seconds";
/// The message of a refusal because of too many unknown tokens.
const TOO_MANY: &str = "this address has sent too many unknown tokens in this minute: wait, and check the token; if many readers \
                                   share the address of a load balancer, name it in web.listen.trusted_proxies";

/// Serves the web page.
#[derive(Debug)]
pub struct WebServer {
    proxy: Arc<ProxyServer>,
    sessions: Sessions,
    logins: Logins,
    addresses: AddressRules,
    store: Arc<dyn Store>,
    replica: ReplicaId,
    environments: WebEnvironments,
    inspector: AgentInspector,
    recent: Arc<Recent>,
    documents: Option<Arc<DocumentSite>>,
    metrics: WebMetrics,
}

/// The result of the checks of a request.
enum Answer {
    /// The response is complete.
    Own(Response<Body>),
    /// The proxy sends the request to an agent, with the token of the session.
    Proxy(Request<CallerBody>, Arc<Session>),
}

/// The session, for the page.
#[derive(Serialize)]
struct SessionInfo<'a> {
    caller: &'a str,
    #[serde(with = "rfc3339")]
    expires: SystemTime,
}

/// The agents that the caller may use.
#[derive(Serialize)]
struct AgentList {
    replica: ReplicaId,
    /// All live replicas, also those without a tunnel of these agents.
    replicas: BTreeSet<ReplicaId>,
    agents: Vec<AgentInfo>,
    /// The error because of which the tunnels to other replicas are missing.
    missing: Option<String>,
}

#[derive(Serialize)]
struct AgentInfo {
    id: u64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(flatten)]
    state: AgentState,
    /// The replicas that hold its tunnels.
    replicas: Vec<AgentOwner>,
    /// The services that the caller may use, for a page of the version before.
    services: Vec<&'static str>,
    /// The same, each with its verbs.
    rights: BTreeMap<&'static str, Vec<Verb>>,
}

#[derive(Deserialize)]
struct Login {
    token: SecretString,
}

/// The sources of the callers of the page, beside the tokens of the identity file.
#[derive(Debug)]
pub struct WebCallers {
    /// The users who log in.
    pub users: UserSources,
    /// The agents of GitLab, if one is configured.
    pub project_agents: Option<Arc<dyn ProjectAgents>>,
}

/// The issuers at which people log in.
#[derive(Serialize)]
struct IssuerList<'a> {
    issuers: Vec<&'a str>,
}

impl WebServer {
    /// Returns the server of a replica. `recent` has the entries of the replica.
    pub fn new(
        proxy: Arc<ProxyServer>,
        agents: &AgentServer,
        callers: WebCallers,
        config: &WebConfig,
        environments: WebEnvironments,
        recent: Arc<Recent>,
        registry: &mut Registry,
    ) -> Self {
        let WebConfig { listen, documents, .. } = config;
        let sessions = Sessions::new(Arc::clone(&agents.store));
        let metrics = WebMetrics::register(registry, sessions.clone());
        let logins = Logins {
            identities: agents.identities.clone(),
            users: callers.users,
            project_agents: callers.project_agents,
            access: proxy.access.clone(),
            has_tls: listen.certificate_file.is_some(),
        };
        Self {
            sessions,
            logins,
            addresses: listen.addresses(),
            proxy,
            store: Arc::clone(&agents.store),
            replica: agents.replica,
            environments,
            inspector: AgentInspector::new(agents),
            recent,
            documents: documents.clone(),
            metrics,
        }
    }

    /// Ends sessions that have ended at other replicas, and those of tokens that were removed from the identity file.
    pub async fn run(&self) {
        tokio::join!(self.sessions.run(), self.follow_identities());
    }

    async fn follow_identities(&self) {
        let mut changes = self.logins.identities.changes();
        let mut before = self.logins.identities.load_full();
        while changes.changed().await.is_ok() {
            let current = self.logins.identities.load_full();
            for token in before.caller_tokens().filter(|token| current.grant(token).is_none()) {
                self.sessions.end_all_of(sessions::holder(token)).await;
            }
            before = current;
        }
    }

    /// Serves one connection of a browser until it ends. `peer` is its other end: a browser, or a proxy. The connection is that of
    /// the `stranger` until a request has a session.
    pub async fn serve<T>(self: &Arc<Self>, io: T, peer: SocketAddr, stranger: Arc<Stranger>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let address = Arc::new(PeerAddress::new(peer.ip()));
        let answer = |request: Request<CallerBody>, guard: RequestGuard| {
            let (web, address) = (Arc::clone(self), Arc::clone(&address));
            Box::pin(async move {
                let (request, session) = match web.answer(request, &address, &guard).await {
                    Answer::Own(response) => return Ok::<_, Infallible>(response),
                    Answer::Proxy(request, session) => (request, session),
                };
                let peer = (&*address, web.addresses.trusted_proxies());
                let response = web.proxy.answer(peer, guard, request.map(Some)).await;
                Ok(contain(response.map(|body| session_body::until(session.ended(), Body::new(body)))))
            })
        };
        self.proxy.serve_connection(io, peer, stranger, answer).await;
    }

    /// Answers a request, or prepares it for the proxy.
    async fn answer(
        self: &Arc<Self>,
        mut request: Request<CallerBody>,
        peer: &Arc<PeerAddress>,
        guard: &RequestGuard,
    ) -> Answer {
        let client = self.addresses.client_of(request.headers(), peer);
        let is_read = |path: &str| path.starts_with(API_PREFIX) && !is_navigation(path);
        if request.method() == Method::HEAD && is_read(request.uri().path()) {
            // The connection leaves the body of the response out.
            *request.method_mut() = Method::GET;
        }
        let path = request.uri().path();
        if !self.addresses.allows(client) {
            let what =
                "the address of this browser is in none of the networks of web.listen.allowed_networks";
            return own(refusal(StatusCode::FORBIDDEN, what));
        }
        // They are no secret, and a reader without a token needs them most.
        if let Some(documents) = &self.documents
            && documents::is_path(path)
        {
            return match *request.method() {
                Method::GET | Method::HEAD => Answer::Own(documents.response(path, request.headers())),
                _ => own(wrong_method("GET, HEAD")),
            };
        }
        if let Some(response) = self.answer_navigation(&request, client).await {
            return own(response);
        }
        // The page has paths of the same beginning, to which people follow links: a request that the page has not sent gets the page.
        let is_agent = path.starts_with(AGENTS_PREFIX) && request.headers().contains_key(origin::MARK);
        if !is_agent && !path.starts_with(API_PREFIX) {
            return own(match *request.method() {
                Method::GET | Method::HEAD => assets::response(path, request.headers()),
                _ => wrong_method("GET, HEAD"),
            });
        }
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        if !origin::is_own(request.headers(), authority.as_deref()) {
            let what =
                "only the web page of kas may send this request; programs use the listener for callers";
            return own(refusal(StatusCode::FORBIDDEN, what));
        }
        // A person can log out, or log in with another token, while the source of the old one does not answer.
        let needs_no_session = path == ISSUERS_PATH
            || path == SESSION_PATH && matches!(*request.method(), Method::POST | Method::DELETE);
        let session = match self.session(request.headers(), client).await {
            Ok(session) => session,
            Err(_) if needs_no_session => None,
            Err(response) => return own(response),
        };
        if let Some((_, grant)) = &session {
            guard.admit();
            // The page finds out about the session and begins another one as any caller.
            let is_open_to_all =
                path == SESSION_PATH && matches!(*request.method(), Method::GET | Method::POST);
            if !is_open_to_all && !origin::is_of_caller(request.headers(), name_of(grant)) {
                return own(other_caller(name_of(grant)));
            }
        }
        if let Some((_, grant)) = &session
            && !is_agent
            && !matches!(path, SESSION_PATH | ISSUERS_PATH)
            && let Some(response) = self.disabled_response(client, grant, None)
        {
            return own(response);
        }
        if path == live::PATH {
            return own(live::respond(self, request, session, (client, peer), guard).await);
        }
        if !is_agent {
            return own(self.api(request, client, session).await);
        }
        match session {
            Some(_) if is_web_content(path) => {
                let what =
                    "web pages of the cluster are not shown here; use kubectl port-forward or kubectl proxy";
                own(refusal(StatusCode::FORBIDDEN, what))
            }
            Some((session, _)) => Answer::Proxy(with_token(request, &session), session),
            None => own(no_session()),
        }
    }

    /// Returns the session of a request with the rights of its token.
    ///
    /// # Errors
    ///
    /// The response, if the session cannot be looked up.
    async fn session(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
    ) -> Result<Option<(Arc<Session>, Arc<Grant>)>, Response<Body>> {
        if !Sessions::is_named_in(headers) {
            return Ok(None);
        }
        let session = match self.sessions.known(headers, Instant::now()).await {
            Some(session) => session,
            None => {
                self.logins.access.check_unknown(client).map_err(|error| limited(&error))?;
                let found = self.sessions.load(headers, Instant::now()).await;
                let Some(session) = found.map_err(|error| unavailable(&error))? else {
                    self.logins.access.count_unknown(client).await.map_err(|error| limited(&error))?;
                    return Ok(None);
                };
                session
            }
        };
        let caller = match self.logins.caller(&session.token, client).await {
            Ok(caller) => caller,
            Err(error) if error.reason == Reason::Unauthorized => None,
            Err(error) => return Err(refused(&error)),
        };
        let Some(WebCaller { grant, .. }) = caller else {
            self.sessions.end_one(&session).await;
            return Ok(None);
        };
        Ok(grant.caller.may_connect_from(client).then_some((session, grant)))
    }

    /// Answers the requests of a login at an issuer, to which the browser goes as to a page.
    async fn answer_navigation(
        &self,
        request: &Request<CallerBody>,
        client: IpAddr,
    ) -> Option<Response<Body>> {
        let result = match (request.uri().path(), request.method()) {
            (LOGIN_PATH, &Method::GET) if !origin::is_foreign(request.headers()) => {
                // A session of before ends: the browser does not send its cookie when it comes back.
                if let Err(error) = self.log_out(request.headers()).await {
                    tracing::debug!(%error, "session of before not ended");
                }
                self.logins.begin(request)
            }
            (path, &Method::GET) if path.starts_with(CALLBACK_PREFIX) => {
                self.complete_login(request, client).await
            }
            // Both have effects, which HEAD must not have.
            (path, method) if is_navigation(path) && *method != Method::GET => {
                return Some(wrong_method("GET"));
            }
            _ => return None,
        };
        Some(result.unwrap_or_else(|failure| {
            self.metrics.count_login(failure.result);
            let (result, reason) = (failure.result, &failure.what);
            tracing::info!(%client, result, reason, "login of a browser at an issuer refused");
            failure.into_response()
        }))
    }

    async fn complete_login(
        &self,
        request: &Request<CallerBody>,
        client: IpAddr,
    ) -> Result<Response<Body>, LoginFailure> {
        let CompletedLogin { token, caller, page } = self.logins.complete(request, client).await?;
        let cookie = self.begin_session(token, caller, client).await?;
        Ok(login::logged_in(&page, &cookie))
    }

    /// Begins the session of a caller. Returns the value of `Set-Cookie`.
    async fn begin_session(
        &self,
        token: SecretString,
        caller: WebCaller,
        client: IpAddr,
    ) -> Result<String, LoginFailure> {
        let WebCaller { grant, holder, ttl } = caller;
        let name = grant.caller.name();
        if !grant.caller.may_connect_from(client) {
            let what = format!("caller {name} may not connect from this address");
            return Err(LoginFailure::new("address", StatusCode::FORBIDDEN, what));
        }
        let begun = self.sessions.begin(token, holder, ttl, Instant::now()).await;
        let cookie = begun.map_err(|error| {
            tracing::debug!(%error, "session of a browser not begun");
            let failure = LoginFailure::new("unavailable", StatusCode::SERVICE_UNAVAILABLE, NO_STORE);
            LoginFailure { retry_after: Some(RETRY_STORE), ..failure }
        })?;
        self.metrics.count_login("ok");
        tracing::info!(caller = name, user = grant.caller.user, %client, "session of a browser began");
        Ok(cookie)
    }

    async fn api(
        &self,
        request: Request<CallerBody>,
        client: IpAddr,
        session: Option<(Arc<Session>, Arc<Grant>)>,
    ) -> Response<Body> {
        match (request.uri().path(), request.method()) {
            (SESSION_PATH, &Method::POST) => self.log_in(request, client).await,
            (SESSION_PATH, &Method::DELETE) => match self.log_out(request.headers()).await {
                Ok(cookie) => with_cookie(StatusCode::NO_CONTENT, &cookie),
                Err(error) => unavailable(&error),
            },
            (SESSION_PATH, &Method::GET) => match session {
                Some((session, grant)) => {
                    let left = session.end.saturating_duration_since(Instant::now());
                    json(&SessionInfo { caller: name_of(&grant), expires: SystemTime::now() + left })
                }
                // A request without a session is no error here: browsers log each 401 as one.
                None => respond(StatusCode::NO_CONTENT, "application/json", String::new()),
            },
            (AGENTS_PATH, &Method::GET) => match session {
                Some((session, grant)) => match self.logins.agents_of(&session.token, &grant, client).await {
                    Ok(agents) => json(&self.agents(agents).await),
                    Err(error) => refused(&error),
                },
                None => no_session(),
            },
            (ENVIRONMENTS_PATH, &Method::GET) => match session {
                Some((session, grant)) => match self.logins.agents_of(&session.token, &grant, client).await {
                    Ok(agents) => self.environments(&agents).await,
                    Err(error) => refused(&error),
                },
                None => no_session(),
            },
            (path, method) if let Some(name) = path.strip_prefix(AGENT_PREFIX) => match (session, method) {
                (Some((session, grant)), &Method::GET) => {
                    match self.logins.agents_of(&session.token, &grant, client).await {
                        Ok(agents) => self.agent(client, &grant, &agents, name),
                        Err(error) => refused(&error),
                    }
                }
                (Some(_), _) => wrong_method("GET, HEAD"),
                (None, _) => no_session(),
            },
            (path, _) if recent::api::is_path(path) => match session {
                Some((_, grant)) => recent::api::respond(self, &request, &grant).await,
                None => no_session(),
            },
            (ISSUERS_PATH, &Method::GET) => json(&IssuerList { issuers: self.logins.issuers() }),
            (SESSION_PATH, _) => wrong_method("GET, HEAD, POST, DELETE"),
            (AGENTS_PATH | ENVIRONMENTS_PATH | ISSUERS_PATH, _) => wrong_method("GET, HEAD"),
            _ => refusal(StatusCode::NOT_FOUND, "there is no such path"),
        }
    }

    /// Begins a session with the token in the body of a request. A session of before ends.
    async fn log_in(&self, request: Request<CallerBody>, client: IpAddr) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = timeout(LOGIN_TIMEOUT, Limited::new(body, MAX_LOGIN).collect()).await;
        let login = body.ok().and_then(Result::ok);
        let login = login.and_then(|body| serde_json::from_slice::<Login>(&body.to_bytes()).ok());
        let Some(Login { token }) = login else {
            return refusal(StatusCode::BAD_REQUEST, "the body must be JSON: {\"token\": \"…\"}");
        };
        let token = SecretString::from(token.expose_secret().trim());
        let begun = match self.logins.caller(&token, client).await {
            Ok(Some(caller)) => self.begin_session(token, caller, client).await,
            Ok(None) => Err(match self.logins.access.count_unknown(client).await {
                Ok(()) => {
                    let what = "the token is unknown or was revoked";
                    LoginFailure::new("unknown", StatusCode::UNAUTHORIZED, what)
                }
                Err(error) => LoginFailure::from(error),
            }),
            Err(error) => Err(error.into()),
        };
        let cookie = match begun {
            Ok(cookie) => cookie,
            Err(failure) => {
                self.metrics.count_login(failure.result);
                tracing::info!(%client, result = failure.result, "login of a browser refused");
                return failure.into_text();
            }
        };
        if let Err(error) = self.log_out(&head.headers).await {
            tracing::debug!(%error, "session of before not ended");
        }
        with_cookie(StatusCode::NO_CONTENT, &cookie)
    }

    /// Ends the session of a request, and the login for which it stands. Returns the value of `Set-Cookie`.
    async fn log_out(&self, headers: &HeaderMap) -> Result<String, StoreError> {
        let session = match self.sessions.known(headers, Instant::now()).await {
            Some(session) => Some(session),
            None if Sessions::is_named_in(headers) => self.sessions.load(headers, Instant::now()).await?,
            None => None,
        };
        let cookie = self.sessions.end(headers).await?;
        if let Some(session) = session {
            self.logins.users.log_out(&session.token).await;
        }
        Ok(cookie)
    }

    async fn agents(&self, agents: SessionAgents) -> AgentList {
        let ids: Vec<_> = agents.agents.iter().map(|agent| agent.id).collect();
        let mut locations = AgentLocations::lookup(&*self.store, &ids).await;
        let listed = agents.agents.into_iter().map(|agent| {
            let (id, name, title, rights) =
                (agent.id, agent.path_name(), agent.title(), agent.caller.verbs_of(SERVICES));
            let services = rights.keys().copied().collect();
            let replicas = locations.take_owners(id);
            let state =
                if replicas.is_empty() { locations.state_without_owner(id) } else { AgentState::Connected };
            AgentInfo { id: id.0, name, title, state, replicas, services, rights }
        });
        let listed = listed.collect();
        let others = self.store.replicas().into_iter().map(|replica| replica.id);
        let replicas = others.chain([self.replica]).collect();
        let missing = locations.missing.or(agents.missing);
        AgentList { replica: self.replica, replicas, agents: listed, missing }
    }

    fn agent(&self, client: IpAddr, grant: &Grant, agents: &SessionAgents, name: &str) -> Response<Body> {
        let Some(agent) = agents.find(&percent::decode_unreserved(name)) else {
            return refusal(StatusCode::NOT_FOUND, "there is no such agent, or this caller may not use it");
        };
        let disabled = self.disabled_response(client, grant, Some(agent.attributes()));
        disabled.unwrap_or_else(|| json(&self.inspector.inspect(agent.id)))
    }

    async fn environments(&self, agents: &SessionAgents) -> Response<Body> {
        match EnvironmentList::load(&self.environments, agents).await {
            Ok(list) => json(&list),
            Err(error) => refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        }
    }
}

/// Returns a response of the page itself, with the headers of all of them.
fn own(mut response: Response<Body>) -> Answer {
    assets::secure(&mut response);
    Answer::Own(response)
}

/// Returns whether a browser goes to the path as to a page, during a login at an issuer.
fn is_navigation(path: &str) -> bool {
    path == LOGIN_PATH || path.starts_with(CALLBACK_PREFIX)
}

/// Returns the name of a person for the page.
fn name_of(grant: &Grant) -> &str {
    grant.caller.user.as_deref().unwrap_or_else(|| grant.caller.name())
}
