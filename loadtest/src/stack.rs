//! A kas and agents of our own on this machine, for what has to be started, killed or compared.

pub mod child;
pub mod delay;
pub mod gate;
pub mod redis;
pub mod usage;

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agent::Address;
use anyhow::{Context as _, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair};
use sha2::{Digest as _, Sha256};
use tokio::{process::Command, time::sleep};

use self::child::{Child, find};
use crate::load::{
    Target,
    client::Connection,
    progress::Counter,
    target::{TargetOptions, read_token},
};

/// The name of the agent.
pub const AGENT: &str = "bench";
/// How long a program may take to start.
pub(crate) const START: Duration = Duration::from_secs(30);
/// How often it is looked whether something has happened.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Where TLS is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// Nowhere.
    #[default]
    Off,
    /// In the tunnel.
    Tunnel,
    /// In the tunnel and with callers.
    Both,
}

impl From<bool> for Tls {
    fn from(both: bool) -> Self {
        if both { Self::Both } else { Self::Off }
    }
}

/// What is started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Where TLS is spoken.
    pub tls: Tls,
    /// Log each request.
    pub debug: bool,
    /// agentk checks each request against a policy.
    pub policy: bool,
    /// How long the tunnel's bytes travel, each way.
    pub delay: Duration,
    /// The port for agents; 0 for any.
    pub agent_port: u16,
    /// This many agents besides, whose tokens are in the file `agent-tokens`; kas is to them as it is by default.
    pub crowd: u32,
    /// How many tunnels may be opened in a second, if not any number.
    pub per_second: Option<u32>,
    /// The Redis that it shares with other replicas.
    pub redis: Option<SocketAddr>,
    /// Where both programs are, if not beside this one.
    pub programs: Option<PathBuf>,
    /// Both programs run in valgrind, which counts their instructions into `kas.callgrind` and `agentk.callgrind`.
    pub callgrind: bool,
}

/// A kas.
#[derive(Debug)]
pub struct Kas {
    child: Child,
    directory: PathBuf,
    scheme: &'static str,
    /// Where callers connect.
    pub public: SocketAddr,
    /// Where agents connect.
    pub agents: SocketAddr,
}

impl Kas {
    /// Writes what it needs into `directory`, starts it and waits until it listens.
    pub async fn start(directory: &Path, setup: &Setup) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        if !directory.join("kas.yaml").exists() {
            write(directory, setup)?;
        }
        Self::launch("kas", directory, setup).await
    }

    /// Starts another replica with the same configuration. `name` is that of its files.
    pub async fn another(&self, name: &str, setup: &Setup) -> anyhow::Result<Self> {
        Self::launch(name, &self.directory, setup).await
    }

    async fn launch(name: &str, directory: &Path, setup: &Setup) -> anyhow::Result<Self> {
        let mut command = program("kas", &directory.join(name), setup)?;
        command.arg("serve").arg("--config").arg(directory.join("kas.yaml"));
        let log = directory.join(format!("{name}.log"));
        let (child, said) = Child::start(command, &log, Some("kas is listening"), START).await?;
        let address = |name: &str| {
            let address = said[name].as_str().and_then(|text| text.parse().ok());
            address.with_context(|| format!("kas did not say its {name} address"))
        };
        let (public, agents) = (address("public")?, address("agent")?);
        let scheme = if setup.tls == Tls::Both { "https" } else { "http" };
        Ok(Self { child, directory: directory.to_owned(), scheme, public, agents })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Ends it without a word to anybody, as a lost machine would.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.child.kill().await
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.child.stop().await
    }

    /// Where agents connect, as they are told.
    pub fn agent_address(&self) -> anyhow::Result<Address> {
        let scheme = if self.scheme == "https" { "wss" } else { "ws" };
        format!("{scheme}://{}", self.agents).parse().context("an address and a port")
    }

    /// The tokens of the agents besides.
    pub fn crowd_tokens(&self) -> anyhow::Result<Vec<String>> {
        let tokens = read_token(&self.directory.join("agent-tokens"))?;
        Ok(tokens.lines().map(str::to_owned).collect())
    }

    /// The file with the agents' token.
    pub fn agent_token(&self) -> PathBuf {
        self.directory.join("agent-token")
    }

    /// Requests for a path of the cluster.
    pub fn target(&self, path: &str) -> anyhow::Result<Target> {
        let cacert = self.directory.join("kas.crt");
        let options = TargetOptions {
            urls: vec![format!("{}://{}/agents/{AGENT}/kubernetes{path}", self.scheme, self.public)],
            token_file: Some(self.directory.join("caller-token")),
            cacert: (self.scheme == "https").then_some(cacert),
            ..TargetOptions::default()
        };
        options.build()
    }

    /// Starts an agentk in front of `cluster`, and waits until `path` is answered through it.
    pub async fn agentk(&self, setup: &Setup, cluster: SocketAddr, path: &str) -> anyhow::Result<Child> {
        let kubeconfig = KUBECONFIG.replace("SERVER", &format!("http://{cluster}"));
        self.put("kubeconfig", &kubeconfig)?;
        let address =
            if setup.delay.is_zero() { self.agents } else { delay::start(self.agents, setup.delay).await? };
        let scheme = if setup.tls == Tls::Off { "ws" } else { "wss" };
        let mut command = program("agentk", &self.directory.join("agentk"), setup)?;
        command
            .args(["--kas-address", &format!("{scheme}://{address}")])
            .arg("--token-file")
            .arg(self.agent_token())
            .arg("--kubeconfig")
            .arg(self.directory.join("kubeconfig"))
            .args(["--observability-listen-address", "127.0.0.1:0"])
            .args(["--log-level", if setup.debug { "debug" } else { "info" }])
            .env_remove("AGENTK_TOKEN");
        if setup.tls != Tls::Off {
            command.arg("--kas-ca-cert-file").arg(self.directory.join("kas.crt"));
        }
        if setup.policy {
            self.put("policy.yaml", POLICY)?;
            command.arg("--policy-file").arg(self.directory.join("policy.yaml"));
        }
        let log = self.directory.join("agentk.log");
        let (agentk, _) = Child::start(command, &log, None, START).await?;
        let answered = answers(&self.target(path)?).await;
        answered.with_context(|| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            format!("agentk said last: {}", text.lines().next_back().unwrap_or_default())
        })?;
        Ok(agentk)
    }

    fn put(&self, name: &str, text: &str) -> anyhow::Result<()> {
        put(&self.directory, name, text)
    }
}

/// Waits until a request is answered, and not as an error.
pub async fn answers(target: &Target) -> anyhow::Result<()> {
    let deadline = Instant::now() + START;
    loop {
        let exchange = async {
            let mut connection = Connection::open(target, 16 * 1024, Counter::default()).await?;
            connection.exchange(&target.requests()[0]).await
        };
        let why = match exchange.await {
            Ok((head, _)) if head.status < 400 => return Ok(()),
            Ok((head, _)) => format!("status {}", head.status),
            Err(failure) => failure.to_string(),
        };
        if Instant::now() > deadline {
            bail!("{} does not answer: {why}", target.name());
        }
        sleep(POLL).await;
    }
}

/// `files`: where it writes, without the ending.
fn program(name: &str, files: &Path, setup: &Setup) -> anyhow::Result<Command> {
    let path = find(name, setup.programs.as_deref())?;
    if !setup.callgrind {
        return Ok(Command::new(path));
    }
    let mut valgrind = Command::new("valgrind");
    let out = files.with_extension("callgrind");
    valgrind.args(["--tool=callgrind", "--quiet"]).arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(path);
    Ok(valgrind)
}

fn write(directory: &Path, setup: &Setup) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    put(directory, "kas.crt", &CertificateParams::new(names)?.self_signed(&key)?.pem())?;
    put(directory, "kas.key", &key.serialize_pem())?;
    let tokens = ["agent", "caller"].map(|holder| (holder, new_token(holder)));
    let mut identity = IDENTITY.to_owned();
    for (holder, token) in &tokens {
        put(directory, format!("{holder}-token"), token)?;
        identity = identity.replace(&format!("{}_HASH", holder.to_uppercase()), &hash(token));
    }
    if setup.crowd > 0 {
        // The first is the one that is there always.
        let (agents, tokens) = many_agents(2..=setup.crowd + 1);
        identity = identity.replacen("callers:", &format!("{agents}callers:"), 1);
        put(directory, "agent-tokens", &tokens)?;
    }
    put(directory, "identity.yaml", &identity)?;
    let tls = |spoken| if spoken { "certificate_file: kas.crt, key_file: kas.key, " } else { "" };
    let level = if setup.debug { "debug" } else { "info" };
    let port = setup.agent_port.to_string();
    let (a_token, a_second) = (if setup.crowd > 0 { 100 } else { 1_000_000 }, setup.per_second);
    let mut config = CONFIG.replace("LEVEL", level).replace("PORT", &port);
    config = config.replace("TLS_OF_AGENTS", tls(setup.tls != Tls::Off));
    config = config.replace("TLS_OF_CALLERS", tls(setup.tls == Tls::Both));
    config = config.replace("A_TOKEN", &format!("{a_token}"));
    config = config.replace("A_SECOND", &a_second.unwrap_or(1_000_000).to_string());
    if let Some(redis) = setup.redis {
        put(directory, "peer-secret", &BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))?;
        config += &REPLICA.replace("REDIS", &redis.to_string());
    }
    put(directory, "kas.yaml", &config)
}

/// Agents load-1, load-2, … as the identity file wants them, and their tokens, one a line.
pub fn many_agents(ids: RangeInclusive<u32>) -> (String, String) {
    let (mut agents, mut tokens) = (String::new(), String::new());
    for id in ids {
        let token = new_token("agent");
        agents += &format!("- {{id: {id}, name: load-{id}, tokens: [\"{}\"]}}\n", hash(&token));
        tokens += &token;
        tokens.push('\n');
    }
    (agents, tokens)
}

/// A token for an agent or a caller.
pub fn new_token(holder: &str) -> String {
    let random: [u8; 32] = rand::random();
    format!("kas-{holder}-{}", hex(&random))
}

/// As the identity file wants it.
pub fn hash(token: &str) -> String {
    format!("sha256:{}", hex(&Sha256::digest(token.as_bytes())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A port that was free a moment ago.
pub fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Writes a file that nobody else reads.
pub fn put(directory: &Path, name: impl AsRef<Path>, text: &str) -> anyhow::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};

    let path = directory.join(name);
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

const CONFIG: &str = "\
agent:
  listen: {TLS_OF_AGENTSaddress: \"127.0.0.1:PORT\", max_tunnels_per_agent: 50000, max_connections: 60000,
    connections_per_token_per_minute: A_TOKEN, connections_per_second: A_SECOND}
  kubernetes_api:
    listen: {TLS_OF_CALLERSaddress: \"127.0.0.1:0\", listen_grace_period: 0s, shutdown_grace_period: 1s}
observability:
  listen: {address: \"127.0.0.1:0\"}
  logging: {level: LEVEL}
identity: {file: identity.yaml}
";

/// For one of several.
const REPLICA: &str = "\
private_api:
  listen: {address: \"127.0.0.1:0\", authentication_secret_file: peer-secret, listen_grace_period: 0s}
redis: {server: {address: \"REDIS\"}}
";

/// One agent and one caller; the hashes of their tokens are to be put in.
pub(crate) const IDENTITY: &str = "\
agents:
- {id: 1, name: bench, tokens: [\"AGENT_HASH\"]}
callers:
- {name: load, tokens: [\"CALLER_HASH\"], agents: [\"*\"], services: [\"*\"]}
";

/// A rule for each thing that a policy may look at, the last of which lets everything in.
pub(crate) const POLICY: &str = "\
rules:
- {name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}
- {name: no-shells, action: deny, services: [kubernetes], resources: [pods/exec, pods/attach]}
- {name: everything, action: allow, services: [\"*\"]}
";

/// The cluster of an agent; its URL is to be put in.
pub(crate) const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: upstream, cluster: {server: \"SERVER\"}}]
users: [{name: nobody, user: {}}]
contexts: [{name: upstream, context: {cluster: upstream, user: nobody}}]
current-context: upstream
";
