//! The projects of GitLab in which the manifests of agents are: a replica that holds the agent knows its configuration and its token, and
//! the others ask it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gitops_wire::{ManifestOriginError, ManifestOrigins, ProjectAccessError};
use kas_core::peers::{PeerClient, PeerHooks};
use parking_lot::Mutex;
use proto::AgentId;
use serde::{Deserialize, Serialize};
use store::Store;
use tokio::time::timeout;

use super::{GitopsService, feed::projects, readers::AgentReader};

/// The longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most questions to other replicas about an agent at the same time. Callers choose the names in them.
const MAX_QUESTIONS: usize = 16;
/// The longest name that is asked about, in bytes. No GitOps project has a longer one.
const MAX_NAME: usize = 255;

/// Finds the projects in which the manifests of agents are, at any replica. Clones are cheap.
#[derive(Clone, Debug)]
pub struct ManifestOriginLookup {
    gitops: GitopsService,
    peers: PeerClient,
    store: Arc<dyn Store>,
    questions: QuestionPermits,
}

/// Counts the questions to other replicas about each agent. Clones share the counts.
#[derive(Clone, Debug, Default)]
struct QuestionPermits(Arc<Mutex<HashMap<AgentId, usize>>>);

/// Counts one question until it is dropped.
#[derive(Debug)]
struct QuestionPermit {
    agent: AgentId,
    permits: QuestionPermits,
}

/// Answers other replicas.
#[derive(Debug)]
pub(super) struct ManifestOriginAnswers(pub(super) GitopsService);

/// The question of another replica.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginQuestion {
    ManifestOriginOf { agent: AgentId, name: String },
}

/// The place of manifests.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ManifestOrigin {
    /// The project of GitLab with this id.
    Project(u64),
    /// No project of GitLab, or the agent syncs nothing under the name.
    Elsewhere,
    /// The reason why the replica does not know it. It is a sentence.
    Unknown(String),
    /// The agent has tunnels to the replica, and serves no GitOps there.
    WithoutGitops,
    /// The agent has no tunnel to the replica.
    NotHeld,
}

impl ManifestOriginLookup {
    /// Knows the agents with tunnels to this replica, and asks the other replicas by `peers`.
    pub fn new(gitops: GitopsService, peers: PeerClient, store: Arc<dyn Store>) -> Self {
        Self { gitops, peers, store, questions: QuestionPermits::default() }
    }

    async fn find(&self, agent: AgentId, name: &str) -> ManifestOrigin {
        if name.len() > MAX_NAME {
            return ManifestOrigin::Elsewhere;
        }
        match self.gitops.origin(agent, name).await {
            // Another process of agentk may serve GitOps.
            here @ (ManifestOrigin::NotHeld | ManifestOrigin::WithoutGitops) => {
                self.query_peers(agent, name, here).await
            }
            found => found,
        }
    }

    /// Asks the replicas that hold the agent. The first one that knows the place decides, and `here` is the answer of this replica.
    async fn query_peers(&self, agent: AgentId, name: &str, here: ManifestOrigin) -> ManifestOrigin {
        let Some(_permit) = self.questions.try_acquire(agent) else {
            let busy = format!("{MAX_QUESTIONS} other requests wait for this answer about the agent");
            return ManifestOrigin::Unknown(busy);
        };
        let Ok(found) = self.store.lookup(agent).await else {
            return ManifestOrigin::Unknown("Redis does not answer which replica holds the agent".to_owned());
        };
        let owners = found.routes.into_iter().filter(|route| route.replica != self.peers.replica());
        let owners: Vec<_> = owners.filter_map(|route| self.store.replica(route.replica)).collect();
        let question = OriginQuestion::ManifestOriginOf { agent, name: name.to_owned() };
        let answers =
            owners.iter().map(|owner| self.peers.ask_one_within::<ManifestOrigin>(owner, &question, TIMEOUT));
        let mut answers = answers.collect::<FuturesUnordered<_>>();
        let mut best = here;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(known @ (ManifestOrigin::Project(_) | ManifestOrigin::Elsewhere)) => return known,
                Ok(unknown @ ManifestOrigin::Unknown(_)) => best = unknown,
                Ok(without @ ManifestOrigin::WithoutGitops) if best == ManifestOrigin::NotHeld => {
                    best = without
                }
                Ok(ManifestOrigin::WithoutGitops | ManifestOrigin::NotHeld) => {}
                Err(error) => best = ManifestOrigin::Unknown(format!("a replica does not answer: {error}")),
            }
        }
        best
    }
}

impl QuestionPermits {
    /// Takes a permit, or returns `None` if there are as many questions about the agent as allowed.
    fn try_acquire(&self, agent: AgentId) -> Option<QuestionPermit> {
        let mut agents = self.0.lock();
        let count = agents.entry(agent).or_default();
        if *count >= MAX_QUESTIONS {
            return None;
        }
        *count += 1;
        Some(QuestionPermit { agent, permits: self.clone() })
    }
}

impl Drop for QuestionPermit {
    fn drop(&mut self) {
        let mut agents = self.permits.0.lock();
        if let Some(count) = agents.get_mut(&self.agent) {
            *count -= 1;
            if *count == 0 {
                agents.remove(&self.agent);
            }
        }
    }
}

impl ManifestOrigins for ManifestOriginLookup {
    fn project_with_manifests<'a>(
        &'a self,
        agent: AgentId,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, ManifestOriginError>> {
        Box::pin(async move {
            let unknown = match timeout(TIMEOUT, self.find(agent, name)).await {
                Ok(ManifestOrigin::Project(id)) => return Ok(Some(id)),
                Ok(ManifestOrigin::Elsewhere) => return Ok(None),
                Ok(ManifestOrigin::WithoutGitops) => return Err(ManifestOriginError::WithoutGitops),
                Ok(ManifestOrigin::Unknown(what)) => what,
                Ok(ManifestOrigin::NotHeld) => "the agent is not connected".to_owned(),
                Err(_) => format!("there was no answer within {} s", TIMEOUT.as_secs()),
            };
            Err(ManifestOriginError::Unknown(unknown))
        })
    }
}

impl GitopsService {
    /// Returns the place of the manifests that an agent with a tunnel to this replica syncs under a name.
    async fn origin(&self, agent: AgentId, name: &str) -> ManifestOrigin {
        match self.0.readers.last(agent) {
            Some(reader) if !reader.serves_gitops => ManifestOrigin::WithoutGitops,
            Some(reader) => self.origin_for(&reader, name).await,
            None => ManifestOrigin::NotHeld,
        }
    }

    async fn origin_for(&self, reader: &AgentReader, name: &str) -> ManifestOrigin {
        let (own, projects) = projects(&reader.configuration.borrow());
        let Some(projects) = projects else {
            return ManifestOrigin::Unknown("the configuration of the agent is not read".to_owned());
        };
        let Some(project) = projects.iter().find(|project| project.name() == Some(name)) else {
            return ManifestOrigin::Elsewhere;
        };
        let found = self.0.sources.gitlab_project((&reader.agent, &reader.token), project, &own).await;
        match found {
            Ok(Some(id)) => ManifestOrigin::Project(id),
            Ok(None) | Err(ProjectAccessError::Refused(_)) => ManifestOrigin::Elsewhere,
            Err(ProjectAccessError::Unknown(what)) => ManifestOrigin::Unknown(what),
        }
    }
}

impl PeerHooks for ManifestOriginAnswers {
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>> {
        let OriginQuestion::ManifestOriginOf { agent, name } = serde_json::from_str(question).ok()?;
        Some(Box::pin(async move {
            let origin = self.0.origin(agent, &name).await;
            Ok(serde_json::to_string(&origin).expect("it is plain data"))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_one_agent_leave_those_about_others() {
        let permits = QuestionPermits::default();
        let held: Vec<_> = (0..MAX_QUESTIONS).map(|_| permits.try_acquire(AgentId(1)).unwrap()).collect();
        assert!(permits.try_acquire(AgentId(1)).is_none());
        assert!(permits.try_acquire(AgentId(2)).is_some());
        drop(held);
        assert!(permits.try_acquire(AgentId(1)).is_some());
        assert!(permits.0.lock().is_empty(), "no agent stays in the list");
    }
}
