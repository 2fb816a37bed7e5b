//! What every route store promises, told once and run on each of them.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use proto::{AgentId, Epoch, ReplicaId};
use router::{MemoryStore, Route, RouteStore};
use tokio::time::timeout;

#[tokio::test(start_paused = true)]
async fn the_memory_store_keeps_the_contract() {
    keeps_the_contract(&MemoryStore::default()).await;
}

async fn keeps_the_contract(store: &dyn RouteStore) {
    an_unknown_agent_has_an_empty_record(store).await;
    routes_come_and_go(store).await;
    epochs_fence(store).await;
    replicas_do_not_touch_each_other(store).await;
    changes_are_pushed(store).await;
}

fn route(replica: ReplicaId, epoch: u64) -> Route {
    Route { replica, epoch: Epoch(epoch) }
}

async fn an_unknown_agent_has_an_empty_record(store: &dyn RouteStore) {
    let record = store.lookup(AgentId(1)).await.unwrap();
    assert!(record.routes.is_empty());
    assert_eq!(record.gone_since, None, "never connected is not disconnected");
}

async fn routes_come_and_go(store: &dyn RouteStore) {
    let (agent, here) = (AgentId(2), ReplicaId::random());
    store.announce(agent, route(here, 1)).await.unwrap();
    store.announce(agent, route(here, 1)).await.unwrap();
    assert_eq!(store.lookup(agent).await.unwrap().routes, [route(here, 1)]);

    store.withdraw(agent, route(here, 1)).await.unwrap();
    store.withdraw(agent, route(here, 1)).await.unwrap();
    let record = store.lookup(agent).await.unwrap();
    assert!(record.routes.is_empty());
    assert!(record.gone_since.is_some());

    store.announce(agent, route(here, 2)).await.unwrap();
    assert_eq!(store.lookup(agent).await.unwrap().gone_since, None);
}

async fn epochs_fence(store: &dyn RouteStore) {
    let (agent, here) = (AgentId(3), ReplicaId::random());
    store.announce(agent, route(here, 5)).await.unwrap();
    store.withdraw(agent, route(here, 4)).await.unwrap();
    store.announce(agent, route(here, 3)).await.unwrap();
    assert_eq!(store.lookup(agent).await.unwrap().routes, [route(here, 5)]);
}

async fn replicas_do_not_touch_each_other(store: &dyn RouteStore) {
    let (agent, here, there) = (AgentId(4), ReplicaId::random(), ReplicaId::random());
    store.announce(agent, route(here, 1)).await.unwrap();
    store.announce(agent, route(there, 1)).await.unwrap();
    store.withdraw(agent, route(here, 9)).await.unwrap();
    assert_eq!(store.lookup(agent).await.unwrap().routes, [route(there, 1)]);
}

async fn changes_are_pushed(store: &dyn RouteStore) {
    let (agent, here) = (AgentId(5), ReplicaId::random());
    let (change, other) = (store.change(agent), store.change(AgentId(6)));
    store.announce(agent, route(here, 1)).await.unwrap();
    timeout(Duration::from_secs(5), change).await.expect("pushed");
    assert!(timeout(Duration::from_secs(1), other).await.is_err(), "of another agent");

    let change = store.change(agent);
    store.withdraw(agent, route(here, 1)).await.unwrap();
    timeout(Duration::from_secs(5), change).await.expect("pushed");
}
