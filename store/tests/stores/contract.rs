//! The contract of `Store`, as one suite that runs on every implementation.

use std::{
    slice,
    time::{Duration, SystemTime},
};

use proto::{
    AgentId, Epoch, InstanceId, ReplicaId,
    notify::{ProjectEvent, ProjectEventFields},
};
use store::{
    EndedSessions, GitPush, Instance, LEASE_TTL, LeaseRequest, MemoryStore, NewSession, ProjectAgent,
    RecordedEvent, ReportedInfo, Route, SessionHolder, SessionId, SessionLimits, Store,
};
use tokio::time::timeout;

use crate::{TestReplica, events, redis};

#[tokio::test(start_paused = true)]
async fn memory_store_fulfils_contract() {
    let store = MemoryStore::default();
    let [here, there] = [ReplicaId::random(), ReplicaId::random()].map(|id| TestStore { store: &store, id });
    check_contract(here, there).await;
}

#[tokio::test]
async fn redis_store_fulfils_contract() {
    let Some(server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    let [here, there] = [&here, &there].map(|replica| TestStore { store: &*replica.store, id: replica.id });
    check_contract(here, there).await;
}

/// A replica and its store, which both replicas may share.
#[derive(Clone, Copy)]
struct TestStore<'a> {
    store: &'a dyn Store,
    id: ReplicaId,
}

async fn check_contract(here: TestStore<'_>, there: TestStore<'_>) {
    unknown_agent_has_no_routes(here).await;
    announce_and_withdraw_are_idempotent(here).await;
    lower_epoch_is_ignored(here).await;
    replica_changes_only_its_own_route(here, there).await;
    changes_are_pushed(here).await;
    changes_are_pushed_to_other_replicas(here, there).await;
    instances_are_listed_by_all_replicas(here, there).await;
    agents_of_a_project_are_listed_by_all_replicas(here, there).await;
    pushes_reach_all_replicas(here, there).await;
    latest_event_of_each_reference_is_kept_once(here, there).await;
    events_of_projects_without_a_name_are_not_kept(here, there).await;
    leases_are_shared_evenly(here, there).await;
    lease_is_free_once_it_is_given_up_or_expires(here, there).await;
    leases_go_to_replicas_that_can_dial(here, there).await;
    older_lease_request_is_ignored(here, there).await;
    session_is_read_by_all_replicas_until_it_ends(here, there).await;
    session_that_is_replaced_keeps_its_end(here, there).await;
    sessions_of_a_holder_end_together(here, there).await;
    session_that_ends_first_ends_in_favour_of_a_new_one(here, there).await;
    events::check_contract((here.store, here.id), (there.store, there.id)).await;
}

impl TestStore<'_> {
    fn route(&self, epoch: u64) -> Route {
        Route { replica: self.id, epoch: Epoch(epoch) }
    }

    async fn announce(&self, agent: AgentId, epoch: u64) {
        self.store.announce(agent, self.route(epoch)).await.unwrap();
    }

    async fn withdraw(&self, agent: AgentId, epoch: u64) {
        self.store.withdraw(agent, self.route(epoch)).await.unwrap();
    }

    async fn lease(&self, request: LeaseRequest) -> u16 {
        let granted = self.store.renew_leases(self.id, &[request]).await.unwrap();
        let [tunnels] = granted[..] else { panic!("{granted:?}") };
        tunnels
    }

    /// Begins a session. There may be five, and three of a holder.
    async fn begin(&self, number: u8, holder: u8, ttl: Duration) {
        let (id, holder) = (session(number), SessionHolder([holder; 16]));
        let session = NewSession { id, holder, record: format!("record {number}").into_bytes(), ttl };
        let limits = SessionLimits { sessions: 5, per_holder: 3 };
        self.store.begin_session(session, limits).await.unwrap();
    }

    async fn live(&self, numbers: &[u8]) -> Vec<bool> {
        let ids: Vec<SessionId> = numbers.iter().map(|number| session(*number)).collect();
        self.store.live_sessions(&ids).await.unwrap()
    }

    async fn routes(&self, agent: AgentId) -> Vec<Route> {
        self.store.lookup(agent).await.unwrap().routes
    }
}

async fn unknown_agent_has_no_routes(here: TestStore<'_>) {
    let record = here.store.lookup(AgentId(1)).await.unwrap();
    assert!(record.routes.is_empty());
    assert_eq!(record.disconnected_since, None, "an agent that never connected has not disconnected");
}

async fn announce_and_withdraw_are_idempotent(here: TestStore<'_>) {
    let agent = AgentId(2);
    here.announce(agent, 1).await;
    here.announce(agent, 1).await;
    assert_eq!(here.routes(agent).await, [here.route(1)]);

    here.withdraw(agent, 1).await;
    here.withdraw(agent, 1).await;
    let record = here.store.lookup(agent).await.unwrap();
    assert!(record.routes.is_empty());
    assert!(record.disconnected_since.is_some());

    here.announce(agent, 2).await;
    assert_eq!(here.store.lookup(agent).await.unwrap().disconnected_since, None);
}

async fn lower_epoch_is_ignored(here: TestStore<'_>) {
    let agent = AgentId(3);
    here.announce(agent, 5).await;
    here.withdraw(agent, 4).await;
    here.announce(agent, 3).await;
    assert_eq!(here.routes(agent).await, [here.route(5)]);
}

async fn replica_changes_only_its_own_route(here: TestStore<'_>, there: TestStore<'_>) {
    let agent = AgentId(4);
    there.announce(agent, 1).await;
    here.announce(agent, 1).await;
    here.withdraw(agent, 9).await;
    wait_routes(there, agent, &[there.route(1)]).await;
    wait_routes(here, agent, &[there.route(1)]).await;
}

async fn changes_are_pushed(here: TestStore<'_>) {
    let agent = AgentId(5);
    let (change, other) = (here.store.changed(agent), here.store.changed(AgentId(6)));
    here.announce(agent, 1).await;
    timeout(Duration::from_secs(5), change).await.expect("the change is pushed");
    assert!(timeout(Duration::from_millis(100), other).await.is_err(), "another agent did not change");

    let change = here.store.changed(agent);
    here.withdraw(agent, 1).await;
    timeout(Duration::from_secs(5), change).await.expect("the change is pushed");
}

async fn changes_are_pushed_to_other_replicas(here: TestStore<'_>, there: TestStore<'_>) {
    let agent = AgentId(7);
    for epoch in 1..20 {
        let change = there.store.changed(agent);
        here.announce(agent, epoch).await;
        timeout(Duration::from_secs(5), change).await.expect("the change is pushed");
        assert_eq!(
            there.routes(agent).await,
            [here.route(epoch)],
            "a lookup after the push returns the change"
        );
        let change = there.store.changed(agent);
        here.withdraw(agent, epoch).await;
        timeout(Duration::from_secs(5), change).await.expect("the change is pushed");
        let record = there.store.lookup(agent).await.unwrap();
        assert!(record.routes.is_empty() && record.disconnected_since.is_some());
    }
}

async fn pushes_reach_all_replicas(here: TestStore<'_>, there: TestStore<'_>) {
    let (mut local, mut remote) = (here.store.pushes(), there.store.pushes());
    let pushes = (1..=100).map(|project| GitPush::new(project, &format!("group/project-{project}")).unwrap());
    let pushes: Vec<GitPush> = pushes.collect();
    for push in &pushes {
        here.store.send_push(push.clone());
    }
    for receiver in [&mut local, &mut remote] {
        for push in &pushes {
            let received = timeout(Duration::from_secs(5), receiver.recv()).await.expect("it arrives");
            assert_eq!(received.as_ref(), Ok(push));
        }
        assert!(receiver.is_empty(), "once");
    }
}

fn event(project: &str, reference: &str, id: &str) -> ProjectEvent {
    let fields = ProjectEventFields {
        id: id.to_owned(),
        sequence: 0,
        project: project.to_owned(),
        reference: (!reference.is_empty()).then(|| reference.to_owned()),
        before: None,
        after: Some("a".repeat(40)),
        urls: vec!["https://gitlab.example.com/group/project.git".to_owned()],
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
    };
    fields.try_into().unwrap()
}

async fn latest_event_of_each_reference_is_kept_once(here: TestStore<'_>, there: TestStore<'_>) {
    let (project, main) = ("group/with-events", "refs/heads/main");
    here.store.name_projects(&[project.to_owned()]).await.unwrap();
    let first = event(project, main, "1");
    let RecordedEvent::New(recorded) = here.store.record_event(&first).await.unwrap() else {
        panic!("it is new")
    };
    assert!(recorded.fields().sequence > 1_700_000_000_000, "about the time in milliseconds");
    for store in [here, there] {
        assert_eq!(store.store.record_event(&first).await.unwrap(), RecordedEvent::Known);
        assert_eq!(store.store.latest_events(project).await.unwrap(), slice::from_ref(&recorded));
    }
    let second = there.store.record_event(&event(project, main, "2")).await.unwrap();
    let RecordedEvent::New(second) = second else { panic!("it is new") };
    assert!(second.fields().sequence > recorded.fields().sequence);
    let unknown = here.store.record_event(&event(project, "", "3")).await.unwrap();
    let RecordedEvent::New(unknown) = unknown else { panic!("it is new") };
    // The oldest events are forgotten.
    for number in 0..99 {
        here.store.record_event(&event(project, &format!("refs/tags/{number}"), "1")).await.unwrap();
    }
    let mut latest = there.store.latest_events(project).await.unwrap();
    latest.sort_by_key(|event| event.fields().sequence);
    assert_eq!((latest.len(), &latest[0]), (100, &unknown), "{second:?} is the oldest of 101");
}

async fn events_of_projects_without_a_name_are_not_kept(here: TestStore<'_>, there: TestStore<'_>) {
    let recorded = here.store.record_event(&event("group/unknown", "refs/heads/main", "1")).await.unwrap();
    assert_eq!(recorded, RecordedEvent::UnknownProject);
    assert!(there.store.latest_events("group/unknown").await.unwrap().is_empty());
    there.store.name_projects(&["group/a".to_owned(), "group/unknown".to_owned()]).await.unwrap();
    let recorded = here.store.record_event(&event("group/unknown", "refs/heads/main", "1")).await.unwrap();
    assert!(matches!(recorded, RecordedEvent::New(_)));
}

async fn instances_are_listed_by_all_replicas(here: TestStore<'_>, there: TestStore<'_>) {
    let agent = AgentId(8);
    let instance = |pod: &str| Instance {
        id: InstanceId::random(),
        reported: ReportedInfo {
            version: "0.1.0".into(),
            pod_namespace: Some("agentk".into()),
            pod_name: Some(pod.into()),
            kubernetes_version: Some("v1.34.1".into()),
            cluster: Some("0b5c1e4f-6a0e-4b0e-9a53-1c6e1f0d2a7b".into()),
            scope: Some("cluster".into()),
        },
        since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        tunnels: 2,
    };
    let (a, b) = (instance("a"), instance("b"));
    here.store.set_instances(agent, here.id, vec![a.clone()]);
    here.announce(agent, 1).await;
    there.store.set_instances(agent, there.id, vec![b.clone()]);
    there.announce(agent, 1).await;
    wait_routes(here, agent, &[here.route(1), there.route(1)]).await;
    wait_routes(there, agent, &[here.route(1), there.route(1)]).await;

    for at in [here, there] {
        let mut list = at.store.list_instances(&[AgentId(999), agent]).await;
        assert!(list.error.is_none());
        list.connected.sort_by_key(|entry| entry.replica != here.id);
        let found = list.connected.into_iter().map(|entry| (entry.agent, entry.replica, entry.instances));
        let expected = [(agent, here.id, vec![a.clone()]), (agent, there.id, vec![b.clone()])];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!(at.store.list_instances(&[]).await.connected, []);
    }

    here.withdraw(agent, 1).await;
    wait_routes(there, agent, &[there.route(1)]).await;
    assert_eq!(there.store.list_instances(&[agent]).await.connected.len(), 1);
    there.withdraw(agent, 1).await;
    wait_routes(here, agent, &[]).await;
    for at in [here, there] {
        let list = at.store.list_instances(&[agent]).await;
        assert!(list.connected.is_empty() && list.disconnected.contains_key(&agent), "{list:?}");
    }
}

async fn agents_of_a_project_are_listed_by_all_replicas(here: TestStore<'_>, there: TestStore<'_>) {
    let agent = |id: u64, project: u64| ProjectAgent {
        project_path: None,
        agent: AgentId(id),
        name: format!("agent-{id}").parse().unwrap(),
        project,
    };
    for (at, agent) in
        [(here, agent(20, 1)), (there, agent(20, 1)), (there, agent(21, 1)), (here, agent(22, 2))]
    {
        at.store.set_project(agent.clone(), at.id);
        at.announce(agent.agent, 1).await;
    }
    wait_routes(there, AgentId(20), &[here.route(1), there.route(1)]).await;
    wait_routes(here, AgentId(21), &[there.route(1)]).await;
    wait_routes(there, AgentId(22), &[here.route(1)]).await;
    for at in [here, there] {
        for (project, expected) in [
            (Some(1), vec![agent(20, 1), agent(21, 1)]),
            (Some(2), vec![agent(22, 2)]),
            (Some(3), vec![]),
            (None, vec![agent(20, 1), agent(21, 1), agent(22, 2)]),
        ] {
            let list = at.store.list_project_agents(project).await;
            assert!(list.error.is_none());
            assert_eq!(list.agents, expected, "{project:?}");
        }
    }

    for (at, id) in [(here, 20), (there, 20), (there, 21), (here, 22)] {
        at.withdraw(AgentId(id), 1).await;
    }
    for (at, other) in [(here, AgentId(21)), (there, AgentId(22)), (here, AgentId(20)), (there, AgentId(20))]
    {
        wait_routes(at, other, &[]).await;
    }
    for at in [here, there] {
        let list = at.store.list_project_agents(None).await;
        assert_eq!(list.agents, []);
        assert!(list.error.is_none());
    }
}

/// Waits, woken only by changes, until a lookup returns these routes.
async fn wait_routes(at: TestStore<'_>, agent: AgentId, expected: &[Route]) {
    let found = async {
        loop {
            let change = at.store.changed(agent);
            let routes = at.routes(agent).await;
            if routes.len() == expected.len() && expected.iter().all(|route| routes.contains(route)) {
                return;
            }
            change.await;
        }
    };
    timeout(Duration::from_secs(5), found).await.expect("the routes are found");
}

/// Returns the request of a replica that dials `tunnels` tunnels without failures.
fn lease(agent: u64, tunnels: u16, epoch: u64) -> LeaseRequest {
    let (agent, epoch) = (AgentId(agent), Epoch(epoch));
    LeaseRequest { agent, tunnels, open: 0, may_dial: true, reliable: true, epoch }
}

async fn leases_are_shared_evenly(here: TestStore<'_>, there: TestStore<'_>) {
    assert_eq!(here.lease(lease(30, 2, 1)).await, 2, "there is no other replica");
    assert_eq!(there.lease(lease(30, 2, 1)).await, 0);
    assert_eq!(here.lease(lease(30, 2, 2)).await, 1, "the other replica has two less");
    assert_eq!(there.lease(lease(30, 2, 2)).await, 1);
    for epoch in 3..6 {
        assert_eq!(here.lease(lease(30, 2, epoch)).await, 1);
        assert_eq!(there.lease(lease(30, 2, epoch)).await, 1);
    }

    assert_eq!((here.lease(lease(31, 1, 1)).await, there.lease(lease(31, 1, 1)).await), (1, 0));
    assert_eq!(here.lease(lease(31, 1, 2)).await, 1, "a single tunnel stays where it is");
    let several = [lease(30, 3, 6), lease(31, 1, 3), lease(32, 16, 1)];
    assert_eq!(here.store.renew_leases(here.id, &several).await.unwrap(), [2, 1, 16]);
    assert!(here.store.renew_leases(here.id, &[]).await.unwrap().is_empty());
    assert_eq!(here.lease(lease(30, 2, 7)).await, 1, "there are fewer tunnels now");
}

async fn lease_is_free_once_it_is_given_up_or_expires(here: TestStore<'_>, there: TestStore<'_>) {
    assert_eq!((here.lease(lease(33, 1, 1)).await, there.lease(lease(33, 1, 1)).await), (1, 0));
    assert_eq!(here.lease(lease(33, 0, 2)).await, 0);
    assert_eq!(there.lease(lease(33, 1, 2)).await, 1, "it was given up");
    tokio::time::sleep(LEASE_TTL - Duration::from_secs(2)).await;
    assert_eq!(here.lease(lease(33, 1, 3)).await, 0);
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(here.lease(lease(33, 1, 4)).await, 1, "it has expired");
}

async fn leases_go_to_replicas_that_can_dial(here: TestStore<'_>, there: TestStore<'_>) {
    assert_eq!((here.lease(lease(34, 2, 1)).await, there.lease(lease(34, 2, 1)).await), (2, 0));
    assert_eq!((here.lease(lease(34, 2, 2)).await, there.lease(lease(34, 2, 2)).await), (1, 1));
    let failed = LeaseRequest { may_dial: false, reliable: false, ..lease(34, 2, 3) };
    assert_eq!(there.lease(failed).await, 0, "it waits, and has no tunnel");
    assert_eq!(here.lease(lease(34, 2, 3)).await, 2);
    let retry = LeaseRequest { reliable: false, ..lease(34, 2, 4) };
    assert_eq!(there.lease(retry).await, 0);
    assert_eq!(here.lease(lease(34, 2, 4)).await, 2, "no tunnel ends for a replica that may fail again");
    assert_eq!(there.lease(lease(34, 2, 5)).await, 0);
    assert_eq!(here.lease(lease(34, 2, 5)).await, 1);

    let waiting = LeaseRequest { open: 1, may_dial: false, reliable: false, ..lease(34, 2, 6) };
    assert_eq!(here.lease(waiting).await, 1, "it keeps the tunnel that is open");
}

async fn older_lease_request_is_ignored(here: TestStore<'_>, there: TestStore<'_>) {
    assert_eq!(here.lease(lease(35, 1, 5)).await, 1);
    assert_eq!(here.lease(lease(35, 0, 4)).await, 1);
    assert_eq!(there.lease(lease(35, 1, 1)).await, 0);
}

async fn session_is_read_by_all_replicas_until_it_ends(here: TestStore<'_>, there: TestStore<'_>) {
    here.begin(1, 1, Duration::from_secs(3600)).await;
    here.begin(2, 1, Duration::from_millis(1500)).await;
    for store in [here, there] {
        assert_eq!(store.store.session(session(1)).await.unwrap().unwrap(), b"record 1");
        assert_eq!(store.store.session(session(9)).await.unwrap(), None);
        assert_eq!(store.live(&[9, 2, 1]).await, [false, true, true]);
        assert!(store.live(&[]).await.is_empty());
    }
    let ttl = async |store: TestStore<'_>, number| store.store.session_ttl(session(number)).await.unwrap();
    let hour = ttl(there, 1).await.unwrap();
    assert!(hour <= Duration::from_secs(3600) && hour > Duration::from_secs(3590), "{hour:?}");
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(there.live(&[1, 2]).await, [true, false], "its time has passed");
    assert_eq!((ttl(there, 2).await, ttl(here, 9).await), (None, None));
    for (store, expected) in [(there, 1), (here, 0)] {
        let ended = store.store.end_sessions(EndedSessions::One(session(1))).await.unwrap();
        assert_eq!(ended, expected, "one of the replicas has ended it");
        assert_eq!(here.store.session(session(1)).await.unwrap(), None);
        assert_eq!(ttl(here, 1).await, None);
    }
}

async fn session_that_is_replaced_keeps_its_end(here: TestStore<'_>, there: TestStore<'_>) {
    let replace = async |number, record: &[u8]| {
        there.store.replace_session(session(number), record.to_vec()).await.unwrap()
    };
    here.begin(41, 4, Duration::from_secs(3600)).await;
    here.begin(42, 4, Duration::from_millis(1500)).await;
    // A shorter record and a longer one.
    for record in [b"new".as_slice(), b"newer than the first record"] {
        assert!(replace(41, record).await && replace(42, record).await);
        assert_eq!(here.store.session(session(41)).await.unwrap().unwrap(), record);
    }
    let ttl = here.store.session_ttl(session(41)).await.unwrap().unwrap();
    assert!(ttl <= Duration::from_secs(3600) && ttl > Duration::from_secs(3590), "{ttl:?}");
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(here.live(&[41, 42]).await, [true, false], "its time has passed");
    let ended = here.store.end_sessions(EndedSessions::OfHolder(SessionHolder([4; 16]))).await.unwrap();
    assert_eq!(ended, 1, "it is still a session of its holder");
    assert!(!replace(41, b"again").await && !replace(42, b"again").await, "there is no session");
    assert_eq!(here.live(&[41, 42]).await, [false, false]);
}

async fn sessions_of_a_holder_end_together(here: TestStore<'_>, there: TestStore<'_>) {
    for (number, holder) in [(11, 1), (12, 1), (13, 2)] {
        here.begin(number, holder, Duration::from_secs(3600)).await;
    }
    let ended = there.store.end_sessions(EndedSessions::OfHolder(SessionHolder([1; 16]))).await.unwrap();
    assert_eq!(ended, 2);
    assert_eq!(here.live(&[11, 12, 13]).await, [false, false, true]);
    there.store.end_sessions(EndedSessions::OfHolder(SessionHolder([2; 16]))).await.unwrap();
    assert_eq!(here.live(&[13]).await, [false]);
    there.store.end_sessions(EndedSessions::OfHolder(SessionHolder([2; 16]))).await.unwrap();
}

async fn session_that_ends_first_ends_in_favour_of_a_new_one(here: TestStore<'_>, there: TestStore<'_>) {
    let hour = Duration::from_secs(3600);
    there.begin(21, 1, hour).await;
    for number in 22..25 {
        there.begin(number, 2, hour + Duration::from_secs(u64::from(number))).await;
    }
    assert_eq!(here.live(&[21, 22, 23, 24]).await, [true; 4]);
    here.begin(25, 2, hour * 2).await;
    assert_eq!(here.live(&[21, 22, 23, 24, 25]).await, [true, false, true, true, true], "three of a holder");
    here.begin(26, 3, hour * 2).await;
    here.begin(27, 3, hour * 2).await;
    assert_eq!(here.live(&[21, 23, 24, 25, 26, 27]).await, [false, true, true, true, true, true], "five");
    // The holder whose session has ended may begin as many as before.
    here.store.end_sessions(EndedSessions::One(session(24))).await.unwrap();
    here.begin(28, 2, hour * 2).await;
    assert_eq!(there.live(&[23, 25, 26, 27, 28]).await, [true; 5]);
    // A session whose time has passed takes no place.
    here.store.end_sessions(EndedSessions::One(session(26))).await.unwrap();
    here.begin(29, 4, Duration::from_millis(50)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    here.begin(30, 4, hour).await;
    assert_eq!(there.live(&[23, 25, 27, 28, 29, 30]).await, [true, true, true, true, false, true]);
}

fn session(number: u8) -> SessionId {
    SessionId([number; 32])
}
