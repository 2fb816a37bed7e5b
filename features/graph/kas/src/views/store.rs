//! The store of the last values of views: in Redis, or in memory without Redis.

use std::collections::HashMap;

use parking_lot::Mutex;
use proto::AgentId;
use store::{StoreError, redis::RedisStore};

use super::record::ViewsRecord;

/// The most agents whose views are kept in memory. The ones with the oldest values are forgotten.
const MAX_AGENTS: usize = 1000;

/// Keeps the last values of the views of each agent.
#[derive(Debug)]
pub(super) enum ViewStore {
    Memory(Mutex<HashMap<AgentId, ViewsRecord>>),
    Redis(RedisStore),
}

impl ViewStore {
    pub(super) fn new(redis: Option<RedisStore>) -> Self {
        redis.map_or_else(|| Self::Memory(Mutex::default()), Self::Redis)
    }

    /// Returns the last values of an agent.
    pub(super) async fn read(&self, agent: AgentId) -> Result<Option<ViewsRecord>, StoreError> {
        match self {
            Self::Memory(known) => Ok(known.lock().get(&agent).cloned()),
            Self::Redis(redis) => {
                let record = redis.read_views(agent).await?;
                Ok(record.and_then(|record| ViewsRecord::parse(&record)))
            }
        }
    }

    /// Replaces the values of an agent.
    pub(super) async fn write(&self, agent: AgentId, record: ViewsRecord) -> Result<(), StoreError> {
        match self {
            Self::Memory(known) => {
                let mut known = known.lock();
                if known.len() >= MAX_AGENTS && !known.contains_key(&agent) {
                    let oldest = known.iter().min_by_key(|(_, record)| record.time).map(|(agent, _)| *agent);
                    oldest.and_then(|oldest| known.remove(&oldest));
                }
                known.insert(agent, record);
                Ok(())
            }
            Self::Redis(redis) => {
                let text = serde_json::to_string(&record).expect("it has keys that are text");
                redis.write_views(agent, &text).await
            }
        }
    }
}
