//! kas and agentk as child processes.

use std::{net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStderr, Command},
    signal::unix::SignalKind,
    task::JoinHandle,
    time::timeout,
};

use super::{DemoCluster, Files};

/// The running programs. Dropping them kills them.
#[derive(Debug)]
pub(super) struct Programs {
    kas: Program,
    agentk: Program,
    public: SocketAddr,
}

#[derive(Debug)]
struct Program {
    name: &'static str,
    child: Child,
    /// Copies the log to a file.
    log: JoinHandle<()>,
}

/// How long a program may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a program of this workspace is: beside this one.
pub(super) fn beside(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.exists(), "{} is missing: build it with `cargo build --workspace --bins`", path.display());
    Ok(path)
}

impl Programs {
    pub(super) async fn start(
        files: &Files,
        cluster: &DemoCluster,
        prometheus: Option<&str>,
        within: Duration,
    ) -> anyhow::Result<Self> {
        let mut kas = Command::new(beside("kas")?);
        kas.arg("serve").arg("--config").arg(files.path("kas.yaml"));
        let (kas, listening) = Program::start("kas", kas, files, Some("kas is listening"), within).await?;
        let address = |name: &str| {
            let address = listening[name].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
            address.with_context(|| format!("kas did not say its {name} address"))
        };
        let (public, agent) = (address("public")?, address("agent")?);
        files.put_kubeconfig(public).await?;

        let mut agentk = Command::new(beside("agentk")?);
        agentk
            .arg("--kas-address")
            .arg(format!("wss://{agent}"))
            .arg("--kas-ca-cert-file")
            .arg(files.path("kas.crt"))
            .arg("--token-file")
            .arg(files.path("agent-token"))
            .args(["--observability-listen-address", "127.0.0.1:0", "--shutdown-grace-period", "2s"])
            .env_remove("AGENTK_TOKEN");
        if let Some(kubeconfig) = cluster.kubeconfig() {
            files.put("cluster-kubeconfig", &kubeconfig).await?;
            agentk.arg("--kubeconfig").arg(files.path("cluster-kubeconfig"));
        }
        if let Some(url) = prometheus {
            agentk.args(["--prometheus-url", url]);
        }
        let (agentk, _) = Program::start("agentk", agentk, files, None, within).await?;
        Ok(Self { kas, agentk, public })
    }

    /// Where callers connect.
    pub(super) fn public(&self) -> SocketAddr {
        self.public
    }

    /// Stops both as Kubernetes would: the agent first, so that it leaves in good order.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.agentk.stop().await?;
        self.kas.stop().await
    }
}

impl Program {
    /// Starts a program whose log goes to a file; with `until`, waits for that message and returns its fields.
    async fn start(
        name: &'static str,
        mut command: Command,
        files: &Files,
        until: Option<&str>,
        within: Duration,
    ) -> anyhow::Result<(Self, Value)> {
        // A process group of its own: Ctrl-C is for the demo, which then stops its programs in order.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let stderr = child.stderr.take().context("standard error is piped")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut said = Value::Null;
        if let Some(message) = until {
            said = timeout(within, wait_for(&mut lines, message))
                .await
                .with_context(|| format!("{name} did not start in time"))?
                .with_context(|| format!("{name} did not start"))?;
        }

        let path = files.path(&format!("{name}.log"));
        let mut file = tokio::fs::File::create(&path).await?;
        let log = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if file.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        Ok((Self { name, child, log }, said))
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        let name = self.name;
        let Some(pid) = self.child.id() else {
            bail!("{name} had stopped by itself; its log says why");
        };
        // tokio can only kill; the shell's kill is on every machine.
        let signal = SignalKind::terminate().as_raw_value();
        Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().await?;
        let status = timeout(STOP_TIMEOUT, self.child.wait())
            .await
            .with_context(|| format!("{name} did not stop within {STOP_TIMEOUT:?}"))??;
        self.log.abort();
        ensure!(status.success(), "{name} stopped with {status}");
        Ok(())
    }
}

async fn wait_for(
    lines: &mut tokio::io::Lines<BufReader<ChildStderr>>,
    message: &str,
) -> anyhow::Result<Value> {
    let mut last = String::new();
    while let Some(line) = lines.next_line().await? {
        if let Ok(event) = serde_json::from_str::<Value>(&line)
            && event["message"] == message
        {
            return Ok(event);
        }
        last = line;
    }
    bail!("{last}")
}
