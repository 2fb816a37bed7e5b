//! Builds a replica and runs it. `shutdown` stops it.

mod accept_loops;
mod background;
mod connection_limits;
mod live_checks;
mod shutdown;
mod sources;
mod validated_config;

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use cores::Cores;
use files::ReloadHealth;
use parking_lot::Mutex;
use process::{LogLimiter, Notifier, liveness::Liveness};
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::{
    AddressRateLimiter, KeyedRateLimiter, LocalTunnels, MemoryStore, RateLimiter,
    redis::{RedisStore, SyncTask},
};
use telemetry::Exporter;
use tokio::{runtime::Handle, sync::watch, task::spawn_blocking, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    live_checks::CheckResult,
    sources::ReplicaSources,
    validated_config::{Listeners, ValidatedConfig},
};
use self::{
    shutdown::{GracePeriods, Shutdown},
    sources::access_control,
};
use crate::{
    access::GitLabAuthorizer,
    admin::{AdminServer, Readiness},
    agent_list::AgentLister,
    agent_metrics::AgentMonitor,
    agents::{AgentConflicts, AgentServer, MaxAge, Rebalancer, TunnelPermits},
    api::ApiServer,
    config::Config,
    configuration::{ConfigurationMetrics, ConfigurationService, ConfiguredSource, GitLabSource},
    cors::Cors,
    deployments::Deployments,
    disabled::{KillSwitch, fleet},
    environments::EnvironmentFile,
    forward::Forwarder,
    gitaly::GitalyClient,
    gitlab::{self, GitLabClient, GitLabSetup, Usage},
    identity::{AgentAuthenticator, AgentSources, GitLabAgents, Identities, Identity},
    listen::LOG_PERIOD,
    metrics::{self, Metrics, agent::AgentGauges, certificate::CertificateExpirations},
    oidc::Issuers,
    peers::{PeerClient, PeerServer, ReachabilityProbe, ReplicaContext},
    proxy::{IdleConnections, ProxyServer, ResponseBudget},
    secret::SecretFile,
    tasks::TaskGroup,
    tls::{Certificate, MutualTls},
    traces::Traces,
};

/// The period of `connections_per_token_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);

/// The time in which the last lines of the audit log are written when kas stops.
const AUDIT_FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

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
    /// The deployments of CI jobs.
    pub deployments: Deployments,
    /// The use of clusters, for GitLab.
    pub usage: Usage,
    /// The jobs and users of GitLab, if one is configured.
    pub gitlab_callers: Option<Arc<GitLabAuthorizer>>,
    /// The issuers of OIDC tokens.
    pub issuers: Issuers,
    /// Each new value makes this replica read its files again.
    pub reload: watch::Sender<()>,
    /// The service manager that started this process.
    pub notifier: Notifier,
    readiness: Readiness,
    certificates: Vec<Certificate>,
    secrets: Vec<SecretFile>,
    peer_tls: Option<MutualTls>,
    environments: Option<EnvironmentFile>,
    expirations: CertificateExpirations,
    exporter: Option<Exporter>,
    redis: Option<(RedisStore, SyncTask)>,
    gitlab: Option<GitLabClient>,
    gitlab_setup: Option<GitLabSetup>,
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
        Self::of_replica(context, config, identity.into(), None, None, None)
    }

    /// Builds a replica of a fleet. Without an exporter, the tracer of `traces` exports the spans by itself.
    pub fn of_replica(
        context: ReplicaContext,
        config: Config,
        sources: ReplicaSources,
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
        process::resources::register(&mut registry);
        let ReplicaSources { identity, issuers, gitlab, gitaly_tls, api_tokens } = sources;
        if let Some(gitlab) = &gitlab {
            gitlab.register(&mut registry);
        }
        issuers.metrics.register(&mut registry);
        let identities = Identities::new(identity).with_issuers(issuers.names());
        let file = Arc::new(identities.clone());
        let limits = config.agent.kubernetes_api.limits.clone();
        let tunnels = Arc::new(LocalTunnels::new(limits.max_requests_per_agent));
        let ReplicaContext { replica, store, connector, secret } = context;
        let shared = redis.as_ref().map(|(store, _)| store.clone());
        let gitlab_agents = gitlab.as_ref().map(|client| {
            let ttls = (config.agent.info_cache_ttl, config.agent.info_cache_error_ttl);
            let rate = client.rate_limit().refill_rate_per_second;
            GitLabAgents::new(client.clone(), identities.clone(), ttls, rate, shared.clone())
        });
        let sources = AgentSources::new(
            [Arc::clone(&file) as Arc<dyn AgentAuthenticator>]
                .into_iter()
                .chain(gitlab_agents.clone().map(|agents| Arc::new(agents) as Arc<dyn AgentAuthenticator>)),
        );
        let gitlab_sources = gitlab.clone().zip(gitlab_agents.clone());
        let usage = Usage::default();
        let deployments = Deployments::new(shared.clone());
        let (access, gitlab_callers) = access_control(
            &identities,
            &issuers,
            gitlab_sources,
            api_tokens,
            (usage.clone(), deployments.clone()),
            &config,
        );
        if let Some(redis) = &shared {
            metrics::redis::register(&mut registry, redis);
            let help = "1 if other replicas reach this one at its published address, else 0";
            registry.register("kas_private_api_reachable", help, metrics.peers.reachable.clone());
        }
        let gitaly = GitalyClient::new(&config.gitaly, shared.as_ref(), gitaly_tls);
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
        let configuration = ConfigurationService::new(
            config.agent.configuration.poll_period,
            ConfigurationMetrics::register(&mut registry),
        );
        if let Some((client, agents)) = gitlab.clone().zip(gitlab_agents.clone()) {
            configuration.add_observer(gitlab::observer(client, agents));
        }
        let max_file_size = config.agent.configuration.max_configuration_file_size;
        configuration.add_source(Arc::new(ConfiguredSource::new(
            identities.clone(),
            config.agent.configuration.settings.clone(),
            max_file_size,
        )));
        if let Some(agents) = gitlab_agents {
            configuration.add_source(Arc::new(GitLabSource::new(agents, gitaly.clone(), max_file_size)));
        }
        let kill_switch = Arc::new(KillSwitch::default());
        kill_switch.register(&mut registry);
        let listen = &config.agent.listen;
        let address_rate = AddressRateLimiter::new(
            listen.connections_per_address_per_minute,
            listen.unknown_tokens_per_address_per_minute,
            shared.clone(),
        );
        let conflicts = Arc::new(AgentConflicts::default());
        conflicts.register(&mut registry);
        let agents = Arc::new(AgentServer {
            conflicts,
            kill_switch: Arc::clone(&kill_switch),
            usage: usage.clone(),
            configuration,
            identities: identities.clone(),
            sources,
            has_gitlab: gitlab.is_some(),
            tunnels: Arc::clone(&tunnels),
            store: Arc::clone(&store),
            replica,
            settings: tunnel::TunnelConfig { stalls: metrics.stalls.clone(), ..config.tunnel_settings() },
            handshake_timeout: config.agent.listen.handshake_timeout,
            write_stall_timeout: config.agent.listen.write_stall_timeout,
            addresses: config.agent.listen.addresses(),
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
            address_rate,
            max_age: MaxAge::new(config.agent.listen.max_connection_age, metrics.cut_age("agent")),
            grace: config.agent.kubernetes_api.listen.shutdown_grace_period,
            connections: TaskGroup::default(),
            metrics: metrics.clone(),
            epoch: AtomicU64::new(0),
            log_limit: LogLimiter::new(LOG_PERIOD),
            idle_timeouts: Mutex::default(),
        });
        let public = &config.agent.kubernetes_api;
        let callers = Arc::new(ProxyServer {
            idle_connections: IdleConnections::new(&limits),
            budget: Arc::new(ResponseBudget::new(limits.max_bytes_in_flight, limits.write_stall_timeout)),
            cors: Cors::new(config.allowed_origins()),
            addresses: public.listen.addresses(),
            extra_headers: public.extra_allowed_response_headers.clone(),
            access,
            kill_switch: Arc::clone(&kill_switch),
            audit: OnceLock::new(),
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
        let agent_monitor = AgentMonitor::new(
            &agents,
            config.observability.per_agent_metrics,
            AgentGauges::register(&mut registry),
        );
        let files = ReloadHealth::default();
        files.register(&mut registry, "kas");
        let liveness = Liveness::default();
        liveness.register(&mut registry, "kas");
        let expirations = CertificateExpirations::register(&mut registry);
        let admin = Arc::new(AdminServer {
            liveness,
            readiness: readiness.clone(),
            files,
            kill_switch,
            registry,
            store,
            agent_lister,
            agent_monitor,
        });
        Self {
            agents,
            callers,
            peer_server,
            api: None,
            gitaly,
            admin,
            identities,
            deployments,
            usage,
            issuers,
            reload: watch::Sender::new(()),
            notifier: Notifier::default(),
            readiness,
            certificates: Vec::new(),
            secrets: Vec::new(),
            peer_tls: None,
            environments: None,
            expirations,
            exporter,
            redis,
            gitlab,
            gitlab_callers,
            gitlab_setup: None,
            reachability: None,
            credentials: watch::Sender::new(()),
            config,
        }
    }

    /// Serves until `stop`, then shuts down. The shutdown takes at most the sum of the grace periods and one second.
    ///
    /// Connections of agents, callers and replicas run on the `cores`, those of probes on the runtime `probes`, which no other
    /// task must block, and all other tasks on the current runtime.
    ///
    /// # Errors
    ///
    /// If a background task panics, the replica shuts down as well: otherwise it would be ready without serving requests.
    pub async fn run(
        mut self,
        listeners: Listeners,
        cores: &Cores,
        probes: &Handle,
        stop: CancellationToken,
    ) -> Result<(), BackgroundPanic> {
        let shutdown = self.shutdown();
        let Shutdown { background, .. } = &shutdown;
        let (draining, panicked) = (background.draining.clone(), background.panicked.clone());
        self.beat_on(cores);
        self.spawn_accept_loops(listeners, cores, probes, &shutdown);
        self.spawn_periodic(background);
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
            let (switch, record) = (Arc::clone(&self.callers.kill_switch), self.admin.files.file(fleet::KEY));
            let (rules, until) = (fleet::follow(store.clone(), switch, record), draining.clone());
            background.spawn(async move {
                until.run_until_cancelled(rules).await;
            });
            background.spawn(sync.run(draining.cancelled_owned()));
            if self.config.redis.as_ref().is_some_and(|redis| redis.wait_at_start) {
                self.readiness.set_waiting_for_redis();
                stop.run_until_cancelled(store.wait_until_healthy()).await;
            }
        }
        self.readiness.set_ready();
        self.notifier.ready();

        stop.run_until_cancelled(panicked.cancelled()).await;
        self.notifier.stopping();
        shutdown.run().await;
        if let Some(audit) = self.callers.audit.get().cloned() {
            // It blocks, and fails only if it panics.
            let _ = spawn_blocking(move || audit.flush(AUDIT_FLUSH_TIMEOUT)).await;
        }
        if panicked.is_cancelled() { Err(BackgroundPanic) } else { Ok(()) }
    }

    /// Spawns a heartbeat on each core, which ends with the core.
    fn beat_on(&self, cores: &Cores) {
        // Heartbeats are no load that other tasks should avoid.
        let cores = cores.with_own_counts();
        for core in 0..cores.count() {
            let heartbeat = self.admin.liveness.heartbeat(format!("core-{core}"));
            cores.reserve_at(core).spawn(&TaskTracker::new(), async move { match heartbeat.run().await {} });
        }
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
