//! Who holds what, over all replicas: for operators.

use proto::{AgentId, ReplicaId};

use super::{Shared, wire::MAX_RECORD};
use crate::store::{Holding, StoreError};

/// About how many records are read at once.
const PAGE: usize = 500;
/// Most records that are read of one replica: more than any holds, less than a memory.
const MAX_RECORDS: usize = 1_000_000;

impl Shared {
    pub(super) async fn holdings(&self, agent: Option<AgentId>) -> Result<Vec<Holding>, StoreError> {
        let mut holdings: Vec<Holding> = {
            let own = self.own.lock();
            let wanted = own.iter().filter(|(id, _)| agent.is_none_or(|agent| agent == *id));
            let holding = |(agent, held): (_, &super::Held)| Holding {
                agent,
                replica: self.me,
                instances: held.instances.clone(),
            };
            wanted.map(holding).collect()
        };
        let others = self.members.lock().ids();
        for replica in others {
            match agent {
                Some(agent) => holdings.extend(self.holding(replica, agent).await?),
                None => self.all(replica, &mut holdings).await?,
            }
        }
        Ok(holdings)
    }

    async fn holding(&self, replica: ReplicaId, agent: AgentId) -> Result<Option<Holding>, StoreError> {
        let mut script = self.scripts.lookup.key(self.keys.routes(replica));
        script.arg(agent.0).arg(MAX_RECORD);
        let found: Vec<Vec<u8>> = self.line()?.link.run(&script, &self.counts).await.map_err(StoreError)?;
        let held = found.first().and_then(|record| self.record(record));
        Ok(held.map(|held| Holding { agent, replica, instances: held.instances }))
    }

    async fn all(&self, replica: ReplicaId, into: &mut Vec<Holding>) -> Result<(), StoreError> {
        let (line, mut cursor, mut read) = (self.line()?, b"0".to_vec(), 0);
        loop {
            let mut script = self.scripts.page.key(self.keys.routes(replica));
            script.arg(&cursor).arg(PAGE).arg(MAX_RECORD);
            let mut page: Vec<Vec<u8>> = line.link.run(&script, &self.counts).await.map_err(StoreError)?;
            if page.is_empty() {
                return Err(StoreError("Redis said nothing".to_owned()));
            }
            let records = page.split_off(1);
            for pair in records.chunks_exact(2) {
                let (agent, held) = (self.number(&pair[0]), self.record(&pair[1]));
                let holding = |(agent, held): (u64, super::Held)| Holding {
                    agent: AgentId(agent),
                    replica,
                    instances: held.instances,
                };
                into.extend(agent.zip(held).map(holding));
            }
            read += records.len() / 2;
            cursor = page.swap_remove(0);
            if cursor == b"0" || read > MAX_RECORDS {
                return Ok(());
            }
        }
    }
}
