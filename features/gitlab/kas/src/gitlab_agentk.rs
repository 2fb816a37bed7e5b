//! Serves GitLab's agentk: gRPC on one HTTP/2 connection, which is a tunnel for the rest of kas.
//!
//! ```text
//!   request of a caller ─► Tunnel ─► Bridge ─► Exchange ─► a `Connect` stream ─► GitLab's agentk
//! ```
//!
//! It is a [`Tunnel`], so that routing, limits, revocation, the kill switch, audit and errors are those of every other agent. The
//! connection belongs to the agent of its first call; each further call must have the same token.

mod bridge;
mod call_body;
mod calls;
mod codec;
mod config;
mod configuration;
mod exchange;
mod flux;
mod gitlab_access;
mod hello;
mod metrics;
mod pool;
mod responses;

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use access::token::TokenHash;
use cores::poll_on_wake;
use futures_util::{FutureExt as _, future::BoxFuture};
use gitlab_tunnel::{AuthorityFilter, messages::AgentMeta};
use http::HeaderMap;
use kas_core::{
    agent_memory::MemoryGuard,
    agents::{
        AgentServer, CallConnection, CallServer,
        admission::{Admission, AuthenticatedAgent, ClientAddress, bearer},
        refusal::HandshakeError,
    },
};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use prost::Message as _;
use proto::{Hello, ServiceName};
use secrecy::SecretString;
use strangers::Stranger;
use tokio::{
    sync::{OnceCell, Semaphore, oneshot, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tunnel::{CloseReason, DrainHandle, Tunnel, TunnelConfig, direct};

pub use self::config::GitlabAgentkConfig;
use self::{bridge::Bridge, config::ServicePath, hello::hello, metrics::RpcMetrics, pool::StreamPool};
use crate::GitLabClient;

/// The window of a call in bytes: bulk responses arrive in pieces of 32 KiB.
const CALL_WINDOW: u32 = 1 << 20;
/// The most calls of a connection: 500 streams for requests, and a few others.
const MAX_CALLS: u32 = 600;
/// The most calls that wait until the first one is admitted, which may need an answer of GitLab. agentk begins with about six. Each may
/// have sent [`CALL_WINDOW`].
const MAX_WAITING_CALLS: usize = 16;
/// The longest headers of a call in bytes.
const MAX_HEADERS: u32 = 16 << 10;
/// The longest description of an agentk, in bytes.
const MAX_META: usize = 4 << 10;
/// The time for which a new tunnel waits until agentk has described itself.
const META_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that agentk has to open another connection before this one takes no more requests.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(3);

/// Serves GitLab's agentk.
#[derive(Debug)]
pub struct GitlabAgentk {
    /// `agent.gitlab_agentk.prometheus_service`.
    prometheus: Option<ServicePath>,
    /// Sends the requests of modules.
    client: Option<GitLabClient>,
    /// The address of GitLab for people, which Flux in a cluster compares with those of its sources; empty if it is not configured.
    external_url: String,
    metrics: RpcMetrics,
}

/// One connection of GitLab's agentk.
struct GitlabConnection {
    /// The state that all connections of GitLab's agentk share.
    gitlab: Arc<GitlabAgentk>,
    server: Arc<AgentServer>,
    client: ClientAddress,
    /// The other end of a connection without a WebSocket. The headers of its first call have the client, if it is a proxy.
    peer: Option<SocketAddr>,
    /// The connection, until the first call has a valid token.
    stranger: Arc<Stranger>,
    /// The agent of the first call.
    agent: OnceCell<Admission>,
    /// The calls that may wait for it.
    admissions: Semaphore,
    /// The last description that agentk has sent of itself.
    meta: watch::Sender<AgentMeta>,
    /// Cancelled when agentk calls `ReconcileProjects` again: the newest call has all of its projects.
    reconciling: Mutex<CancellationToken>,
    /// The requests of modules to GitLab that may be handled at the same time.
    module_calls: Semaphore,
    /// A call of an unknown method was logged.
    unknown_reported: AtomicBool,
    pool: StreamPool,
    /// The time for the requests in flight, once agentk should open another connection.
    leaving: watch::Sender<Option<Duration>>,
}

impl GitlabAgentk {
    /// Returns what serves GitLab's agentk. `client` is that of the GitLab, with its address for people, if one is configured.
    pub fn new(
        config: &GitlabAgentkConfig,
        client: Option<GitLabClient>,
        external_url: String,
        registry: &mut Registry,
    ) -> Self {
        let (prometheus, metrics) = (config.prometheus_service.clone(), RpcMetrics::register(registry));
        Self { prometheus, client, external_url, metrics }
    }
}

impl CallServer for GitlabAgentk {
    fn serve(
        self: Arc<Self>,
        server: Arc<AgentServer>,
        connection: CallConnection,
    ) -> BoxFuture<'static, ()> {
        serve(self, server, connection)
    }
}

fn serve(
    gitlab: Arc<GitlabAgentk>,
    server: Arc<AgentServer>,
    CallConnection { io, first, client, peer, stranger }: CallConnection,
) -> BoxFuture<'static, ()> {
    let io = AuthorityFilter::new(io, &first);
    let (calls, drain) = direct::accept_calls(io, &call_settings(&server.settings));
    let connection = Arc::new(GitlabConnection {
        gitlab,
        server,
        client,
        peer,
        stranger,
        agent: OnceCell::new(),
        admissions: Semaphore::new(MAX_WAITING_CALLS),
        meta: watch::Sender::default(),
        reconciling: Mutex::default(),
        module_calls: Semaphore::new(gitlab_access::MAX_CALLS),
        unknown_reported: AtomicBool::new(false),
        pool: StreamPool::default(),
        leaving: watch::Sender::default(),
    });
    let bridge = Arc::new(Bridge::new(&connection));
    let tunnel = calls.tunnel(move |request| Box::pin(Arc::clone(&bridge).call(request)));
    let callee = Arc::clone(&connection);
    // Boxed, because `join!` would have room for the connection several times.
    let running = Box::pin(calls.run(move |call| {
        let callee = Arc::clone(&callee);
        // Boxed: most calls wait for a request, and their task then holds only the stream.
        tokio::spawn(call.respond(|request| Box::pin(calls::handle(callee, request))));
    }));
    let (ended, end) = oneshot::channel();
    Box::pin(async move {
        let serving = async {
            let reason = running.await;
            connection.pool.close();
            // Fails if there was no tunnel.
            let _ = ended.send(reason);
        };
        tokio::join!(serving, connection.run_tunnel(tunnel, drain, end));
    })
}

/// Returns the HTTP/2 settings of a connection whose client is agentk.
fn call_settings(tunnels: &TunnelConfig) -> TunnelConfig {
    TunnelConfig {
        stream_window: CALL_WINDOW,
        max_concurrent_streams: MAX_CALLS,
        max_header_bytes: MAX_HEADERS,
        ..tunnels.clone()
    }
}

impl GitlabConnection {
    /// Returns the agent of a call. The first call admits it; its limits are those of a tunnel.
    async fn admit(&self, headers: &HeaderMap) -> Result<&Admission, Status> {
        let first = async {
            let client = match self.peer {
                Some(peer) => ClientAddress::new(self.server.addresses.client(headers, peer), peer),
                None => self.client.clone(),
            };
            let admitted = self.server.admit_agent(headers, &client).await;
            admitted
                .inspect(|_| self.stranger.admit())
                .inspect_err(|error| self.server.report_refusal(&client, error))
        };
        let agent = match self.agent.get() {
            Some(agent) => agent,
            None => {
                let busy = "kas still checks the token of the first calls of this connection; try again";
                let _permit = self.admissions.try_acquire().map_err(|_| Status::unavailable(busy))?;
                self.agent.get_or_try_init(|| first).await.map_err(|error| status(&error))?
            }
        };
        match bearer(headers) {
            Some(token) if TokenHash::of(&token) == TokenHash::of(&agent.token) => Ok(agent),
            _ => Err(status(&HandshakeError::Unauthorized)),
        }
    }

    /// Returns the client of GitLab, and the token of the agent, if it is one of GitLab. Tokens of the identity file are not sent there.
    fn gitlab(&self) -> Result<(&GitLabClient, &SecretString), Status> {
        let agent = self.agent.get().expect("each call is admitted");
        let is_of_gitlab =
            agent.is_of_gitlab && self.server.identities.load().name(agent.identity.id).is_none();
        let gitlab = self.gitlab.client.as_ref().filter(|_| is_of_gitlab);
        let what = "this agent is not one of GitLab, so that its modules cannot reach GitLab";
        Ok((gitlab.ok_or_else(|| Status::failed_precondition(what))?, &agent.token))
    }

    /// Notes the description that agentk has sent of itself. Its first one is incomplete, and so may be that of another call.
    fn describe(&self, meta: Option<AgentMeta>) {
        let Some(meta) = meta else { return };
        if meta.encoded_len() > MAX_META {
            self.gitlab.metrics.count_violation();
            return;
        }
        self.meta.send_if_modified(|known| {
            let merged = hello::merge(known, meta);
            let differs = merged != *known;
            *known = merged;
            differs
        });
    }

    /// Returns a guard of memory of the agent.
    fn memory(&self) -> MemoryGuard {
        self.agent.get().expect("each call is admitted").memory().guard()
    }

    /// Waits until agentk should open another connection. Returns the time for the requests in flight.
    fn leaving(&self) -> impl Future<Output = Duration> + Send + use<> {
        let mut leaving = self.leaving.subscribe();
        async move {
            let within = leaving.wait_for(Option::is_some).await.ok().and_then(|within| *within);
            match within {
                Some(within) => within,
                // The connection has ended.
                None => pending().await,
            }
        }
    }

    /// Logs a call of a method that kas does not have, once for each connection.
    fn report_unknown(&self, method: &str) {
        if !self.unknown_reported.swap(true, Relaxed) {
            let name = self.agent.get().map(|agent| agent.identity.name.as_str());
            tracing::info!(
                agent.name = name,
                method,
                "GitLab's agentk calls a method that kas does not have"
            );
        }
    }

    /// Returns the agent as it has described itself.
    fn hello(&self, admission: &Admission, meta: &AgentMeta) -> Hello {
        let mut hello = hello(admission, meta);
        if self.gitlab.prometheus.is_some() {
            hello.services.push(ServiceName::PROMETHEUS.parse().expect("a service name"));
        }
        hello
    }

    /// Follows the descriptions of agentk, which names its version and that of Kubernetes only when it registers.
    async fn follow_descriptions(
        &self,
        agent: &AuthenticatedAgent,
        admission: &Admission,
        mut meta: watch::Receiver<AgentMeta>,
    ) -> Infallible {
        while meta.changed().await.is_ok() {
            let mut hello = self.hello(admission, &meta.borrow_and_update());
            let known = agent.described.load_full();
            // The processes of an agent without names of pods would change with each description.
            if hello.pod_name.is_none() {
                hello.instance = known.instance;
            }
            if hello != *known {
                agent.described.store(Arc::new(hello));
                self.server.publish_description(agent);
            }
        }
        pending().await
    }

    /// Serves the tunnel from the first stream of agentk to the end of the connection, for which `end` has the reason.
    async fn run_tunnel(&self, tunnel: Tunnel, drain: DrainHandle, end: oneshot::Receiver<CloseReason>) {
        let opened = async {
            tokio::select! {
                biased;
                () = self.pool.opened() => true,
                () = self.pool.closed() => false,
            }
        };
        match timeout(self.server.handshake_timeout, opened).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => {
                self.server.metrics.count_handshake("incomplete");
                tracing::debug!(peer = self.client.text, "GitLab's agentk opened no stream in time");
                return tunnel.close();
            }
        }
        // Later versions describe themselves later: the tunnel does not wait for that.
        let mut meta = self.meta.subscribe();
        let _ = timeout(META_TIMEOUT, meta.wait_for(|meta| !meta.version.is_empty())).await;
        let Some(admission) = self.agent.get() else { return tunnel.close() };
        let hello = self.hello(admission, &meta.borrow_and_update());
        let agent = AuthenticatedAgent::new(admission.clone(), hello);
        let driving = end.map(|reason| reason.unwrap_or(CloseReason::LocallyClosed)).boxed();
        let serving = async {
            match Box::pin(self.server.prepare(&agent, tunnel.clone(), driving)).await {
                Ok(opened) => self.server.serve_tunnel(&agent, opened).await,
                Err(error) => {
                    self.server.metrics.count_handshake("incomplete");
                    tracing::debug!(peer = agent.client.text, error, "tunnel of GitLab's agentk not opened");
                }
            }
        };
        tokio::select! {
            () = serving => tunnel.close(),
            never = poll_on_wake(self.drain(drain)) => match never {},
            never = poll_on_wake(self.follow_descriptions(&agent, admission, meta)) => match never {},
        }
    }

    /// Drains the connection once agentk should open another one, or leaves.
    async fn drain(&self, drain: DrainHandle) -> Infallible {
        tokio::select! {
            within = self.leaving() => {
                drain.drain(within);
                // One stream stays for requests until agentk has opened another connection.
                self.pool.shrink(1);
                sleep(REPLACEMENT_TIMEOUT).await;
            }
            // GitLab's agentk completes its requests when it stops, and opens no more streams.
            () = self.pool.left() => drain.drain(self.server.grace),
        }
        self.pool.close();
        pending().await
    }
}

/// Returns the status of gRPC for a refused call. Its message is that of every other refused agentk.
fn status(error: &HandshakeError) -> Status {
    let message = error.to_string();
    match error.status().as_u16() {
        401 => Status::unauthenticated(message),
        403 => Status::permission_denied(message),
        429 => Status::resource_exhausted(message),
        503 => Status::unavailable(message),
        _ => Status::failed_precondition(message),
    }
}
