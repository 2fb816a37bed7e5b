//! [`Waiters`]: wakes the callers that wait for a tunnel or a route of an agent. [`RouteChanges`]: the changes of all routes.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::AgentId;
use tokio::sync::{Notify, broadcast};

/// The number of changes of routes that a slow receiver may be behind.
const CAPACITY: usize = 4096;

/// A change of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// The routes of this agent have changed.
    Agent(AgentId),
    /// The routes of any agent may have changed.
    All,
}

/// Sends changes of routes to the tasks that follow all of them.
#[derive(Debug)]
pub(crate) struct RouteChanges(broadcast::Sender<RouteChange>);

impl Default for RouteChanges {
    fn default() -> Self {
        Self(broadcast::Sender::new(CAPACITY))
    }
}

impl RouteChanges {
    pub(crate) fn send(&self, change: RouteChange) {
        // Fails if no task follows.
        _ = self.0.send(change);
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<RouteChange> {
        self.0.subscribe()
    }
}

/// The callers that wait for an agent.
///
/// It has one entry for each agent that a caller waits for, or waited for in vain: bounded by the agents that exist.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<HashMap<AgentId, Arc<Notify>>>);

impl Waiters {
    /// Completes when the agent is woken after this call.
    pub fn wait(&self, agent: AgentId) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(self.0.lock().entry(agent).or_default()).notified_owned()
    }

    /// Wakes the callers that wait for this agent.
    pub fn wake(&self, agent: AgentId) {
        if let Some(waiters) = self.0.lock().remove(&agent) {
            waiters.notify_waiters();
        }
    }

    /// Wakes all waiting callers.
    pub fn wake_all(&self) {
        for waiters in std::mem::take(&mut *self.0.lock()).into_values() {
            waiters.notify_waiters();
        }
    }
}
