//! Who waits for a change of an agent's record.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::AgentId;
use tokio::sync::Notify;

/// One for each agent that a caller waits for, or has waited for in vain: bounded by the agents that exist.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<HashMap<AgentId, Arc<Notify>>>);

impl Waiting {
    /// Completes when the agent is woken after this call.
    pub(super) fn wait(&self, agent: AgentId) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(self.0.lock().entry(agent).or_default()).notified_owned()
    }

    pub(super) fn wake(&self, agent: AgentId) {
        if let Some(waiting) = self.0.lock().remove(&agent) {
            waiting.notify_waiters();
        }
    }

    pub(super) fn wake_all(&self) {
        for waiting in std::mem::take(&mut *self.0.lock()).into_values() {
            waiting.notify_waiters();
        }
    }
}
