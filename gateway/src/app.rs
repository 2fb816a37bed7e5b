//! Builds a replica and runs it; `shutdown` stops it.

mod checked;
mod live;
mod shutdown;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use cores::Cores;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::{
    LocalTunnels, MemoryStore, RateLimit,
    redis::{Keeper, RedisStore},
};
use telemetry::{Exporter, log_limit::LogLimit};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::shutdown::{GracePeriods, Shutdown};
pub use self::{
    checked::{Checked, Listeners},
    live::Tried,
};
use crate::{
    admin::{Admin, Readiness},
    agents::{Agents, Balance, Door, Places},
    api::Api,
    config::Config,
    cors::Cors,
    forward::Forwarder,
    identity::{Identities, Identity},
    metrics::{self, Metrics},
    peers::{Fleet, Peers, host::Host, reach::Reach},
    proxy::{Budget, Callers},
    reload::on_change,
    roster::Roster,
    tasks::TaskGroup,
    tls::Certificate,
    traces::Traces,
};

/// The period of `connections_per_token_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);

/// How often one kind of refusal or failure is logged.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// One kas: what its listeners share. Nothing is bound yet.
#[derive(Debug)]
pub struct App {
    /// Takes tunnels.
    pub agents: Arc<Agents>,
    /// Takes requests.
    pub callers: Arc<Callers>,
    /// Takes requests of other replicas.
    pub host: Arc<Host>,
    /// Takes programs that ask who is connected, if some may.
    pub api: Option<Arc<Api>>,
    /// Takes probes.
    pub admin: Arc<Admin>,
    /// Who is who.
    pub identities: Identities,
    readiness: Readiness,
    certificates: Vec<Certificate>,
    exporter: Option<Exporter>,
    redis: Option<(RedisStore, Keeper)>,
    reach: Option<Reach>,
    config: Config,
}

impl App {
    /// Builds a kas without listeners: tests hand it connections.
    pub fn new(config: Config, identity: Identity) -> Self {
        let store = Arc::new(MemoryStore::default());
        let fleet = Fleet::alone(ReplicaId::random(), store, &config);
        Self::of_replica(fleet, config, identity, None, None, None)
    }

    /// The same with a name that is known before, with traces, and with Redis. Without an exporter somebody else has the
    /// spans; without Redis there is one replica.
    pub fn of_replica(
        fleet: Fleet,
        config: Config,
        identity: Identity,
        traces: Option<Traces>,
        exporter: Option<Exporter>,
        redis: Option<(RedisStore, Keeper)>,
    ) -> Self {
        let mut registry = Registry::default();
        if let Some(exporter) = &exporter {
            exporter.metrics().register(&mut registry, "kas");
        }
        let metrics = Metrics::register(&mut registry);
        let identities = Identities::new(identity);
        let limits = config.agent.kubernetes_api.limits.clone();
        let tunnels = Arc::new(LocalTunnels::new(limits.max_requests_per_agent));
        let Fleet { replica, store, dial, secret } = fleet;
        let shared = redis.as_ref().map(|(store, _)| store.clone());
        if let Some(redis) = &shared {
            metrics::redis::register(&mut registry, redis);
            let help = "1 if other replicas reach this one at the address that they are told, else 0";
            registry.register("kas_private_api_reachable", help, metrics.peers.reachable.clone());
        }
        let peers = Peers::new(replica, dial, secret.clone(), metrics.peers.clone());
        let back = (peers.clone(), Arc::clone(&store));
        let host = Arc::new(Host::new(replica, secret, Arc::clone(&tunnels), back, &config, metrics.clone()));
        let agents = Arc::new(Agents {
            identities: identities.clone(),
            tunnels: Arc::clone(&tunnels),
            store: Arc::clone(&store),
            replica,
            settings: tunnel::Settings { stalls: metrics.stalls.clone(), ..config.tunnel_settings() },
            handshake_timeout: config.agent.listen.handshake_timeout,
            write_stall_timeout: config.agent.listen.write_stall_timeout,
            door: Mutex::new(Door::new(config.agent.listen.connections_per_second, Instant::now())),
            places: Places::new(config.agent.listen.max_tunnels_per_agent),
            pace: RateLimit::new(config.agent.listen.connections_per_token_per_minute, MINUTE, shared),
            max_age: config.agent.listen.max_connection_age,
            grace: config.agent.kubernetes_api.listen.shutdown_grace_period,
            leaving: CancellationToken::new(),
            cut: CancellationToken::new(),
            tasks: TaskTracker::new(),
            metrics: metrics.clone(),
            epoch: AtomicU64::new(0),
            refusals: LogLimit::new(LOG_PERIOD),
        });
        let public = &config.agent.kubernetes_api;
        let callers = Arc::new(Callers {
            budget: Arc::new(Budget::new(limits.max_bytes_in_flight, limits.write_stall_timeout)),
            cors: Cors::new(public.allowed_origins.clone()),
            trusted_proxies: public.listen.trusted_proxies.iter().copied().map(Into::into).collect(),
            extra_headers: public.extra_allowed_response_headers.clone(),
            identities: identities.clone(),
            forwarder: Forwarder {
                tunnels,
                store: Arc::clone(&store),
                peers,
                reconnect_wait: config.agent.tunnel.reconnect_wait,
                metrics,
            },
            leaving: CancellationToken::new(),
            cut: CancellationToken::new(),
            tasks: TaskTracker::new(),
            failures: LogLimit::new(LOG_PERIOD),
            traces,
            limits,
        });
        let readiness = Readiness::default();
        let roster = Roster::of(&agents);
        let admin = Arc::new(Admin { readiness: readiness.clone(), registry, store, roster });
        Self {
            agents,
            callers,
            host,
            api: None,
            admin,
            identities,
            readiness,
            certificates: Vec::new(),
            exporter,
            redis,
            reach: None,
            config,
        }
    }

    /// Serves until `stop`, then shuts down, which takes at most the sum of the grace periods and one second. Tunnels and
    /// callers live on the `cores`, all else here.
    pub async fn run(mut self, listeners: Listeners, cores: &Cores, stop: CancellationToken) {
        let shutdown = self.shutdown();
        let Shutdown { background, .. } = &shutdown;
        let probing = background.draining.clone();
        let metrics = self.callers.forwarder.metrics.clone();
        let (agents, callers) = (Arc::clone(&self.agents), Arc::clone(&self.callers));
        background.spawn(listeners.agent.serve(
            shutdown.agents.clone(),
            cores.clone(),
            metrics.clone(),
            move |io, peer| {
                let agents = Arc::clone(&agents);
                async move { agents.serve(io, peer).await }
            },
        ));
        background.spawn(listeners.public.serve(
            shutdown.callers.clone(),
            cores.clone(),
            metrics.clone(),
            move |io, peer| {
                let callers = Arc::clone(&callers);
                async move { callers.serve(io, peer).await }
            },
        ));
        if let Some(private) = listeners.private {
            background.spawn(Arc::clone(&self.host).listen(private, cores.clone()));
        }
        // Nothing waits for connections of probes and programs.
        let probes = || TaskGroup { tasks: TaskTracker::new(), ..background.clone() };
        if let Some((listener, api)) = listeners.api.zip(self.api.clone()) {
            let server = api.server();
            let serving = listener.serve(probes(), Cores::default(), metrics.clone(), move |io, peer| {
                server.clone().serve(io, peer)
            });
            background.spawn(serving);
        }
        let server = Arc::clone(&self.admin).server();
        background.spawn(listeners.observability.serve(
            probes(),
            Cores::default(),
            metrics.clone(),
            move |io, peer| server.clone().serve(io, peer),
        ));
        let (budget, until) = (Arc::clone(&self.callers.budget), probing.clone());
        background.spawn(async move {
            until.run_until_cancelled(budget.keep(&metrics)).await;
        });
        for certificate in self.certificates.clone() {
            let files = certificate.files();
            background.spawn(on_change("certificate", files, probing.clone(), move || certificate.reload()));
        }
        let (identities, file) = (self.identities.clone(), self.config.identity.file.value.clone());
        let files = vec![file.clone()];
        background
            .spawn(on_change("identity file", files, probing.clone(), move || identities.reload(&file)));
        if let Some(exporter) = self.exporter.take() {
            background.spawn(exporter.run(probing.clone()));
        }
        if self.redis.is_some() {
            let (agents, tunnel) = (Arc::clone(&self.agents), &self.config.agent.tunnel);
            let balance = Balance::new(tunnel.rebalance_threshold, tunnel.rebalance_rate);
            background.spawn(async move { agents.rebalance(balance).await });
        }
        if let Some(reach) = self.reach.take() {
            let (readiness, until) = (self.readiness.clone(), stop.clone());
            background.spawn(async move {
                until.run_until_cancelled(reach.keep(readiness)).await;
            });
        }
        if let Some((store, keeper)) = self.redis.take() {
            background.spawn(keeper.run(probing.cancelled_owned()));
            if self.config.redis.as_ref().is_some_and(|redis| redis.wait_at_start) {
                self.readiness.waiting();
                stop.run_until_cancelled(store.healthy()).await;
            }
        }
        self.readiness.ready();

        stop.cancelled().await;
        shutdown.run().await;
    }

    fn shutdown(&self) -> Shutdown {
        let listen = &self.config.agent.kubernetes_api.listen;
        let private = self.config.private_api.as_ref();
        let grace = GracePeriods {
            accept: listen.listen_grace_period,
            requests: listen.shutdown_grace_period,
            peers: private.map_or(Duration::ZERO, |private| private.listen.listen_grace_period),
        };
        let (agents, callers) = (&self.agents, &self.callers);
        Shutdown {
            grace,
            readiness: self.readiness.clone(),
            callers: TaskGroup {
                draining: callers.leaving.clone(),
                cut: callers.cut.clone(),
                tasks: callers.tasks.clone(),
            },
            peers: self.host.connections.clone(),
            agents: TaskGroup {
                draining: agents.leaving.clone(),
                cut: agents.cut.clone(),
                tasks: agents.tasks.clone(),
            },
            background: TaskGroup::default(),
        }
    }
}
