//! The state of the process that all connections to GitLab's kas share.

use std::sync::Arc;

use agentk_core::{ClusterStatus, Pod, TunnelContext};
use gitlab_tunnel::messages::{AgentMeta, ConfigurationRequest, KubernetesVersion, RegisterRequest};
use parking_lot::Mutex;

/// The parts of an agent that its connections to GitLab's kas use.
pub(crate) struct GitLabContext {
    /// The state that all tunnels share.
    pub(super) tunnel: Arc<TunnelContext>,
    /// The commit of the last configuration.
    commit: Mutex<String>,
    /// A random id of this process.
    pod_id: i64,
}

impl GitLabContext {
    /// Returns the context of an agent.
    pub(super) fn new(tunnel: Arc<TunnelContext>) -> Self {
        Self { tunnel, commit: Mutex::default(), pod_id: random_pod_id() }
    }

    /// Returns the request that registers this process.
    pub(super) fn register_request(&self) -> RegisterRequest {
        RegisterRequest { agent_meta: Some(self.agent_meta()), pod_id: self.pod_id }
    }

    /// Returns the request for configurations that are newer than the last one.
    pub(super) fn configuration_request(&self) -> ConfigurationRequest {
        ConfigurationRequest {
            commit_id: self.commit.lock().clone(),
            agent_meta: Some(self.agent_meta()),
            skip_register: true,
        }
    }

    /// Sets the commit of the last configuration.
    pub(super) fn set_commit(&self, commit: String) {
        *self.commit.lock() = commit;
    }

    fn agent_meta(&self) -> AgentMeta {
        let version = match self.tunnel.observability.health.cluster() {
            ClusterStatus::Up { version } => version,
            ClusterStatus::Unknown | ClusterStatus::Down(_) => None,
        };
        let Pod { name, namespace } = self.tunnel.config.pod.clone();
        agent_meta(name.unwrap_or_default(), namespace.unwrap_or_default(), version)
    }
}

/// Returns the request that registers a process without a pod and a cluster.
pub(super) fn anonymous_registration() -> RegisterRequest {
    let agent_meta = Some(agent_meta(String::new(), String::new(), None));
    RegisterRequest { agent_meta, pod_id: random_pod_id() }
}

fn random_pod_id() -> i64 {
    rand::random_range(0..=i64::MAX)
}

/// Describes this process. `kubernetes` is the version of the cluster.
fn agent_meta(pod_name: String, pod_namespace: String, kubernetes: Option<String>) -> AgentMeta {
    AgentMeta {
        version: concat!("v", env!("CARGO_PKG_VERSION")).to_owned(),
        commit_id: String::new(),
        pod_namespace,
        pod_name,
        kubernetes_version: Some(kubernetes.map(KubernetesVersion::from_git_version).unwrap_or_default()),
    }
}
