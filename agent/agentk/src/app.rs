//! The process: its parts, built from the command line, and the order in which they start and stop.

mod flags;
mod listen;
mod prometheus;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use agentk_core::{
    AgentMetrics, EventLog, FORCED_CLOSE_TIMEOUT, FileFollowers, Observability, Pod, ServeConfig, Services,
    TaskPanicError,
    admin::Admin,
    cluster::{Cluster, KubeconfigOptions},
    feature::{FeatureContext, Guard, Start, add_handlers},
    leader::LeaderTask,
    namespace_labels::LabelFollower,
    policy::{PolicyEnforcer, ScopeEnforcer},
    scope_health,
    services::{
        ConfigurationService, KubernetesService, configuration::LogLevelSetting, kube_client::Restrictions,
        prometheus::discovery::Discovery,
    },
};
use anyhow::Context as _;
use cores::Cores;
use process::{Notifier, liveness::Liveness, logs::LogFilter};
use prometheus_client::registry::Registry;
use proto::{InstanceId, ScopeSummary, ServiceName};
use secrecy::SecretString;
use telemetry::{Exporter, Program};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::listen::AnyAgent;
pub(crate) use self::{
    flags::{agent_token, check_scope, policy_services, tracer_config},
    listen::KasConnection,
    prometheus::prometheus_services,
};
use crate::{cli::RunOptions, features::enabled_features, log_filter::log_filter};

/// The time that the first tunnel waits for the cluster's version, which its hello contains, and for the labels of namespaces that the policy needs.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(2);

/// An agentk that is ready to run. It has no connection, and listens nowhere, yet.
pub struct App {
    /// The heartbeats behind `/liveness`.
    pub liveness: Liveness,
    /// The service manager that started this process.
    pub notifier: Notifier,
    agent: AnyAgent,
    cores: Cores,
    kubernetes: KubernetesService,
    discovery: Option<Discovery>,
    scope: Arc<ScopeEnforcer>,
    labels: Option<LabelFollower>,
    leaders: Vec<LeaderTask>,
    /// The work of the features.
    starts: Vec<Start>,
    /// Ends the work of the features.
    stopping: CancellationToken,
    events: EventLog,
    observability: Observability,
    registry: Registry,
    followers: FileFollowers,
    exporter: Option<Exporter>,
    listen: SocketAddr,
    grace: Duration,
}

impl App {
    /// Builds an agentk, which reads its files again at each new value of `reload`. This reads every file that is named, which
    /// blocks. A configuration from kas may change the filter of the `log`.
    ///
    /// # Errors
    ///
    /// A flag, a variable or a file is invalid; the error is one line that names it.
    pub fn build(
        options: RunOptions,
        token: Option<SecretString>,
        cores: Cores,
        reload: watch::Sender<()>,
        log: Option<LogFilter>,
    ) -> anyhow::Result<Self> {
        check_scope(&options)?;
        let token = agent_token(&options, token)?;
        let kas = KasConnection::new(&options)?;
        let prometheus = prometheus_services(&options)?;
        let traces = tracer_config(&options, &|name| std::env::var_os(name))?;
        let kubeconfig =
            KubeconfigOptions { file: options.kubeconfig.clone(), context: options.context.clone() };
        let cluster = Cluster::load(&kubeconfig)?;
        let version = env!("CARGO_PKG_VERSION");
        tracing::info!(%cluster, %kas, version, "starting agentk");
        let mut registry = Registry::default();
        let observability =
            Observability { metrics: AgentMetrics::register(&mut registry), ..Observability::default() };
        let disabled = "1 if the operator of kas has disabled requests to this agent, else 0";
        registry.register("agentk_disabled", disabled, observability.health.disabled.gauge());
        agentk_core::metrics::register_version(&mut registry);
        process::logs::register(&mut registry, "agentk");
        process::resources::register(&mut registry);
        let liveness = Liveness::default();
        liveness.register(&mut registry, "agentk");
        observability.health.files.register(&mut registry, "agentk");
        let mut followers = FileFollowers::new(observability.health.files.clone(), reload);
        flags::follow_files(&options, &token, &mut followers);
        kas.follow_files(&mut followers);
        cluster.follow_files(&mut followers);
        let kubernetes =
            KubernetesService::new(Arc::new(cluster)).with_response_timeout(options.cluster_response_timeout);
        let namespaces = options.prometheus_discovery.clone();
        let discovery = namespaces.map(|namespaces| Discovery::new(kubernetes.clone(), namespaces));
        let limited = options.namespaces.is_some() || !options.no_remote_configuration;
        let summary = ScopeSummary::new(options.namespaces.as_ref());
        let scope = ScopeEnforcer::new(options.namespaces.clone(), observability.metrics.clone());
        let scope = Arc::new(if options.require_scope { scope.requiring_configured() } else { scope });
        let mut policy = None;
        if let Some(file) = options.policy_file.clone() {
            let served = policy_services(&options, &prometheus);
            let enforcer = Arc::new(PolicyEnforcer::load(file, served, observability.metrics.clone())?);
            policy = Some(Arc::clone(&enforcer));
            followers.add("--policy-file", |file, requests| enforcer.follow(file, requests));
        }
        let labels = policy.clone().map(|policy| LabelFollower::new(policy, kubernetes.clone()));
        if let Some(policy) = policy.clone() {
            observability.health.features.add(move || policy.label_problem());
        }
        let instance = InstanceId::random();
        let events = EventLog::new(instance);
        events.register(&mut registry);
        let stopping = CancellationToken::new();
        let namespace = options.pod_namespace.clone().filter(|name| !name.is_empty());
        let mut context = FeatureContext {
            kubernetes: kubernetes.clone(),
            restrictions: Restrictions { scope: limited.then(|| Arc::clone(&scope)), policy: policy.clone() },
            instance,
            events: events.clone(),
            health: &observability.health,
            registry: &mut registry,
            followers: &mut followers,
            stopping: stopping.clone(),
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            identity: format!("{}-{instance}", options.pod_name.as_deref().unwrap_or("agentk")),
            agent: watch::Sender::default(),
            lease: None,
            leaders: Vec::new(),
        };
        let feature_options = options.feature_options();
        let enabled = enabled_features(&feature_options);
        let features = enabled.map(|feature| {
            context.lease = feature.lease;
            (feature.build)(&feature_options, &mut context)
        });
        let mut features = features.collect::<anyhow::Result<Vec<_>>>()?;
        let leaders = context.leaders;

        let core = Services::core(kubernetes.clone(), prometheus, discovery.as_ref());
        let mut services = add_handlers(core, &features, Guard::Policy);
        if let Some(policy) = &policy {
            services = services.with_policy(policy);
        }
        if limited {
            services = services.with_scope(&scope);
        }
        services = add_handlers(services, &features, Guard::Handler).with_events(&events);
        if !options.no_remote_configuration {
            let log = log.map(|filter| LogLevelSetting {
                filter,
                default: log_filter(&options.log_level),
                of_level: log_filter,
            });
            let sections = features.iter_mut().filter_map(|feature| feature.section.take());
            let configuration =
                ConfigurationService::new(Arc::clone(&scope), log, observability.metrics.clone());
            let configuration = configuration.with_sections(sections);
            services = services.with_handler(ServiceName::CONFIGURATION, configuration);
        }
        let starts = features.into_iter().filter_map(|feature| feature.start).collect();

        let program = Program { name: "agentk", version, instance: instance.to_string() };
        let (tracer, exporter) = traces.map(|config| config.build(&program)).unzip();
        if let Some(exporter) = &exporter {
            exporter.metrics().register(&mut registry, "agentk");
        }

        // A manifest may set an optional variable to the empty string.
        let is_set = |text: &String| !text.is_empty();
        let stalls = observability.metrics.stalls.clone();
        let serve = ServeConfig {
            tunnel: tunnel::TunnelConfig { stalls, ..tunnel::TunnelConfig::default() },
            instance,
            tracer,
            cores: cores.clone(),
            grace: options.shutdown_grace_period,
            pod: Pod {
                name: options.pod_name.filter(is_set),
                namespace: options.pod_namespace.filter(is_set),
            },
            scope: Some(summary),
            ..ServeConfig::new(token)
        };
        let of_session = (options.protocol, options.kas_headers, options.tunnels);
        let agent = kas.into_agent(serve, of_session, services, observability.clone());
        let (listen, grace) = (options.observability_listen_address, options.shutdown_grace_period);

        Ok(Self {
            liveness,
            notifier: Notifier::default(),
            agent,
            cores,
            kubernetes,
            discovery,
            scope,
            labels,
            leaders,
            starts,
            stopping,
            events,
            observability,
            registry,
            followers,
            exporter,
            listen,
            grace,
        })
    }

    /// Runs until `shutdown`, and then until all requests in flight are complete or cut, which takes the grace period and a
    /// second at most. The connections of probes run on the runtime `probes`, which no other task must block.
    ///
    /// # Errors
    ///
    /// The observability address cannot be bound, or a background task panicked ([`TaskPanicError`]).
    pub async fn run(self, probes: &Handle, shutdown: CancellationToken) -> anyhow::Result<()> {
        let listener = process::listen(self.listen)
            .with_context(|| format!("cannot listen on {} (--observability-listen-address)", self.listen))?;
        let agent = self.agent.bind()?;
        let mut features =
            self.starts.into_iter().map(|start| start()).collect::<anyhow::Result<JoinSet<()>>>()?;
        tracing::info!(address = %listener.local_addr()?, "serving /liveness, /readiness and /metrics");
        let health = Arc::clone(&self.observability.health);
        // Its tasks are aborted when this function returns.
        let mut background = JoinSet::new();
        background.spawn(scope_health::run(self.scope, self.kubernetes.clone(), Arc::clone(&health.scope)));
        let labels = self.labels.clone();
        if let Some(labels) = self.labels {
            background.spawn(async move { match labels.run().await {} });
        }
        let admin = Admin::new(self.liveness.clone(), Arc::clone(&health), self.registry);
        background.spawn_on(admin.run(listener.into_std()?, Handle::current()), probes);
        let heartbeat = self.liveness.heartbeat("main");
        background.spawn(async move { match heartbeat.run().await {} });
        for core in 0..self.cores.count() {
            let heartbeat = self.liveness.heartbeat(format!("core-{core}"));
            let beat = async move { match heartbeat.run().await {} };
            self.cores.reserve_at(core).spawn(&TaskTracker::new(), beat);
        }
        background.spawn(self.observability.probe_cluster(self.kubernetes));
        let leases_ended = self.leaders.iter().map(LeaderTask::ended).collect::<Vec<_>>();
        for leader in self.leaders {
            background.spawn(leader.run(shutdown.clone()));
        }
        if let Some(discovery) = self.discovery {
            background.spawn(async move { match discovery.run().await {} });
        }
        for task in self.followers.into_tasks() {
            background.spawn(task);
        }
        let requests_ended = CancellationToken::new();
        let exporter = self.exporter.map(|exporter| tokio::spawn(exporter.run(requests_ended.clone())));

        self.notifier.ready();
        // Only people read the version, and a policy without labels refuses what depends on them, so a slow cluster does not delay the tunnels
        // further.
        let labels_known = async {
            if let Some(labels) = &labels {
                labels.known().await;
            }
        };
        let known = async { tokio::join!(health.cluster_known(), labels_known) };
        let _ = timeout(CLUSTER_TIMEOUT, shutdown.run_until_cancelled(known)).await;
        let ((), (end, panicked)) = tokio::join!(agent.run(shutdown.clone()), async {
            // None of these tasks completes unless it panics, or agentk stops: the task of the Lease may then be the first to notice.
            let ended = tokio::select! {
                biased;
                () = shutdown.cancelled() => None,
                Some(ended) = background.join_next() => Some(ended),
                Some(ended) = features.join_next() => Some(ended),
            };
            let panicked = ended.is_some_and(|ended| ended.is_err() || !shutdown.is_cancelled());
            shutdown.cancel();
            health.stop();
            self.events.close();
            self.stopping.cancel();
            self.notifier.stopping();
            (Instant::now() + self.grace + 2 * FORCED_CLOSE_TIMEOUT, panicked)
        });

        requests_ended.cancel();
        for lease_ended in leases_ended {
            let _ = timeout_at(end, lease_ended.cancelled()).await;
        }
        let features_ended = async { while features.join_next().await.is_some() {} };
        let _ = timeout_at(end, features_ended).await;
        if let Some(exporter) = exporter
            && timeout_at(end, exporter).await.is_err()
        {
            tracing::warn!("the last spans were not exported within the shutdown grace period");
        }
        anyhow::ensure!(!panicked, TaskPanicError);
        Ok(())
    }
}
