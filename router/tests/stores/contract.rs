//! What every route store promises, told once and run on each of them.

use std::time::{Duration, SystemTime};

use proto::{AgentId, Epoch, InstanceId, ReplicaId};
use router::{Instance, MemoryStore, Route, RouteStore};
use tokio::time::timeout;

use crate::{Member, redis};

#[tokio::test(start_paused = true)]
async fn the_memory_store_keeps_the_contract() {
    let store = MemoryStore::default();
    let [here, there] = [ReplicaId::random(), ReplicaId::random()].map(|id| Replica { store: &store, id });
    keeps_the_contract(here, there).await;
}

#[tokio::test]
async fn the_redis_store_keeps_the_contract() {
    let Some(server) = redis().await else { return };
    let (here, there) = (Member::joined(server.settings()).await, Member::joined(server.settings()).await);
    let [here, there] = [&here, &there].map(|member| Replica { store: &*member.store, id: member.id });
    keeps_the_contract(here, there).await;
}

/// A replica and the store that it sees, which may be the other's.
#[derive(Clone, Copy)]
struct Replica<'a> {
    store: &'a dyn RouteStore,
    id: ReplicaId,
}

async fn keeps_the_contract(here: Replica<'_>, there: Replica<'_>) {
    an_unknown_agent_has_an_empty_record(here).await;
    routes_come_and_go(here).await;
    epochs_fence(here).await;
    replicas_do_not_touch_each_other(here, there).await;
    changes_are_pushed(here).await;
    changes_are_pushed_to_others(here, there).await;
    what_is_described_is_listed_by_all(here, there).await;
}

impl Replica<'_> {
    fn route(&self, epoch: u64) -> Route {
        Route { replica: self.id, epoch: Epoch(epoch) }
    }

    async fn announce(&self, agent: AgentId, epoch: u64) {
        self.store.announce(agent, self.route(epoch)).await.unwrap();
    }

    async fn withdraw(&self, agent: AgentId, epoch: u64) {
        self.store.withdraw(agent, self.route(epoch)).await.unwrap();
    }

    async fn routes(&self, agent: AgentId) -> Vec<Route> {
        self.store.lookup(agent).await.unwrap().routes
    }
}

async fn an_unknown_agent_has_an_empty_record(here: Replica<'_>) {
    let record = here.store.lookup(AgentId(1)).await.unwrap();
    assert!(record.routes.is_empty());
    assert_eq!(record.gone_since, None, "never connected is not disconnected");
}

async fn routes_come_and_go(here: Replica<'_>) {
    let agent = AgentId(2);
    here.announce(agent, 1).await;
    here.announce(agent, 1).await;
    assert_eq!(here.routes(agent).await, [here.route(1)]);

    here.withdraw(agent, 1).await;
    here.withdraw(agent, 1).await;
    let record = here.store.lookup(agent).await.unwrap();
    assert!(record.routes.is_empty());
    assert!(record.gone_since.is_some());

    here.announce(agent, 2).await;
    assert_eq!(here.store.lookup(agent).await.unwrap().gone_since, None);
}

async fn epochs_fence(here: Replica<'_>) {
    let agent = AgentId(3);
    here.announce(agent, 5).await;
    here.withdraw(agent, 4).await;
    here.announce(agent, 3).await;
    assert_eq!(here.routes(agent).await, [here.route(5)]);
}

async fn replicas_do_not_touch_each_other(here: Replica<'_>, there: Replica<'_>) {
    let agent = AgentId(4);
    there.announce(agent, 1).await;
    here.announce(agent, 1).await;
    here.withdraw(agent, 9).await;
    eventually(there, agent, &[there.route(1)]).await;
    eventually(here, agent, &[there.route(1)]).await;
}

async fn changes_are_pushed(here: Replica<'_>) {
    let agent = AgentId(5);
    let (change, other) = (here.store.change(agent), here.store.change(AgentId(6)));
    here.announce(agent, 1).await;
    timeout(Duration::from_secs(5), change).await.expect("pushed");
    assert!(timeout(Duration::from_millis(100), other).await.is_err(), "of another agent");

    let change = here.store.change(agent);
    here.withdraw(agent, 1).await;
    timeout(Duration::from_secs(5), change).await.expect("pushed");
}

async fn changes_are_pushed_to_others(here: Replica<'_>, there: Replica<'_>) {
    let agent = AgentId(7);
    for epoch in 1..20 {
        let change = there.store.change(agent);
        here.announce(agent, epoch).await;
        timeout(Duration::from_secs(5), change).await.expect("pushed");
        assert_eq!(there.routes(agent).await, [here.route(epoch)], "known once it was pushed");
        let change = there.store.change(agent);
        here.withdraw(agent, epoch).await;
        timeout(Duration::from_secs(5), change).await.expect("pushed");
        let record = there.store.lookup(agent).await.unwrap();
        assert!(record.routes.is_empty() && record.gone_since.is_some());
    }
}

async fn what_is_described_is_listed_by_all(here: Replica<'_>, there: Replica<'_>) {
    let agent = AgentId(8);
    let instance = |pod: &str| Instance {
        id: InstanceId::random(),
        version: "0.1.0".into(),
        pod_namespace: Some("agentk".into()),
        pod_name: Some(pod.into()),
        kubernetes_version: Some("v1.34.1".into()),
        since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        tunnels: 2,
    };
    let (a, b) = (instance("a"), instance("b"));
    here.store.describe(agent, here.id, vec![a.clone()]);
    here.announce(agent, 1).await;
    there.store.describe(agent, there.id, vec![b.clone()]);
    there.announce(agent, 1).await;
    eventually(here, agent, &[here.route(1), there.route(1)]).await;
    eventually(there, agent, &[here.route(1), there.route(1)]).await;

    for at in [here, there] {
        let mut holdings = at.store.holdings(&[AgentId(999), agent]).await;
        assert!(holdings.missing.is_none());
        holdings.held.sort_by_key(|holding| holding.replica != here.id);
        let seen = holdings.held.into_iter().map(|seen| (seen.agent, seen.replica, seen.instances));
        let expected = [(agent, here.id, vec![a.clone()]), (agent, there.id, vec![b.clone()])];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        assert_eq!(at.store.holdings(&[]).await.held, []);
    }

    here.withdraw(agent, 1).await;
    eventually(there, agent, &[there.route(1)]).await;
    assert_eq!(there.store.holdings(&[agent]).await.held.len(), 1);
    there.withdraw(agent, 1).await;
    eventually(here, agent, &[]).await;
    for at in [here, there] {
        let holdings = at.store.holdings(&[agent]).await;
        assert!(holdings.held.is_empty() && holdings.gone.contains_key(&agent), "{holdings:?}");
    }
}

/// Waits, woken by changes only, until a lookup says this.
async fn eventually(at: Replica<'_>, agent: AgentId, expected: &[Route]) {
    let known = async {
        loop {
            let change = at.store.change(agent);
            let routes = at.routes(agent).await;
            if routes.len() == expected.len() && expected.iter().all(|route| routes.contains(route)) {
                return;
            }
            change.await;
        }
    };
    timeout(Duration::from_secs(5), known).await.expect("known");
}
