//! kas and agentk as processes on this machine, for commands that start, kill or compare them.

mod config;
pub mod network;
pub mod process;
pub mod redis;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agentk_core::KasAddress;
use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::{sleep, timeout},
};

pub use self::config::kubeconfig;
pub use self::config::{AGENT, IDENTITY, POLICY, StackConfig, Tls, hash, new_agents, new_token};
use self::{
    config::{config, write_identity},
    process::{ChildProcess, Signal, find},
};
use crate::load::{
    LoadTarget,
    client::LoadConnection,
    progress::Counter,
    target::{TargetOptions, read_token},
};

/// The timeout for the start of a program.
pub const START: Duration = Duration::from_secs(30);
/// The text in the log of agentk before its observability address.
const AGENTK_LISTENS: &str = "serving /liveness, /readiness and /metrics address=";
/// The polling interval.
pub const POLL: Duration = Duration::from_millis(50);

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
    /// The address of the web page, if it is served.
    pub web: Option<SocketAddr>,
    /// The address of the internal API, if it is served.
    pub api: Option<SocketAddr>,
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
            write_identity(directory, setup.extra_agents, &setup.callers)?;
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
        let (web, api) = (logged("web"), logged("api"));
        Ok(Self { child, directory, scheme, public, agents, private, observability, web, api })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        self.child.signal(signal)
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
    pub fn certificate(&self) -> Option<PathBuf> {
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
    pub fn target_of(
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
    pub async fn spawn_agentk(
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
            // Each process has its own file, because an earlier one may still read that of the same name.
            let file = format!("{name}.kubeconfig");
            write_file(&self.directory, &file, kubeconfig)?;
            command.arg("--kubeconfig").arg(self.directory.join(file));
        }
        if setup.tls != Tls::Off {
            command.arg("--kas-ca-cert-file").arg(self.directory.join("kas.crt"));
        }
        if setup.gitlab_protocol {
            command.args(["--protocol", "gitlab"]);
        }
        if setup.policy {
            write_file(&self.directory, "policy.yaml", POLICY)?;
            command.arg("--policy-file").arg(self.directory.join("policy.yaml"));
        }
        let log = self.directory.join(format!("{name}.log"));
        let (agentk, _) = ChildProcess::start(command, &log, None, START).await?;
        Ok(agentk)
    }

    /// Returns the observability address of an agentk, which is in its log once it listens.
    pub async fn agentk_observability(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let log = self.directory.join(name).with_extension("log");
        let began = Instant::now();
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let address = text.lines().find_map(|line| line.split_once(AGENTK_LISTENS)?.1.parse().ok());
            if let Some(address) = address {
                return Ok(address);
            }
            if began.elapsed() > START {
                bail!("{name} did not log its observability address");
            }
            sleep(POLL).await;
        }
    }
}

/// Prepares a directory for [`KasProcess::start`]: its owner alone can read it, and earlier tokens are not used again.
pub fn prepare_directory(directory: &Path) -> anyhow::Result<PathBuf> {
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
pub async fn start_replicas(
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
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
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

/// Returns the sum of a metric over its labels.
pub fn sum(metrics: &str, name: &str) -> u64 {
    let values = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest
            .strip_prefix(' ')
            .or_else(|| rest.strip_prefix('{')?.split_once("} ").map(|(_, value)| value))?;
        value.parse::<u64>().ok()
    });
    values.sum()
}

/// Waits until a request succeeds with a status below 400, for at most 30 s.
pub async fn wait_until_ready(target: &LoadTarget) -> anyhow::Result<()> {
    let deadline = Instant::now() + START;
    loop {
        let exchange = async {
            let mut connection = LoadConnection::open(target, 16 * 1024, Counter::default()).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_is_summed_over_its_labels() {
        let text = "# TYPE kas_tunnels gauge\nkas_tunnels 2\nkas_in_flight{service=\"a\"} 3\n\
                    kas_in_flight{service=\"b\"} 4\nkas_in_flight_bytes 5\n";
        assert_eq!([sum(text, "kas_tunnels"), sum(text, "kas_in_flight"), sum(text, "other")], [2, 7, 0]);
    }
}
