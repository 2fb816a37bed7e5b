//! The instances of agents at all replicas: those of other replicas from Redis, those of this replica from memory.

use proto::AgentId;

use super::{
    RedisState,
    lookup::empty_answer,
    wire::{self, MAX_RECORD},
};
use crate::routes::{InstanceList, ReplicaInstances, StoreError};

/// The highest number of agents in one script call of [`RedisState::list_instances`].
const PAGE: usize = 500;

impl RedisState {
    /// Returns the instances of these agents, with one script call for each page.
    pub(super) async fn list_instances(&self, agents: &[AgentId]) -> InstanceList {
        let mut list = InstanceList::default();
        for page in agents.chunks(PAGE) {
            if let Err(error) = self.query_instances(page, &mut list).await {
                list.error = Some(error);
                break;
            }
        }
        let routes = self.routes.lock();
        for agent in agents {
            if let Some(record) = routes.get(*agent) {
                let instances = record.instances.clone();
                list.connected.push(ReplicaInstances { agent: *agent, replica: self.replica, instances });
            } else if let Some(disconnected) = routes.disconnected_since(*agent) {
                let since = list.disconnected.entry(*agent).or_insert(disconnected);
                *since = disconnected.max(*since);
            }
        }
        list
    }

    /// Reads the instances of one page of agents at other replicas.
    async fn query_instances(&self, agents: &[AgentId], list: &mut InstanceList) -> Result<(), StoreError> {
        let others = self.members.lock().ids();
        let mut script = self.scripts.instances.key(self.keys.gone());
        for other in &others {
            script.key(self.keys.routes(*other));
        }
        script.arg(MAX_RECORD);
        for agent in agents {
            script.arg(agent.0);
        }
        let found: Vec<Vec<u8>> = self.query(&script).await?;

        // One row for each key, and in each row one value for each agent.
        let mut rows = found.chunks_exact(agents.len());
        let gone = agents.iter().zip(rows.next().ok_or_else(empty_answer)?);
        list.disconnected.extend(gone.filter_map(|(agent, seconds)| {
            Some((*agent, wire::from_unix_seconds(self.decode_seconds(seconds)?)?))
        }));
        for (replica, records) in others.into_iter().zip(rows) {
            for (agent, record) in agents.iter().zip(records) {
                let record = self.decode_record(record);
                list.connected.extend(record.map(|record| ReplicaInstances {
                    agent: *agent,
                    replica,
                    instances: record.instances,
                }));
            }
        }
        Ok(())
    }
}
