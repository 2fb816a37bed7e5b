//! Publishes the routes and instances of the agents that have tunnels here.

use std::{sync::atomic::Ordering::Relaxed, time::SystemTime};

use proto::{AgentId, Epoch};
use router::TunnelView;
use store::{Instance, ProjectAgent, ReportedInfo, Route};

use super::{AgentServer, admission::AuthenticatedAgent};
use crate::tunnel_entry::TunnelEntry;

impl AgentServer {
    /// Announces to the other replicas that this one holds the agent.
    pub(super) async fn announce(&self, authenticated: &AuthenticatedAgent) {
        let identity = &authenticated.identity;
        let agent = identity.id;
        if let Some(project) = identity.project
            && self.identities.load().name(agent).is_none()
        {
            let project_path = identity.project_path.clone();
            let described = ProjectAgent { agent, name: identity.name.clone(), project, project_path };
            self.store.set_project(described, self.replica);
        }
        self.publish_description(authenticated);
        let epoch = Epoch(self.epoch.fetch_add(1, Relaxed) + 1);
        let route = Route { replica: self.replica, epoch };
        if let Err(error) = self.store.announce(agent, route).await {
            tracing::warn!(agent.id = %agent, %error, "route of an agent not announced");
        }
    }

    /// Publishes the agent as it has described itself.
    pub fn publish_description(&self, authenticated: &AuthenticatedAgent) {
        let AuthenticatedAgent { identity, described, .. } = authenticated;
        let hello = described.load();
        for feature in &self.features {
            feature.on_description(identity, &hello);
        }
        self.describe(identity.id);
    }

    /// Publishes the agentk processes that have tunnels here.
    fn describe(&self, agent: AgentId) {
        let instances = instances(&self.tunnels.views_of(agent));
        self.store.set_instances(agent, self.replica, instances);
    }

    /// Withdraws the route of an agent without tunnels here, or of every agent while this replica stops.
    pub(super) async fn withdraw(&self, agent: AgentId) {
        // Loaded before the check: a tunnel that arrives after the check announces a later epoch, which this withdrawal does not
        // remove.
        let epoch = Epoch(self.epoch.load(Relaxed));
        if self.tunnels.contains(agent) && !self.connections.draining.is_cancelled() {
            return self.describe(agent);
        }
        let route = Route { replica: self.replica, epoch };
        if let Err(error) = self.store.withdraw(agent, route).await {
            tracing::warn!(agent.id = %agent, %error, "route of an agent not withdrawn");
        }
    }
}

/// Returns one instance per process, in order of their ids.
pub(super) fn instances(tunnels: &[TunnelView<TunnelEntry>]) -> Vec<Instance> {
    let mut instances: Vec<Instance> = tunnels.iter().map(|view| instance(view.handle())).collect();
    instances.sort_by_key(|instance| instance.id);
    instances.dedup_by(|next, first| {
        let same = next.id == first.id;
        if same {
            first.tunnels = first.tunnels.saturating_add(1);
            first.since = first.since.min(next.since);
        }
        same
    });
    instances
}

fn instance(entry: &TunnelEntry) -> Instance {
    let hello = entry.hello();
    Instance {
        id: hello.instance,
        reported: ReportedInfo::from(&*hello),
        since: seconds(entry.since),
        tunnels: 1,
    }
}

/// Truncates a time to seconds, the precision of the route store.
fn seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since.as_secs())
}
