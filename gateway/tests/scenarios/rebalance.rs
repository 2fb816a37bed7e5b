//! Rebalancing of tunnels.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use agentk_core::{Dial, DialError};
use gateway::test_support::Rebalancer;
use http::StatusCode;
use http_body_util::BodyExt as _;
use kas_testing::{
    fleet::TestFleet,
    world::{RunningAgent, World, text},
};
use parking_lot::Mutex;
use tokio::{
    io::DuplexStream,
    time::{sleep, timeout},
};

use crate::peers::{PATH, cluster};

/// The agentk processes, each with two tunnels.
const AGENTS: usize = 12;
/// The tunnels that move per second.
const RATE: i64 = 10;

/// The load balancer in front of the replicas.
#[derive(Clone)]
struct LoadBalancer {
    replicas: Arc<Mutex<Vec<World>>>,
    turn: Arc<AtomicUsize>,
}

impl Dial for LoadBalancer {
    type Io = DuplexStream;

    async fn dial(&self) -> Result<DuplexStream, DialError> {
        let replica = {
            let replicas = self.replicas.lock();
            replicas[self.turn.fetch_add(1, Relaxed) % replicas.len()].clone()
        };
        replica.dial().await
    }
}

/// Three replicas, of which the third starts later.
struct Scaled {
    fleet: TestFleet,
    balancer: LoadBalancer,
    _agents: Vec<RunningAgent>,
}

impl Scaled {
    async fn new() -> Self {
        let fleet =
            TestFleet::with(3, |config| config.agent.listen.connections_per_token_per_minute = 10_000);
        fleet.store.leave(fleet.id(2));
        let replicas = Arc::new(Mutex::new(fleet.replicas[..2].to_vec()));
        let balancer = LoadBalancer { replicas, turn: Arc::default() };
        let start = |_| fleet.replicas[0].start_agent_through(balancer.clone(), cluster("here"));
        let agents: Vec<RunningAgent> = (0..AGENTS).map(start).collect();
        let scaled = Self { fleet, balancer, _agents: agents };
        while scaled.tunnels().iter().sum::<i64>() < 2 * AGENTS as i64 {
            sleep(Duration::from_millis(10)).await;
        }
        (0..2).for_each(|index| scaled.balance(index));
        scaled
    }

    /// Starts the rebalancing, as a running kas does.
    fn balance(&self, index: usize) {
        let agents = Arc::clone(&self.fleet.replicas[index].kas.agents);
        tokio::spawn(async move { agents.rebalance(Rebalancer::new(20, RATE as u32)).await });
    }

    fn third_starts(&self) {
        let third = &self.fleet.replicas[2];
        self.balancer.replicas.lock().push(third.clone());
        self.balance(2);
    }

    fn tunnels(&self) -> Vec<i64> {
        self.fleet.replicas.iter().map(|world| world.kas.agents.metrics.tunnels.get()).collect()
    }

    fn moved(&self) -> f64 {
        self.fleet.replicas.iter().map(|world| world.metric("kas_rebalanced_total")).sum()
    }
}

#[tokio::test(start_paused = true)]
async fn new_replica_receives_its_share_at_a_bounded_rate() {
    let scaled = Scaled::new().await;
    assert_eq!(scaled.tunnels(), [12, 12, 0], "each agent is at two replicas");
    let mut watch = scaled.fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    watch.frame().await.unwrap().unwrap();

    scaled.third_starts();
    let mut before = 0;
    for second in 0.. {
        assert!(second < 3600, "{:?}", scaled.tunnels());
        sleep(Duration::from_secs(1)).await;
        for world in &scaled.fleet.replicas[..2] {
            let answer = world.get(PATH).await;
            assert_eq!(answer.status(), StatusCode::OK, "in second {second}");
            assert_eq!(text(answer).await, "here");
        }
        let now = scaled.tunnels();
        assert!(now[2] - before <= RATE, "from {before} to {now:?}");
        before = now[2];
        // The tunnel with the watch is left last, and stays until the watch ends.
        if now.iter().all(|tunnels| *tunnels <= 9) {
            break;
        }
        assert!(second >= 28 || now[2] == 0, "not at once: {now:?}");
    }
    assert!(scaled.moved() >= 6.0, "{}", scaled.moved());
    assert!(timeout(Duration::from_secs(3600), watch.frame()).await.is_err(), "it goes on");

    let (moved, tunnels) = (scaled.moved(), scaled.tunnels());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(scaled.moved(), moved, "who has their share is left in peace: {tunnels:?}");
}

#[tokio::test(start_paused = true)]
async fn replicas_that_leave_or_are_dead_do_not_count() {
    let scaled = Scaled::new().await;
    // It has no tunnels, and says that it takes none.
    scaled.third_starts();
    sleep(Duration::from_secs(10)).await;
    scaled.fleet.replicas[2].kas.agents.connections.draining.cancel();
    sleep(Duration::from_secs(300)).await;
    assert_eq!((scaled.moved(), scaled.tunnels()), (0.0, vec![12, 12, 0]));
}
