//! Who holds what, over all replicas: for whoever lists agents.

use proto::AgentId;

use super::{
    Shared,
    wire::{self, MAX_RECORD},
};
use crate::store::{Holding, Holdings, StoreError};

/// Most agents that are asked for at once.
const PAGE: usize = 500;

impl Shared {
    /// Asks Redis once for each page, however many replicas there are.
    pub(super) async fn holdings(&self, agents: &[AgentId]) -> Holdings {
        let mut holdings = Holdings::default();
        for page in agents.chunks(PAGE) {
            if let Err(error) = self.others_hold(page, &mut holdings).await {
                holdings.missing = Some(error);
                break;
            }
        }
        let own = self.own.lock();
        for agent in agents {
            if let Some(held) = own.get(*agent) {
                let instances = held.instances.clone();
                holdings.held.push(Holding { agent: *agent, replica: self.me, instances });
            } else if let Some(left) = own.left(*agent) {
                let since = holdings.gone.entry(*agent).or_insert(left);
                *since = left.max(*since);
            }
        }
        holdings
    }

    async fn others_hold(&self, agents: &[AgentId], into: &mut Holdings) -> Result<(), StoreError> {
        let line = self.line()?;
        let others = self.members.lock().ids();
        let mut script = self.scripts.holdings.key(self.keys.gone());
        for other in &others {
            script.key(self.keys.routes(*other));
        }
        script.arg(MAX_RECORD);
        for agent in agents {
            script.arg(agent.0);
        }
        let found: Vec<Vec<u8>> = line.link.run(&script, &self.counts).await.map_err(|error| {
            self.give_up(&line);
            StoreError(error)
        })?;

        let mut rows = found.chunks_exact(agents.len());
        let gone = rows.next().ok_or_else(|| StoreError("Redis said nothing".to_owned()))?;
        let times = agents.iter().zip(gone);
        into.gone.extend(times.filter_map(|(agent, text)| Some((*agent, wire::time(self.number(text)?)?))));
        for (replica, records) in others.into_iter().zip(rows) {
            for (agent, record) in agents.iter().zip(records) {
                let held = self.record(record);
                let holding = held.map(|held| Holding { agent: *agent, replica, instances: held.instances });
                into.held.extend(holding);
            }
        }
        Ok(())
    }
}
