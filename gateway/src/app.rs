//! Builds a replica and runs it. `shutdown` stops it.

mod accept_loops;
mod background;
mod connection_limits;
mod listeners;
mod live_checks;
mod shared;
mod shutdown;
mod sources;
mod validated_config;
mod watched_files;

use std::{sync::Arc, time::Duration};

use cores::{Cores, TaskGroup};
use kas_listen::tls::Certificate;
use process::Notifier;
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::LocalTunnels;
use store::{
    MemoryStore,
    redis::{RedisStore, SyncTask},
};
use telemetry::Exporter;
use tokio::{runtime::Handle, sync::watch, task::spawn_blocking};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    listeners::Listeners, live_checks::CheckResult, sources::ReplicaSources,
    validated_config::ValidatedConfig,
};
use self::{
    shared::SharedState,
    shutdown::{GracePeriods, Shutdown},
    sources::{CallerSources, GitLabParts, access_control},
    watched_files::CredentialFiles,
};
use outbound::AddressPolicy;

use crate::{
    config::Config,
    features::{FeatureContext, features},
};
use access::{
    ApiTokenVerifier, Identities, Identity,
    kill_switch::{KillSwitch, fleet},
};
use environments_wire::{EnvironmentSource, EnvironmentSources, JobResults};
use kas_core::{
    admin::{AdminServer, Readiness},
    agents::{AgentDialer, AgentServer, DialSource, Rebalancer, ReceptiveAgents},
    api::{ApiContext, ApiParts, ApiServer},
    configuration::ConfigurationService,
    feature::Features,
    metrics::{Metrics, certificate::CertificateExpirations},
    peers::{PeerClient, PeerServer, ReachabilityProbe, ReplicaContext},
    proxy::ProxyServer,
    traces::Traces,
};
use kas_environments::{AgentEnvironments, Deployments, EnvironmentFile, check_template};
use kas_events::{
    Events,
    webhooks::{Webhook, WebhookContext, WebhookMetrics},
};
use kas_gitlab::{
    AgentFactsLookup, CacheTtls, GitLabAgents, GitLabAuthorizer, GitLabClient, GitLabEnvironments,
    GitLabJobResults, GitLabSource, HeldAgents, Usage, gitaly::GitalyClient,
};
use kas_gitops::ManifestOriginLookup;
use kas_web::{Recent, WebCallers, WebEnvironments, WebServer};
use oidc::Issuers;

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
    /// Serves the web page, if it is configured.
    pub web: Option<Arc<WebServer>>,
    /// Serves probes, metrics and the list of agents.
    pub admin: Arc<AdminServer>,
    /// The agents and callers of the identity file.
    pub identities: Identities,
    /// The features.
    pub features: Features,
    /// The events.
    pub events: Events,
    /// The environments of the file, and those that agents name.
    pub environments: EnvironmentSources,
    /// The receivers of events outside.
    pub webhooks: Vec<Webhook>,
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
    credentials: CredentialFiles,
    environment_file: Option<EnvironmentFile>,
    exporter: Option<Exporter>,
    redis: Option<(RedisStore, SyncTask)>,
    gitlab: Option<GitLabClient>,
    webhook_metrics: WebhookMetrics,
    reachability: Option<ReachabilityProbe>,
    /// The certificate with which kas authenticates to agents that it dials.
    dial_certificate: Option<Certificate>,
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
        let context = ReplicaContext::standalone(ReplicaId::random(), store, config.peer_settings());
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
        let ReplicaSources {
            identity,
            issuers,
            gitlab,
            gitlab_login,
            gitaly_tls,
            api_tokens,
            environments: environment_file,
            features: additional,
        } = sources;
        let mut registry = Registry::default();
        issuers.metrics.register(&mut registry);
        if let Some(gitlab) = &gitlab {
            gitlab.register(&mut registry);
        }
        let ReplicaContext { replica, store, connector, secret } = context;
        let identities = Identities::new(identity).with_issuers(issuers.names());
        let events = Events::new(Arc::clone(&store), identities.clone(), &mut registry);
        let redis_store = redis.as_ref().map(|(store, _)| store.clone());
        let gitlab = gitlab.map(|client| gitlab_agents(client, &identities, redis_store.clone(), &config));
        let gitaly = GitalyClient::new(&config.gitaly, redis_store.as_ref(), gitaly_tls);
        let results = gitlab.as_ref().and_then(|(client, _)| GitLabJobResults::new(client));
        let results = results.map(|results| Arc::new(results) as Arc<dyn JobResults>);
        let (usage, deployments) = (Usage::default(), Deployments::new(redis_store.clone(), results));
        let named_environments = AgentEnvironments::new(redis_store.clone());
        let environments = environment_sources(environment_file.as_ref(), &named_environments);
        let recent = config.web.as_ref().map(|_| Arc::new(Recent::new(replica.id)));
        let settings = &config.agent.configuration;
        let configuration = ConfigurationService::new(settings, &identities, check_template, &mut registry);
        let held = gitlab
            .as_ref()
            .map(|(_, agents)| HeldAgents { configuration: configuration.clone(), agents: agents.clone() });
        let (features, gitops) = features(FeatureContext {
            replica: replica.id,
            identities: &identities,
            gitlab: gitlab.as_ref(),
            gitaly: &gitaly,
            usage: &usage,
            config: &config.agent,
            held: held.clone(),
            events: &events,
            environments: with_gitlab(environments.clone(), gitlab.as_ref(), &config),
            named_environments,
            deployments: &deployments,
            recent: recent.as_ref(),
            store: &store,
            redis: redis_store.as_ref(),
            additional,
            registry: &mut registry,
        });
        let request_types = features.request_types();
        let shared = SharedState {
            replica: replica.id,
            store,
            redis: redis_store,
            tunnels: Arc::new(LocalTunnels::new(config.agent.kubernetes_api.limits.max_requests_per_agent)),
            kill_switch: Arc::new(KillSwitch::new(identities.clone())),
            identities,
            usage,
            dial_errors: Arc::default(),
            metrics: Metrics::register(&mut registry, &request_types),
            request_types,
            audit: Arc::default(),
            caller_connections: TaskGroup::default(),
        };
        shared.register(&mut registry, exporter.as_ref());
        let peers = PeerClient::new(replica.id, connector, secret.clone(), shared.metrics.peers.clone());
        let peer_server = Arc::new(shared.peer_server(replica, secret, peers.clone(), &features, &config));
        if let Some((client, agents)) = gitlab.clone() {
            configuration.add_observer(kas_gitlab::observer(client, agents.clone()));
            let source = GitLabSource::new(agents, gitaly.clone(), settings.max_configuration_file_size);
            configuration.add_source(Arc::new(source));
        }
        let gitlab_parts = gitlab.clone().zip(held).map(|((client, agents), held)| {
            let facts = AgentFactsLookup::new(held, peers.clone(), Arc::clone(&shared.store));
            let manifests = ManifestOriginLookup::new(gitops, peers.clone(), Arc::clone(&shared.store));
            GitLabParts { client, agents, facts, manifests: Arc::new(manifests), login: gitlab_login }
        });
        let agents = shared.agent_server(gitlab.as_ref(), configuration, &features, &config, &mut registry);
        let agents = Arc::new(agents);
        let CallerSources { access, users, project_agents, gitlab: gitlab_callers } =
            access_control(&shared, &issuers, gitlab_parts, api_tokens, deployments.clone(), &config);
        let callers = Arc::new(shared.proxy_server(access, peers, &features, traces, &config, &mut registry));
        let web = config.web.as_ref().zip(recent).map(|(web, recent)| {
            Arc::new(WebServer::new(
                Arc::clone(&callers),
                &agents,
                WebCallers { users, project_agents },
                web,
                WebEnvironments { sources: environments.clone(), deployments: Arc::new(deployments.clone()) },
                recent,
                &mut registry,
            ))
        });
        let names = config.events.webhooks.iter().map(|webhook| &*webhook.name.value);
        let webhook_metrics = WebhookMetrics::register(&mut registry, names);
        let credentials = CredentialFiles::new(CertificateExpirations::register(&mut registry));
        let readiness = Readiness::default();
        let admin = Arc::new(shared.admin_server(&agents, &features, readiness.clone(), &config, registry));
        Self {
            agents,
            callers,
            peer_server,
            api: None,
            web,
            admin,
            features,
            events,
            environments,
            webhooks: Vec::new(),
            webhook_metrics,
            identities: shared.identities,
            deployments,
            usage: shared.usage,
            issuers,
            reload: watch::Sender::new(()),
            notifier: Notifier::default(),
            readiness,
            credentials,
            environment_file,
            exporter,
            redis,
            gitlab: gitlab.map(|(client, _)| client),
            gitlab_callers,
            reachability: None,
            dial_certificate: None,
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
        self.spawn_receptive_agents(background, cores);
        for webhook in self.webhooks.clone() {
            background.spawn(webhook.run(self.webhook_context()));
        }
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
            let credentials = self.credentials.changes();
            background.spawn(async move {
                until.run_until_cancelled(probe.run(readiness, credentials)).await;
            });
        }
        if let Some((store, sync)) = self.redis.take() {
            let (switch, record) = (Arc::clone(&self.callers.kill_switch), self.admin.files.file(fleet::KEY));
            let copy = self.config.disabled.fleet_file.as_ref().map(|path| path.value.clone());
            let (rules, until) = (fleet::follow(store.clone(), switch, record, copy), draining.clone());
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
        if let Some(audit) = self.callers.observers.audit.get().cloned() {
            // It blocks, and fails only if it panics.
            let _ = spawn_blocking(move || audit.finish(AUDIT_FLUSH_TIMEOUT)).await;
        }
        if panicked.is_cancelled() { Err(BackgroundPanic) } else { Ok(()) }
    }

    /// Builds the task that dials agents, whose tunnels run on the `cores`. `others` are not in the identity file.
    pub fn receptive_agents(&self, cores: Cores, others: Option<DialSource>) -> ReceptiveAgents {
        let dialer = AgentDialer {
            addresses: AddressPolicy::new(
                "agent.receptive.allowed_networks",
                &self.config.agent.receptive.allowed_networks,
            ),
            certificate: self.dial_certificate.clone(),
            timeout: self.config.agent.listen.handshake_timeout,
        };
        ReceptiveAgents::new(Arc::clone(&self.agents), dialer, cores, others)
    }

    /// Returns what webhooks need to deliver events.
    pub fn webhook_context(&self) -> WebhookContext {
        WebhookContext {
            events: self.events.clone(),
            replica: self.agents.replica,
            metrics: self.webhook_metrics.clone(),
            stopping: self.agents.connections.draining.clone(),
        }
    }

    /// Builds the server of the internal API, which accepts the tokens of `verifier`.
    fn api_server(&self, verifier: ApiTokenVerifier) -> ApiServer {
        let addresses = self.config.api.as_ref().map(|api| api.listen.addresses()).unwrap_or_default();
        let routes = self.features.api_routes(&ApiContext::new(&self.agents), &self.callers);
        ApiServer::new(&self.agents, ApiParts { verifier, addresses, routes })
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
            callers: self.callers.connections.group.clone(),
            peers: self.peer_server.connections.clone(),
            agents: self.agents.connections.clone(),
            background: TaskGroup::default(),
        }
    }
}

/// Returns the agents of a GitLab with its client.
fn gitlab_agents(
    client: GitLabClient,
    identities: &Identities,
    redis: Option<RedisStore>,
    config: &Config,
) -> (GitLabClient, GitLabAgents) {
    let ttls =
        CacheTtls { responses: config.agent.info_cache_ttl, errors: config.agent.info_cache_error_ttl };
    let rate = client.rate_limit().refill_rate_per_second;
    let agents = GitLabAgents::new(client.clone(), identities.clone(), ttls, rate, redis);
    (client, agents)
}

/// Returns the sources of environments that need no token of GitLab: the file, and the configurations of agents.
fn environment_sources(file: Option<&EnvironmentFile>, named: &AgentEnvironments) -> EnvironmentSources {
    let file = file.cloned().map(|file| Arc::new(file) as Arc<dyn EnvironmentSource>);
    let named = Arc::new(named.clone()) as Arc<dyn EnvironmentSource>;
    EnvironmentSources(file.into_iter().chain([named]).collect())
}

/// Adds GitLab to the sources of environments.
fn with_gitlab(
    mut sources: EnvironmentSources,
    gitlab: Option<&(GitLabClient, GitLabAgents)>,
    config: &Config,
) -> EnvironmentSources {
    let section = &config.agent.kubernetes_api;
    let ttls = CacheTtls {
        responses: section.allowed_agent_cache_ttl,
        errors: section.allowed_agent_cache_error_ttl,
    };
    let gitlab = gitlab.map(|(client, _)| Arc::new(GitLabEnvironments::new(client.clone(), ttls)));
    sources.0.extend(gitlab.map(|source| source as Arc<dyn EnvironmentSource>));
    sources
}
