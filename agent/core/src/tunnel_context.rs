//! The state that all tunnels of an agent share, whether agentk or kas dials them.

use std::{sync::Arc, time::Duration};

use cores::Cores;
use parking_lot::Mutex;
use proto::{Hello, InstanceId, ScopeSummary, ServiceName};
use telemetry::Tracer;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::{IdleTimeoutDetector, TunnelConfig, WatchEnds};

use crate::{AgentToken, ClusterStatus, Observability, Services, dispatch::Dispatcher};

/// The time that tasks may take to end once the grace period is over and their tunnel is cut.
pub const FORCED_CLOSE_TIMEOUT: Duration = Duration::from_millis(400);

/// The pod that agentk runs in, which kas shows in its list of agents and in its logs.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// The name of the pod.
    pub name: Option<String>,
    /// The namespace of the pod.
    pub namespace: Option<String>,
}

/// The configuration of the tunnels of an agent.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The agent token.
    pub token: AgentToken,
    /// The id of this process.
    pub instance: InstanceId,
    /// The cores that run the tunnels, in turn, and the requests of each tunnel.
    pub cores: Cores,
    /// The time that requests in flight may take after the shutdown begins. The rest is cut.
    pub grace: Duration,
    /// The pod that agentk runs in.
    pub pod: Pod,
    /// The part of the cluster that agentk serves, which the hello reports.
    pub scope: Option<ScopeSummary>,
    /// The settings of HTTP/2 and WebSocket.
    pub tunnel: TunnelConfig,
    /// Creates the spans of requests, if they are traced.
    pub tracer: Option<Tracer>,
}

/// The state that the tunnels of an agent share.
pub struct TunnelContext {
    /// The configuration of the tunnels.
    pub config: ServeConfig,
    /// Serves the requests of all tunnels.
    pub dispatcher: Arc<Dispatcher>,
    /// The metrics and the health of the agent.
    pub observability: Observability,
    pub(crate) idle_timeouts: Mutex<IdleTimeoutDetector>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tunnels: TaskTracker,
    /// The requests in flight.
    pub requests: TaskTracker,
    services: Vec<ServiceName>,
}

impl ServeConfig {
    /// Returns the default configuration: 25 s to shut down.
    pub fn new(token: AgentToken) -> Self {
        Self {
            token,
            instance: InstanceId::random(),
            cores: Cores::default(),
            grace: Duration::from_secs(25),
            pod: Pod::default(),
            scope: None,
            tunnel: TunnelConfig::default(),
            tracer: None,
        }
    }
}

impl TunnelContext {
    pub(crate) fn new(config: ServeConfig, services: Services, observability: Observability) -> Self {
        let (names, shutdown) = (services.names(), CancellationToken::new());
        let (metrics, tracer) = (&observability.metrics, config.tracer.clone());
        let watches = WatchEnds::new(shutdown.clone(), config.grace);
        Self {
            services: names,
            dispatcher: Arc::new(Dispatcher::new(services, metrics, tracer, watches)),
            observability,
            idle_timeouts: Mutex::default(),
            shutdown,
            tunnels: TaskTracker::new(),
            requests: TaskTracker::new(),
            config,
        }
    }

    /// Returns whether agentk applies the configuration of kas.
    pub fn is_configurable(&self) -> bool {
        self.services.iter().any(|name| name.as_str() == ServiceName::CONFIGURATION)
    }

    /// Describes agentk to kas. `index` is the number of the tunnel.
    pub(crate) fn hello(&self, index: u16) -> Hello {
        let health = &self.observability.health;
        let kubernetes_version = match health.cluster() {
            ClusterStatus::Up { version } => version,
            ClusterStatus::Unknown | ClusterStatus::Down(_) => None,
        };
        Hello {
            instance: self.config.instance,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pod_name: self.config.pod.name.clone(),
            pod_namespace: self.config.pod.namespace.clone(),
            kubernetes_version,
            cluster: health.cluster_uid(),
            scope: self.config.scope.clone(),
            services: self.services.clone(),
            tunnel_index: index,
        }
    }

    /// Drains all tunnels, and waits for `dialling`, which opens them, and for the requests in flight. They take at most the grace
    /// period and less than a second.
    pub(crate) async fn drain(&self, dialling: &TaskTracker) {
        let grace = self.config.grace;
        tracing::info!(?grace, "draining all tunnels");
        self.shutdown.cancel();
        let trackers = [dialling, &self.tunnels, &self.requests];
        let ended = async {
            for tracker in trackers {
                tracker.close();
                tracker.wait().await;
            }
        };
        if timeout(grace + FORCED_CLOSE_TIMEOUT, ended).await.is_err() {
            let [_, tunnels, requests] = trackers.map(TaskTracker::len);
            tracing::warn!(tunnels, requests, "some tasks did not end after the grace period");
        }
    }
}
