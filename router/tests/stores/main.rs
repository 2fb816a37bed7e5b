//! The directories, in memory and in a Redis of the test's own.
//!
//! A test whose program is missing says so on standard error and passes; with `E2E_REQUIRE=1` it fails.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod contract;
mod cost;
mod examine;
mod fleet;
mod kinds;
mod limits;
mod outages;
mod poison;
mod proxy;
mod races;
mod server;

use std::sync::Arc;

use proto::{AgentId, Epoch, ReplicaId};
use router::{
    Health, Route, RouteStore,
    redis::{RedisStore, Settings},
};
use server::Server;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Duration, timeout},
};

/// How long anything may take that is not to be measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store and its keeper, as a replica has them.
struct Member {
    id: ReplicaId,
    store: Arc<RedisStore>,
    stop: oneshot::Sender<()>,
    keeper: JoinHandle<()>,
}

impl Member {
    /// A replica that has said hello.
    async fn joined(settings: Settings) -> Self {
        let member = Self::start(settings);
        timeout(PATIENCE, member.store.healthy()).await.expect("the store joins");
        member
    }

    fn start(settings: Settings) -> Self {
        let id = ReplicaId::random();
        let (store, keeper) = RedisStore::new(settings, server::replica(id), "0.1.0");
        let (stop, stopped) = oneshot::channel::<()>();
        let keeper = tokio::spawn(keeper.run(async {
            _ = stopped.await;
        }));
        Self { id, store: Arc::new(store), stop, keeper }
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

    /// Waits, woken by changes only, until a lookup says this.
    async fn sees(&self, agent: u64, expected: &[Route]) {
        let agent = AgentId(agent);
        let mut expected = expected.to_vec();
        expected.sort_by_key(|route| route.replica);
        let seen = async {
            loop {
                let change = self.store.change(agent);
                let mut routes =
                    self.store.lookup(agent).await.map(|record| record.routes).unwrap_or_default();
                routes.sort_by_key(|route| route.replica);
                if routes == expected {
                    return;
                }
                change.await;
            }
        };
        timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("{agent} was never {expected:?}"));
    }

    /// Waits until the store answers from memory, and says why.
    async fn is_degraded(&self) -> String {
        let mut changes = self.store.health_changes();
        let degraded = changes.wait_for(|health| matches!(health, Health::Degraded { .. }));
        match &*timeout(PATIENCE, degraded).await.unwrap().unwrap() {
            Health::Degraded { why, .. } => why.to_string(),
            Health::Healthy => unreachable!("it was waited for"),
        }
    }

    async fn is_healthy(&self) {
        timeout(PATIENCE, self.store.healthy()).await.expect("the store heals");
    }

    /// Says goodbye.
    async fn leaves(self) {
        drop(self.stop);
        timeout(PATIENCE, self.keeper).await.unwrap().unwrap();
    }

    /// Is gone without a word, as with SIGKILL.
    fn dies(self) {
        self.keeper.abort();
    }
}

/// A Redis for this test, or `None` if there is no program for one.
async fn redis() -> Option<Server> {
    server::start(&[]).await
}
