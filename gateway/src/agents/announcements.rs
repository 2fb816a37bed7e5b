//! Publishes the routes and instances of the agents that have tunnels here.

use std::sync::atomic::Ordering::Relaxed;

use proto::{AgentId, Epoch};
use router::{ProjectAgent, Route};

use super::{AgentServer, admission::AuthenticatedAgent, instances};

impl AgentServer {
    /// Announces to the other replicas that this one holds the agent.
    pub(super) async fn announce(&self, AuthenticatedAgent { identity, hello, .. }: &AuthenticatedAgent) {
        let agent = identity.id;
        if let Some(project) = identity.project
            && self.identities.load().name(agent).is_none()
        {
            // The other tunnels of the process would repeat it.
            if hello.tunnel_index == 0 {
                self.usage.register_agent(agent, project, hello);
            }
            let described = ProjectAgent { agent, name: identity.name.clone(), project };
            self.store.set_project(described, self.replica);
        }
        self.describe(agent);
        let epoch = Epoch(self.epoch.fetch_add(1, Relaxed) + 1);
        let route = Route { replica: self.replica, epoch };
        if let Err(error) = self.store.announce(agent, route).await {
            tracing::warn!(agent.id = %agent, %error, "route of an agent not announced");
        }
    }

    /// Publishes the agentk processes that have tunnels here.
    fn describe(&self, agent: AgentId) {
        let instances = instances::instances(&self.tunnels.views_of(agent));
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
