//! Builds a replica and runs it. `shutdown` stops it.

mod connection_limits;
mod live_checks;
mod shutdown;
mod validated_config;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use cores::Cores;
use files::{ReloadHealth, follow};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use process::LogLimiter;
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::{
    KeyedRateLimiter, LocalTunnels, MemoryStore, RateLimiter,
    redis::{RedisStore, SyncTask},
};
use telemetry::Exporter;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::shutdown::{GracePeriods, Shutdown};
pub use self::{
    live_checks::CheckResult,
    validated_config::{Listeners, ValidatedConfig},
};
use crate::{
    access::{AccessControl, CallerAuthorizer},
    admin::{AdminServer, Readiness},
    agent_list::AgentLister,
    agents::{AgentServer, Rebalancer, TunnelPermits},
    api::ApiServer,
    config::{Config, ConfigError},
    cors::Cors,
    forward::Forwarder,
    gitaly::GitalyClient,
    identity::{AgentAuthenticator, AgentSources, Identities, Identity},
    listen::LOG_PERIOD,
    metrics::{self, Metrics, certificate::CertificateExpirations},
    peers::{PeerClient, PeerServer, ReachabilityProbe, ReplicaContext},
    proxy::{ProxyServer, ResponseBudget},
    secret::SecretFile,
    tasks::TaskGroup,
    tls::{Certificate, MutualTls},
    traces::Traces,
};

/// The period of `connections_per_token_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);

/// One replica: the servers behind its listeners, and the state that they share.
#[derive(Debug)]
pub struct App {
    /// Serves agents.
    pub agents: Arc<AgentServer>,
    /// Serves callers.
    pub callers: Arc<ProxyServer>,
    /// Serves other replicas.
    pub peer_server: Arc<PeerServer>,
    /// Serves the internal API, if it is configured.
    pub api: Option<Arc<ApiServer>>,
    /// Calls the Git servers of GitLab.
    pub gitaly: GitalyClient,
    /// Serves probes, metrics and the list of agents.
    pub admin: Arc<AdminServer>,
    /// The agents and callers of the identity file.
    pub identities: Identities,
    /// Each new value makes this replica read its files again.
    pub reload: watch::Sender<()>,
    readiness: Readiness,
    certificates: Vec<Certificate>,
    secrets: Vec<SecretFile>,
    peer_tls: Option<MutualTls>,
    expirations: CertificateExpirations,
    exporter: Option<Exporter>,
    redis: Option<(RedisStore, SyncTask)>,
    reachability: Option<ReachabilityProbe>,
    /// Each new version of a secret or of the private authority is a new value.
    credentials: watch::Sender<()>,
    config: Config,
}

/// A background task has panicked.
#[derive(Debug, thiserror::Error)]
#[error("a background task panicked and kas had to stop; this is a defect of kas, and the log has the panic")]
pub struct BackgroundPanic;

impl App {
    /// Builds a lone replica without listeners, for tests that pass connections to its servers.
    pub fn new(config: Config, identity: Identity) -> Self {
        let store = Arc::new(MemoryStore::default());
        let context = ReplicaContext::standalone(ReplicaId::random(), store, &config);
        Self::of_replica(context, config, identity, None, None, None)
    }

    /// Builds a replica of a fleet. Without an exporter, the tracer of `traces` exports the spans by itself.
    pub fn of_replica(
        context: ReplicaContext,
        config: Config,
        identity: Identity,
        traces: Option<Traces>,
        exporter: Option<Exporter>,
        redis: Option<(RedisStore, SyncTask)>,
    ) -> Self {
        let mut registry = Registry::default();
        if let Some(exporter) = &exporter {
            exporter.metrics().register(&mut registry, "kas");
        }
        let metrics = Metrics::register(&mut registry);
        process::logs::register(&mut registry, "kas");
        let identities = Identities::new(identity);
        let file = Arc::new(identities.clone());
        let sources = AgentSources::new([Arc::clone(&file) as Arc<dyn AgentAuthenticator>]);
        let access = AccessControl::new([file as Arc<dyn CallerAuthorizer>]);
        let limits = config.agent.kubernetes_api.limits.clone();
        let tunnels = Arc::new(LocalTunnels::new(limits.max_requests_per_agent));
        let ReplicaContext { replica, store, connector, secret } = context;
        let shared = redis.as_ref().map(|(store, _)| store.clone());
        if let Some(redis) = &shared {
            metrics::redis::register(&mut registry, redis);
            let help = "1 if other replicas reach this one at its published address, else 0";
            registry.register("kas_private_api_reachable", help, metrics.peers.reachable.clone());
        }
        let gitaly = GitalyClient::new(&config.gitaly, shared.as_ref(), None);
        let peers = PeerClient::new(replica, connector, secret.clone(), metrics.peers.clone());
        let peer_server = Arc::new(PeerServer::new(
            replica,
            secret,
            Arc::clone(&tunnels),
            peers.clone(),
            Arc::clone(&store),
            &config,
            metrics.clone(),
        ));
        let agents = Arc::new(AgentServer {
            identities: identities.clone(),
            sources,
            tunnels: Arc::clone(&tunnels),
            store: Arc::clone(&store),
            replica,
            settings: tunnel::TunnelConfig { stalls: metrics.stalls.clone(), ..config.tunnel_settings() },
            handshake_timeout: config.agent.listen.handshake_timeout,
            write_stall_timeout: config.agent.listen.write_stall_timeout,
            connection_rate: Mutex::new(RateLimiter::new(
                config.agent.listen.connections_per_second,
                Instant::now(),
            )),
            tunnel_permits: TunnelPermits::new(config.agent.listen.max_tunnels_per_agent),
            token_rate: KeyedRateLimiter::new(
                config.agent.listen.connections_per_token_per_minute,
                MINUTE,
                shared,
            ),
            max_age: config.agent.listen.max_connection_age,
            grace: config.agent.kubernetes_api.listen.shutdown_grace_period,
            connections: TaskGroup::default(),
            metrics: metrics.clone(),
            epoch: AtomicU64::new(0),
            log_limit: LogLimiter::new(LOG_PERIOD),
            idle_timeouts: Mutex::default(),
        });
        let public = &config.agent.kubernetes_api;
        let callers = Arc::new(ProxyServer {
            budget: Arc::new(ResponseBudget::new(limits.max_bytes_in_flight, limits.write_stall_timeout)),
            cors: Cors::new(public.allowed_origins.clone()),
            trusted_proxies: public.listen.trusted_proxies.iter().copied().map(Into::into).collect(),
            extra_headers: public.extra_allowed_response_headers.clone(),
            access,
            forwarder: Forwarder {
                tunnels,
                store: Arc::clone(&store),
                peers,
                reconnect_wait: config.agent.tunnel.reconnect_wait,
                metrics: metrics.clone(),
            },
            connections: TaskGroup::default(),
            metrics,
            log_limit: LogLimiter::new(LOG_PERIOD),
            traces,
            limits,
        });
        let readiness = Readiness::default();
        let agent_lister = AgentLister::new(&agents);
        let files = ReloadHealth::default();
        files.register(&mut registry, "kas");
        let expirations = CertificateExpirations::register(&mut registry);
        let admin =
            Arc::new(AdminServer { readiness: readiness.clone(), files, registry, store, agent_lister });
        Self {
            agents,
            callers,
            peer_server,
            api: None,
            gitaly,
            admin,
            identities,
            reload: watch::Sender::new(()),
            readiness,
            certificates: Vec::new(),
            secrets: Vec::new(),
            peer_tls: None,
            expirations,
            exporter,
            redis,
            reachability: None,
            credentials: watch::Sender::new(()),
            config,
        }
    }

    /// Serves until `stop`, then shuts down. The shutdown takes at most the sum of the grace periods and one second.
    ///
    /// Connections of agents, callers and replicas run on the `cores`, all other tasks on the current runtime.
    ///
    /// # Errors
    ///
    /// If a background task panics, the replica shuts down as well: otherwise it would be ready without serving requests.
    pub async fn run(
        mut self,
        listeners: Listeners,
        cores: &Cores,
        stop: CancellationToken,
    ) -> Result<(), BackgroundPanic> {
        let shutdown = self.shutdown();
        let Shutdown { background, .. } = &shutdown;
        let (draining, panicked) = (background.draining.clone(), background.panicked.clone());
        let metrics = self.callers.metrics.clone();
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
            background.spawn(Arc::clone(&self.peer_server).listen(private, cores.clone()));
        }
        // The shutdown does not wait for connections of probes and API clients.
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
        let (budget, until) = (Arc::clone(&self.callers.budget), draining.clone());
        background.spawn(async move {
            until.run_until_cancelled(budget.run(&metrics)).await;
        });
        self.follow_files(background);
        if let Some(exporter) = self.exporter.take() {
            background.spawn(exporter.run(draining.clone()));
        }
        if self.redis.is_some() {
            let (agents, tunnel) = (Arc::clone(&self.agents), &self.config.agent.tunnel);
            let rebalancer = Rebalancer::new(tunnel.rebalance_threshold, tunnel.rebalance_rate);
            background.spawn(async move { agents.rebalance(rebalancer).await });
        }
        if let Some(probe) = self.reachability.take() {
            let (readiness, until) = (self.readiness.clone(), stop.clone());
            let credentials = self.credentials.subscribe();
            background.spawn(async move {
                until.run_until_cancelled(probe.run(readiness, credentials)).await;
            });
        }
        if let Some((store, sync)) = self.redis.take() {
            background.spawn(sync.run(draining.cancelled_owned()));
            if self.config.redis.as_ref().is_some_and(|redis| redis.wait_at_start) {
                self.readiness.set_waiting_for_redis();
                stop.run_until_cancelled(store.wait_until_healthy()).await;
            }
        }
        self.readiness.set_ready();

        stop.run_until_cancelled(panicked.cancelled()).await;
        shutdown.run().await;
        if panicked.is_cancelled() { Err(BackgroundPanic) } else { Ok(()) }
    }

    /// Reads certificates, secrets and the identity file again when they change, until the group drains.
    fn follow_files(&self, background: &TaskGroup) {
        let files = &self.admin.files;
        let spawn = |following| {
            let until = background.draining.clone();
            background.spawn(async move {
                until.run_until_cancelled(following).await;
            });
        };
        for certificate in self.certificates.clone() {
            let (file, paths) = (files.file(certificate.config_key()), certificate.files());
            let (expirations, credentials) = (self.expirations.clone(), self.credentials.clone());
            let reload = move || {
                let reloaded = certificate.reload(SystemTime::now());
                report_expiration(&certificate, &expirations);
                reloaded?;
                credentials.send_modify(|()| {});
                Ok::<_, ConfigError>(())
            };
            spawn(follow(file, paths, self.reload.subscribe(), reload).boxed());
        }
        for secret in self.secrets.clone() {
            let (file, paths) = (files.file(secret.config_key()), vec![secret.path().to_owned()]);
            let credentials = self.credentials.clone();
            let reload = move || secret.reload().map(|()| credentials.send_modify(|()| {}));
            spawn(follow(file, paths, self.reload.subscribe(), reload).boxed());
        }
        if let Some(tls) = self.peer_tls.clone() {
            let (file, paths) = (files.file(tls.authority_key()), vec![tls.authority_path().to_owned()]);
            let credentials = self.credentials.clone();
            let reload = move || tls.reload_authority().map(|()| credentials.send_modify(|()| {}));
            spawn(follow(file, paths, self.reload.subscribe(), reload).boxed());
        }
        let (identities, path) = (self.identities.clone(), self.config.identity.file.value.clone());
        let (file, paths) = (files.file("identity.file"), vec![path.clone()]);
        spawn(follow(file, paths, self.reload.subscribe(), move || identities.reload(&path)).boxed());
    }

    fn shutdown(&self) -> Shutdown {
        let listen = &self.config.agent.kubernetes_api.listen;
        let private = self.config.private_api.as_ref();
        let grace = GracePeriods {
            accept: listen.listen_grace_period,
            requests: listen.shutdown_grace_period,
            peers: private.map_or(Duration::ZERO, |private| private.listen.listen_grace_period),
        };
        Shutdown {
            grace,
            readiness: self.readiness.clone(),
            callers: self.callers.connections.clone(),
            peers: self.peer_server.connections.clone(),
            agents: self.agents.connections.clone(),
            background: TaskGroup::default(),
        }
    }
}

/// Sets the metric of the expiration, and logs a warning if clients refuse the certificate now.
fn report_expiration(certificate: &Certificate, expirations: &CertificateExpirations) {
    if let Some(not_after) = certificate.not_after() {
        expirations.set(certificate.config_key(), not_after);
    }
    if let Err(error) = certificate.validate(SystemTime::now()) {
        tracing::warn!(%error, "clients refuse this certificate: replace its files");
    }
}
