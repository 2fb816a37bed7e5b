//! What tunnels without requests cost in memory, and the processes themselves.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::{process::Command, time::sleep};

use super::nginx::Nginx;
use crate::{
    agents,
    stack::{Kas, Setup, usage},
};

/// How long a process has nothing to do before its memory is looked at.
const SETTLE: Duration = Duration::from_secs(3);

/// So many tunnels.
#[derive(Debug, Serialize)]
pub(super) struct Idle {
    pub(super) tunnels: u32,
    pub(super) tls: bool,
    /// Growth of kas's resident memory for each, in KiB.
    pub(super) kas_kib: f64,
    /// The same for the process of the agents; each is an agent of its own, with one tunnel.
    pub(super) agent_kib: f64,
    /// From the first dial until the last tunnel was up.
    pub(super) open_seconds: f64,
}

/// A kas and an agentk that have answered a few requests, and have nothing to do.
#[derive(Debug, Serialize)]
pub(super) struct Processes {
    pub(super) tls: bool,
    /// Resident memory of the whole process, in MiB.
    pub(super) kas_mib: f64,
    /// The same, with as many tunnels as it has by default.
    pub(super) agentk_mib: f64,
}

/// Starts both, as their users do.
pub(super) async fn processes(work: &Path, upstream: &Nginx, tls: bool) -> anyhow::Result<Processes> {
    let setup = Setup { tls: tls.into(), ..Setup::default() };
    let kas = Kas::start(&work.join(format!("idle-processes-{tls}")), &setup).await?;
    let agentk = kas.agentk(&setup, upstream.address, "/one/200").await?;
    sleep(SETTLE).await;
    let [kas_mib, agentk_mib] = [kas.pid(), agentk.pid()].map(usage::resident);
    let mib = |kib: u64| kib as f64 / 1024.0;
    let measured = Processes { tls, kas_mib: mib(kas_mib?), agentk_mib: mib(agentk_mib?) };
    agentk.stop().await?;
    kas.stop().await?;
    Ok(measured)
}

/// Starts a kas, and agents in a process of their own.
pub(super) async fn measure(work: &Path, tunnels: u32, tls: bool) -> anyhow::Result<Idle> {
    let directory = work.join(format!("idle-{tunnels}-{tls}"));
    let kas = Kas::start(&directory, &Setup { tls: tls.into(), ..Setup::default() }).await?;
    let report = directory.join("agents.json");
    let mut agents = Command::new(std::env::current_exe()?);
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
    let output = agents.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let report: agents::Report = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    kas.kill().await?;
    Ok(Idle {
        tunnels,
        tls,
        kas_kib: report.kas_kib_per_tunnel.context("its process was named")?,
        agent_kib: report.own_kib_per_tunnel,
        open_seconds: report.seconds_to_all.context("all tunnels were up")?,
    })
}
