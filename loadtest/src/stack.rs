//! kas and agentk as processes on this machine, for commands that start, kill or compare them.

pub mod network;
pub mod process;
pub mod redis;

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agent::KasAddress;
use anyhow::{Context as _, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, KeyPair};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::{sleep, timeout},
};

use self::process::{ChildProcess, find};
use crate::load::{
    LoadTarget,
    client::Connection,
    progress::Counter,
    target::{TargetOptions, read_token},
};

/// The name of the agent in the identity file.
pub const AGENT: &str = "demo";
/// The timeout for the start of a program.
pub(crate) const START: Duration = Duration::from_secs(30);
/// The polling interval.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// The connections that use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// None.
    #[default]
    Off,
    /// The tunnel.
    Tunnel,
    /// The tunnel and the connections of callers.
    Both,
}

impl From<bool> for Tls {
    fn from(both: bool) -> Self {
        if both { Self::Both } else { Self::Off }
    }
}

/// The configuration of kas and agentk.
#[derive(Clone, Debug, Default)]
pub struct StackConfig {
    /// The connections that use TLS.
    pub tls: Tls,
    /// If true, each request is logged (level `debug`).
    pub debug: bool,
    /// If true, agentk checks each request against a policy.
    pub policy: bool,
    /// The port for agents; 0 for any free one.
    pub agent_port: u16,
    /// The port for callers; 0 for any free one.
    pub public_port: u16,
    /// The number of additional agents load-2, load-3, …, whose tokens are in the file `agent-tokens`. For them the limit of
    /// connections per token is the default.
    pub extra_agents: u32,
    /// The limit of new tunnels per second, if there is one.
    pub per_second: Option<u32>,
    /// If true, kas has its default limits of tunnels.
    pub default_limits: bool,
    /// If true, kas has its default grace periods; if not, it stops at once.
    pub default_grace_periods: bool,
    /// The address of the Redis that replicas share.
    pub redis: Option<SocketAddr>,
    /// The address at which other replicas reach this one, if it is not that of its private listener.
    pub private_address: Option<SocketAddr>,
    /// The address that agentk dials, if it is not that of kas.
    pub dial: Option<SocketAddr>,
    /// The directory of kas and agentk, if it is not that of this program.
    pub programs: Option<PathBuf>,
    /// If true, both programs run in valgrind, which writes their instruction counts to `kas.callgrind` and `agentk.callgrind`.
    pub callgrind: bool,
}

/// A running kas.
#[derive(Debug)]
pub struct KasProcess {
    child: ChildProcess,
    directory: PathBuf,
    scheme: &'static str,
    /// The address for callers.
    pub public: SocketAddr,
    /// The address for agents.
    pub agents: SocketAddr,
    /// The address for other replicas, if there are any.
    pub private: Option<SocketAddr>,
    /// The address of the observability listener.
    pub observability: SocketAddr,
}

impl KasProcess {
    /// Starts kas and waits until it listens. See [`Self::start_as`].
    pub async fn start(directory: &Path, setup: &StackConfig) -> anyhow::Result<Self> {
        Self::start_as("kas", directory, setup).await
    }

    /// Starts kas and waits until it listens. `name` is the name of its configuration and its log in `directory`.
    ///
    /// Replicas and later processes with the same directory have the same tokens and certificate.
    pub async fn start_as(name: &str, directory: &Path, setup: &StackConfig) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot write {}", directory.display()))?;
        if !directory.join("identity.yaml").exists() {
            write_identity(directory, setup.extra_agents)?;
        }
        write_file(directory, format!("{name}.yaml"), &config(setup))?;
        let mut command = program_command("kas", &directory.join(name), setup)?;
        command.arg("serve").arg("--config").arg(directory.join(format!("{name}.yaml")));
        if let Some(private) = setup.private_address {
            command.env("OWN_PRIVATE_API_URL", format!("http://{private}"));
        }
        let log = directory.join(format!("{name}.log"));
        let (child, fields) = ChildProcess::start(command, &log, Some("kas is listening"), START).await?;
        let logged = |name: &str| fields[name].as_str().and_then(|text| text.parse().ok());
        let address =
            |name: &str| logged(name).with_context(|| format!("kas did not log its {name} address"));
        let (public, agents, observability) =
            (address("public")?, address("agent")?, address("observability")?);
        let scheme = if setup.tls == Tls::Both { "https" } else { "http" };
        let (directory, private) = (directory.to_owned(), logged("private"));
        Ok(Self { child, directory, scheme, public, agents, private, observability })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Sends a signal, by its name: TERM, STOP, CONT.
    pub async fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        self.child.signal(signal).await
    }

    /// Kills it with SIGKILL.
    pub async fn kill(self) -> anyhow::Result<()> {
        self.child.kill().await
    }

    /// Sends SIGTERM and waits until it has stopped.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.child.stop().await
    }

    /// Returns the address for agents as a URL.
    pub fn agent_address(&self) -> anyhow::Result<KasAddress> {
        let scheme = if self.scheme == "https" { "wss" } else { "ws" };
        format!("{scheme}://{}", self.agents).parse().context("an address and a port")
    }

    /// Returns the path of its certificate, if it uses TLS.
    pub(crate) fn certificate(&self) -> Option<PathBuf> {
        (self.scheme == "https").then(|| self.directory.join("kas.crt"))
    }

    /// Returns the tokens of the additional agents.
    pub fn extra_agent_tokens(&self) -> anyhow::Result<Vec<String>> {
        let tokens = read_token(&self.directory.join("agent-tokens"))?;
        Ok(tokens.lines().map(str::to_owned).collect())
    }

    /// Returns the path of the agent's token file.
    pub fn agent_token(&self) -> PathBuf {
        self.directory.join("agent-token")
    }

    /// Returns a target whose requests go to a path of the cluster.
    pub fn target(&self, path: &str) -> anyhow::Result<LoadTarget> {
        self.target_of([AGENT], path)
    }

    /// Returns a target with a request for a path of the cluster of each agent.
    pub(crate) fn target_of(
        &self,
        agents: impl IntoIterator<Item = impl std::fmt::Display>,
        path: &str,
    ) -> anyhow::Result<LoadTarget> {
        let url = |agent| format!("{}://{}/agents/{agent}/kubernetes{path}", self.scheme, self.public);
        let options = TargetOptions {
            urls: agents.into_iter().map(url).collect(),
            token_file: Some(self.directory.join("caller-token")),
            cacert: self.certificate(),
            ..TargetOptions::default()
        };
        options.build()
    }

    /// Starts agentk for `cluster`, and waits until a request for `path` succeeds through it.
    pub async fn start_agentk(
        &self,
        setup: &StackConfig,
        cluster: SocketAddr,
        path: &str,
    ) -> anyhow::Result<ChildProcess> {
        let kubeconfig = kubeconfig(cluster);
        let agentk = self.spawn_agentk("agentk", setup, &self.agent_token(), Some(&kubeconfig), &[]).await?;
        let answered = wait_until_ready(&self.target(path)?).await;
        answered.with_context(|| {
            let text = std::fs::read_to_string(self.directory.join("agentk.log")).unwrap_or_default();
            format!("last log line of agentk: {}", text.lines().next_back().unwrap_or_default())
        })?;
        Ok(agentk)
    }

    /// Starts agentk without waiting for its tunnels. `name` is the name of its log. Without a kubeconfig, it finds its cluster
    /// itself.
    pub(crate) async fn spawn_agentk(
        &self,
        name: &str,
        setup: &StackConfig,
        token: &Path,
        kubeconfig: Option<&str>,
        arguments: &[&str],
    ) -> anyhow::Result<ChildProcess> {
        let address = setup.dial.unwrap_or(self.agents);
        let scheme = if setup.tls == Tls::Off { "ws" } else { "wss" };
        let mut command = program_command("agentk", &self.directory.join(name), setup)?;
        command
            .args(["--kas-address", &format!("{scheme}://{address}")])
            .arg("--token-file")
            .arg(token)
            .args(["--observability-listen-address", "127.0.0.1:0"])
            .args(["--log-level", if setup.debug { "debug" } else { "info" }])
            .args(arguments)
            .env_remove("AGENTK_TOKEN");
        if let Some(kubeconfig) = kubeconfig {
            write_file(&self.directory, "cluster-kubeconfig", kubeconfig)?;
            command.arg("--kubeconfig").arg(self.directory.join("cluster-kubeconfig"));
        }
        if setup.tls != Tls::Off {
            command.arg("--kas-ca-cert-file").arg(self.directory.join("kas.crt"));
        }
        if setup.policy {
            write_file(&self.directory, "policy.yaml", POLICY)?;
            command.arg("--policy-file").arg(self.directory.join("policy.yaml"));
        }
        let log = self.directory.join(format!("{name}.log"));
        let (agentk, _) = ChildProcess::start(command, &log, None, START).await?;
        Ok(agentk)
    }
}

/// Prepares a directory for [`KasProcess::start`]: its owner alone can read it, and earlier tokens are not used again.
pub(crate) fn prepare_directory(directory: &Path) -> anyhow::Result<PathBuf> {
    use std::{fs, io, os::unix::fs::PermissionsExt as _};

    let prepare = || {
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        match fs::remove_file(directory.join("identity.yaml")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => directory.canonicalize(),
        }
    };
    prepare().with_context(|| format!("cannot write to {}", directory.display()))
}

/// Starts replicas of kas with the same configuration.
pub(crate) async fn start_replicas(
    directory: &Path,
    setup: &StackConfig,
    count: u16,
) -> anyhow::Result<Vec<KasProcess>> {
    let mut replicas = vec![KasProcess::start(directory, setup).await?];
    for number in 2..=count {
        replicas.push(KasProcess::start_as(&format!("kas-{number}"), directory, setup).await?);
    }
    Ok(replicas)
}

/// Sends a GET request and returns the body of the response.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let exchange = async {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut text = String::new();
        connection.read_to_string(&mut text).await?;
        std::io::Result::Ok(text)
    };
    let text = timeout(START, exchange).await.context("no response in time")??;
    let (_, body) = text.split_once("\r\n\r\n").context("the response has no body")?;
    Ok(body.to_owned())
}

/// Waits until a request succeeds with a status below 400, for at most 30 s.
pub async fn wait_until_ready(target: &LoadTarget) -> anyhow::Result<()> {
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
            bail!("{} does not respond: {why}", target.name());
        }
        sleep(POLL).await;
    }
}

/// Returns the command of a program. `files` is the path of its output files without the extension.
fn program_command(name: &str, files: &Path, setup: &StackConfig) -> anyhow::Result<Command> {
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

/// Writes the tokens, their hashes, the certificate and the secret of the replicas.
fn write_identity(directory: &Path, extra_agents: u32) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    write_file(directory, "kas.crt", &CertificateParams::new(names)?.self_signed(&key)?.pem())?;
    write_file(directory, "kas.key", &key.serialize_pem())?;
    write_file(directory, "peer-secret", &BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))?;
    let mut identity = IDENTITY.to_owned();
    for holder in ["agent", "caller"] {
        let token = new_token(holder);
        write_file(directory, format!("{holder}-token"), &token)?;
        identity = identity.replace(&format!("{}_HASH", holder.to_uppercase()), &hash(&token));
    }
    if extra_agents > 0 {
        // Agent 1 exists always.
        let (agents, tokens) = new_agents(2..=extra_agents + 1);
        identity = identity.replacen("callers:", &format!("{agents}callers:"), 1);
        write_file(directory, "agent-tokens", &tokens)?;
    }
    write_file(directory, "identity.yaml", &identity)
}

/// Returns the configuration of kas.
fn config(setup: &StackConfig) -> String {
    let tls = |used| if used { ", certificate_file: kas.crt, key_file: kas.key" } else { "" };
    let (agent_tls, public_tls) = (tls(setup.tls != Tls::Off), tls(setup.tls == Tls::Both));
    let (agent_port, public_port) = (setup.agent_port, setup.public_port);
    let per_token = if setup.extra_agents > 0 { 100 } else { 1_000_000 };
    let per_second = setup.per_second.unwrap_or(1_000_000);
    let limits = if setup.default_limits {
        String::new()
    } else {
        format!(
            ", max_tunnels_per_agent: 50000, max_connections: 60000,
    connections_per_token_per_minute: {per_token}, connections_per_second: {per_second}"
        )
    };
    let (public_grace, private_grace) = if setup.default_grace_periods {
        ("", "")
    } else {
        (", listen_grace_period: 0s, shutdown_grace_period: 1s", ", listen_grace_period: 0s")
    };
    let level = if setup.debug { "debug" } else { "info" };
    let mut config = format!(
        "agent:
  listen: {{address: \"127.0.0.1:{agent_port}\"{agent_tls}{limits}}}
  kubernetes_api:
    listen: {{address: \"127.0.0.1:{public_port}\"{public_tls}{public_grace}}}
observability:
  listen: {{address: \"127.0.0.1:0\"}}
  logging: {{level: {level}}}
identity: {{file: identity.yaml}}
"
    );
    if let Some(redis) = setup.redis {
        config += &format!(
            "private_api:
  listen: {{address: \"127.0.0.1:0\", authentication_secret_file: peer-secret{private_grace}}}
redis: {{server: {{address: \"{redis}\"}}}}
"
        );
    }
    config
}

/// Returns a kubeconfig for a cluster that accepts every caller.
pub(crate) fn kubeconfig(cluster: SocketAddr) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: upstream, cluster: {{server: \"http://{cluster}\"}}}}]
users: [{{name: nobody, user: {{}}}}]
contexts: [{{name: upstream, context: {{cluster: upstream, user: nobody}}}}]
current-context: upstream
"
    )
}

/// Returns the entries of the agents load-1, load-2, … for the identity file, and their tokens, one per line.
pub fn new_agents(ids: RangeInclusive<u32>) -> (String, String) {
    let (mut agents, mut tokens) = (String::new(), String::new());
    for id in ids {
        let token = new_token("agent");
        agents += &format!("- {{id: {id}, name: load-{id}, tokens: [\"{}\"]}}\n", hash(&token));
        tokens += &token;
        tokens.push('\n');
    }
    (agents, tokens)
}

/// Returns a new token for an agent or a caller.
pub fn new_token(holder: &str) -> String {
    let random: [u8; 32] = rand::random();
    format!("kas-{holder}-{}", hex(&random))
}

/// Returns the hash of a token in the format of the identity file.
pub fn hash(token: &str) -> String {
    format!("sha256:{}", hex(&Sha256::digest(token.as_bytes())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Writes a file that only its owner can read.
pub fn write_file(directory: &Path, name: impl AsRef<Path>, text: &str) -> anyhow::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};

    let path = directory.join(name);
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// One agent and one caller. The hashes of their tokens replace the placeholders.
pub const IDENTITY: &str = "\
agents:
- {id: 1, name: demo, tokens: [\"AGENT_HASH\"]}
callers:
- {name: you, tokens: [\"CALLER_HASH\"], agents: [\"*\"], services: [\"*\"]}
";

/// Three rules on services and resources, the last of which allows everything.
pub const POLICY: &str = "\
rules:
- {name: no-secrets, action: deny, services: [kubernetes], resources: [secrets]}
- {name: no-shells, action: deny, services: [kubernetes], resources: [pods/exec, pods/attach]}
- {name: everything, action: allow, services: [\"*\"]}
";
