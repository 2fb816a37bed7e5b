//! Tests of the route stores: in memory, and in Redis with a redis-server for each test.
//!
//! A test without redis-server prints SKIPPED on standard error and passes; with `E2E_REQUIRE=1` it fails.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod agent_records;
mod check;
mod contract;
mod cost;
mod disabled;
mod events;
mod fleets;
mod forged;
mod looks;
mod outages;
mod proxy;
mod races;
mod rate_limit;
mod server;
mod topologies;
mod untrusted;

use std::sync::Arc;

use proto::{AgentId, Epoch, ReplicaId};
use server::Server;
use store::{
    Route, RouteStore, StoreHealth,
    redis::{RedisSettings, RedisStore},
};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Duration, timeout},
};

/// The time after which a wait fails the test; no assertion depends on its value.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The store and the sync task of one replica.
struct TestReplica {
    id: ReplicaId,
    store: Arc<RedisStore>,
    stop: oneshot::Sender<()>,
    sync: JoinHandle<()>,
}

impl TestReplica {
    /// Starts a replica and waits until Redis has its routes.
    async fn joined(settings: RedisSettings) -> Self {
        let replica = Self::start(settings);
        timeout(TIMEOUT, replica.store.wait_until_healthy()).await.expect("the store becomes healthy");
        replica
    }

    fn start(settings: RedisSettings) -> Self {
        let id = ReplicaId::random();
        let (store, sync) = RedisStore::new(settings, server::replica(id), "0.1.0");
        let (stop, stopped) = oneshot::channel::<()>();
        let sync = tokio::spawn(sync.run(async {
            _ = stopped.await;
        }));
        Self { id, store: Arc::new(store), stop, sync }
    }

    fn route(&self, epoch: u64) -> Route {
        Route { replica: self.id, epoch: Epoch(epoch) }
    }

    async fn announce(&self, agent: u64, epoch: u64) {
        self.store.announce(AgentId(agent), self.route(epoch)).await.unwrap();
    }

    async fn withdraw(&self, agent: u64, epoch: u64) {
        self.store.withdraw(AgentId(agent), self.route(epoch)).await.unwrap();
    }

    /// Waits, woken only by changes, until a lookup returns these routes.
    async fn wait_routes(&self, agent: u64, expected: &[Route]) {
        let agent = AgentId(agent);
        let mut expected = expected.to_vec();
        expected.sort_by_key(|route| route.replica);
        let found = async {
            loop {
                let change = self.store.changed(agent);
                let mut routes =
                    self.store.lookup(agent).await.map(|record| record.routes).unwrap_or_default();
                routes.sort_by_key(|route| route.replica);
                if routes == expected {
                    return;
                }
                change.await;
            }
        };
        timeout(TIMEOUT, found)
            .await
            .unwrap_or_else(|_| panic!("the routes of {agent} never became {expected:?}"));
    }

    /// Waits until the store is degraded and returns the reason.
    async fn wait_degraded(&self) -> String {
        let mut changes = self.store.health_changes();
        let degraded = changes.wait_for(|health| matches!(health, StoreHealth::Degraded { .. }));
        match &*timeout(TIMEOUT, degraded).await.unwrap().unwrap() {
            StoreHealth::Degraded { reason, .. } => reason.to_string(),
            StoreHealth::Healthy => unreachable!("the wait ends with Degraded"),
        }
    }

    async fn wait_healthy(&self) {
        timeout(TIMEOUT, self.store.wait_until_healthy()).await.expect("the store recovers");
    }

    /// Stops the sync task, which removes the replica from Redis.
    async fn stop(self) {
        drop(self.stop);
        timeout(TIMEOUT, self.sync).await.unwrap().unwrap();
    }

    /// Aborts the sync task, as SIGKILL does.
    fn kill(self) {
        self.sync.abort();
    }
}

/// Starts a redis-server for this test; `None` if the program is missing.
fn redis() -> Option<Server> {
    server::start(&[])
}
