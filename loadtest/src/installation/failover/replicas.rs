//! Redis, several replicas of kas, agents, and the simulated network between them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rand::{SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};
use serde_json::Value;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::{
    installation::{
        callers::{Backend, Endpoint},
        stack::{
            KasProcess, POLL, START, StackConfig, get, kubeconfig,
            network::SimulatedNetwork,
            prepare_directory,
            process::{ChildProcess, Signal},
            redis::RedisProcess,
            wait_until_ready, write_file,
        },
    },
    load::target::TargetOptions,
};

/// The time for agents to spread their tunnels over replicas.
const SETTLE: Duration = Duration::from_secs(60);
/// The path that callers request.
const PATH: &str = "/version";
/// The default number of tunnels of an agentk.
const TUNNELS: usize = 2;

/// All processes of a run. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Replicas {
    redis: Option<RedisProcess>,
    /// The address of Redis, also while it is stopped.
    redis_at: SocketAddr,
    directory: PathBuf,
    /// The replicas; the first is the affected one.
    kas: Vec<Replica>,
    /// The names of the agents.
    names: Vec<String>,
    agents: Vec<ChildProcess>,
}

/// A replica with its network, which connects it with Redis, agents and other replicas.
#[derive(Debug)]
struct Replica {
    kas: Option<KasProcess>,
    network: SimulatedNetwork,
    observability: SocketAddr,
    backend: Arc<Backend>,
}

impl Replicas {
    /// Starts all processes with default settings, and waits until each agent is reachable through each replica.
    pub(super) async fn start(
        directory: &Path,
        replicas: usize,
        agents: u32,
        cluster: SocketAddr,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let directory = &prepare_directory(directory)?;
        let redis = RedisProcess::start(directory).await?;
        let mut setup = StackConfig {
            extra_agents: agents,
            default_limits: true,
            default_grace_periods: true,
            ..StackConfig::default()
        };
        let mut kas = Vec::new();
        for index in 0..replicas {
            kas.push(Replica::start(directory, index, redis.address, &setup).await?);
        }
        let backends = kas.iter().map(|replica| Arc::clone(&replica.backend)).collect();
        setup.dial = Some(balance(backends, seed).await?);
        let mut all = Self {
            redis_at: redis.address,
            redis: Some(redis),
            directory: directory.to_owned(),
            kas,
            names: (2..=agents + 1).map(|id| format!("load-{id}")).collect(),
            agents: Vec::new(),
        };
        all.start_agents(&setup, &kubeconfig(cluster)).await?;
        let deadline = Instant::now() + START;
        while all.tunnels().await? < all.agents.len() * TUNNELS {
            ensure!(Instant::now() < deadline, "the agents' tunnels did not come up in time");
            sleep(POLL).await;
        }
        // An agent whose tunnels share a replica replaces one, until they are at different replicas.
        let deadline = Instant::now() + SETTLE;
        while all.without_another().await? > 0 && Instant::now() < deadline {
            sleep(POLL).await;
        }
        for replica in &all.kas {
            for name in &all.names {
                wait_until_ready(&replica.running()?.target_of([name], PATH)?).await?;
            }
        }
        Ok(all)
    }

    async fn start_agents(&mut self, setup: &StackConfig, kubeconfig: &str) -> anyhow::Result<()> {
        let kas = self.kas[0].running()?;
        for (name, token) in self.names.iter().zip(kas.extra_agent_tokens()?) {
            let file = self.directory.join(format!("agentk-{name}.token"));
            write_file(Path::new(""), &file, &token)?;
            let name = format!("agentk-{name}");
            self.agents.push(kas.spawn_agentk(&name, setup, &file, Some(kubeconfig), &[]).await?);
        }
        Ok(())
    }

    /// Returns the endpoints for callers: of all replicas, or of the unaffected ones.
    pub(super) fn endpoints(&self, all: bool) -> anyhow::Result<Vec<Endpoint>> {
        let replicas = self.kas.iter().enumerate().skip(usize::from(!all));
        let endpoint = |(number, replica): (usize, &Replica)| {
            let target = replica.running()?.target_of(&self.names, PATH)?;
            Ok(Endpoint::new(target, Arc::clone(&replica.backend), number))
        };
        replicas.map(endpoint).collect()
    }

    /// Returns the number of tunnels at the affected replica, and the number of agents without a tunnel elsewhere.
    pub(super) async fn tunnels_at_stake(&self) -> anyhow::Result<(usize, usize)> {
        let tunnels = self.kas[0].tunnels_by_agent().await?;
        Ok((tunnels.iter().sum(), without_another(&tunnels)))
    }

    /// Sends a signal to the affected replica.
    pub(super) fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.kas[0].kas.as_mut().context("it was stopped")?.signal(signal)
    }

    /// Sends SIGTERM to the affected replica and waits until it has stopped.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        self.kas[0].kas.take().context("it was stopped")?.stop().await
    }

    /// Returns the network of the affected replica.
    pub(super) fn network(&self) -> &SimulatedNetwork {
        &self.kas[0].network
    }

    /// Kills Redis. Its data is lost.
    pub(super) async fn kill_redis(&mut self) -> anyhow::Result<()> {
        self.redis.take().context("it was stopped")?.kill().await
    }

    /// Starts an empty Redis at the same address.
    pub(super) async fn start_redis(&mut self) -> anyhow::Result<()> {
        self.redis = Some(RedisProcess::start_at(self.redis_at, &self.directory).await?);
        Ok(())
    }

    /// Returns the number of agents whose tunnels are all at one replica.
    async fn without_another(&self) -> anyhow::Result<usize> {
        let mut sum = 0;
        for replica in &self.kas {
            sum += without_another(&replica.tunnels_by_agent().await?);
        }
        Ok(sum)
    }

    async fn tunnels(&self) -> anyhow::Result<usize> {
        let mut sum = 0;
        for replica in &self.kas {
            sum += replica.tunnels_by_agent().await?.iter().sum::<usize>();
        }
        Ok(sum)
    }
}

impl Replica {
    async fn start(
        directory: &Path,
        index: usize,
        redis: SocketAddr,
        setup: &StackConfig,
    ) -> anyhow::Result<Self> {
        let network = SimulatedNetwork::default();
        let [to_redis, private, agents, probes] = [
            network.listen().await?,
            network.listen().await?,
            network.listen().await?,
            network.listen().await?,
        ];
        let setup = StackConfig {
            redis: Some(to_redis.address),
            private_address: Some(private.address),
            ..setup.clone()
        };
        to_redis.forward_to(&network, redis);
        let kas = KasProcess::start_as(&format!("kas-{index}"), directory, &setup).await?;
        private.forward_to(&network, kas.private.context("kas did not log its private address")?);
        let readiness = TargetOptions {
            urls: vec![format!("http://{}/readiness", probes.address)],
            ..TargetOptions::default()
        };
        let backend = Backend::watch(agents.address, readiness.build()?);
        agents.forward_to(&network, kas.agents);
        probes.forward_to(&network, kas.observability);
        Ok(Self { observability: kas.observability, kas: Some(kas), network, backend })
    }

    fn running(&self) -> anyhow::Result<&KasProcess> {
        self.kas.as_ref().context("it was stopped")
    }

    /// Returns the number of tunnels of each agent at this replica, from its `/agents`.
    async fn tunnels_by_agent(&self) -> anyhow::Result<Vec<usize>> {
        let json = get(self.observability, "/agents").await.context("kas did not list its agents")?;
        let listing: Value = serde_json::from_str(&json).context("kas did not list its agents")?;
        let agents = listing["agents"].as_array().into_iter().flatten();
        Ok(agents.map(|agent| agent["tunnels"].as_array().map_or(0, Vec::len)).collect())
    }
}

fn without_another(tunnels: &[usize]) -> usize {
    tunnels.iter().filter(|count| **count == TUNNELS).count()
}

/// A load balancer for agents: it forwards each connection to a random ready replica, as a Kubernetes Service does.
async fn balance(backends: Vec<Arc<Backend>>, seed: u64) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut random = SmallRng::seed_from_u64(seed);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let ready: Vec<_> = backends.iter().filter(|backend| backend.is_ready()).collect();
            let Some(next) = ready.choose(&mut random) else { continue };
            let next = next.agents;
            tokio::spawn(async move {
                let Ok(mut to) = TcpStream::connect(next).await else { return };
                // If one end closes, the other is closed, too.
                let _ = copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    Ok(address)
}
