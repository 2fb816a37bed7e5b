//! Serves GitLab's agentk: gRPC on one HTTP/2 connection, which is a tunnel for the rest of kas.
//!
//! ```text
//!   request of a caller ─► Tunnel ═ in-memory HTTP/2 ═ Bridge ─► Exchange ─► a `Connect` stream ─► GitLab's agentk
//! ```
//!
//! The in-memory tunnel makes routing, limits, revocation, the kill switch, audit and errors those of every other agent. The
//! connection belongs to the agent of its first call; each further call must have the same token.

mod bridge;
mod calls;
mod codec;
mod configuration;
mod exchange;
mod flux;
mod gitlab_access;
mod hello;
mod metrics;
mod pool;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use ::gitlab::GitLabClient;
use access::token::TokenHash;
use futures_util::FutureExt as _;
use gitlab_tunnel::messages::AgentMeta;
use http::{HeaderMap, Request};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use proto::ServiceName;
use secrecy::SecretString;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OnceCell, Semaphore, watch},
    time::{sleep, timeout},
};
use tonic::Status;
use tunnel::{CloseReason, TunnelConfig, direct};

pub(crate) use self::metrics::RpcMetrics;
use self::{bridge::Bridge, hello::hello, pool::StreamPool};
use super::{
    AgentServer,
    admission::{Admission, AuthenticatedAgent, ClientAddress},
    refusal::HandshakeError,
};

/// The bytes between the two ends of an in-memory tunnel, in each direction.
const PIPE: usize = 16 << 10;
/// The window of a call in bytes: bulk responses arrive in pieces of 32 KiB.
const CALL_WINDOW: u32 = 1 << 20;
/// The window of a connection in bytes, which its calls share.
const CONNECTION_WINDOW: u32 = 64 << 20;
/// The most calls of a connection: 500 streams for requests, and a few others.
const MAX_CALLS: u32 = 600;
/// The most calls that wait until the first one is admitted, which may need an answer of GitLab. agentk begins with about six. Each may
/// have sent [`CALL_WINDOW`].
const MAX_WAITING_CALLS: usize = 16;
/// The longest headers of a call in bytes.
const MAX_HEADERS: u32 = 16 << 10;
/// The time for which a new tunnel waits until agentk has described itself.
const META_TIMEOUT: Duration = Duration::from_secs(1);
/// The time that agentk has to open another connection before this one takes no more requests.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(3);
/// The time that agentk has for the end of a connection that has no more requests.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for the errors of the requests in flight, once the connection has ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection of GitLab's agentk.
struct GitlabConnection {
    server: Arc<AgentServer>,
    client: ClientAddress,
    /// The other end of a connection without a WebSocket. The headers of its first call have the client, if it is a proxy.
    peer: Option<SocketAddr>,
    /// The agent of the first call.
    agent: OnceCell<Admission>,
    /// The calls that may wait for it.
    admissions: Semaphore,
    /// The last description that agentk has sent of itself.
    meta: watch::Sender<AgentMeta>,
    /// The requests of modules to GitLab that may be handled at the same time.
    module_calls: Semaphore,
    /// A call of an unknown method was logged.
    unknown_reported: AtomicBool,
    pool: StreamPool,
    /// The time for the requests in flight, once agentk should open another connection.
    leaving: watch::Sender<Option<Duration>>,
    /// The error with which the connection has ended.
    lost: Arc<Mutex<Option<io::Error>>>,
}

/// Serves a connection until it ends.
pub(super) async fn serve<S>(server: Arc<AgentServer>, io: S, client: ClientAddress, peer: Option<SocketAddr>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let settings = server.settings.clone();
    let handshake_timeout = server.handshake_timeout;
    let connection = Arc::new(GitlabConnection {
        server,
        client,
        peer,
        agent: OnceCell::new(),
        admissions: Semaphore::new(MAX_WAITING_CALLS),
        meta: watch::Sender::default(),
        module_calls: Semaphore::new(gitlab_access::MAX_CALLS),
        unknown_reported: AtomicBool::new(false),
        pool: StreamPool::default(),
        leaving: watch::Sender::default(),
        lost: Arc::default(),
    });
    let service = service_fn({
        let connection = Arc::clone(&connection);
        move |request: Request<Incoming>| {
            calls::handle(Arc::clone(&connection), request).map(Ok::<_, Infallible>)
        }
    });
    let serving = builder(&settings).serve_connection(TokioIo::new(io), service);
    tokio::pin!(serving);
    let tunnel = connection.run_tunnel();
    tokio::pin!(tunnel);
    let opened = timeout(handshake_timeout, connection.pool.opened());
    tokio::pin!(opened);
    let leaving = connection.leaving();
    tokio::pin!(leaving);
    let (mut is_open, mut is_leaving) = (false, false);
    loop {
        tokio::select! {
            biased;
            ended = serving.as_mut() => {
                *connection.lost.lock() = ended.err().map(io::Error::other);
                break;
            }
            result = &mut opened, if !is_open => match result {
                Ok(()) => is_open = true,
                Err(_) => {
                    connection.server.metrics.count_handshake("incomplete");
                    return tracing::debug!(peer = connection.client.text, "GitLab's agentk opened no stream in time");
                }
            },
            () = &mut tunnel => {
                // The agent was cut, or the last request has ended.
                connection.pool.close();
                serving.as_mut().graceful_shutdown();
                let _ = timeout(CLOSE_TIMEOUT, serving.as_mut()).await;
                return;
            }
            _ = &mut leaving, if !is_leaving => {
                is_leaving = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
    // Without its streams, the bridge ends, and so does the tunnel.
    connection.pool.close();
    if is_open {
        tunnel.await;
    }
}

fn builder(settings: &TunnelConfig) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(settings.max_frame)
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buf_size(settings.send_buffer)
        .keep_alive_interval(settings.keepalive.interval)
        .keep_alive_timeout(settings.keepalive.timeout)
        .auto_date_header(false);
    builder
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
            admitted.inspect_err(|error| self.server.report_refusal(&client, error))
        };
        let agent = match self.agent.get() {
            Some(agent) => agent,
            None => {
                let busy = "kas still checks the token of the first calls of this connection; try again";
                let _permit = self.admissions.try_acquire().map_err(|_| Status::unavailable(busy))?;
                self.agent.get_or_try_init(|| first).await.map_err(|error| status(&error))?
            }
        };
        match super::admission::bearer(headers) {
            Some(token) if TokenHash::of(&token) == TokenHash::of(&agent.token) => Ok(agent),
            _ => Err(status(&HandshakeError::Unauthorized)),
        }
    }

    /// Returns the client of GitLab, and the token of the agent, if it is one of GitLab. Tokens of the identity file are not sent there.
    fn gitlab(&self) -> Result<(&GitLabClient, &SecretString), Status> {
        let agent = self.agent.get().expect("each call is admitted");
        let is_of_gitlab =
            agent.is_of_gitlab && self.server.identities.load().name(agent.identity.id).is_none();
        let gitlab = self.server.gitlab.as_ref().filter(|_| is_of_gitlab);
        let what = "this agent is not one of GitLab, so that its modules cannot reach GitLab";
        Ok((gitlab.ok_or_else(|| Status::failed_precondition(what))?, &agent.token))
    }

    /// Notes the description that agentk has sent of itself.
    fn describe(&self, meta: Option<AgentMeta>) {
        if let Some(meta) = meta {
            self.meta.send_replace(meta);
        }
    }

    /// Waits until agentk should open another connection. Returns the time for the requests in flight.
    fn leaving(&self) -> impl Future<Output = Duration> + Send + use<> {
        let mut leaving = self.leaving.subscribe();
        async move {
            let within = leaving.wait_for(Option::is_some).await.ok().and_then(|within| *within);
            match within {
                Some(within) => within,
                // The connection has ended.
                None => std::future::pending().await,
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

    /// Runs the tunnel from the first stream of agentk to its end.
    async fn run_tunnel(&self) {
        self.pool.opened().await;
        // Later versions describe themselves later: the tunnel does not wait for that.
        let mut meta = self.meta.subscribe();
        let _ = timeout(META_TIMEOUT, meta.wait_for(|meta| !meta.version.is_empty())).await;
        let Some(admission) = self.agent.get() else { return };
        let mut hello = hello(admission, &self.meta.borrow());
        let prometheus = &self.server.gitlab_prometheus;
        if prometheus.is_some() {
            hello.services.push(ServiceName::PROMETHEUS.parse().expect("a service name"));
        }
        let agent = AuthenticatedAgent::new(admission.clone(), hello);
        let (kas, agentk) = tokio::io::duplex(PIPE);
        let (bridged, drain) = direct::accept(agentk, &self.server.settings);
        let bridge = Arc::new(Bridge {
            pool: self.pool.clone(),
            leaving: self.leaving.clone(),
            prometheus: prometheus.clone(),
            metrics: self.server.gitlab_calls.clone(),
        });
        let tasks = &self.server.connections.tasks;
        let serving = async {
            let Ok((tunnel, driver)) = direct::open(kas, &self.server.settings).await else { return };
            let lost = Arc::clone(&self.lost);
            let driving = driver.run().map(move |reason| match lost.lock().take() {
                Some(error) => CloseReason::Lost { error, silence: Duration::ZERO },
                None => reason,
            });
            match self.server.prepare(&agent, tunnel, driving.boxed()).await {
                Ok(opened) => self.server.serve_tunnel(&agent, opened).await,
                Err(error) => {
                    self.server.metrics.count_handshake("incomplete");
                    tracing::debug!(peer = agent.client.text, error, "tunnel of GitLab's agentk not opened");
                }
            }
        };
        let bridging = async {
            let running = bridged.run(|incoming| {
                tasks.spawn(Arc::clone(&bridge).serve(incoming));
            });
            tokio::pin!(running);
            tokio::select! {
                _ = &mut running => return,
                // agentk leaves, or its connection is lost.
                () = self.pool.closed() => {}
            }
            // Each request in flight gets the result of its own stream: one that agentk has reset was not processed.
            drain.drain(SETTLE_TIMEOUT);
            running.await;
        };
        let leaving = async {
            let within = tokio::select! {
                within = self.leaving() => Some(within),
                // GitLab's agentk completes its requests when it stops, and opens no more streams.
                () = self.pool.left() => None,
            };
            if within.is_some() {
                // One stream stays for requests until agentk has opened another connection.
                self.pool.shrink(1);
                sleep(REPLACEMENT_TIMEOUT).await;
            }
            drain.drain(within.unwrap_or(self.server.grace));
            self.pool.shrink(0);
            std::future::pending::<()>().await
        };
        let bridging = async {
            tokio::select! { () = bridging => {}, () = leaving => {} }
        };
        tokio::join!(serving, bridging);
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
