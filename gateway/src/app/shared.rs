//! The state that the servers of a replica share, and the servers that are built from it.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use access::{AccessControl, AgentAuthenticator, AgentSources, Identities, kill_switch::KillSwitch};
use cores::TaskGroup;
use files::ReloadHealth;
use kas_gitlab::{GitLabAgents, GitLabClient, GitlabAgentk, Usage};
use kas_listen::listener::LOG_PERIOD;
use parking_lot::Mutex;
use process::{LogLimiter, liveness::Liveness};
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::LocalTunnels;
use settings::Secret;
use store::{AddressRateLimiter, KeyedRateLimiter, RateLimiter, Replica, Store, redis::RedisStore};
use telemetry::Exporter;
use tokio::time::Instant;
use tunnel::{TunnelConfig, WatchEnds};

use crate::config::Config;
use kas_core::{
    admin::{AdminServer, Readiness},
    agent_list::AgentLister,
    agent_metrics::AgentMonitor,
    agents::{AgentConflicts, AgentServer, DialErrors, MaxAge, RepeatedTokens, TunnelPermits},
    audit::AuditLog,
    configuration::ConfigurationService,
    cors::Cors,
    feature::{Features, RequestHookContext},
    forward::Forwarder,
    metrics::{self, Metrics, agent::AgentGauges},
    peers::{PeerClient, PeerServer},
    proxy::{CallerConnections, ProxyConfig, ProxyServer, RequestHandling, RequestObservers},
    request_types::RequestTypes,
    traces::Traces,
    tunnel_entry::TunnelEntry,
    weak_map::WeakMap,
};

/// The period of `connections_per_token_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);

/// The state that the servers of a replica share.
#[derive(Clone, Debug)]
pub(super) struct SharedState {
    pub replica: ReplicaId,
    pub store: Arc<dyn Store>,
    pub redis: Option<RedisStore>,
    pub tunnels: Arc<LocalTunnels<TunnelEntry>>,
    pub identities: Identities,
    pub usage: Usage,
    pub kill_switch: Arc<KillSwitch>,
    pub dial_errors: Arc<DialErrors>,
    pub metrics: Metrics,
    pub request_types: RequestTypes,
    /// The audit log, once it is open.
    pub audit: Arc<OnceLock<AuditLog>>,
    /// The connections of callers.
    pub caller_connections: TaskGroup,
}

impl SharedState {
    /// Registers the metrics of this state, and those of the process.
    pub(super) fn register(&self, registry: &mut Registry, exporter: Option<&Exporter>) {
        if let Some(exporter) = exporter {
            exporter.metrics().register(registry, "kas");
        }
        metrics::register_version(registry);
        process::logs::register(registry, "kas");
        process::resources::register(registry);
        self.kill_switch.register(registry);
        if let Some(redis) = &self.redis {
            metrics::redis::register(registry, redis);
            let help = "1 if other replicas reach this one at its published address, else 0";
            registry.register("kas_private_api_reachable", help, self.metrics.peers.reachable.clone());
        }
    }

    /// Builds the server of agents.
    pub(super) fn agent_server(
        &self,
        gitlab: Option<&(GitLabClient, GitLabAgents)>,
        configuration: ConfigurationService,
        features: &Features,
        config: &Config,
        registry: &mut Registry,
    ) -> AgentServer {
        let listen = &config.agent.listen;
        let file = Arc::new(self.identities.clone()) as Arc<dyn AgentAuthenticator>;
        let gitlab_agents = gitlab.map(|(_, agents)| Arc::new(agents.clone()) as Arc<dyn AgentAuthenticator>);
        let conflicts = Arc::new(AgentConflicts::default());
        conflicts.register(registry);
        AgentServer {
            protocols: listen.enabled_protocols(),
            calls: Arc::new(GitlabAgentk::new(
                &config.agent.gitlab_agentk,
                gitlab.map(|(client, _)| client.clone()),
                config.gitlab.as_ref().and_then(|gitlab| gitlab.external_url.clone()).unwrap_or_default(),
                registry,
            )),
            conflicts,
            kill_switch: Arc::clone(&self.kill_switch),
            configuration,
            features: features.tunnel_features(),
            processes: WeakMap::default(),
            identities: self.identities.clone(),
            sources: AgentSources::new([file].into_iter().chain(gitlab_agents)),
            has_gitlab: gitlab.is_some(),
            tunnels: Arc::clone(&self.tunnels),
            store: Arc::clone(&self.store),
            replica: self.replica,
            settings: TunnelConfig { stalls: self.metrics.stalls.clone(), ..config.tunnel_settings() },
            handshake_timeout: listen.handshake_timeout,
            write_stall_timeout: listen.write_stall_timeout,
            addresses: listen.addresses(),
            connection_rate: Mutex::new(RateLimiter::new(listen.connections_per_second, Instant::now())),
            tunnel_permits: TunnelPermits::new(listen.max_tunnels_per_agent),
            token_rate: KeyedRateLimiter::new(
                listen.connections_per_token_per_minute,
                MINUTE,
                self.redis.clone(),
            ),
            address_rate: AddressRateLimiter::new(
                listen.connections_per_address_per_minute,
                listen.unknown_tokens_per_address_per_minute,
                self.redis.clone(),
            ),
            repeated_tokens: RepeatedTokens::default(),
            max_age: MaxAge::new(listen.max_connection_age, self.metrics.cut_age("agent")),
            grace: config.agent.kubernetes_api.listen.shutdown_grace_period,
            connections: TaskGroup::default(),
            metrics: self.metrics.clone(),
            epoch: AtomicU64::new(0),
            dial_errors: Arc::clone(&self.dial_errors),
            ends: Arc::default(),
            log_limit: LogLimiter::new(LOG_PERIOD),
            idle_timeouts: Mutex::default(),
        }
    }

    /// Builds the server of callers.
    pub(super) fn proxy_server(
        &self,
        access: AccessControl,
        peers: PeerClient,
        features: &Features,
        traces: Option<Traces>,
        config: &Config,
        registry: &mut Registry,
    ) -> ProxyServer {
        let forwarder = Forwarder {
            tunnels: Arc::clone(&self.tunnels),
            store: Arc::clone(&self.store),
            peers,
            reconnect_wait: config.agent.tunnel.reconnect_wait,
            dial_errors: Arc::clone(&self.dial_errors),
            metrics: self.metrics.clone(),
        };
        let hooks = features.request_hooks(RequestHookContext {
            forwarder: &forwarder,
            kill_switch: &self.kill_switch,
            audit: &self.audit,
            draining: &self.caller_connections.draining,
            registry,
        });
        let fleet = features.fleet_requests(&self.store);
        let cors = Cors::new(config.allowed_origins());
        let grace = config.agent.kubernetes_api.listen.shutdown_grace_period;
        let config = ProxyConfig::new(&config.agent.kubernetes_api, cors);
        ProxyServer {
            access,
            kill_switch: Arc::clone(&self.kill_switch),
            handling: RequestHandling { types: self.request_types.clone(), hooks, fleet },
            forwarder,
            observers: RequestObservers {
                metrics: self.metrics.clone(),
                traces,
                audit: Arc::clone(&self.audit),
                features: features.request_observers(),
                log_limit: LogLimiter::new(LOG_PERIOD),
            },
            connections: CallerConnections::new(self.caller_connections.clone(), &config.limits, grace),
            config,
        }
    }

    /// Builds the server of other replicas.
    pub(super) fn peer_server(
        &self,
        own: Replica,
        secret: Option<Secret>,
        peers: PeerClient,
        features: &Features,
        config: &Config,
    ) -> PeerServer {
        let (tunnels, store) = (Arc::clone(&self.tunnels), Arc::clone(&self.store));
        let (settings, metrics) = (config.peer_settings(), self.metrics.clone());
        let server = PeerServer::new(own, secret, tunnels, peers, store, settings, metrics);
        let grace = config.agent.kubernetes_api.listen.shutdown_grace_period;
        let watches = WatchEnds::new(self.caller_connections.draining.clone(), grace);
        let server = server.with_grace(grace).with_watches(self.request_types.clone(), watches);
        server.with_hooks(features.peer_hooks())
    }

    /// Builds the server of probes, metrics and the list of agents. It serves all metrics of the `registry`.
    pub(super) fn admin_server(
        &self,
        agents: &Arc<AgentServer>,
        features: &Features,
        readiness: Readiness,
        config: &Config,
        mut registry: Registry,
    ) -> AdminServer {
        let gauges = AgentGauges::register(&mut registry);
        if config.observability.gitlab_metrics {
            metrics::gitlab::register(&mut registry, &self.metrics, &gauges);
        }
        let files = ReloadHealth::default();
        files.register(&mut registry, "kas");
        let liveness = Liveness::default();
        liveness.register(&mut registry, "kas");
        AdminServer {
            liveness,
            readiness,
            files,
            kill_switch: Arc::clone(&self.kill_switch),
            store: Arc::clone(&self.store),
            routes: features.admin_routes(&agents.connections.draining),
            agent_lister: AgentLister::new(agents),
            agent_monitor: AgentMonitor::new(agents, config.observability.per_agent_metrics, gauges),
            registry,
        }
    }
}
