//! The health of agentk: its tunnels, its cluster, and the files that it reads again.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use backoff::Backoff;
use files::ReloadHealth;
use parking_lot::Mutex;
use tokio::{sync::watch, time::sleep};

use crate::{
    disabled::DisabledRules, metrics::AgentMetrics, scope_health::ScopeHealth, services::KubernetesService,
};

/// The time between two probes of the cluster that succeed, less up to a fifth.
const PROBE_PERIOD: Duration = Duration::from_secs(30);

/// The metrics and the health that an agent updates. Cheap to clone; several agents may share one.
#[derive(Clone, Debug, Default)]
pub struct Observability {
    /// The metrics.
    pub metrics: AgentMetrics,
    /// The health.
    pub health: Arc<AgentHealth>,
}

/// The state that `/readiness` shows.
#[derive(Debug, Default)]
pub struct AgentHealth {
    tunnels: watch::Sender<usize>,
    /// The error of the last attempt to open a tunnel.
    dial_error: watch::Sender<Option<String>>,
    cluster: watch::Sender<ClusterStatus>,
    /// The UID of the cluster's namespace `kube-system`, as of the last time when the cluster became usable.
    cluster_uid: Mutex<Option<String>>,
    /// The namespaces of the scope that agentk cannot serve.
    pub scope: Arc<ScopeHealth>,
    /// The problems of features.
    pub features: FeatureProblems,
    /// The files that are read again.
    pub files: ReloadHealth,
    /// The rules by which the operator of kas has disabled this agent.
    pub disabled: DisabledRules,
    /// True while agentk accepts connections of kas.
    listening: AtomicBool,
    stopping: AtomicBool,
}

/// The problems of features, with which agentk is ready, but degraded.
#[derive(Default)]
pub struct FeatureProblems(Mutex<Vec<Problem>>);

/// Returns a line for the problem of a feature, if it has one.
type Problem = Box<dyn Fn() -> Option<String> + Send>;

/// The result of the last probe of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClusterStatus {
    /// There was no probe yet.
    #[default]
    Unknown,
    /// The Kubernetes API answers.
    Up {
        /// Its version, if the API server sent one.
        version: Option<String>,
    },
    /// The Kubernetes API cannot be used, for this reason.
    Down(String),
}

/// Counts a tunnel until it is dropped.
#[derive(Debug)]
pub struct TunnelGuard(Observability);

impl Observability {
    /// Counts an open tunnel.
    pub fn tunnel_opened(&self) -> TunnelGuard {
        self.metrics.tunnels.inc();
        self.health.tunnels.send_modify(|tunnels| *tunnels += 1);
        self.health.dial_error.send_replace(None);
        TunnelGuard(self.clone())
    }

    /// Sets whether agentk accepts connections of kas.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.metrics.listening.set(listening.into());
        self.health.set_listening(listening);
    }

    /// Records the result of a probe of the cluster. Returns true if the cluster has become usable or unusable.
    pub fn cluster_probed(&self, status: ClusterStatus) -> bool {
        self.metrics.record_cluster_check(matches!(status, ClusterStatus::Up { .. }));
        self.health.cluster.send_if_modified(|last| {
            let changed = std::mem::discriminant(last) != std::mem::discriminant(&status);
            *last = status;
            changed
        })
    }

    /// Sets the UID of the cluster's namespace `kube-system`, which the hello of the next tunnel reports.
    pub fn set_cluster_uid(&self, uid: Option<String>) {
        *self.health.cluster_uid.lock() = uid;
    }

    /// Probes the cluster repeatedly. Never completes.
    ///
    /// Tunnels stay open while the cluster is down: kas can report this to callers only through a tunnel.
    pub async fn probe_cluster(self, kubernetes: KubernetesService) {
        let mut backoff = Backoff::default();
        loop {
            let wait = match kubernetes.version().await {
                Ok(version) => {
                    backoff = Backoff::default();
                    // After an outage, the address may be that of another cluster.
                    if !matches!(self.health.cluster(), ClusterStatus::Up { .. }) {
                        self.set_cluster_uid(kubernetes.cluster_uid().await);
                    }
                    let shown = version.as_deref().unwrap_or("unknown").to_owned();
                    if self.cluster_probed(ClusterStatus::Up { version }) {
                        tracing::info!(version = shown, "the Kubernetes API answers");
                    }
                    PROBE_PERIOD.mul_f64(rand::random_range(0.8..1.0))
                }
                Err(error) => {
                    if self.cluster_probed(ClusterStatus::Down(error.to_string())) {
                        tracing::warn!(%error, "the Kubernetes API cannot be used; tunnels stay open");
                    } else {
                        tracing::debug!(%error, "the Kubernetes API still cannot be used");
                    }
                    backoff.failed(None, rand::random())
                }
            };
            sleep(wait).await;
        }
    }
}

impl AgentHealth {
    /// Returns a receiver of the number of open tunnels.
    pub fn tunnels(&self) -> watch::Receiver<usize> {
        self.tunnels.subscribe()
    }

    /// Returns a receiver of the error of the last attempt to open a tunnel, which is `None` after a success.
    pub fn dial_error(&self) -> watch::Receiver<Option<String>> {
        self.dial_error.subscribe()
    }

    /// Returns the result of the last probe of the cluster.
    pub fn cluster(&self) -> ClusterStatus {
        self.cluster.borrow().clone()
    }

    /// Returns the UID of the cluster's namespace `kube-system`, if agentk may read it.
    pub(crate) fn cluster_uid(&self) -> Option<String> {
        self.cluster_uid.lock().clone()
    }

    /// Waits for the first probe of the cluster. Cancel-safe.
    pub async fn cluster_known(&self) {
        let mut cluster = self.cluster.subscribe();
        // Fails if the sender is dropped, which self holds.
        let _ = cluster.wait_for(|status| *status != ClusterStatus::Unknown).await;
    }

    /// Marks agentk as stopping, which is not ready.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Sets whether agentk accepts connections of kas: it is ready without a tunnel then, since kas connects to ready pods only.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Relaxed);
    }

    pub(crate) fn dial_failed(&self, error: String) {
        self.dial_error.send_replace(Some(error));
    }

    /// Returns the reasons why agentk is not ready, one line each. It is ready if there is none.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.stopping.load(Relaxed) {
            problems.push("agentk is stopping".to_owned());
        }
        if *self.tunnels.borrow() == 0 && !self.listening.load(Relaxed) {
            let error = self.dial_error.borrow().clone();
            let error = error.unwrap_or_else(|| "still connecting".to_owned());
            problems.push(format!("no tunnel to kas: {error}"));
        }
        match &*self.cluster.borrow() {
            ClusterStatus::Unknown => problems.push("the Kubernetes API was not checked yet".to_owned()),
            ClusterStatus::Up { .. } => {}
            ClusterStatus::Down(reason) => {
                problems.push(format!("the Kubernetes API cannot be used: {reason}"));
            }
        }
        // kas sends the scope through a tunnel, and with a Service it reaches ready pods only.
        if self.scope.is_awaited() && !self.listening.load(Relaxed) {
            problems.extend(self.scope.problems());
        }
        problems
    }
}

impl FeatureProblems {
    /// Adds a feature that may have a problem.
    pub fn add(&self, problem: impl Fn() -> Option<String> + Send + 'static) {
        self.0.lock().push(Box::new(problem));
    }

    /// Returns a line for each problem.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().iter().filter_map(|problem| problem()).collect()
    }
}

impl fmt::Debug for FeatureProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lines()).finish()
    }
}

impl Drop for TunnelGuard {
    fn drop(&mut self) {
        self.0.metrics.tunnels.dec();
        self.0.health.tunnels.send_modify(|tunnels| *tunnels -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agentk_is_ready_with_a_tunnel_and_a_cluster() {
        let observability = Observability::default();
        let health = &observability.health;
        assert_eq!(health.problems().len(), 2);
        health.dial_failed("no route to host".into());
        assert_eq!(health.problems()[0], "no tunnel to kas: no route to host");

        let tunnel = observability.tunnel_opened();
        assert!(observability.cluster_probed(ClusterStatus::Up { version: None }));
        assert!(health.problems().is_empty());
        assert!(!observability.cluster_probed(ClusterStatus::Up { version: Some("v1.33.1".into()) }));
        assert!(observability.cluster_probed(ClusterStatus::Down("connection refused".into())));
        assert!(!observability.cluster_probed(ClusterStatus::Down("another reason".into())));
        assert_eq!(health.problems(), ["the Kubernetes API cannot be used: another reason"]);
        drop(tunnel);
        assert_eq!(health.problems()[0], "no tunnel to kas: still connecting");
    }

    #[test]
    fn agentk_that_listens_is_ready_without_a_tunnel() {
        let observability = Observability::default();
        observability.cluster_probed(ClusterStatus::Up { version: None });
        observability.set_listening(true);
        assert!(observability.health.problems().is_empty());
        assert_eq!(observability.metrics.listening.get(), 1);
        observability.set_listening(false);
        assert_eq!(observability.health.problems().len(), 1);
        assert_eq!(observability.metrics.listening.get(), 0);
    }
}
