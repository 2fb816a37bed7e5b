//! The memory of idle tunnels and of idle processes.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use loadtest::{
    agents,
    installation::stack::{
        KasProcess, StackConfig,
        process::{self, find},
    },
};
use serde::Serialize;
use tokio::{process::Command, time::sleep};

use super::nginx::Nginx;

/// The idle time before memory is measured.
const SETTLE: Duration = Duration::from_secs(3);

/// The memory of a number of idle tunnels.
#[derive(Debug, Serialize)]
pub(super) struct IdleTunnels {
    pub(super) tunnels: u32,
    pub(super) tls: bool,
    /// The growth of the resident memory of kas per tunnel, in KiB.
    pub(super) kas_kib: f64,
    /// The same for the process of the agents, each of which has one tunnel.
    pub(super) agent_kib: f64,
    /// The time from the first dial until the last tunnel was up.
    pub(super) open_seconds: f64,
}

/// The memory of an idle kas and an idle agentk that have served a few requests.
#[derive(Debug, Serialize)]
pub(super) struct IdleProcesses {
    pub(super) tls: bool,
    /// The resident memory of kas, in MiB.
    pub(super) kas_mib: f64,
    /// The resident memory of agentk with its default number of tunnels, in MiB.
    pub(super) agentk_mib: f64,
}

/// Starts kas and agentk with default settings and measures their memory.
pub(super) async fn processes(work: &Path, upstream: &Nginx, tls: bool) -> anyhow::Result<IdleProcesses> {
    let setup = StackConfig { tls: tls.into(), ..StackConfig::default() };
    let kas = KasProcess::start(&work.join(format!("idle-processes-{tls}")), &setup).await?;
    let agentk = kas.start_agentk(&setup, upstream.address, "/one/200").await?;
    sleep(SETTLE).await;
    let [kas_mib, agentk_mib] = [kas.pid(), agentk.pid()].map(process::resident);
    let mib = |kib: u64| kib as f64 / 1024.0;
    let measured = IdleProcesses { tls, kas_mib: mib(kas_mib?), agentk_mib: mib(agentk_mib?) };
    agentk.stop().await?;
    kas.stop().await?;
    Ok(measured)
}

/// Starts kas and, in a process of their own, agents, and measures the memory of their tunnels.
pub(super) async fn measure(work: &Path, tunnels: u32, tls: bool) -> anyhow::Result<IdleTunnels> {
    let directory = work.join(format!("idle-{tunnels}-{tls}"));
    let kas =
        KasProcess::start(&directory, &StackConfig { tls: tls.into(), ..StackConfig::default() }).await?;
    let report = directory.join("agents.json");
    let mut agents = Command::new(find("loadtest", None)?);
    agents
        .args(["agents", "--kas", &format!("{}://{}", if tls { "wss" } else { "ws" }, kas.agents)])
        .arg("--token-file")
        .arg(kas.agent_token())
        .args(["--count", &tunnels.to_string(), "--per-second", "1000000", "--duration", "3s"])
        .args(["--process", &kas.pid().to_string()])
        .arg("--json")
        .arg(&report)
        .kill_on_drop(true);
    if tls {
        agents.arg("--cacert").arg(directory.join("kas.crt"));
    }
    let output = agents.output().await.context("loadtest cannot be started")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let report: agents::AgentsReport = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    kas.kill().await?;
    Ok(IdleTunnels {
        tunnels,
        tls,
        kas_kib: report.kas_kib_per_tunnel.context("its process was named")?,
        agent_kib: report.own_kib_per_tunnel,
        open_seconds: report.seconds_to_all.context("all tunnels were up")?,
    })
}
