//! The entry of a tunnel in the table of local tunnels.

use std::{sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use proto::Hello;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use access::{AgentIdentity, token::TokenHash};

/// A tunnel that ends at this replica.
#[derive(Debug)]
pub struct TunnelEntry {
    /// Sends requests into the tunnel.
    pub tunnel: Tunnel,
    /// The agent at the other end of the tunnel.
    pub agent: AgentIdentity,
    /// The hello of the agent. It is bounded and printable, but otherwise not trusted. GitLab's agentk may describe itself again.
    pub described: Arc<ArcSwap<Hello>>,
    /// The address of the agent.
    pub peer: String,
    /// The hash of the token with which the tunnel was opened.
    pub token: TokenHash,
    /// The time at which the tunnel was opened.
    pub since: SystemTime,
    /// Cancelled once the tunnel should move to another replica.
    pub move_requested: CancellationToken,
    /// True if kas has dialled the tunnel.
    pub dialled: bool,
}

impl TunnelEntry {
    /// Returns the agent as it has described itself last.
    pub fn hello(&self) -> Arc<Hello> {
        self.described.load_full()
    }
}

/// Returns the version of the agentk of GitLab at the other end of these tunnels, if none of them is of an agentk of kas.
pub(crate) fn gitlab_version_of_all(hellos: impl IntoIterator<Item = Arc<Hello>>) -> Option<String> {
    let versions = hellos.into_iter().map(|hello| hello.gitlab_version().map(str::to_owned));
    versions.collect::<Option<Vec<_>>>()?.into_iter().next()
}

#[cfg(test)]
mod tests {
    use proto::InstanceId;

    use super::*;

    #[test]
    fn agent_is_of_gitlab_if_all_of_its_tunnels_are() {
        let hello = |version: &&str| {
            Arc::new(Hello {
                instance: InstanceId::random(),
                version: (*version).to_owned(),
                pod_name: None,
                pod_namespace: None,
                kubernetes_version: None,
                services: Vec::new(),
                tunnel_index: 0,
                cluster: None,
                scope: None,
            })
        };
        let cases: [(&[&str], _); 5] = [
            (&[], None),
            (&["0.1.0"], None),
            (&["gitlab-18.5.0"], Some("18.5.0")),
            (&["gitlab-18.5.0", "gitlab-18.4.0"], Some("18.5.0")),
            (&["gitlab-18.5.0", "0.1.0"], None),
        ];
        for (versions, expected) in cases {
            let actual = gitlab_version_of_all(versions.iter().map(hello));
            assert_eq!(actual.as_deref(), expected, "{versions:?}");
        }
    }
}
