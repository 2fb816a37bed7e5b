//! The clusters of agents. An agent whose token is in two clusters answers each request from one of them at random.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use proto::{AgentId, AgentName};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use tokio::time::sleep;

use super::AgentServer;

/// The time between two checks of agents in several clusters.
const RECHECK_PERIOD: Duration = Duration::from_secs(60);
/// The time for which a refused tunnel is shown. agentk tries again at least every minute.
const REFUSAL_SHOWN: Duration = Duration::from_secs(300);

/// The agents whose tokens are used wrongly: in several clusters, or by an agentk that kas refuses.
#[derive(Debug, Default)]
pub struct AgentConflicts {
    in_several_clusters: Mutex<HashMap<AgentId, (AgentName, BTreeSet<String>)>>,
    gauge: Gauge,
    /// The last refusal of each agent. Only agents with a valid token have one.
    refused: Mutex<HashMap<AgentId, RefusedTunnel>>,
}

/// A tunnel that kas has refused although the token is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedTunnel {
    /// The label of `kas_handshakes_total`.
    pub reason: String,
    /// The text that agentk received.
    pub message: String,
    /// The time of the last attempt.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
}

impl AgentConflicts {
    /// Registers the metric.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Agents of this replica whose tokens are used in more than one cluster";
        registry.register("kas_agents_in_several_clusters", help, self.gauge.clone());
    }

    /// Returns the last tunnel of an agent that this replica has refused in the last minutes.
    pub fn refused(&self, agent: AgentId, now: SystemTime) -> Option<RefusedTunnel> {
        let refused = self.refused.lock().get(&agent).cloned()?;
        let age = now.duration_since(refused.time).unwrap_or_default();
        (age < REFUSAL_SHOWN).then_some(refused)
    }

    pub(super) fn record_refusal(&self, agent: AgentId, reason: &str, message: String, now: SystemTime) {
        let (reason, time) = (reason.to_owned(), now);
        self.refused.lock().insert(agent, RefusedTunnel { reason, message, time });
    }

    /// Replaces the clusters of an agent. Logs the beginning and the end of a conflict.
    fn set(&self, agent: AgentId, name: &AgentName, clusters: BTreeSet<String>) {
        let mut conflicts = self.in_several_clusters.lock();
        if clusters.len() < 2 {
            if conflicts.remove(&agent).is_some() {
                tracing::info!(agent.id = %agent, agent.name = %name, "the token of an agent is used in one cluster again");
            }
        } else if conflicts.get(&agent).is_none_or(|(_, known)| *known != clusters) {
            tracing::warn!(
                agent.id = %agent,
                agent.name = %name,
                ?clusters,
                "the token of an agent is used in several clusters: requests reach any of them; each cluster needs an agent of its own"
            );
            conflicts.insert(agent, (name.clone(), clusters));
        }
        self.gauge.set(conflicts.len() as i64);
    }

    fn agents(&self) -> Vec<(AgentId, AgentName)> {
        let conflicts = self.in_several_clusters.lock();
        conflicts.iter().map(|(id, (name, _))| (*id, name.clone())).collect()
    }
}

impl AgentServer {
    /// Checks the agents in several clusters again, from time to time. Never completes.
    pub async fn recheck_clusters(&self) {
        loop {
            sleep(RECHECK_PERIOD).await;
            for (agent, name) in self.conflicts.agents() {
                self.check_clusters(agent, &name).await;
            }
        }
    }

    /// Compares the clusters of the agentk processes of an agent at all replicas.
    ///
    /// It runs after this replica has published a new tunnel: of two replicas with tunnels to different clusters, at least the
    /// later one finds both.
    pub(super) async fn check_clusters(&self, agent: AgentId, name: &AgentName) {
        let here = self.tunnels.views_of(agent);
        let here = here.iter().filter_map(|view| view.handle().hello().cluster.clone());
        let list = self.store.list_instances(&[agent]).await;
        let others = list.connected.into_iter().filter(|entry| entry.replica != self.replica);
        let elsewhere =
            others.flat_map(|entry| entry.instances).filter_map(|instance| instance.reported.cluster);
        let clusters: BTreeSet<String> = here.chain(elsewhere).collect();
        if list.error.is_some() && clusters.len() < 2 {
            // The other replicas are unknown, so that a conflict may continue.
            return;
        }
        self.conflicts.set(agent, name, clusters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);

    #[test]
    fn conflict_is_counted_until_one_cluster_is_left() {
        let (conflicts, name) = (AgentConflicts::default(), "prod".parse().unwrap());
        for (clusters, expected) in
            [(&["a"][..], 0), (&["a", "b"], 1), (&["a", "b", "c"], 1), (&["b"], 0), (&[], 0)]
        {
            conflicts.set(AGENT, &name, clusters.iter().map(|&uid| uid.to_owned()).collect());
            assert_eq!(conflicts.gauge.get(), expected, "{clusters:?}");
            assert_eq!(conflicts.agents().len() as i64, expected);
        }
    }

    #[test]
    fn refusal_is_shown_for_some_minutes() {
        let (conflicts, then) = (AgentConflicts::default(), SystemTime::UNIX_EPOCH);
        conflicts.record_refusal(AGENT, "version", "too old".to_owned(), then);
        assert_eq!(conflicts.refused(AGENT, then + REFUSAL_SHOWN / 2).unwrap().message, "too old");
        assert_eq!(conflicts.refused(AGENT, then + REFUSAL_SHOWN), None);
        assert_eq!(conflicts.refused(AgentId(8), then), None);
    }
}
