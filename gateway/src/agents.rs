//! Serves agents: authenticates, upgrades the connection to a tunnel, and registers the tunnel until it ends.

mod admission;
mod announcements;
mod clusters;
mod control;
mod cut_age;
mod disabled;
mod drain;
mod instances;
mod max_age;
mod rebalance;
mod rebalancer;
mod refusal;
mod tunnel_permits;
mod version_skew;

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use cores::poll_on_wake;
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use process::LogLimiter;
use proto::{ReplicaId, ServiceName, TunnelLimits, Welcome, header};
use router::{AddressRateLimiter, KeyedRateLimiter, LocalTunnels, RateLimiter, RouteStore};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tunnel::{
    Body, CloseReason, IDLE_TIMEOUT_HINT, IdleTimeoutDetector, TunnelConfig,
    websocket::{Role, WebSocket},
};

pub(crate) use self::max_age::MaxAge;
pub use self::rebalancer::Rebalancer;
use self::{
    admission::{AuthenticatedAgent, ClientAddress},
    cut_age::Loss,
    drain::Supervised,
};
pub(crate) use self::{
    clusters::{AgentConflicts, RefusedTunnel},
    tunnel_permits::TunnelPermits,
    version_skew::VersionSkew,
};
use crate::{
    addresses::AddressRules,
    configuration::ConfigurationService,
    disabled::KillSwitch,
    io::StallGuard,
    metrics::{GaugeGuard, Limit, Metrics},
    tasks::TaskGroup,
    tunnel_entry::TunnelEntry,
};
use access::{AgentIdentity, AgentSources, Identities, address_key};
use gitlab::Usage;

/// Serves agents.
#[derive(Debug)]
pub struct AgentServer {
    /// The agents of the identity file.
    pub identities: Identities,
    /// Decides which agent holds a token.
    pub sources: AgentSources,
    /// True if agents come from GitLab too.
    pub has_gitlab: bool,
    /// The agents that connect, for GitLab.
    pub usage: Usage,
    /// The tunnels that end at this replica.
    pub tunnels: Arc<LocalTunnels<TunnelEntry>>,
    /// The directory that all replicas share.
    pub store: Arc<dyn RouteStore>,
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
    /// `agent.listen.max_connection_age`: at this age, ±5 %, a tunnel is replaced.
    pub max_age: MaxAge,
    /// `agent.kubernetes_api.listen.shutdown_grace_period`: the time that the streams of a tunnel may take once the replica stops.
    pub grace: Duration,
    /// Tunnels, and connections that become tunnels. Once the group drains, agents are asked to leave.
    pub connections: TaskGroup,
    /// The metrics of this replica.
    pub metrics: Metrics,
    /// The epoch of the last announcement to the directory.
    pub epoch: AtomicU64,
    /// The rules that are reported to agents.
    pub kill_switch: Arc<KillSwitch>,
    /// The agents whose tokens are used wrongly.
    pub conflicts: Arc<AgentConflicts>,
    /// Limits the log lines of refused tunnels.
    pub log_limit: LogLimiter<&'static str>,
    /// Sends each agent its configuration.
    pub configuration: ConfigurationService,
    /// Detects the idle timeout of a proxy from the ends of tunnels.
    pub idle_timeouts: Mutex<IdleTimeoutDetector>,
}

impl AgentServer {
    /// Serves one connection until it is refused or has become a tunnel. `peer` is its other end: an agent, or a proxy.
    pub async fn serve<T>(self: &Arc<Self>, io: T, peer: SocketAddr)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(|request| {
            let response = self.handle::<T>(request, peer);
            async { Ok::<_, Infallible>(response.await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.handshake_timeout)
            .keep_alive(false)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(%peer, %error, "connection of an agent failed before the upgrade");
        }
    }

    async fn handle<T>(self: &Arc<Self>, mut request: Request<Incoming>, peer: SocketAddr) -> Response<Body>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let client = ClientAddress::new(self.addresses.client(request.headers(), peer), peer);
        let (mut headers, agent) = match self.admit(&request, &client).await {
            Ok(admitted) => admitted,
            Err(error) => {
                let reason = error.label();
                self.metrics.count_handshake(reason);
                if let Some(suppressed) = self.log_limit.admit(reason, std::time::Instant::now()) {
                    let status = error.status();
                    tracing::warn!(peer = client.text, %status, reason, suppressed, %error, "tunnel refused");
                }
                return error.to_response();
            }
        };
        let welcome = Welcome {
            replica: self.replica,
            replicas: self.replica_count(),
            tunnel: agent.tunnel,
            limits: TunnelLimits {
                max_concurrent_streams: self.settings.max_concurrent_streams,
                max_header_bytes: self.settings.max_header_bytes,
            },
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let server = Arc::clone(self);
        self.connections.tasks.spawn(async move { server.run::<T>(upgrade, agent).await });

        headers.insert(header::WELCOME, welcome.encode().expect("ids and numbers are ASCII"));
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = headers;
        response
    }

    /// Returns the number of replicas in the directory, with this one.
    fn replica_count(&self) -> u16 {
        let others = self.store.replicas().iter().filter(|replica| replica.id != self.replica).count();
        u16::try_from(others + 1).unwrap_or(u16::MAX)
    }

    async fn run<T>(&self, upgrade: OnUpgrade, agent: AuthenticatedAgent)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // Boxed, like other short phases of a tunnel: the memory of this future is that of its largest phase, for as long
        // as the tunnel lives.
        let opened = Box::pin(timeout(self.handshake_timeout, async {
            let parts = upgrade.await.ok()?.downcast::<TokioIo<T>>().ok()?;
            let stalls = self.metrics.tunnel_write_stalls.clone();
            let io = StallGuard::new(parts.io.into_inner(), self.write_stall_timeout, stalls);
            let socket = WebSocket::new(io, parts.read_buf, Role::Server);
            let (tunnel, driver) = tunnel::open(socket, &self.settings).await.ok()?;
            Some((tunnel, Box::pin(driver.run())))
        }));
        let Ok(Some((tunnel, mut driving))) = opened.await else {
            self.metrics.count_handshake("incomplete");
            return tracing::debug!(peer = agent.client.text, "tunnel lost before it was open");
        };

        // Not registered before agentk responds: it may close a tunnel at once, in favour of one to another replica.
        let ready = tokio::select! {
            ready = timeout(self.handshake_timeout, tunnel.ready()) => ready.is_ok(),
            _ = &mut driving => false,
        };
        if !ready {
            self.metrics.count_handshake("incomplete");
            return tracing::debug!(peer = agent.client.text, "tunnel closed before it was registered");
        }

        let accepts_configuration =
            agent.hello.services.iter().any(|service| service.as_str() == ServiceName::CONFIGURATION);
        // An agent that does not accept its configuration has one for others, such as GitLab.
        let mut delivery = self.configuration.subscribe(&agent.identity);
        if accepts_configuration {
            tokio::select! {
                () = Box::pin(delivery.send_current(&tunnel)) => {}
                _ = &mut driving => {
                    self.metrics.count_handshake("incomplete");
                    return tracing::debug!(peer = agent.client.text, "tunnel closed before it was registered");
                }
            }
        }

        self.metrics.count_handshake("accepted");
        let open = GaugeGuard::new(&self.metrics.tunnels);
        let since = Instant::now();
        tracing::info!(
            agent.id = %agent.identity.id,
            agent.name = %agent.identity.name,
            tunnel = %agent.tunnel,
            instance = %agent.hello.instance,
            version = agent.hello.version,
            pod = agent.hello.pod_name,
            kubernetes = agent.hello.kubernetes_version,
            peer = agent.client.text,
            "tunnel opened"
        );
        let move_requested = CancellationToken::new();
        let id = agent.identity.id;
        let entry = TunnelEntry {
            agent: agent.identity.clone(),
            tunnel: tunnel.clone(),
            hello: Arc::clone(&agent.hello),
            peer: agent.client.text.clone(),
            since: SystemTime::now(),
            move_requested: move_requested.clone(),
        };
        let services = agent.hello.services.clone();
        let registration = self.tunnels.register(id, agent.tunnel, services, entry, cores::current());
        let supervised = Supervised {
            agent: &agent.identity,
            id: agent.tunnel,
            tunnel: &tunnel,
            max_age: &self.max_age,
            since,
            move_requested: &move_requested,
            connections: &self.connections,
            grace: self.grace,
        };
        let supervisor = poll_on_wake(async {
            self.announce(&agent).await;
            if agent.hello.cluster.is_some() {
                Box::pin(self.check_clusters(id, &agent.identity.name)).await;
            }
            let revoked = Box::pin(async {
                tokio::select! {
                    () = agent.source.revoked(id, &agent.token) => "token revoked, tunnel cut",
                    () = self.identities.forbidden_from(id, agent.client.address) => {
                        "address of the agent not allowed any more, tunnel cut"
                    }
                    () = self.identities.pinned_elsewhere(id, agent.hello.cluster.as_deref()) => {
                        "agent pinned to another cluster, tunnel cut"
                    }
                }
            });
            drain::supervise(supervised, revoked, || registration.drain(), self.withdraw(id)).await
        });
        let reporter = poll_on_wake(disabled::report(
            &self.kill_switch,
            (id, &agent.identity.name),
            (agent.tunnel, &tunnel),
        ));
        let delivering = poll_on_wake(async {
            match accepts_configuration {
                true => delivery.run(tunnel.clone()).await,
                false => {
                    let _delivery = delivery;
                    pending().await
                }
            }
        });
        let serving = async {
            tokio::select! {
                biased;
                ended = driving => ended,
                ended = supervisor => ended,
                never = reporter => match never {},
                () = delivering => CloseReason::LocallyClosed,
            }
        };
        // The state of the tunnel is not used again after a panic. The cleanup below must run in any case.
        let ended = AssertUnwindSafe(serving).catch_unwind().await.unwrap_or(CloseReason::LocallyClosed);
        drop((registration, open));
        if let CloseReason::Lost { error, .. } = &ended
            && error.kind() == io::ErrorKind::TimedOut
        {
            self.metrics.count_limit(Limit::TunnelWriteStall);
        }
        self.withdraw(id).await;
        self.metrics.observe_tunnel_end(ended.label(), since.elapsed());
        self.log_end(&agent, &ended, since.elapsed());
    }

    fn log_end(&self, agent: &AuthenticatedAgent, ended: &CloseReason, duration: Duration) {
        let AuthenticatedAgent { identity: AgentIdentity { id, name, .. }, tunnel, .. } = agent;
        let seconds = duration.as_secs();
        if let CloseReason::Graceful | CloseReason::LocallyClosed = ended {
            return tracing::info!(agent.id = %id, agent.name = %name, %tunnel, reason = %ended, seconds, "tunnel ended");
        }
        if let CloseReason::Lost { .. } | CloseReason::TimedOut = ended {
            let address = address_key(agent.client.address);
            self.max_age.record_loss(Loss { agent: *id, address, age: duration, at: Instant::now() }, name);
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
