//! The agents that kas dials: those of the identity file, and those of another source.

use std::{collections::HashMap, future::pending, sync::Arc};

use access::{DialTarget, Identities, Identity};
use proto::{AgentId, AgentName};
use tokio::sync::watch;

/// The agents that GitLab names.
pub type DialSource = watch::Receiver<Arc<HashMap<AgentId, DialTarget>>>;

/// The agents that kas dials, and their changes.
#[derive(Debug)]
pub(super) struct DialTargets {
    identities: Identities,
    versions: watch::Receiver<()>,
    others: Option<DialSource>,
}

impl DialTargets {
    pub(super) fn new(identities: Identities, others: Option<DialSource>) -> Self {
        let versions = identities.changes();
        Self { identities, versions, others }
    }

    /// Completes when the agents may have changed.
    pub(super) async fn changed(&mut self) {
        let others = async {
            let changed = match &mut self.others {
                Some(others) => others.changed().await.is_ok(),
                None => false,
            };
            // Nothing changes them any more.
            if !changed {
                pending().await
            }
        };
        tokio::select! {
            Ok(()) = self.versions.changed() => {}
            () = others => {}
        }
    }

    /// Returns the agents, with the names of those that the identity file has.
    pub(super) fn current(&self) -> HashMap<AgentId, (AgentName, DialTarget)> {
        let others = self.others.as_ref().map(|others| Arc::clone(&others.borrow())).unwrap_or_default();
        merge(&self.identities.load(), &others)
    }
}

/// Returns all agents. An id of the identity file is that of its agent, also if it has no URL there.
fn merge(
    identity: &Identity,
    others: &HashMap<AgentId, DialTarget>,
) -> HashMap<AgentId, (AgentName, DialTarget)> {
    let listed = identity
        .dial_targets()
        .filter_map(|(id, target)| Some((id, (identity.name(id)?.clone(), target.clone()))));
    let others = others.iter().filter(|(id, _)| identity.name(**id).is_none());
    let named = others.filter_map(|(id, target)| {
        // The name is known when the agent has sent its token.
        Some((*id, (format!("agent-{id}").parse().ok()?, target.clone())))
    });
    listed.chain(named).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn agent_of_the_identity_file_is_no_other_one() {
        let text = "agents:\n\
                    - {id: 1, name: dialled, tokens: [], url: 'wss://a'}\n\
                    - {id: 2, name: dials, tokens: []}\n";
        let identity = Identity::parse(Path::new("identity.yaml"), text).unwrap();
        let (_, target) = identity.dial_targets().next().unwrap();
        let of_gitlab = DialTarget { url: "wss://b".parse().unwrap(), ..target.clone() };
        let others = [1, 2, 3].map(|id| (AgentId(id), of_gitlab.clone())).into();
        let merged = merge(&identity, &others);
        let urls =
            |id| merged.get(&AgentId(id)).map(|(name, target)| (name.to_string(), target.url.to_string()));
        assert_eq!(urls(1), Some(("dialled".to_owned(), "wss://a/".to_owned())));
        assert_eq!(urls(2), None);
        assert_eq!(urls(3), Some(("agent-3".to_owned(), "wss://b/".to_owned())));
    }
}
