//! The environments that agents name in their configurations, which replicas share. Their contents are the caller's.

use proto::AgentId;

use super::{RecordPlace, RedisStore, keys::ENVIRONMENTS_TTL};
use crate::routes::StoreError;

/// The place of the records, which name their agents.
const PLACE: RecordPlace<'_> = RecordPlace { kind: "environments", key: "" };

impl RedisStore {
    /// Keeps the record of an agent, a JSON object of less than 16 KiB, or removes it.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn write_environments(&self, agent: AgentId, record: Option<&str>) -> Result<(), StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.environments.key(shared.keys.environments());
        script
            .arg(agent.to_string())
            .arg(ENVIRONMENTS_TTL.as_millis() as u64)
            .arg(record.map(|record| shared.seal(PLACE, record)).unwrap_or_default());
        shared.query::<Vec<Vec<u8>>>(&script).await.map(drop)
    }

    /// Returns the records of all agents.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn environments(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let shared = &self.0;
        let script = shared.scripts.environments.key(shared.keys.environments());
        let records: Vec<Vec<u8>> = shared.query(&script).await?;
        Ok(records.into_iter().filter_map(|record| shared.open(PLACE, record)).collect())
    }
}
