//! Panics: a panic of the directory ends one request or one tunnel, and no more.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::token::{self, Holder};
use futures_util::future::BoxFuture;
use http::Response;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kas_core::peers::ReplicaContext;
use kas_testing::world::{World, configuration, text};
use proto::{AgentId, InstanceId, ReplicaId, notify::ProjectEvent};
use store::{
    AgentRoutes, CursorRequest, CursorStore, EndedSessions, EventPage, EventPosition, EventStore, GitPush,
    Instance, InstanceList, LeaseRequest, LeaseStore, MemoryStore, NewEvent, NewSession, ProjectAgent,
    ProjectAgentList, ProjectEventStore, PushStore, RecordedEvent, Replica, Route, RouteChange, RouteStore,
    SessionId, SessionLimits, SessionStore, Store, StoreError, StoreHealth,
};
use tokio::sync::{broadcast, watch};

/// A store that panics while `broken` is set.
#[derive(Debug, Default)]
struct BrokenStore {
    store: MemoryStore,
    broken: AtomicBool,
    panics: AtomicUsize,
}

impl BrokenStore {
    fn check(&self) -> &MemoryStore {
        if self.broken.load(Relaxed) {
            self.panics.fetch_add(1, Relaxed);
            panic!("the defect of the test");
        }
        &self.store
    }
}

impl RouteStore for BrokenStore {
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        self.check().announce(agent, route)
    }

    fn set_instances(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>) {
        self.check().set_instances(agent, replica, instances);
    }

    fn set_project(&self, agent: ProjectAgent, replica: ReplicaId) {
        self.check().set_project(agent, replica);
    }

    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        self.check().withdraw(agent, route)
    }

    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<AgentRoutes, StoreError>> {
        self.check().lookup(agent)
    }

    fn replica(&self, id: ReplicaId) -> Option<Replica> {
        self.store.replica(id)
    }

    fn replicas(&self) -> Vec<Replica> {
        self.store.replicas()
    }

    fn set_load(&self, replica: ReplicaId, tunnels: Option<u32>) {
        self.store.set_load(replica, tunnels);
    }

    fn loads(&self) -> Vec<(ReplicaId, u32)> {
        self.store.loads()
    }

    fn changed(&self, agent: AgentId) -> BoxFuture<'static, ()> {
        self.check().changed(agent)
    }

    fn list_instances<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, InstanceList> {
        self.store.list_instances(agents)
    }

    fn list_project_agents(&self, project: Option<u64>) -> BoxFuture<'_, ProjectAgentList> {
        self.store.list_project_agents(project)
    }

    fn route_changes(&self) -> broadcast::Receiver<RouteChange> {
        self.store.route_changes()
    }

    fn health(&self) -> StoreHealth {
        self.store.health()
    }
}

impl SessionStore for BrokenStore {
    fn begin_session(
        &self,
        session: NewSession,
        limits: SessionLimits,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.begin_session(session, limits)
    }

    fn replace_session(&self, id: SessionId, record: Vec<u8>) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.store.replace_session(id, record)
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.store.session(id)
    }

    fn live_sessions<'a>(&'a self, ids: &'a [SessionId]) -> BoxFuture<'a, Result<Vec<bool>, StoreError>> {
        self.store.live_sessions(ids)
    }

    fn session_ttl(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Duration>, StoreError>> {
        self.store.session_ttl(id)
    }

    fn end_sessions(&self, sessions: EndedSessions) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.store.end_sessions(sessions)
    }
}

impl LeaseStore for BrokenStore {
    fn renew_leases<'a>(
        &'a self,
        replica: ReplicaId,
        requests: &'a [LeaseRequest],
    ) -> BoxFuture<'a, Result<Vec<u16>, StoreError>> {
        self.store.renew_leases(replica, requests)
    }
}

impl PushStore for BrokenStore {
    fn send_push(&self, push: GitPush) {
        self.store.send_push(push);
    }

    fn pushes(&self) -> broadcast::Receiver<GitPush> {
        self.store.pushes()
    }
}

impl ProjectEventStore for BrokenStore {
    fn name_projects<'a>(&'a self, projects: &'a [String]) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.name_projects(projects)
    }

    fn record_event<'a>(
        &'a self,
        event: &'a ProjectEvent,
    ) -> BoxFuture<'a, Result<RecordedEvent, StoreError>> {
        self.store.record_event(event)
    }

    fn latest_events<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<Vec<ProjectEvent>, StoreError>> {
        self.store.latest_events(project)
    }
}

impl EventStore for BrokenStore {
    fn append_events(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.append_events(events)
    }

    fn last_event_of(&self, agent: AgentId, instance: InstanceId) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.store.last_event_of(agent, instance)
    }

    fn events(&self, after: EventPosition, limit: usize) -> EventPage {
        self.store.events(after, limit)
    }

    fn event_changes(&self) -> watch::Receiver<EventPosition> {
        self.store.event_changes()
    }
}

impl CursorStore for BrokenStore {
    fn event_cursor<'a>(
        &'a self,
        name: &'a str,
        replica: ReplicaId,
        request: CursorRequest,
    ) -> BoxFuture<'a, Result<Option<EventPosition>, StoreError>> {
        self.store.event_cursor(name, replica, request)
    }
}

fn world() -> (World, Arc<BrokenStore>) {
    let (store, mut config) = (Arc::new(BrokenStore::default()), configuration());
    config.agent.listen.max_tunnels_per_agent = 2;
    let fleet = ReplicaContext::standalone(
        ReplicaId::random(),
        Arc::clone(&store) as Arc<dyn Store>,
        config.peer_settings(),
    );
    let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
    (World::replica(fleet, config, tokens, None, None), store)
}

async fn refuses_as_defect(response: Response<Incoming>) {
    assert_eq!(
        (response.status().as_u16(), response.headers()["kas-error"].as_bytes()),
        (500, &b"internal"[..])
    );
    let body = text(response).await;
    assert!(body.contains("a defect of kas; the log of kas has the panic"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn panic_fails_its_request_and_its_connection_goes_on() {
    let (world, store) = world();
    store.broken.store(true, Relaxed);
    let (near, path) = (TokioIo::new(world.connect()), "/agents/prod/kubernetes/version");
    let (mut sender, connection) = http1::handshake(near).await.unwrap();
    tokio::spawn(connection);
    refuses_as_defect(sender.send_request(world.request(path)).await.unwrap()).await;
    sender.ready().await.unwrap();
    assert_eq!(sender.send_request(world.request("/nowhere")).await.unwrap().status(), 404);

    let (near, path) = (TokioIo::new(world.connect()), format!("https://kas{path}"));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), near).await.unwrap();
    tokio::spawn(connection);
    refuses_as_defect(sender.send_request(world.request(&path)).await.unwrap()).await;
    assert_eq!(sender.send_request(world.request("https://kas/nowhere")).await.unwrap().status(), 404);
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn panic_ends_its_tunnel_and_releases_its_place() {
    let (world, store) = world();
    store.broken.store(true, Relaxed);
    let _agent = world.start_agent(agentk_core::Services::new());
    while store.panics.load(Relaxed) < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.tunnels(0).await;
    store.broken.store(false, Relaxed);
    world.tunnels(2).await;
}
