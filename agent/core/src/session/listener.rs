//! Accepts the tunnels of kas, for clusters that may open no connections.
//!
//! ```text
//!   TCP ──► TLS, with the certificate of kas ──► GET, with the key of kas ──► 101 with the hello and the agent token ──► tunnel
//!        └────────── a stranger until here: limited in number and time ──┘
//! ```
//!
//! Each connection is one tunnel, and kas decides how many there are. Inside of a tunnel the roles are those of a tunnel that agentk
//! dials: kas is the client of HTTP/2. kas opens the next tunnel by itself before it sends a drain request.

mod credentials;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cores::Cores;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use process::LogLimiter;
use proto::{TunnelProtocol, Welcome, header as names};
use strangers::Stranger;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::{
    handshake,
    websocket::{Role, WebSocket},
};

pub use self::credentials::{ListenConfigError, ListenKey, ListenPublicKey, ListenTls};
use super::{
    LOG_PERIOD,
    active_tunnel::{ActiveTunnel, TunnelEvent},
};
use crate::{
    Observability, ServeConfig, Services,
    connect::{BoxIo, TokenChange},
    listen::{Accepted, LimitedListener},
    tunnel_context::TunnelContext,
};

/// The time from the TCP connection to the request for a tunnel.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most tunnels: those of several replicas of kas, and others that drain.
const MAX_TUNNELS: usize = 256;
/// The most connections that are no tunnels yet.
const MAX_STRANGERS: usize = 64;
/// The longest head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// `Retry-After` while agentk stops, or has too many tunnels.
const RETRY_AFTER_SECONDS: u64 = 5;
/// The time that streams may take in a tunnel with an old token.
const OLD_TOKEN_TIMEOUT: Duration = Duration::from_secs(3600);
/// The time between the drains of two tunnels after a change of the token, so that kas has one at any time.
const TOKEN_CHANGE_STEP: Duration = Duration::from_secs(5);

/// Where agentk accepts the tunnels of kas.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The address.
    pub address: SocketAddr,
    /// The certificates, unless connections have no TLS.
    pub tls: Option<ListenTls>,
    /// The keys of which kas has to send one, unless its certificate is enough.
    pub key: Option<ListenKey>,
    /// The public key of tokens, of which kas may send one instead of a key.
    pub public_key: Option<ListenPublicKey>,
}

/// Accepts tunnels of kas and serves their requests.
#[must_use = "an agent does nothing unless it runs"]
pub struct ListeningAgent(Arc<Listener>);

struct Listener {
    config: ListenConfig,
    context: Arc<TunnelContext>,
    cores: Cores,
    /// The indexes of the open tunnels.
    indexes: Mutex<BTreeSet<u16>>,
    /// Limits the log lines of refused connections, by reason.
    refusals: LogLimiter<&'static str>,
}

/// The index of a tunnel, which is free again when this is dropped.
struct IndexGuard {
    listener: Arc<Listener>,
    index: u16,
}

/// The reason for which agentk refuses a request for a tunnel.
struct Refusal {
    status: StatusCode,
    reason: &'static str,
    message: String,
}

impl ListenConfig {
    /// Returns true if kas has to send a key or a token.
    fn needs_key(&self) -> bool {
        self.key.is_some() || self.public_key.is_some()
    }

    /// Returns true if a request has what kas has to send.
    fn accepts(&self, headers: &HeaderMap) -> bool {
        !self.needs_key()
            || self.key.as_ref().is_some_and(|key| key.accepts(headers))
            || self.public_key.as_ref().is_some_and(|key| key.accepts(headers, SystemTime::now()))
    }

    /// Returns the security of the listener in words, for the log.
    fn describe(&self) -> &'static str {
        let certificate = self.tls.as_ref().is_some_and(ListenTls::authenticates_clients);
        match (certificate, self.needs_key()) {
            (true, true) => "certificate and key",
            (true, false) => "certificate",
            (false, true) => "key",
            (false, false) => "none",
        }
    }
}

impl ListeningAgent {
    /// Returns an agent that does not listen until it runs.
    pub fn new(
        config: ListenConfig,
        serve: ServeConfig,
        services: Services,
        observability: Observability,
    ) -> Self {
        Self(Arc::new(Listener {
            config,
            cores: serve.cores.with_own_counts(),
            context: Arc::new(TunnelContext::new(serve, services, observability)),
            indexes: Mutex::default(),
            refusals: LogLimiter::new(LOG_PERIOD),
        }))
    }

    /// Returns the configured address.
    pub fn address(&self) -> SocketAddr {
        self.0.config.address
    }

    /// Binds the address.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub fn bind(&self) -> io::Result<TcpListener> {
        process::listen(self.0.config.address)
    }

    /// Accepts tunnels until `shutdown`, and then drains all of them: they accept no new requests, and those in flight complete or,
    /// after the grace period, are cut. Completes less than a second after the grace period.
    pub async fn run(self, socket: TcpListener, shutdown: CancellationToken) {
        let listener = self.0;
        let address = socket.local_addr().map_or(listener.config.address, |address| address);
        tracing::info!(%address, tls = listener.config.tls.is_some(), authentication = listener.config.describe(), "listening for kas");
        let connections = TaskTracker::new();
        // Ends the tasks even if this future is dropped.
        let _stop = listener.context.shutdown.clone().drop_guard();
        listener.context.observability.set_listening(true);
        let full = listener.context.observability.metrics.dials("limit");
        let socket = LimitedListener::new("kas", socket, MAX_STRANGERS, full);
        shutdown.run_until_cancelled(Arc::clone(&listener).accept(&socket, &connections)).await;
        listener.context.observability.set_listening(false);
        // kas connects to another pod from now on.
        drop(socket);
        listener.context.drain(&connections).await;
    }
}

impl Listener {
    async fn accept(self: Arc<Self>, socket: &LimitedListener, connections: &TaskTracker) {
        loop {
            let Accepted { tcp, peer, stranger, permit } = socket.accept().await;
            // The task that serves the connection polls it on another runtime.
            let Ok(tcp) = tcp.into_std() else { continue };
            let listener = Arc::clone(&self);
            self.cores.reserve().spawn(connections, async move {
                let serving = Box::pin(listener.serve(tcp, peer, &stranger));
                tokio::select! {
                    () = serving => {}
                    () = stranger.replaced().cancelled_owned() => {}
                    () = listener.context.shutdown.cancelled() => {}
                }
                drop(permit);
            });
        }
    }

    /// Serves a connection until it is refused, or has become a tunnel, which has a task of its own.
    async fn serve(self: &Arc<Self>, tcp: std::net::TcpStream, peer: SocketAddr, stranger: &Stranger) {
        let opening = async {
            let tcp = TcpStream::from_std(tcp)?;
            tcp.set_nodelay(true)?;
            Ok::<BoxIo, io::Error>(match &self.config.tls {
                Some(tls) => Box::new(tls.accept(tcp).await?),
                None => Box::new(tcp),
            })
        };
        let io = match timeout(HANDSHAKE_TIMEOUT, opening).await {
            Ok(Ok(io)) => io,
            Ok(Err(error)) => {
                return self.report("tls", format_args!("the handshake with {peer} failed"), &error);
            }
            Err(_) => {
                return self.report(
                    "timeout",
                    format_args!("the handshake with {peer} failed"),
                    &"timed out",
                );
            }
        };
        let service = service_fn(async |request| {
            Ok::<_, Infallible>(handshake::close_unless_upgraded(match self.handle(request).await {
                Ok(response) => {
                    stranger.admit();
                    response
                }
                Err(refusal) => {
                    self.report(
                        refusal.reason,
                        format_args!("a tunnel of {peer} was refused"),
                        &refusal.message,
                    );
                    refusal.into_response()
                }
            }))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HANDSHAKE_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%peer, %error, "a connection failed before the upgrade");
        }
    }

    /// Accepts the request for a tunnel of a kas that has authenticated, and sends the agent token only then.
    async fn handle(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Refusal> {
        if !self.config.accepts(request.headers()) {
            let message = "the key is missing or wrong: kas sends that of agents[].key_file in its identity file, or a token of the \
                           private key in GitLab, which is refused too if the clocks of kas and agentk differ";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message));
        }
        let unavailable =
            |reason, message: &str| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, reason, message);
        if self.context.shutdown.is_cancelled() {
            return Err(unavailable("draining", "this agentk is stopping; try another one"));
        }
        let (mut headers, _) = handshake::response_headers(&request, &[TunnelProtocol::KasTunnel])
            .map_err(|error| Refusal::new(error.status(), "protocol", error.to_string()))?;
        let welcome = request.headers().get(&names::WELCOME).map(Welcome::decode);
        let welcome = match welcome {
            Some(Ok(welcome)) => welcome,
            Some(Err(error)) => {
                let message = format!("the header {} is invalid: {error}", names::WELCOME);
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "protocol", message));
            }
            None => {
                let message =
                    format!("the header {} is missing: only kas opens tunnels here", names::WELCOME);
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "protocol", message));
            }
        };
        let index = Arc::clone(self).take_index();
        let index =
            index.ok_or_else(|| unavailable("tunnel-limit", "this agentk has as many tunnels as allowed"))?;
        let token = self.context.config.token.authorization_until_change().await;
        let (token, token_change) = token.map_err(|error| unavailable("token", &error.to_string()))?;
        let hello = self.context.hello(index.index).encode();
        let hello =
            hello.map_err(|error| unavailable("hello", &format!("the hello cannot be sent: {error}")))?;
        headers.insert(names::HELLO, hello);
        headers.insert(names::AUTHORIZATION, token);

        let upgrade = hyper::upgrade::on(&mut request);
        let running = Arc::clone(self).run_tunnel(upgrade, welcome, index, token_change);
        self.context.tunnels.spawn(running);
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Serves a tunnel from its upgrade until it ends or drains.
    async fn run_tunnel(
        self: Arc<Self>,
        upgrade: OnUpgrade,
        welcome: Welcome,
        index: IndexGuard,
        token_change: TokenChange,
    ) {
        let Welcome { tunnel, replica, .. } = welcome;
        let upgraded = timeout(HANDSHAKE_TIMEOUT, upgrade).await;
        let Ok(Ok(Ok(parts))) = upgraded.map(|upgraded| upgraded.map(|it| it.downcast::<TokioIo<BoxIo>>()))
        else {
            return tracing::debug!(%tunnel, "the connection was lost before the tunnel was open");
        };
        let socket = WebSocket::new(parts.io.into_inner(), parts.read_buf, Role::Server);
        let (session, drain) = tunnel::accept(socket, &self.context.config.tunnel);
        self.context.observability.metrics.record_dial("accepted");
        tracing::info!(%tunnel, %replica, "tunnel opened by kas");
        let mut active =
            ActiveTunnel::spawn(&self.context, (tunnel, replica), (session, drain, token_change));
        let draining = match active.event().await {
            // kas has opened another tunnel, unless it stops.
            TunnelEvent::Drain(request) => active.drain(request.within),
            TunnelEvent::TokenChanged => {
                // kas opens another tunnel once it sees that this one drains, and receives the new token.
                tracing::info!(%tunnel, "the agent token has changed, draining the tunnel with the old one");
                let step = TOKEN_CHANGE_STEP * u32::from(index.index);
                match timeout(step, active.ended()).await {
                    Ok(()) => return,
                    Err(_) => active.drain(OLD_TOKEN_TIMEOUT),
                }
            }
            TunnelEvent::Ended | TunnelEvent::Replacement(_) => return,
        };
        // A tunnel that drains has memory and streams like any other one, so it counts until its end. Its task has logged that.
        let _ = draining.await;
    }

    /// Returns the lowest free index of a tunnel, or `None` if there are too many tunnels.
    fn take_index(self: Arc<Self>) -> Option<IndexGuard> {
        let index = {
            let mut indexes = self.indexes.lock();
            if indexes.len() >= MAX_TUNNELS {
                return None;
            }
            let index = (0..=u16::MAX).find(|index| !indexes.contains(index))?;
            indexes.insert(index);
            index
        };
        Some(IndexGuard { listener: self, index })
    }

    /// Logs a connection that became no tunnel. Strangers can cause any number of them.
    fn report(&self, reason: &'static str, message: impl std::fmt::Display, error: &dyn std::fmt::Display) {
        self.context.observability.metrics.record_dial(reason);
        if let Some(suppressed) = self.refusals.admit(reason, Instant::now().into_std()) {
            tracing::warn!(%error, reason, suppressed, "{message}");
        }
    }
}

impl Drop for IndexGuard {
    fn drop(&mut self) {
        self.listener.indexes.lock().remove(&self.index);
    }
}

impl Refusal {
    fn new(status: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(format!("{}\n", self.message)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
