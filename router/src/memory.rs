//! The embedded store: one replica, nothing to install. Forgets everything at exit.

use std::{collections::HashMap, future::ready, sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use proto::{AgentId, ReplicaId};
use tokio::sync::Notify;

use crate::store::{
    BoxFuture, Health, Holding, Holdings, Instance, Record, Replica, Route, RouteStore, StoreError,
};

/// A [`RouteStore`] for the replicas of one process: one, except in tests.
#[derive(Debug, Default)]
pub struct MemoryStore {
    agents: Mutex<HashMap<AgentId, Entry>>,
    replicas: Mutex<HashMap<ReplicaId, Replica>>,
    loads: Mutex<HashMap<ReplicaId, u32>>,
}

#[derive(Debug, Default)]
struct Entry {
    record: Record,
    instances: HashMap<ReplicaId, Vec<Instance>>,
    changed: Arc<Notify>,
}

impl MemoryStore {
    /// Says where a replica is reached.
    pub fn join(&self, replica: Replica) {
        self.replicas.lock().insert(replica.id, replica);
    }

    /// A replica is gone.
    pub fn leave(&self, replica: ReplicaId) {
        self.replicas.lock().remove(&replica);
        self.loads.lock().remove(&replica);
    }

    fn edit(&self, agent: AgentId, edit: impl FnOnce(&mut Entry) -> bool) {
        let mut agents = self.agents.lock();
        let entry = agents.entry(agent).or_default();
        if edit(entry) {
            entry.changed.notify_waiters();
        }
    }
}

impl RouteStore for MemoryStore {
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        self.edit(agent, |Entry { record, .. }| {
            record.gone_since = None;
            match record.routes.iter_mut().find(|known| known.replica == route.replica) {
                Some(known) if known.epoch >= route.epoch => false,
                Some(known) => {
                    *known = route;
                    true
                }
                None => {
                    record.routes.push(route);
                    true
                }
            }
        });
        Box::pin(ready(Ok(())))
    }

    fn describe(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>) {
        self.agents.lock().entry(agent).or_default().instances.insert(replica, instances);
    }

    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        self.edit(agent, |Entry { record, instances, .. }| {
            let before = record.routes.len();
            record.routes.retain(|known| known.replica != route.replica || known.epoch > route.epoch);
            let removed = record.routes.len() < before;
            if removed {
                instances.remove(&route.replica);
            }
            if removed && record.routes.is_empty() {
                record.gone_since = Some(SystemTime::now());
            }
            removed
        });
        Box::pin(ready(Ok(())))
    }

    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<Record, StoreError>> {
        let record = self.agents.lock().get(&agent).map(|entry| entry.record.clone());
        Box::pin(ready(Ok(record.unwrap_or_default())))
    }

    fn replica(&self, id: ReplicaId) -> Option<Replica> {
        self.replicas.lock().get(&id).cloned()
    }

    /// All of them: it speaks for each of its replicas.
    fn replicas(&self) -> Vec<Replica> {
        self.replicas.lock().values().cloned().collect()
    }

    fn tell_load(&self, replica: ReplicaId, tunnels: Option<u32>) {
        let mut loads = self.loads.lock();
        loads.remove(&replica);
        loads.extend(tunnels.map(|tunnels| (replica, tunnels)));
    }

    fn loads(&self) -> Vec<(ReplicaId, u32)> {
        self.loads.lock().iter().map(|(replica, tunnels)| (*replica, *tunnels)).collect()
    }

    fn change(&self, agent: AgentId) -> BoxFuture<'static, ()> {
        let changed = Arc::clone(&self.agents.lock().entry(agent).or_default().changed);
        Box::pin(changed.notified_owned())
    }

    fn holdings<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, Holdings> {
        let (mut holdings, known) = (Holdings::default(), self.agents.lock());
        for (agent, entry) in agents.iter().filter_map(|agent| Some((*agent, known.get(agent)?))) {
            for Route { replica, .. } in &entry.record.routes {
                let instances = entry.instances.get(replica).cloned().unwrap_or_default();
                holdings.held.push(Holding { agent, replica: *replica, instances });
            }
            holdings.gone.extend(entry.record.gone_since.map(|since| (agent, since)));
        }
        Box::pin(ready(holdings))
    }

    fn health(&self) -> Health {
        Health::Healthy
    }
}
