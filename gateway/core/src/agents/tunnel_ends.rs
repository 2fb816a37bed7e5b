//! The end of the last tunnel of each agent, for people who ask why an agent is away.

use std::{collections::HashMap, time::SystemTime};

use parking_lot::Mutex;
use proto::AgentId;
use serde::Serialize;
use settings::rfc3339;

/// The most agents whose last tunnel this replica remembers.
const MAX_AGENTS: usize = 10_000;

/// The last ends of tunnels to this replica.
#[derive(Debug, Default)]
pub struct TunnelEnds(Mutex<HashMap<AgentId, TunnelEnd>>);

/// The end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TunnelEnd {
    /// The reason, as it is logged.
    pub(crate) reason: String,
    #[serde(with = "rfc3339")]
    pub(crate) time: SystemTime,
}

impl TunnelEnds {
    /// Returns the end of the last tunnel of an agent to this replica.
    pub fn last(&self, agent: AgentId) -> Option<TunnelEnd> {
        self.0.lock().get(&agent).cloned()
    }

    pub(super) fn record(&self, agent: AgentId, reason: String, time: SystemTime) {
        let mut ends = self.0.lock();
        if ends.len() >= MAX_AGENTS && !ends.contains_key(&agent) {
            let oldest = ends.iter().min_by_key(|(_, end)| end.time).map(|(agent, _)| *agent);
            oldest.map(|agent| ends.remove(&agent));
        }
        ends.insert(agent, TunnelEnd { reason, time });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn oldest_end_is_forgotten() {
        let ends = TunnelEnds::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for agent in 0..=MAX_AGENTS as u64 {
            ends.record(AgentId(agent), "lost".to_owned(), at(agent));
        }
        ends.record(AgentId(7), "closed".to_owned(), at(20_000));
        let reason = |agent| ends.last(AgentId(agent)).map(|end| end.reason);
        assert_eq!((reason(0), reason(1)), (None, Some("lost".to_owned())));
        assert_eq!(reason(7), Some("closed".to_owned()));
    }
}
