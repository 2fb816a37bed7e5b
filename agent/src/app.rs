//! The process: its parts, built from the command line, and the order in which they start and stop.

mod alerts;
mod flags;
mod listen;
mod prometheus;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use cores::Cores;
use gitops_engine::KubeCluster;
use process::{Notifier, liveness::Liveness, logs::LogFilter};
use prometheus_client::registry::Registry;
use proto::{InstanceId, ScopeSummary, ServiceName};
use secrecy::SecretString;
use telemetry::{Exporter, Program};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::listen::AnyAgent;
pub(crate) use self::{
    alerts::alert_sources,
    flags::{agent_token, check_scope, tracer_config},
    listen::KasConnection,
    prometheus::prometheus_services,
};
use crate::{
    AgentMetrics, Observability, Pod, ServeConfig, Services,
    admin::Admin,
    audit_webhook::AuditWebhook,
    cli::RunOptions,
    cluster::{Cluster, KubeconfigOptions},
    events::EventLog,
    file_followers::FileFollowers,
    leader::{Leader, LeaderTask, LedFeature, Process},
    log_filter::log_filter,
    policy::{PolicyEnforcer, ScopeEnforcer},
    scope_health,
    services::{
        ConfigurationService, KubernetesService,
        alerts::{Alerts, AlertsHandler, AlertsMetrics},
        audit::AuditHandler,
        configuration::LogLevelSetting,
        gitops::{Gitops, GitopsHandler, GitopsMetrics, GitopsTasks, ManifestsHandler, cluster_client},
        graph::{GraphHandler, GraphMetrics, GraphService},
        kube_client::{Restrictions, kube_service},
        notify::{Notify, NotifyHandler, NotifyMetrics, NotifyTasks},
        prometheus::discovery::Discovery,
        provision::{EnvironmentsHandler, ProvisionMetrics, ProvisionService},
    },
    tunnel_context::FORCED_CLOSE_TIMEOUT,
};

/// The time that the first tunnel waits for the cluster's version, which its hello contains.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// A task without which agentk cannot run has panicked.
#[derive(Debug, thiserror::Error)]
#[error(
    "a background task panicked, so that agentk had to stop; this is a defect, and the log has the panic"
)]
pub struct TaskPanicError;

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
    leaders: Vec<LeaderTask>,
    gitops: Option<GitopsTasks>,
    notify: Option<NotifyTasks>,
    graph: Option<Arc<GraphService>>,
    audit: Option<AuditWebhook>,
    /// Ends the responses that follow the audit events.
    stopping: CancellationToken,
    alerts: Option<Arc<Alerts>>,
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
        let alert_sources = alert_sources(&options)?;
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
        let namespaces = options.prometheus_discovery;
        let discovery = namespaces.map(|namespaces| Discovery::new(kubernetes.clone(), namespaces));
        let limited = options.namespaces.is_some() || !options.no_remote_configuration;
        let summary = ScopeSummary::new(options.namespaces.as_ref());
        let scope = ScopeEnforcer::new(options.namespaces, observability.metrics.clone());
        let scope = Arc::new(if options.require_scope { scope.requiring_configured() } else { scope });
        let stopping = CancellationToken::new();
        let audit =
            AuditWebhook::build(options.audit, &observability.health.audit, &mut registry, &mut followers)?;
        let mut policy = None;
        let mut services = Services::of_callers(kubernetes.clone(), prometheus, discovery.as_ref());
        if let Some(audit) = &audit {
            let scope = limited.then(|| Arc::clone(&scope));
            let handler = AuditHandler::new(audit.view(), scope, kubernetes.clone(), stopping.clone());
            services = services.with_handler(ServiceName::AUDIT, handler);
        }
        if let Some(file) = options.policy_file {
            let mut served = services.names();
            let own = [
                (options.no_gitops, ServiceName::GITOPS),
                (options.no_graph, ServiceName::GRAPH),
                (options.no_notify, ServiceName::NOTIFY),
                (alert_sources.is_none(), ServiceName::ALERTS),
                (options.no_remote_configuration, ServiceName::PROVISION),
            ];
            let own = own.into_iter().filter(|(disabled, _)| !disabled);
            served.extend(own.map(|(_, name)| name.parse().expect("a service name")));
            let enforcer = PolicyEnforcer::load(file, served, observability.metrics.clone())?;
            let enforcer = Arc::new(enforcer);
            services = services.with_policy(&enforcer);
            policy = Some(Arc::clone(&enforcer));
            followers.add("--policy-file", |file, requests| enforcer.follow(file, requests));
        }
        if limited {
            services = services.with_scope(&scope);
        }
        let instance = InstanceId::random();
        let events = EventLog::new(instance);
        events.register(&mut registry);
        // Added after the policy, which restricts callers and not kas.
        services = services.with_events(&events);
        let restrictions = Restrictions { scope: limited.then(|| Arc::clone(&scope)), policy };
        let gitops_metrics = GitopsMetrics::register(&mut registry);
        let own = cluster_client(kubernetes.clone(), &Restrictions::default(), gitops_metrics.clone());
        let namespace = options.pod_namespace.clone().filter(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let pod = options.pod_name.as_deref().unwrap_or("agentk");
        let process = Process {
            own,
            namespace,
            identity: format!("{pod}-{instance}"),
            agent: watch::Sender::default(),
        };
        let mut leaders = Vec::new();
        let mut leader = |feature| {
            let (leader, task) = Leader::new(feature, process.clone());
            leaders.push(task);
            leader
        };
        let gitops = (!options.no_gitops).then(|| {
            let metrics = gitops_metrics.clone();
            let restricted = cluster_client(kubernetes.clone(), &restrictions, metrics.clone());
            let (gitops, tasks) =
                Gitops::new(restricted, leader(LedFeature::Gitops), metrics, events.clone());
            GitopsMetrics::register_states(&mut registry, &gitops);
            (gitops, tasks)
        });
        let health_rules = gitops.as_ref().map(|(gitops, _)| gitops.health_rules().clone());
        let gitops = gitops.map(|(gitops, tasks)| {
            // Added after the policy: what they write to the cluster passes it.
            let handlers = (GitopsHandler(Arc::clone(&gitops)), ManifestsHandler(gitops));
            services = std::mem::take(&mut services)
                .with_handler(ServiceName::GITOPS, handlers.0)
                .with_handler(ServiceName::MANIFESTS, handlers.1);
            tasks
        });
        let notify = (!options.no_notify).then(|| {
            let service = kube_service(ServiceName::NOTIFY, kubernetes.clone(), &restrictions);
            let cluster = KubeCluster::new(move || kube::Client::new(service, "default"));
            let metrics = NotifyMetrics::register(&mut registry);
            let policy = restrictions.policy.clone();
            let (notify, tasks) = Notify::new(cluster, leader(LedFeature::ProjectEvents), policy, metrics);
            // Added after the policy: what it writes to the cluster passes it.
            let handler = NotifyHandler(Arc::clone(&notify));
            services = std::mem::take(&mut services).with_handler(ServiceName::NOTIFY, handler);
            (notify, tasks)
        });
        let (notify, notify_tasks) = notify.unzip();
        let alerts = alert_sources.map(|sources| {
            let (kubernetes, restrictions) = (kubernetes.clone(), restrictions.clone());
            let metrics = AlertsMetrics::register(&mut registry);
            let leader = leader(LedFeature::Alerts);
            // Without a Lease, each pod reports, and kas leaves out what another pod has reported.
            let leads = move || leader.is_leading_or_unnamed();
            let alerts = Alerts::new(sources, kubernetes, restrictions, leads, events.clone(), metrics);
            AlertsMetrics::register_open(&mut registry, &alerts);
            // Added after the policy: what it reads, and what callers see, passes it.
            let handler = AlertsHandler(Arc::clone(&alerts));
            services = std::mem::take(&mut services).with_handler(ServiceName::ALERTS, handler);
            alerts
        });
        // Without a configuration there is no template.
        let provision = (!options.no_remote_configuration).then(|| {
            let service = kube_service(ServiceName::PROVISION, kubernetes.clone(), &restrictions);
            let cluster = KubeCluster::new(move || kube::Client::new(service, "default"));
            let metrics = ProvisionMetrics::register(&mut registry);
            let provision = ProvisionService::new(cluster, restrictions.clone(), metrics);
            // Added after the policy: what it writes to the cluster passes it.
            services = std::mem::take(&mut services)
                .with_handler(ServiceName::PROVISION, provision.clone())
                .with_handler(ServiceName::ENVIRONMENTS, EnvironmentsHandler(provision.clone()));
            provision
        });
        let graph = (!options.no_graph).then(|| {
            let graph = GraphService::new(kubernetes.clone(), restrictions, instance);
            GraphMetrics::register(&mut registry, &graph);
            // Added after the policy: what it loads, and what callers see, passes it.
            let handler = GraphHandler::new(Arc::clone(&graph));
            services = std::mem::take(&mut services).with_handler(ServiceName::GRAPH, handler);
            graph
        });
        if !options.no_remote_configuration {
            let log = log.map(|filter| LogLevelSetting { filter, default: log_filter(&options.log_level) });
            let mut configuration =
                ConfigurationService::new(Arc::clone(&scope), log, observability.metrics.clone());
            if let Some(graph) = &graph {
                configuration = configuration.with_graph(Arc::clone(graph));
            }
            if let Some(health_rules) = health_rules {
                configuration = configuration.with_health_rules(health_rules);
            }
            if let Some(notify) = notify {
                configuration = configuration.with_notify(notify);
            }
            if let Some(alerts) = &alerts {
                configuration = configuration.with_alerts(Arc::clone(alerts));
            }
            if let Some(provision) = provision {
                configuration = configuration.with_provision(provision);
            }
            // Added after the policy, which restricts callers and not kas.
            services = services.with_handler(ServiceName::CONFIGURATION, configuration);
        }

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
            leaders,
            gitops,
            notify: notify_tasks,
            graph,
            audit,
            stopping,
            alerts,
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
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener
            .with_context(|| format!("cannot listen on {} (--observability-listen-address)", self.listen))?;
        let agent = self.agent.bind().await?;
        let audit = match self.audit {
            Some(audit) => Some(audit.bind().await?),
            None => None,
        };
        tracing::info!(address = %listener.local_addr()?, "serving /liveness, /readiness and /metrics");
        let health = Arc::clone(&self.observability.health);
        // Its tasks are aborted when this function returns.
        let mut background = JoinSet::new();
        background.spawn(scope_health::run(self.scope, self.kubernetes.clone(), Arc::clone(&health.scope)));
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
        let audit = audit.map(|audit| tokio::spawn(audit.run(shutdown.clone())));
        if let Some(gitops) = self.gitops {
            background.spawn(gitops.run());
        }
        if let Some(notify) = self.notify {
            background.spawn(notify.run());
        }
        let events = self.events.clone();
        if let Some(graph) = self.graph {
            background.spawn(async move {
                tokio::join!(graph.run(), graph.watch_environments(&events));
            });
        }
        if let Some(alerts) = self.alerts {
            background.spawn(async move { alerts.run().await });
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
        // Only people read the version, so a slow cluster does not delay the tunnels further.
        let _ = timeout(VERSION_TIMEOUT, shutdown.run_until_cancelled(health.cluster_known())).await;
        let ((), (end, panicked)) = tokio::join!(agent.run(shutdown.clone()), async {
            // None of these tasks completes unless it panics, or agentk stops: the task of the Lease may then be the first to notice.
            let ended = shutdown.run_until_cancelled(background.join_next()).await.flatten();
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
        if let Some(audit) = audit {
            let _ = timeout_at(end, audit).await;
        }
        if let Some(exporter) = exporter
            && timeout_at(end, exporter).await.is_err()
        {
            tracing::warn!("the last spans were not exported within the shutdown grace period");
        }
        anyhow::ensure!(!panicked, TaskPanicError);
        Ok(())
    }
}
