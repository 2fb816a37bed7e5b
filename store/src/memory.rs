//! The embedded store: for one replica, in memory, without anything to install.

use std::{
    collections::HashMap,
    future::ready,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use proto::{AgentId, InstanceId, ReplicaId, notify::ProjectEvent};
use tokio::{
    sync::{broadcast, watch},
    time::Instant,
};

use crate::{
    cursors::{CursorRequest, CursorStore, CursorTable},
    events::{EventPage, EventPosition, EventStore, EventTable, LoggedEvent, NewEvent, StateTable},
    leases::{LeaseRequest, LeaseStore, LeaseTable},
    project_events::{ProjectEventStore, ProjectEventTable, RecordedEvent},
    pushes::{GitPush, PushEvents, PushStore},
    routes::{
        AgentRoutes, Instance, InstanceList, ProjectAgent, ProjectAgentList, Replica, ReplicaInstances,
        Route, RouteStore, StoreError, StoreHealth,
    },
    sessions::{EndedSessions, NewSession, SessionId, SessionLimits, SessionStore, SessionTable},
    waiters::{RouteChange, RouteChanges, Waiters},
};

/// The records of the replicas of one process, which is one replica except in tests.
#[derive(Debug)]
pub struct MemoryStore {
    agents: Mutex<HashMap<AgentId, AgentEntry>>,
    replicas: Mutex<HashMap<ReplicaId, Replica>>,
    loads: Mutex<HashMap<ReplicaId, u32>>,
    leases: Mutex<LeaseTable>,
    sessions: Mutex<SessionTable>,
    waiters: Waiters,
    pushes: PushEvents,
    events: Mutex<ProjectEventTable>,
    route_changes: RouteChanges,
    logged: Mutex<(EventTable, StateTable)>,
    cursors: Mutex<CursorTable>,
}

#[derive(Debug, Default)]
struct AgentEntry {
    routes: Vec<Route>,
    disconnected_since: Option<SystemTime>,
    instances: HashMap<ReplicaId, Vec<Instance>>,
    project: Option<ProjectAgent>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            agents: Mutex::default(),
            replicas: Mutex::default(),
            loads: Mutex::default(),
            leases: Mutex::default(),
            sessions: Mutex::default(),
            waiters: Waiters::default(),
            pushes: PushEvents::default(),
            events: Mutex::default(),
            route_changes: RouteChanges::default(),
            logged: Mutex::new((EventTable::begun_at(SystemTime::now()), StateTable::default())),
            cursors: Mutex::default(),
        }
    }
}

impl MemoryStore {
    /// Adds a replica and its address.
    pub fn join(&self, replica: Replica) {
        self.replicas.lock().insert(replica.id, replica);
    }

    /// Removes a replica.
    pub fn leave(&self, replica: ReplicaId) {
        self.replicas.lock().remove(&replica);
        self.loads.lock().remove(&replica);
    }

    /// Changes the entry of an agent, and wakes its waiters if `edit` returns true.
    fn edit(&self, agent: AgentId, edit: impl FnOnce(&mut AgentEntry) -> bool) {
        let changed = edit(self.agents.lock().entry(agent).or_default());
        if changed {
            self.waiters.wake(agent);
            self.route_changes.send(RouteChange::Agent(agent));
        }
    }
}

impl RouteStore for MemoryStore {
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        self.edit(agent, |entry| {
            entry.disconnected_since = None;
            match entry.routes.iter_mut().find(|known| known.replica == route.replica) {
                Some(known) if known.epoch >= route.epoch => false,
                Some(known) => {
                    *known = route;
                    true
                }
                None => {
                    entry.routes.push(route);
                    true
                }
            }
        });
        Box::pin(ready(Ok(())))
    }

    fn set_instances(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>) {
        self.agents.lock().entry(agent).or_default().instances.insert(replica, instances);
    }

    fn set_project(&self, agent: ProjectAgent, _: ReplicaId) {
        let id = agent.agent;
        self.agents.lock().entry(id).or_default().project = Some(agent);
    }

    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        self.edit(agent, |entry| {
            let before = entry.routes.len();
            entry.routes.retain(|known| known.replica != route.replica || known.epoch > route.epoch);
            let removed = entry.routes.len() < before;
            if removed {
                entry.instances.remove(&route.replica);
            }
            if removed && entry.routes.is_empty() {
                entry.disconnected_since = Some(SystemTime::now());
                entry.project = None;
            }
            removed
        });
        Box::pin(ready(Ok(())))
    }

    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<AgentRoutes, StoreError>> {
        let agents = self.agents.lock();
        let found = agents.get(&agent).map(|AgentEntry { routes, disconnected_since, .. }| AgentRoutes {
            routes: routes.clone(),
            disconnected_since: *disconnected_since,
        });
        Box::pin(ready(Ok(found.unwrap_or_default())))
    }

    fn replica(&self, id: ReplicaId) -> Option<Replica> {
        self.replicas.lock().get(&id).cloned()
    }

    /// Returns all replicas. They share this store, so that it cannot leave out the replica of the caller.
    fn replicas(&self) -> Vec<Replica> {
        self.replicas.lock().values().cloned().collect()
    }

    fn set_load(&self, replica: ReplicaId, tunnels: Option<u32>) {
        let mut loads = self.loads.lock();
        loads.remove(&replica);
        loads.extend(tunnels.map(|tunnels| (replica, tunnels)));
    }

    fn loads(&self) -> Vec<(ReplicaId, u32)> {
        self.loads.lock().iter().map(|(replica, tunnels)| (*replica, *tunnels)).collect()
    }

    fn changed(&self, agent: AgentId) -> BoxFuture<'static, ()> {
        Box::pin(self.waiters.wait(agent))
    }

    fn list_instances<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, InstanceList> {
        let (mut list, known) = (InstanceList::default(), self.agents.lock());
        for (agent, entry) in agents.iter().filter_map(|agent| Some((*agent, known.get(agent)?))) {
            for Route { replica, .. } in &entry.routes {
                let instances = entry.instances.get(replica).cloned().unwrap_or_default();
                list.connected.push(ReplicaInstances { agent, replica: *replica, instances });
            }
            list.disconnected.extend(entry.disconnected_since.map(|since| (agent, since)));
        }
        Box::pin(ready(list))
    }

    fn list_project_agents(&self, project: Option<u64>) -> BoxFuture<'_, ProjectAgentList> {
        let known = self.agents.lock();
        let connected = known.values().filter(|entry| !entry.routes.is_empty());
        let mut agents: Vec<ProjectAgent> = connected
            .filter_map(|entry| entry.project.clone())
            .filter(|agent| project.is_none_or(|project| agent.project == project))
            .collect();
        agents.sort();
        Box::pin(ready(ProjectAgentList { agents, error: None }))
    }

    fn route_changes(&self) -> broadcast::Receiver<RouteChange> {
        self.route_changes.subscribe()
    }

    fn health(&self) -> StoreHealth {
        StoreHealth::Healthy
    }
}

impl SessionStore for MemoryStore {
    fn begin_session(
        &self,
        session: NewSession,
        limits: SessionLimits,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.sessions.lock().begin(session, limits, Instant::now());
        Box::pin(ready(Ok(())))
    }

    fn replace_session(&self, id: SessionId, record: Vec<u8>) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(ready(Ok(self.sessions.lock().replace(id, record, Instant::now()))))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(ready(Ok(self.sessions.lock().read(id, Instant::now()))))
    }

    fn live_sessions<'a>(&'a self, ids: &'a [SessionId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        let (sessions, now) = (self.sessions.lock(), Instant::now());
        Box::pin(ready(Ok(ids.iter().map(|id| sessions.is_live(*id, now)).collect())))
    }

    fn session_ttl(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Duration>, StoreError>> {
        Box::pin(ready(Ok(self.sessions.lock().ttl(id, Instant::now()))))
    }

    fn end_sessions(&self, sessions: EndedSessions) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(ready(Ok(self.sessions.lock().end(sessions, Instant::now()))))
    }
}

impl LeaseStore for MemoryStore {
    fn renew_leases<'a>(
        &'a self,
        replica: ReplicaId,
        requests: &'a [LeaseRequest],
    ) -> BoxFuture<'a, Result<Vec<u16>, StoreError>> {
        let (mut leases, now) = (self.leases.lock(), Instant::now());
        let granted = requests.iter().map(|request| leases.renew(replica, request, now)).collect();
        Box::pin(ready(Ok(granted)))
    }
}

impl PushStore for MemoryStore {
    fn send_push(&self, push: GitPush) {
        self.pushes.send(push);
    }

    fn pushes(&self) -> broadcast::Receiver<GitPush> {
        self.pushes.subscribe()
    }
}

impl ProjectEventStore for MemoryStore {
    fn name_projects<'a>(&'a self, projects: &'a [String]) -> BoxFuture<'a, Result<(), StoreError>> {
        let (mut events, now) = (self.events.lock(), SystemTime::now());
        projects.iter().for_each(|project| events.name_project(project, now));
        Box::pin(ready(Ok(())))
    }

    fn record_event<'a>(
        &'a self,
        event: &'a ProjectEvent,
    ) -> BoxFuture<'a, Result<RecordedEvent, StoreError>> {
        let recorded = self.events.lock().record(event, SystemTime::now());
        Box::pin(ready(Ok(recorded)))
    }

    fn latest_events<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<Vec<ProjectEvent>, StoreError>> {
        let latest = self.events.lock().latest(project);
        Box::pin(ready(Ok(latest)))
    }
}

impl EventStore for MemoryStore {
    fn append_events(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<(), StoreError>> {
        let (log, states) = &mut *self.logged.lock();
        for new in events.into_iter().filter(NewEvent::fits) {
            let NewEvent { key, origin, state, event } = new;
            let is_new = origin.is_none_or(|origin| states.note_origin(&event, origin))
                && !log.has(&key)
                && state.is_none_or(|state| states.note_state(&event, &state));
            if is_new {
                let position = log.next_position(SystemTime::now());
                log.insert(LoggedEvent { position, key: key.into(), event });
            }
        }
        Box::pin(ready(Ok(())))
    }

    fn last_event_of(&self, agent: AgentId, instance: InstanceId) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(ready(Ok(self.logged.lock().1.last_origin(agent, instance))))
    }

    fn events(&self, after: EventPosition, limit: usize) -> EventPage {
        self.logged.lock().0.read(after, limit)
    }

    fn event_changes(&self) -> watch::Receiver<EventPosition> {
        self.logged.lock().0.changes()
    }
}

impl CursorStore for MemoryStore {
    fn event_cursor<'a>(
        &'a self,
        name: &'a str,
        replica: ReplicaId,
        request: CursorRequest,
    ) -> BoxFuture<'a, Result<Option<EventPosition>, StoreError>> {
        let position = self.cursors.lock().apply(name, replica, request, Instant::now());
        Box::pin(ready(Ok(position)))
    }
}
