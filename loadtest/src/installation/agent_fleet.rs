//! Thousands of agents in one process, with real tunnels and without clusters.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use agentk_core::{
    Agent, AgentToken, ClusterStatus, Dial as _, KasAddress, Observability, Pod, ProtocolChoice, Services,
    SessionConfig, TcpDialer,
    upstream::{ClientTlsConfig, Pem},
};
use agentk_gitlab::gitlab_protocol;
use anyhow::ensure;
use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::Body;

use crate::installation::stack::KasProcess;

/// The number, the addresses and the tokens of the agents.
pub struct AgentFleetConfig {
    /// The replicas of kas, at least one. Each agent dials them in turn, so that its tunnels end at as many as possible at once.
    /// Through one turn of all agents, some would have to search for another replica for minutes.
    pub kas: Vec<KasAddress>,
    /// The certificates to trust for `wss://` instead of the system's roots.
    pub cacert: Option<PathBuf>,
    /// The agent tokens, which the agents use in turn: kas limits the tunnels per agent.
    pub tokens: Vec<String>,
    /// The number of agents.
    pub count: usize,
    /// The number of tunnels per agent.
    pub tunnels: u16,
    /// The protocol with kas.
    pub protocol: ProtocolChoice,
    /// The number of agents that start per second.
    pub per_second: f64,
    /// The length of the response to every request, in bytes.
    pub answer: usize,
    /// Adds services to those of each agent.
    pub services: Arc<dyn Fn(Services) -> Services + Send + Sync>,
}

/// Running agents. Dropping it stops them without waiting.
pub struct AgentFleet {
    telemetry: Observability,
    balancer: Arc<Balancer>,
    /// The expected number of tunnels.
    count: usize,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The replicas that are dialled.
struct Balancer {
    replicas: Mutex<Vec<(KasAddress, Arc<TcpDialer>)>>,
}

/// The times until the tunnels were up.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct ConnectTimes {
    /// The number of tunnels that are up.
    pub up: usize,
    /// Seconds until half of the tunnels were up; `null` if they never were.
    pub half: Option<f64>,
    /// Seconds until 95 % of them were up.
    pub most: Option<f64>,
    /// Seconds until all of them were up.
    pub all: Option<f64>,
}

impl AgentFleetConfig {
    /// Returns the configuration of the additional agents of replicas on this machine, which have the same directory.
    pub fn new(replicas: &[KasProcess], count: u32, tunnels: u16, per_second: f64) -> anyhow::Result<Self> {
        Ok(Self {
            kas: replicas.iter().map(KasProcess::agent_address).collect::<Result<_, _>>()?,
            cacert: replicas[0].certificate(),
            tokens: replicas[0].extra_agent_tokens()?,
            count: count as usize,
            tunnels,
            protocol: ProtocolChoice::default(),
            per_second,
            answer: 200,
            services: Arc::new(|services| services),
        })
    }

    /// Reads the certificates and starts the agents.
    pub fn start(self) -> anyhow::Result<AgentFleet> {
        ensure!(!self.tokens.is_empty(), "there is no agent token");
        let balancer = Arc::new(Balancer::new(&self.kas, self.cacert.as_ref())?);
        let (telemetry, stop, tasks) =
            (Observability::default(), CancellationToken::new(), TaskTracker::new());
        telemetry.cluster_probed(ClusterStatus::Up { version: Some("v1.33.1".to_owned()) });
        let answer = Bytes::from(vec![b'x'; self.answer]);
        let begin = Instant::now();
        for index in 0..self.count {
            let token = AgentToken::value(self.tokens[index % self.tokens.len()].clone());
            // As long as the pod names of a Deployment.
            let pod = Pod {
                name: Some(format!(
                    "agentk-{:010x}-{:05x}",
                    index.wrapping_mul(0x9e37_79b9),
                    index & 0xf_ffff
                )),
                namespace: Some("agentk".to_owned()),
            };
            let options = SessionConfig {
                tunnels: self.tunnels,
                protocol: self.protocol,
                grace: Duration::ZERO,
                pod,
                ..SessionConfig::new(self.kas[0].clone(), token)
            };
            let answer = answer.clone();
            let echo = move |_: Request<Body>| {
                let response = Response::new(Body::from(answer.clone()));
                async move { response }
            };
            let (replicas, dials) = (Arc::clone(&balancer), AtomicUsize::new(index));
            let dial = move || {
                let dial = replicas.dialer(dials.fetch_add(1, Relaxed));
                async move { dial.dial().await }
            };
            let services = (self.services)(Services::new().with_fn("kubernetes", echo));
            let agent = Agent::new(options, dial, services, telemetry.clone(), gitlab_protocol);
            let due = begin + Duration::from_secs_f64(index as f64 / self.per_second);
            let stop = stop.clone();
            tasks.spawn(async move {
                let wait = sleep_until(due.into());
                if stop.run_until_cancelled(wait).await.is_some() {
                    agent.run(stop).await;
                }
            });
        }
        tasks.close();
        let count = self.count * usize::from(self.tunnels);
        Ok(AgentFleet { telemetry, balancer, count, stop, tasks })
    }
}

impl AgentFleet {
    /// Waits until all tunnels are up, for at most `within`. Returns times since `since`.
    pub async fn wait_until_connected(
        &self,
        since: Instant,
        within: Duration,
        stop: &CancellationToken,
    ) -> ConnectTimes {
        let mut tunnels = self.telemetry.health.tunnels();
        let mut arrival = ConnectTimes::default();
        let waiting = async {
            for (share, reached) in
                [(0.5, &mut arrival.half), (0.95, &mut arrival.most), (1.0, &mut arrival.all)]
            {
                let enough = (self.count as f64 * share).ceil() as usize;
                // The sender lives as long as self, so this does not fail.
                let _ = tunnels.wait_for(|up| *up >= enough).await;
                *reached = Some(since.elapsed().as_secs_f64());
            }
        };
        let _ = timeout(within, stop.run_until_cancelled(waiting)).await;
        arrival.up = self.up();
        arrival
    }

    /// Waits until all tunnels are up. It is an error if they are not within `within`, unless `stop` is cancelled.
    pub async fn wait_until_all_connected(
        &self,
        within: Duration,
        stop: &CancellationToken,
    ) -> anyhow::Result<ConnectTimes> {
        let arrival = self.wait_until_connected(Instant::now(), within, stop).await;
        ensure!(
            arrival.all.is_some() || stop.is_cancelled(),
            "{} of {} tunnels came up: {}",
            arrival.up,
            self.count,
            self.last_failure().as_deref().unwrap_or("no failure was seen")
        );
        Ok(arrival)
    }

    /// Returns the expected number of tunnels.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Waits until no tunnel is up, for at most `within`. Returns whether none is.
    pub async fn wait_until_disconnected(&self, within: Duration) -> bool {
        let mut tunnels = self.telemetry.health.tunnels();
        timeout(within, tunnels.wait_for(|up| *up == 0)).await.is_ok()
    }

    /// Stops dialling this replica.
    pub fn remove_replica(&self, kas: &KasAddress) {
        self.balancer.replicas.lock().retain(|(address, _)| address.to_string() != kas.to_string());
    }

    /// Returns the number of tunnels that are up, and its changes.
    pub fn changes(&self) -> watch::Receiver<usize> {
        self.telemetry.health.tunnels()
    }

    /// Returns the number of tunnels that are up.
    pub fn up(&self) -> usize {
        *self.telemetry.health.tunnels().borrow()
    }

    /// Returns the reason of the last failed dial.
    pub fn last_failure(&self) -> Option<String> {
        self.telemetry.health.dial_error().borrow().clone()
    }

    /// Stops all agents and waits until they have left.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

impl Balancer {
    fn new(replicas: &[KasAddress], cacert: Option<&PathBuf>) -> anyhow::Result<Self> {
        ensure!(!replicas.is_empty(), "there is no kas");
        let dial = |address: &KasAddress| {
            let tls = ClientTlsConfig { ca: cacert.cloned().map(Pem::File), ..ClientTlsConfig::default() };
            anyhow::Ok((address.clone(), Arc::new(TcpDialer::new(address.clone(), tls)?)))
        };
        let replicas = replicas.iter().map(dial).collect::<Result<_, _>>()?;
        Ok(Self { replicas: Mutex::new(replicas) })
    }

    /// Returns the dialler of the replica with this number, modulo the number of replicas.
    fn dialer(&self, number: usize) -> Arc<TcpDialer> {
        let replicas = self.replicas.lock();
        Arc::clone(&replicas[number % replicas.len()].1)
    }
}

impl Drop for AgentFleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
