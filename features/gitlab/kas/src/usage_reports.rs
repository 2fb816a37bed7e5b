//! Counts the agents of GitLab that connect, for its statistics.

use access::{AgentIdentity, Identities};
use kas_core::attachments::{Attachment, OpeningTunnel, TunnelFeature};
use proto::Hello;

use crate::Usage;

/// Notes each agent of GitLab as it describes itself.
#[derive(Debug)]
pub(crate) struct UsageReports {
    /// The agents of the identity file, which do not count.
    pub(crate) identities: Identities,
    /// The counts.
    pub(crate) usage: Usage,
}

impl TunnelFeature for UsageReports {
    fn attach(&self, _opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        None
    }

    fn on_description(&self, agent: &AgentIdentity, hello: &Hello) {
        // The other tunnels of the process would repeat it.
        if let Some(project) = agent.project
            && self.identities.load().name(agent.id).is_none()
            && hello.tunnel_index == 0
            && hello.is_described()
        {
            self.usage.register_agent(agent.id, project, hello);
        }
    }
}
