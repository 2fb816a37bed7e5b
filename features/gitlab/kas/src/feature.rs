//! The feature: the RPCs that GitLab calls, and the agents in its statistics.

use std::sync::Arc;

use access::Identities;
use kas_core::{
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    feature::KasFeature,
    peers::PeerHooks,
    proxy::ProxyServer,
};

use crate::{
    Usage,
    agent_facts::{AgentFactsAnswers, HeldAgents},
    gitaly::GitalyClient,
    rpcs,
    usage_reports::UsageReports,
};

/// The requests of GitLab, and the numbers of its agents.
#[derive(Debug)]
pub struct GitLabFeature {
    /// The agents of the identity file, which do not count.
    pub identities: Identities,
    /// The agents and the requests, for GitLab.
    pub usage: Usage,
    /// Reads the repositories that GitLab names.
    pub gitaly: GitalyClient,
    /// The agents of GitLab with tunnels to this replica, for other replicas.
    pub held: Option<HeldAgents>,
}

impl KasFeature for GitLabFeature {
    fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        vec![Arc::new(AgentFactsAnswers(self.held.clone()))]
    }

    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(UsageReports { identities: self.identities.clone(), usage: self.usage.clone() })]
    }

    fn api_routes(&self, context: &ApiContext, _: &ProxyServer) -> ApiRoutes {
        ApiRoutes { rpcs: rpcs::routes(context.clone(), self.gitaly.clone()), ..ApiRoutes::default() }
    }
}
