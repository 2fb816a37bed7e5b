//! Redis, several replicas of kas, agents of all of them, and the network in between.

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
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::Command,
    time::{sleep, timeout},
};

use super::callers::{Backend, Door};
use crate::{
    load::{Target, target::TargetOptions},
    stack::{
        KUBECONFIG, POLL, START, answers,
        child::{Child, find},
        gate::Network,
        hash, new_token, put,
        redis::Redis,
    },
};

/// How long agents may take until their tunnels are at different replicas.
const SETTLE: Duration = Duration::from_secs(60);
/// What callers ask for.
const PATH: &str = "/version";
/// Of each agentk, by default.
const TUNNELS: usize = 2;

/// Everything that runs. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Replicas {
    redis: Option<Redis>,
    /// Where Redis is, or was.
    redis_at: SocketAddr,
    directory: PathBuf,
    /// The first of them is the one that faults happen to.
    kas: Vec<Replica>,
    agents: Vec<Child>,
}

/// A kas, and its network: it reaches Redis, and agents and replicas reach it, as long as that works.
#[derive(Debug)]
struct Replica {
    child: Option<Child>,
    network: Network,
    public: SocketAddr,
    observability: SocketAddr,
    backend: Arc<Backend>,
}

impl Replicas {
    /// Starts all of it, with the programs' own defaults, and waits until each agent is reached through each replica.
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
        let redis = Redis::start(directory).await?;
        let mut kas = Vec::new();
        for index in 0..replicas {
            kas.push(Replica::start(directory, index, redis.address).await?);
        }
        let balancer =
            balance(kas.iter().map(|replica| Arc::clone(&replica.backend)).collect(), seed).await?;
        let (redis_at, redis) = (redis.address, Some(redis));
        let mut all = Self { redis, redis_at, directory: directory.to_owned(), kas, agents: Vec::new() };
        put(directory, "kubeconfig", &KUBECONFIG.replace("SERVER", &format!("http://{cluster}")))?;
        for index in 0..agents {
            all.agents.push(agentk(directory, index, balancer).await?);
        }
        let deadline = Instant::now() + START;
        while all.tunnels().await? < agents * TUNNELS {
            ensure!(Instant::now() < deadline, "the agents' tunnels did not come up in time");
            sleep(POLL).await;
        }
        // A tunnel that shares its replica with the other one looks for another: sooner or later it finds it.
        let deadline = Instant::now() + SETTLE;
        while all.stranded().await? > 0 && Instant::now() < deadline {
            sleep(POLL).await;
        }
        for replica in &all.kas {
            for agent in 0..agents {
                answers(&replica.target(directory, agent..agent + 1)?).await?;
            }
        }
        Ok(all)
    }

    /// What callers see: all replicas, or those that no fault happens to.
    pub(super) fn doors(&self, directory: &Path, all: bool) -> anyhow::Result<Vec<Door>> {
        let replicas = self.kas.iter().skip(usize::from(!all));
        let door = |replica: &Replica| {
            let target = replica.target(directory, 0..self.agents.len())?;
            Ok(Door::new(target, Arc::clone(&replica.backend)))
        };
        replicas.map(door).collect()
    }

    /// How many tunnels end at the replica that faults happen to, and how many agents have no other.
    pub(super) async fn at_stake(&self) -> anyhow::Result<(usize, usize)> {
        let tunnels = self.kas[0].tunnels_by_agent().await?;
        Ok((tunnels.iter().sum(), stranded(&tunnels)))
    }

    /// Sends it a signal.
    pub(super) async fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        self.kas[0].child.as_mut().context("it was stopped")?.signal(signal).await
    }

    /// Asks it to stop, and waits until it has.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        self.kas[0].child.take().context("it was stopped")?.stop().await
    }

    /// The network that all others reach it through, and it Redis.
    pub(super) fn network(&self) -> &Network {
        &self.kas[0].network
    }

    /// Takes Redis away, with everything in it.
    pub(super) async fn kill_redis(&mut self) -> anyhow::Result<()> {
        self.redis.take().context("it was stopped")?.kill().await
    }

    /// An empty one in its place.
    pub(super) async fn start_redis(&mut self) -> anyhow::Result<()> {
        self.redis = Some(Redis::start_at(self.redis_at, &self.directory).await?);
        Ok(())
    }

    /// How many agents have all of their tunnels at one replica.
    async fn stranded(&self) -> anyhow::Result<usize> {
        let mut sum = 0;
        for replica in &self.kas {
            sum += stranded(&replica.tunnels_by_agent().await?);
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
        let network = Network::default();
        let [to_redis, private, agents, probes] =
            [network.gate().await?, network.gate().await?, network.gate().await?, network.gate().await?];
        let file = format!("kas-{index}.yaml");
        put(directory, &file, &CONFIG.replace("REDIS", &to_redis.address.to_string()))?;
        let mut command = Command::new(find("kas", None)?);
        command.arg("serve").arg("--config").arg(directory.join(file));
        command.env("OWN_PRIVATE_API_URL", format!("http://{}", private.address));
        let log = directory.join(format!("kas-{index}.log"));
        to_redis.lead(&network, redis);
        let (child, said) = Child::start(command, &log, Some("kas is listening"), START).await?;
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            let address = said[name].as_str().and_then(|text| text.parse().ok());
            address.with_context(|| format!("kas did not say its {name} address"))
        };
        let (public, observability) = (address("public")?, address("observability")?);
        private.lead(&network, address("private")?);
        let readiness = TargetOptions {
            urls: vec![format!("http://{}/readiness", probes.address)],
            ..TargetOptions::default()
        };
        let backend = Backend::watch(agents.address, readiness.build()?);
        agents.lead(&network, address("agent")?);
        probes.lead(&network, observability);
        Ok(Self { child: Some(child), network, public, observability, backend })
    }

    /// A request for each of some agents.
    fn target(&self, directory: &Path, agents: Range<usize>) -> anyhow::Result<Target> {
        let url = |agent| format!("http://{}/agents/agent-{agent}/kubernetes{PATH}", self.public);
        let options = TargetOptions {
            urls: agents.map(url).collect(),
            token_file: Some(directory.join("caller-token")),
            ..TargetOptions::default()
        };
        options.build()
    }

    /// How many tunnels of each agent end here, as it says itself.
    async fn tunnels_by_agent(&self) -> anyhow::Result<Vec<usize>> {
        let asking = async {
            let mut connection = TcpStream::connect(self.observability).await?;
            connection.write_all(b"GET /agents HTTP/1.0\r\n\r\n").await?;
            let mut text = String::new();
            connection.read_to_string(&mut text).await?;
            std::io::Result::Ok(text)
        };
        let text = timeout(START, asking).await.context("kas did not list its agents")??;
        let (_, json) = text.split_once("\r\n\r\n").context("kas did not list its agents")?;
        let listing: Value = serde_json::from_str(json).context("kas did not list its agents")?;
        let agents = listing["agents"].as_array().into_iter().flatten();
        Ok(agents.map(|agent| agent["tunnels"].as_array().map_or(0, Vec::len)).collect())
    }
}

fn stranded(tunnels: &[usize]) -> usize {
    tunnels.iter().filter(|count| **count == TUNNELS).count()
}

async fn agentk(directory: &Path, index: usize, balancer: SocketAddr) -> anyhow::Result<Child> {
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
    let (agentk, _) = Child::start(command, &log, None, START).await?;
    Ok(agentk)
}

/// A load balancer in front of the replicas' ports for agents: to any that is ready, at random, as that of Kubernetes does.
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
                // Whichever end goes takes the other with it.
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
        put(directory, format!("agent-token-{index}"), &token)?;
        writeln!(identity, "- {{id: {}, name: agent-{index}, tokens: [\"{}\"]}}", index + 1, hash(&token))?;
    }
    let token = new_token("caller");
    put(directory, "caller-token", &token)?;
    writeln!(
        identity,
        "callers:\n- {{name: load, tokens: [\"{}\"], agents: [\"*\"], services: [\"*\"]}}",
        hash(&token)
    )?;
    put(directory, "identity.yaml", &identity)?;
    put(directory, "secret", &BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// Addresses and files; all else is as kas has it by default.
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
