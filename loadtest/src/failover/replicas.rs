//! Redis, several replicas of kas, agents, and the simulated network between them.

use std::{
    net::SocketAddr,
    ops::Range,
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
    process::Command,
    time::sleep,
};

use super::callers::{Backend, Endpoint};
use crate::{
    load::{Target, target::TargetOptions},
    stack::{
        KUBECONFIG, POLL, START,
        child::{ChildProcess, find},
        get, hash,
        network::SimulatedNetwork,
        new_token,
        redis::RedisProcess,
        wait_until_ready, write_file,
    },
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
    agents: Vec<ChildProcess>,
}

/// A replica with its network, which connects it with Redis, agents and other replicas.
#[derive(Debug)]
struct Replica {
    child: Option<ChildProcess>,
    network: SimulatedNetwork,
    public: SocketAddr,
    observability: SocketAddr,
    backend: Arc<Backend>,
}

impl Replicas {
    /// Starts all processes with default settings, and waits until each agent is reachable through each replica.
    pub(super) async fn start(
        directory: &Path,
        replicas: usize,
        agents: usize,
        cluster: SocketAddr,
        seed: u64,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        write(directory, agents)?;
        let redis = RedisProcess::start(directory).await?;
        let mut kas = Vec::new();
        for index in 0..replicas {
            kas.push(Replica::start(directory, index, redis.address).await?);
        }
        let balancer =
            balance(kas.iter().map(|replica| Arc::clone(&replica.backend)).collect(), seed).await?;
        let (redis_at, redis) = (redis.address, Some(redis));
        let mut all = Self { redis, redis_at, directory: directory.to_owned(), kas, agents: Vec::new() };
        write_file(directory, "kubeconfig", &KUBECONFIG.replace("SERVER", &format!("http://{cluster}")))?;
        for index in 0..agents {
            all.agents.push(start_agentk(directory, index, balancer).await?);
        }
        let deadline = Instant::now() + START;
        while all.tunnels().await? < agents * TUNNELS {
            ensure!(Instant::now() < deadline, "the agents' tunnels did not come up in time");
            sleep(POLL).await;
        }
        // An agent whose tunnels share a replica replaces one, until they are at different replicas.
        let deadline = Instant::now() + SETTLE;
        while all.without_another().await? > 0 && Instant::now() < deadline {
            sleep(POLL).await;
        }
        for replica in &all.kas {
            for agent in 0..agents {
                wait_until_ready(&replica.target(directory, agent..agent + 1)?).await?;
            }
        }
        Ok(all)
    }

    /// Returns the endpoints for callers: of all replicas, or of the unaffected ones.
    pub(super) fn endpoints(&self, directory: &Path, all: bool) -> anyhow::Result<Vec<Endpoint>> {
        let replicas = self.kas.iter().enumerate().skip(usize::from(!all));
        let endpoint = |(number, replica): (usize, &Replica)| {
            let target = replica.target(directory, 0..self.agents.len())?;
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
    pub(super) async fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        self.kas[0].child.as_mut().context("it was stopped")?.signal(signal).await
    }

    /// Sends SIGTERM to the affected replica and waits until it has stopped.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        self.kas[0].child.take().context("it was stopped")?.stop().await
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
    async fn start(directory: &Path, index: usize, redis: SocketAddr) -> anyhow::Result<Self> {
        let network = SimulatedNetwork::default();
        let [to_redis, private, agents, probes] = [
            network.listen().await?,
            network.listen().await?,
            network.listen().await?,
            network.listen().await?,
        ];
        let file = format!("kas-{index}.yaml");
        write_file(directory, &file, &CONFIG.replace("REDIS", &to_redis.address.to_string()))?;
        let mut command = Command::new(find("kas", None)?);
        command.arg("serve").arg("--config").arg(directory.join(file));
        command.env("OWN_PRIVATE_API_URL", format!("http://{}", private.address));
        let log = directory.join(format!("kas-{index}.log"));
        to_redis.forward_to(&network, redis);
        let (child, fields) = ChildProcess::start(command, &log, Some("kas is listening"), START).await?;
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            let address = fields[name].as_str().and_then(|text| text.parse().ok());
            address.with_context(|| format!("kas did not log its {name} address"))
        };
        let (public, observability) = (address("public")?, address("observability")?);
        private.forward_to(&network, address("private")?);
        let readiness = TargetOptions {
            urls: vec![format!("http://{}/readiness", probes.address)],
            ..TargetOptions::default()
        };
        let backend = Backend::watch(agents.address, readiness.build()?);
        agents.forward_to(&network, address("agent")?);
        probes.forward_to(&network, observability);
        Ok(Self { child: Some(child), network, public, observability, backend })
    }

    /// Returns a target with a request for each agent.
    fn target(&self, directory: &Path, agents: Range<usize>) -> anyhow::Result<Target> {
        let url = |agent| format!("http://{}/agents/agent-{agent}/kubernetes{PATH}", self.public);
        let options = TargetOptions {
            urls: agents.map(url).collect(),
            token_file: Some(directory.join("caller-token")),
            ..TargetOptions::default()
        };
        options.build()
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

async fn start_agentk(directory: &Path, index: usize, balancer: SocketAddr) -> anyhow::Result<ChildProcess> {
    let mut command = Command::new(find("agentk", None)?);
    command
        .args(["--kas-address", &format!("ws://{balancer}")])
        .arg("--token-file")
        .arg(directory.join(format!("agent-token-{index}")))
        .arg("--kubeconfig")
        .arg(directory.join("kubeconfig"))
        .args(["--observability-listen-address", "127.0.0.1:0"])
        .env_remove("AGENTK_TOKEN");
    let log = directory.join(format!("agentk-{index}.log"));
    let (agentk, _) = ChildProcess::start(command, &log, None, START).await?;
    Ok(agentk)
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

fn write(directory: &Path, agents: usize) -> anyhow::Result<()> {
    use std::fmt::Write as _;

    use base64::{Engine as _, prelude::BASE64_STANDARD};

    let mut identity = "agents:\n".to_owned();
    for index in 0..agents {
        let token = new_token("agent");
        write_file(directory, format!("agent-token-{index}"), &token)?;
        writeln!(identity, "- {{id: {}, name: agent-{index}, tokens: [\"{}\"]}}", index + 1, hash(&token))?;
    }
    let token = new_token("caller");
    write_file(directory, "caller-token", &token)?;
    writeln!(
        identity,
        "callers:\n- {{name: load, tokens: [\"{}\"], agents: [\"*\"], services: [\"*\"]}}",
        hash(&token)
    )?;
    write_file(directory, "identity.yaml", &identity)?;
    write_file(directory, "secret", &BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// The addresses and files. Other settings have their defaults.
const CONFIG: &str = "\
agent:
  listen: {address: \"127.0.0.1:0\"}
  kubernetes_api:
    listen: {address: \"127.0.0.1:0\"}
private_api:
  listen: {address: \"127.0.0.1:0\", authentication_secret_file: secret}
redis:
  server: {address: \"REDIS\"}
observability:
  listen: {address: \"127.0.0.1:0\"}
identity: {file: identity.yaml}
";
