//! Serves agents: authenticates, upgrades the connection to a tunnel, and registers the tunnel until it ends.

pub mod admission;
mod agent_process;
mod announcements;
mod calls;
mod clusters;
mod control;
mod drain;
mod kill_switch;
mod lifetime;
mod max_age;
mod rebalancer;
mod receptive;
pub mod refusal;
mod repeated_tokens;
mod session;
mod tunnel_ends;
mod version_skew;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cores::{TaskGroup, poll_on_wake};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::service_fn,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use kas_listen::{
    addresses::AddressRules,
    io::{Rewind, StallGuard, is_stall},
    metrics::Limit,
};
use parking_lot::Mutex;
use process::LogLimiter;
use proto::{AgentId, InstanceId, ReplicaId, TunnelId, TunnelLimits, TunnelProtocol, Welcome, header};
use router::{LocalTunnels, RegistrationGuard};
use store::{AddressRateLimiter, KeyedRateLimiter, RateLimiter, Store};
use strangers::Stranger;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tunnel::{
    Body, CloseReason, IDLE_TIMEOUT_HINT, IdleTimeoutDetector, Tunnel, TunnelConfig, handshake,
    websocket::{Role, WebSocket},
};

pub use self::admission::TunnelPermits;
pub use self::agent_process::AgentProcess;
pub use self::calls::{CallConnection, CallServer};
pub use self::clusters::{AgentConflicts, RefusedTunnel};
pub use self::max_age::MaxAge;
pub use self::rebalancer::Rebalancer;
pub use self::receptive::ReceptiveAgents;
pub use self::receptive::{AgentDialer, DIAL_ALPN, DialErrors, DialSource};
pub use self::repeated_tokens::RepeatedTokens;
pub use self::tunnel_ends::{TunnelEnd, TunnelEnds};
pub use self::version_skew::VersionSkew;
use self::{
    admission::{AuthenticatedAgent, ClientAddress},
    drain::Supervised,
    lifetime::Loss,
    refusal::HandshakeError,
    session::TunnelSession,
};
use crate::{
    attachments::TunnelFeature, config::AgentProtocol, configuration::ConfigurationService, metrics::Metrics,
    tunnel_entry::TunnelEntry, weak_map::WeakMap,
};
use access::{
    AgentIdentity, AgentSources, Identities, address_key, kill_switch::KillSwitch, token::TokenHash,
};
use telemetry::GaugeGuard;

/// Serves agents.
#[derive(Debug)]
pub struct AgentServer {
    /// The agents of the identity file.
    pub identities: Identities,
    /// `agent.listen.protocols`.
    pub protocols: BTreeSet<AgentProtocol>,
    /// Serves GitLab's agentk.
    pub calls: Arc<dyn CallServer>,
    /// Decides which agent holds a token.
    pub sources: AgentSources,
    /// True if agents come from GitLab too.
    pub has_gitlab: bool,
    /// The tunnels that end at this replica.
    pub tunnels: Arc<LocalTunnels<TunnelEntry>>,
    /// The store that all replicas share.
    pub store: Arc<dyn Store>,
    /// This replica.
    pub replica: ReplicaId,
    /// The HTTP/2 settings of tunnels.
    pub settings: TunnelConfig,
    /// The rules of the listener about addresses.
    pub addresses: AddressRules,
    /// `agent.listen.handshake_timeout`: the time for each step of opening a tunnel.
    pub handshake_timeout: Duration,
    /// `agent.listen.write_stall_timeout`: the time for which an agent may leave written bytes unread.
    pub write_stall_timeout: Duration,
    /// `agent.listen.connections_per_second`: limits the tunnels that all agents open.
    pub connection_rate: Mutex<RateLimiter>,
    /// `agent.listen.max_tunnels_per_agent`: limits the tunnels of one agent.
    pub tunnel_permits: TunnelPermits,
    /// `agent.listen.connections_per_token_per_minute`: limits the tunnels that one token opens.
    pub token_rate: KeyedRateLimiter,
    /// `agent.listen.connections_per_address_per_minute` and `agent.listen.unknown_tokens_per_address_per_minute`.
    pub address_rate: AddressRateLimiter,
    /// The unknown tokens that count for that limit already.
    pub repeated_tokens: RepeatedTokens,
    /// `agent.listen.max_connection_age`: at this age, ±5 %, a tunnel is replaced.
    pub max_age: MaxAge,
    /// `agent.kubernetes_api.listen.shutdown_grace_period`: the time that the streams of a tunnel may take once the replica stops.
    pub grace: Duration,
    /// Tunnels, and connections that become tunnels. Once the group drains, agents are asked to leave.
    pub connections: TaskGroup,
    /// The metrics of this replica.
    pub metrics: Metrics,
    /// The epoch of the last announcement to the route store.
    pub epoch: AtomicU64,
    /// The rules that are reported to agents.
    pub kill_switch: Arc<KillSwitch>,
    /// The agents whose tokens are used wrongly.
    pub conflicts: Arc<AgentConflicts>,
    /// The reasons for which kas cannot dial agents.
    pub dial_errors: Arc<DialErrors>,
    /// The ends of the last tunnels.
    pub ends: Arc<TunnelEnds>,
    /// Limits the log lines of refused tunnels.
    pub log_limit: LogLimiter<&'static str>,
    /// Reads the configurations of agents, and sends them.
    pub configuration: ConfigurationService,
    /// The features that work in tunnels.
    pub features: Vec<Box<dyn TunnelFeature>>,
    /// The processes of agentk with tunnels to this replica.
    pub processes: WeakMap<(AgentId, InstanceId), AgentProcess>,
    /// Detects the idle timeout of a proxy from the ends of tunnels.
    pub idle_timeouts: Mutex<IdleTimeoutDetector>,
}

/// A tunnel whose agent has responded.
pub struct OpenTunnel {
    tunnel: Tunnel,
    /// Drives the connection until it ends.
    driving: BoxFuture<'static, CloseReason>,
    session: Box<TunnelSession>,
}

/// A tunnel that requests of callers may use.
struct TunnelRegistration {
    registration: RegistrationGuard<TunnelEntry>,
    #[expect(dead_code, reason = "dropping it counts the end of the tunnel")]
    open: GaugeGuard,
    since: Instant,
    /// Cancelled once the tunnel should move to another replica.
    move_requested: CancellationToken,
    /// Cancelled when the drain of the tunnel begins.
    draining: CancellationToken,
}

impl AgentServer {
    /// Serves one connection until it is refused, has become a tunnel, or, if it is HTTP/2 of GitLab's agentk, has ended. `peer` is its
    /// other end: an agent, or a proxy. The connection is that of the `stranger` until it has sent a valid token.
    pub async fn serve<T>(self: &Arc<Self>, io: T, peer: SocketAddr, stranger: Arc<Stranger>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Ok(Ok((io, is_http2))) = timeout(self.handshake_timeout, Rewind::detect_http2(io)).await else {
            self.metrics.count_handshake("incomplete");
            return;
        };
        if is_http2 && self.protocols.contains(&AgentProtocol::Http2) {
            return Box::pin(self.serve_http2(io, peer, stranger)).await;
        }
        // `map`, because an async block would have room for the future twice.
        let service = service_fn(|request| {
            let response = self.handle::<Rewind<T>>(request, peer, &stranger);
            response.map(|response| Ok::<_, Infallible>(handshake::close_unless_upgraded(response)))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.handshake_timeout)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%peer, %error, "connection of an agent failed before the upgrade");
        }
    }

    /// Serves GitLab's agentk without a WebSocket.
    async fn serve_http2<T>(self: &Arc<Self>, io: Rewind<T>, peer: SocketAddr, stranger: Arc<Stranger>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let client = ClientAddress::new(self.addresses.client(&HeaderMap::new(), peer), peer);
        // The headers of a proxy, which come later, have the address of its client.
        if !self.addresses.trusts(peer.ip())
            && let Err(error) = self.check_client(&client)
        {
            return self.report_refusal(&client, &error);
        }
        let (first, io) = io.into_parts();
        let stalls = self.metrics.tunnel_write_stalls.clone();
        let io = StallGuard::new(io, self.write_stall_timeout, stalls);
        let connection = CallConnection { io: Box::new(io), first, client, peer: Some(peer), stranger };
        Arc::clone(&self.calls).serve(Arc::clone(self), connection).await;
    }

    async fn handle<T>(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        peer: SocketAddr,
        stranger: &Arc<Stranger>,
    ) -> Response<Body>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let client = ClientAddress::new(self.addresses.client(request.headers(), peer), peer);
        let refuse = |error: HandshakeError| {
            self.report_refusal(&client, &error);
            error.to_response(self.subprotocols())
        };
        if let Err(error) = self.check_client(&client) {
            return refuse(error);
        }
        let handshake = handshake::response_headers(&request, self.subprotocols());
        let (mut headers, protocol) = match handshake {
            Ok(handshake) => handshake,
            Err(error) => {
                let (status, message) = (error.status(), error.to_string());
                return refuse(HandshakeError::Protocol { status, message });
            }
        };
        match protocol {
            TunnelProtocol::KasTunnel => {
                let agent = match self.admit(request.headers(), &client).await {
                    Ok(agent) => agent,
                    Err(error) => return refuse(error),
                };
                stranger.admit();
                let welcome = self.welcome(agent.tunnel).encode().expect("ids and numbers are ASCII");
                headers.insert(header::WELCOME, welcome);
                let upgrade = hyper::upgrade::on(&mut request);
                self.connections.tasks.spawn(Arc::clone(self).run::<T>(upgrade, agent));
            }
            TunnelProtocol::GitLab => {
                // GitLab's agentk sends its token with each call inside of the WebSocket.
                let upgrade = hyper::upgrade::on(&mut request);
                let running = Arc::clone(self).run_gitlab::<T>(upgrade, client, Arc::clone(stranger));
                self.connections.tasks.spawn(running);
            }
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = headers;
        response
    }

    /// Returns the WebSocket subprotocols that the configuration allows.
    fn subprotocols(&self) -> &'static [TunnelProtocol] {
        use TunnelProtocol::{GitLab, KasTunnel};

        let allows = |protocol| self.protocols.contains(&protocol);
        match (allows(AgentProtocol::KasTunnel), allows(AgentProtocol::WsTunnel)) {
            (true, true) => &[KasTunnel, GitLab],
            (true, false) => &[KasTunnel],
            (false, true) => &[GitLab],
            (false, false) => &[],
        }
    }

    fn welcome(&self, tunnel: TunnelId) -> Welcome {
        Welcome {
            replica: self.replica,
            replicas: self.replica_count(),
            tunnel,
            limits: TunnelLimits {
                max_concurrent_streams: self.settings.max_concurrent_streams,
                max_header_bytes: self.settings.max_header_bytes,
            },
        }
    }

    /// Serves GitLab's agentk in a WebSocket.
    async fn run_gitlab<T>(
        self: Arc<Self>,
        upgrade: OnUpgrade,
        client: ClientAddress,
        stranger: Arc<Stranger>,
    ) where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let upgraded = timeout(self.handshake_timeout, upgrade).await;
        let Ok(Ok(Ok(parts))) = upgraded.map(|upgraded| upgraded.map(|it| it.downcast::<TokioIo<T>>()))
        else {
            return self.metrics.count_handshake("incomplete");
        };
        let stalls = self.metrics.tunnel_write_stalls.clone();
        let io = StallGuard::new(parts.io.into_inner(), self.write_stall_timeout, stalls);
        let socket = WebSocket::new(io, parts.read_buf, Role::Server).with_gitlab_roles();
        let (cut, replaced) = (self.connections.cut.child_token(), stranger.replaced());
        let (io, first) = (Box::new(socket), Bytes::new());
        let connection = CallConnection { io, first, client, peer: None, stranger };
        let serving = Arc::clone(&self.calls).serve(self, connection);
        tokio::select! {
            biased;
            () = serving => {}
            () = cut.cancelled() => {}
            () = poll_on_wake(replaced.cancelled()) => {}
        }
    }

    /// Returns the number of replicas in the route store, with this one.
    fn replica_count(&self) -> u16 {
        let others = self.store.replicas().iter().filter(|replica| replica.id != self.replica).count();
        u16::try_from(others + 1).unwrap_or(u16::MAX)
    }

    /// Runs a tunnel from its upgrade to its end.
    async fn run<T>(self: Arc<Self>, upgrade: OnUpgrade, agent: AuthenticatedAgent)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // Boxed, like other short phases of a tunnel: the memory of this future is that of its largest phase, for as long
        // as the tunnel lives.
        match Box::pin(self.open::<T>(upgrade, Role::Server, &agent)).await {
            Ok(opened) => self.serve_tunnel(&agent, opened).await,
            Err(error) => {
                self.metrics.count_handshake("incomplete");
                tracing::debug!(peer = agent.client.text, error, "tunnel not opened");
            }
        }
    }

    /// Serves a tunnel until its end: callers may use it from now on.
    pub async fn serve_tunnel(&self, agent: &AuthenticatedAgent, opened: OpenTunnel) {
        let OpenTunnel { tunnel, driving, mut session } = opened;
        let registered = self.register(agent, &tunnel);
        let supervisor = poll_on_wake(self.supervise(agent, &tunnel, &registered));
        let reporter =
            poll_on_wake(kill_switch::report(&self.kill_switch, &agent.identity, (agent.tunnel, &tunnel)));
        let services = poll_on_wake(session.run(self, agent, &tunnel, &registered.draining));
        let serving = async {
            tokio::select! {
                biased;
                ended = driving => ended,
                ended = supervisor => ended,
                never = reporter => match never {},
                () = services => CloseReason::LocallyClosed,
            }
        };
        // The state of the tunnel is not used again after a panic. The cleanup below must run in any case.
        let ended = AssertUnwindSafe(serving).catch_unwind().await.unwrap_or(CloseReason::LocallyClosed);
        let duration = registered.since.elapsed();
        drop((session, registered));
        self.withdraw(agent.identity.id).await;
        self.observe_end(agent, &ended, duration);
    }

    /// Opens the tunnel over an upgraded connection, on which kas has this role, and waits until agentk is ready for requests.
    async fn open<T>(
        &self,
        upgrade: impl Future<Output = hyper::Result<Upgraded>>,
        role: Role,
        agent: &AuthenticatedAgent,
    ) -> Result<OpenTunnel, &'static str>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let opened = timeout(self.handshake_timeout, async {
            let parts = upgrade.await.ok()?.downcast::<TokioIo<T>>().ok()?;
            let stalls = self.metrics.tunnel_write_stalls.clone();
            let io = StallGuard::new(parts.io.into_inner(), self.write_stall_timeout, stalls);
            let socket = WebSocket::new(io, parts.read_buf, role);
            tunnel::open(socket, &self.settings).await.ok()
        });
        let Ok(Some((tunnel, driver))) = opened.await else {
            return Err("the connection was lost before the tunnel was open");
        };
        self.prepare(agent, tunnel, driver.run().boxed()).await
    }

    /// Waits until agentk is ready for requests, and prepares what kas does in the tunnel by itself.
    pub async fn prepare(
        &self,
        agent: &AuthenticatedAgent,
        tunnel: Tunnel,
        mut driving: BoxFuture<'static, CloseReason>,
    ) -> Result<OpenTunnel, &'static str> {
        // Not registered before agentk responds: it may close a tunnel at once, in favour of one to another replica.
        let mut session = TunnelSession::new(self, agent);
        let prepared = async {
            let ready = timeout(self.handshake_timeout, tunnel.ready()).await;
            ready.map_err(|_| "agentk was not ready for requests in time")?;
            session.prepare(&tunnel).await;
            Ok::<_, &str>(())
        };
        tokio::select! {
            prepared = prepared => prepared?,
            _ = &mut driving => return Err("the tunnel ended before it was registered"),
        }
        Ok(OpenTunnel { tunnel, driving, session })
    }

    /// Makes a tunnel one that requests of callers may use, until the returned value is dropped.
    fn register(&self, agent: &AuthenticatedAgent, tunnel: &Tunnel) -> TunnelRegistration {
        let AuthenticatedAgent { identity, hello, client, .. } = agent;
        match &agent.dialled {
            Some(_) => self.metrics.count_dial("connected"),
            None => self.metrics.count_handshake("accepted"),
        }
        tracing::info!(
            agent.id = %identity.id,
            agent.name = %identity.name,
            tunnel = %agent.tunnel,
            instance = %hello.instance,
            version = hello.version,
            pod = hello.pod_name,
            kubernetes = hello.kubernetes_version,
            peer = client.text,
            "tunnel opened"
        );
        let move_requested =
            agent.dialled.as_ref().map_or_else(CancellationToken::new, |dialled| dialled.leave.clone());
        let entry = TunnelEntry {
            agent: identity.clone(),
            tunnel: tunnel.clone(),
            described: Arc::clone(&agent.described),
            peer: client.text.clone(),
            token: TokenHash::of(&agent.token),
            since: SystemTime::now(),
            move_requested: move_requested.clone(),
            dialled: agent.dialled.is_some(),
        };
        let services = hello.services.clone();
        let registration =
            self.tunnels.register(identity.id, agent.tunnel, services, entry, cores::current());
        if let Some(dialled) = &agent.dialled {
            dialled.report_open();
        }
        TunnelRegistration {
            registration,
            open: GaugeGuard::new(&self.metrics.tunnels),
            since: Instant::now(),
            move_requested,
            draining: CancellationToken::new(),
        }
    }

    /// Announces a tunnel to other replicas, and waits for a reason to end it.
    async fn supervise(
        &self,
        agent: &AuthenticatedAgent,
        tunnel: &Tunnel,
        registered: &TunnelRegistration,
    ) -> CloseReason {
        let AgentIdentity { id, name, .. } = &agent.identity;
        self.announce(agent).await;
        if agent.hello.cluster.is_some() {
            Box::pin(self.check_clusters(*id, name)).await;
        }
        let revoked = Box::pin(async {
            tokio::select! {
                () = agent.source.revoked(*id, &agent.token) => "token revoked, tunnel cut",
                () = self.identities.forbidden_from(*id, agent.client.address) => {
                    "address of the agent not allowed any more, tunnel cut"
                }
                () = self.identities.pinned_elsewhere(*id, agent.hello.cluster.as_deref()) => {
                    "agent pinned to another cluster, tunnel cut"
                }
            }
        });
        let supervised = &Supervised {
            agent: &agent.identity,
            id: agent.tunnel,
            tunnel,
            max_age: &self.max_age,
            since: registered.since,
            move_requested: &registered.move_requested,
            connections: &self.connections,
            grace: self.grace,
        };
        let before_drain = |reason| self.before_drain(agent, reason);
        let on_drain = || {
            registered.registration.drain();
            registered.draining.cancel();
        };
        drain::supervise(supervised, revoked, before_drain, on_drain, self.withdraw(*id)).await
    }

    /// Counts and logs the end of a tunnel, and learns from it when proxies cut tunnels.
    fn observe_end(&self, agent: &AuthenticatedAgent, ended: &CloseReason, duration: Duration) {
        if let CloseReason::Lost { error, .. } = ended
            && is_stall(error)
        {
            self.metrics.count_limit(Limit::TunnelWriteStall);
        }
        self.metrics.observe_tunnel_end(ended.label(), duration);
        let AuthenticatedAgent { identity: AgentIdentity { id, name, .. }, tunnel, hello, .. } = agent;
        self.ends.record(*id, ended.to_string(), SystemTime::now());
        let seconds = duration.as_secs();
        if let CloseReason::Graceful | CloseReason::LocallyClosed = ended {
            return tracing::info!(agent.id = %id, agent.name = %name, %tunnel, reason = %ended, seconds, "tunnel ended");
        }
        if let CloseReason::Lost { .. } | CloseReason::TimedOut = ended {
            let address = address_key(agent.client.address);
            let (instance, at) = (hello.instance, Instant::now());
            self.max_age.record_loss(Loss { agent: *id, instance, address, age: duration, at }, name);
        }
        let hint = match ended {
            CloseReason::Lost { silence, .. }
                if self.idle_timeouts.lock().record_loss(*silence, Instant::now()) =>
            {
                Some(IDLE_TIMEOUT_HINT)
            }
            _ => None,
        };
        tracing::warn!(agent.id = %id, agent.name = %name, %tunnel, reason = %ended, seconds, hint, "tunnel lost");
    }
}
