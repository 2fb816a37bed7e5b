//! The listener for agents: authenticate, switch to WebSocket, keep the tunnel in the table for as long as it lives.

mod balance;
mod door;
mod instances;
mod leave;
mod places;
mod rebalance;
mod refusal;

use std::{
    convert::Infallible,
    fmt::Display,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use http::{HeaderMap, Request, Response, StatusCode, header::AUTHORIZATION};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use proto::{AgentId, AgentName, Epoch, Hello, Limits, ReplicaId, TunnelId, Welcome, header};
use router::{LocalTunnels, RateLimit, Route, RouteStore};
use secrecy::SecretString;
use telemetry::log_limit::LogLimit;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::{
    Body, Ended, Settings,
    websocket::{Role, WebSocket, handshake},
};

pub use self::{balance::Balance, door::Door, places::Places};
use self::{
    places::Place,
    refusal::{CROWDED, DRAINING},
};
use crate::{
    connected::Connected,
    identity::Identities,
    io::StallGuard,
    metrics::{Limit, Metrics},
    token::TokenHash,
};

/// Takes tunnels.
#[derive(Debug)]
pub struct Agents {
    /// Who agents are.
    pub identities: Identities,
    /// Where their tunnels are kept.
    pub tunnels: Arc<LocalTunnels<Connected>>,
    /// Where other replicas learn of them.
    pub store: Arc<dyn RouteStore>,
    /// This process.
    pub replica: ReplicaId,
    /// How tunnels are set up.
    pub settings: Settings,
    /// How long an agent may take for each step of opening a tunnel.
    pub handshake_timeout: Duration,
    /// How long an agent may read nothing of its tunnel while bytes wait for it.
    pub write_stall_timeout: Duration,
    /// How many tunnels may be opened in a second.
    pub door: Mutex<Door>,
    /// How many tunnels an agent may have.
    pub places: Places,
    /// How often one token may be used to open a tunnel.
    pub pace: RateLimit,
    /// After this, give or take 5 %, a tunnel is replaced.
    pub max_age: Duration,
    /// How long a tunnel that is left may take to finish its streams.
    pub grace: Duration,
    /// Set once this replica wants to be rid of its agents.
    pub leaving: CancellationToken,
    /// Set once tunnels that are still open are to end at once.
    pub cut: CancellationToken,
    /// Where tunnels run.
    pub tasks: TaskTracker,
    /// What is counted.
    pub metrics: Metrics,
    /// Orders what this replica says to the store.
    pub epoch: AtomicU64,
    /// What may come often is worth a line, not a flood.
    pub refusals: LogLimit<&'static str>,
}

/// An agent that proved who it is.
#[derive(Debug)]
struct Peer {
    agent: AgentId,
    name: AgentName,
    token: TokenHash,
    hello: Hello,
    tunnel: TunnelId,
    address: String,
    _place: Place,
}

impl Agents {
    /// Serves one connection, until it has become a tunnel or was refused. `address` is for logs.
    pub async fn serve<T>(self: &Arc<Self>, io: T, address: impl Display)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let address = address.to_string();
        let service = service_fn(|request| {
            let answer = self.accept::<T>(request, &address);
            async { Ok::<_, Infallible>(answer.await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.handshake_timeout)
            .keep_alive(false)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        if let Err(error) = connection.await {
            tracing::debug!(peer = address, %error, "a connection of an agent failed before it was a tunnel");
        }
    }

    async fn accept<T>(self: &Arc<Self>, mut request: Request<Incoming>, address: &str) -> Response<Body>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut headers = match handshake::accept(&request) {
            Ok(headers) => headers,
            Err(refusal) => return self.refuse("protocol", refusal.status(), refusal, address),
        };
        if self.leaving.is_cancelled() {
            let what = "this kas is stopping; try another replica";
            return self.refuse_for(DRAINING, "draining", StatusCode::SERVICE_UNAVAILABLE, what, address);
        }
        let Some((agent, token, name)) = self.authenticate(request.headers()) else {
            let what = "the agent token is unknown or was revoked: create one with `kas token new`, put its hash into the \
                        identity file of kas and the token into agentk's secret";
            return self.refuse("unauthorized", StatusCode::UNAUTHORIZED, what, address);
        };
        let hello = match request.headers().get(&header::HELLO).map(Hello::decode) {
            Some(Ok(hello)) => hello,
            Some(Err(error)) => {
                let what = format!("the header {} cannot be used: {error}", header::HELLO);
                return self.refuse("hello", StatusCode::BAD_REQUEST, what, address);
            }
            None => {
                let what = format!("the header {} is missing", header::HELLO);
                return self.refuse("hello", StatusCode::BAD_REQUEST, what, address);
            }
        };

        // Only agents take up time that is others' as well.
        let turn = self.door.lock().admit(Instant::now());
        if let Err(wait) = turn {
            self.metrics.limit(Limit::ConnectionRate);
            let what = "this kas opens as many tunnels in a second as it may (agent.listen.connections_per_second): many \
                        agents come at once";
            return self.refuse_for(wait, "rush", StatusCode::SERVICE_UNAVAILABLE, what, address);
        }
        if let Err(wait) = self.pace.admit(token.digest()).await {
            self.metrics.limit(Limit::ConnectionsPerToken);
            let what = format!(
                "the token of agent {name} has opened as many tunnels in this minute as it may \
                 (agent.listen.connections_per_token_per_minute): wait, or run fewer agentk pods with it"
            );
            return self.refuse_for(wait, "hasty", StatusCode::TOO_MANY_REQUESTS, what, address);
        }
        let Some(place) = self.places.take(agent) else {
            self.metrics.limit(Limit::TunnelsPerAgent);
            let what = format!(
                "agent {name} has as many tunnels to this kas as it may have (agent.listen.max_tunnels_per_agent): let \
                 others end, or run fewer agentk pods or tunnels"
            );
            return self.refuse_for(CROWDED, "crowded", StatusCode::TOO_MANY_REQUESTS, what, address);
        };

        let welcome = Welcome {
            replica: self.replica,
            replicas: self.replicas(),
            tunnel: TunnelId::random(),
            limits: Limits {
                max_concurrent_streams: self.settings.max_concurrent_streams,
                max_header_bytes: self.settings.max_header_bytes,
            },
        };
        let peer = Peer {
            agent,
            name,
            token,
            hello,
            tunnel: welcome.tunnel,
            address: address.to_owned(),
            _place: place,
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let agents = Arc::clone(self);
        self.tasks.spawn(async move { agents.run::<T>(upgrade, peer).await });

        headers.insert(header::WELCOME, welcome.encode().expect("ids and numbers are ASCII"));
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = headers;
        answer
    }

    /// How many there are, as far as is known.
    fn replicas(&self) -> u16 {
        let others = self.store.replicas().iter().filter(|replica| replica.id != self.replica).count();
        u16::try_from(others + 1).unwrap_or(u16::MAX)
    }

    fn authenticate(&self, headers: &HeaderMap) -> Option<(AgentId, TokenHash, AgentName)> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return None;
        };
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        let token = SecretString::from(token.trim());
        let identity = self.identities.load();
        let (agent, hash) = identity.agent(&token).filter(|_| scheme.eq_ignore_ascii_case("bearer"))?;
        Some((agent, hash, identity.name(agent)?.clone()))
    }

    async fn run<T>(&self, upgrade: OnUpgrade, peer: Peer)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let opened = timeout(self.handshake_timeout, async {
            let parts = upgrade.await.ok()?.downcast::<TokioIo<T>>().ok()?;
            let stalls = self.metrics.tunnel_write_stalls.clone();
            let io = StallGuard::new(parts.io.into_inner(), self.write_stall_timeout, stalls);
            let socket = WebSocket::new(io, parts.read_buf, Role::Server);
            tunnel::open(socket, &self.settings).await.ok()
        });
        let Ok(Some((tunnel, driver))) = opened.await else {
            self.metrics.handshake("lost");
            return tracing::debug!(peer = peer.address, "a tunnel was lost before it was open");
        };

        // Not before agentk has answered: it may give a tunnel up at once, for one to another replica.
        let driving = driver.run();
        tokio::pin!(driving);
        let answered = tokio::select! {
            answered = timeout(self.handshake_timeout, tunnel.ready()) => answered.is_ok(),
            _ = &mut driving => false,
        };
        if !answered {
            self.metrics.handshake("lost");
            return tracing::debug!(peer = peer.address, "a tunnel was given up before it was used");
        }

        self.metrics.handshake("accepted");
        self.metrics.tunnels.inc();
        let since = Instant::now();
        tracing::info!(
            agent.id = %peer.agent,
            agent.name = %peer.name,
            tunnel = %peer.tunnel,
            instance = %peer.hello.instance,
            version = peer.hello.version,
            pod = peer.hello.pod_name,
            kubernetes = peer.hello.kubernetes_version,
            peer = peer.address,
            "tunnel opened"
        );
        let connected = Connected {
            tunnel: tunnel.clone(),
            hello: peer.hello.clone(),
            peer: peer.address.clone(),
            since: SystemTime::now(),
            moving: CancellationToken::new(),
        };
        let moving = connected.moving.clone();
        let services = peer.hello.services.clone();
        let registration = self.tunnels.register(peer.agent, peer.tunnel, services, connected, cores::here());
        let live = async {
            self.announce(peer.agent).await;
            self.attend(&peer, &tunnel, &moving, || registration.drain()).await
        };
        let ended = tokio::select! {
            ended = driving => ended,
            ended = live => ended,
        };
        drop(registration);
        if let Ended::Lost(error) = &ended
            && error.kind() == io::ErrorKind::TimedOut
        {
            self.metrics.limit(Limit::TunnelWriteStall);
        }
        self.withdraw(peer.agent).await;
        self.metrics.tunnels.dec();
        self.metrics.tunnel_end(ended.label(), since.elapsed());
        tracing::info!(
            agent.id = %peer.agent,
            agent.name = %peer.name,
            tunnel = %peer.tunnel,
            reason = %ended,
            seconds = since.elapsed().as_secs(),
            "tunnel ended"
        );
    }

    async fn announce(&self, agent: AgentId) {
        self.describe(agent);
        let epoch = Epoch(self.epoch.fetch_add(1, Relaxed) + 1);
        let route = Route { replica: self.replica, epoch };
        if let Err(error) = self.store.announce(agent, route).await {
            tracing::warn!(agent.id = %agent, %error, "other replicas were not told of an agent");
        }
    }

    fn describe(&self, agent: AgentId) {
        let instances = instances::instances(&self.tunnels.views_of(agent));
        self.store.describe(agent, self.replica, instances);
    }

    async fn withdraw(&self, agent: AgentId) {
        // Read before looking: a tunnel that arrives after the look announces a later epoch, which survives this.
        let epoch = Epoch(self.epoch.load(Relaxed));
        if self.tunnels.holds(agent) && !self.leaving.is_cancelled() {
            return self.describe(agent);
        }
        let route = Route { replica: self.replica, epoch };
        if let Err(error) = self.store.withdraw(agent, route).await {
            tracing::warn!(agent.id = %agent, %error, "other replicas were not told that an agent left");
        }
    }
}
