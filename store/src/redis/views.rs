//! The last values of the views of agents, which replicas share. Their contents are the caller's.

use proto::AgentId;

use super::{RecordPlace, RedisStore, keys::VIEWS_TTL};
use crate::routes::StoreError;

impl RedisStore {
    /// Keeps the record of the views of an agent, a JSON object, for a week.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn write_views(&self, agent: AgentId, record: &str) -> Result<(), StoreError> {
        let shared = &self.0;
        let record = shared.seal(place(&agent.to_string()), record);
        let mut script = shared.scripts.views.key(shared.keys.views(agent));
        script.arg(record).arg(VIEWS_TTL.as_millis() as u64);
        shared.query::<Vec<u8>>(&script).await.map(drop)
    }

    /// Returns the record of the views of an agent, at most 256 KiB of it, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn read_views(&self, agent: AgentId) -> Result<Option<Vec<u8>>, StoreError> {
        let shared = &self.0;
        let record: Vec<u8> = shared.query(&shared.scripts.views.key(shared.keys.views(agent))).await?;
        Ok(Some(record)
            .filter(|record| !record.is_empty())
            .and_then(|it| shared.open(place(&agent.to_string()), it)))
    }
}

/// Returns the place of the views of an agent.
fn place(agent: &str) -> RecordPlace<'_> {
    RecordPlace { kind: "views", key: agent }
}
