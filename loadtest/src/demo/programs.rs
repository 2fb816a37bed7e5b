//! kas and agentk as child processes.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context as _;
use tokio::process::Command;

use super::{DemoCluster, DemoFiles};
use crate::stack::child::{ChildProcess, find};

/// The running programs. Dropping this kills them.
#[derive(Debug)]
pub(super) struct DemoPrograms {
    kas: ChildProcess,
    agentk: ChildProcess,
    public: SocketAddr,
}

impl DemoPrograms {
    pub(super) async fn start(
        files: &DemoFiles,
        cluster: &DemoCluster,
        prometheus: Option<&str>,
        within: Duration,
    ) -> anyhow::Result<Self> {
        let mut kas = Command::new(find("kas", None)?);
        kas.arg("serve").arg("--config").arg(files.path("kas.yaml"));
        let (kas, listening) =
            ChildProcess::start(kas, &files.path("kas.log"), Some("kas is listening"), within).await?;
        let address = |name: &str| {
            let address = listening[name].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
            address.with_context(|| format!("kas did not log its {name} address"))
        };
        let (public, agent) = (address("public")?, address("agent")?);
        files.write_kubeconfig(public).await?;

        let mut agentk = Command::new(find("agentk", None)?);
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
            files.write_file("cluster-kubeconfig", &kubeconfig).await?;
            agentk.arg("--kubeconfig").arg(files.path("cluster-kubeconfig"));
        }
        if let Some(url) = prometheus {
            agentk.args(["--prometheus-url", url]);
        }
        let (agentk, _) = ChildProcess::start(agentk, &files.path("agentk.log"), None, within).await?;
        Ok(Self { kas, agentk, public })
    }

    /// Returns the address for callers.
    pub(super) fn public(&self) -> SocketAddr {
        self.public
    }

    /// Stops both, agentk first, so that it can close its tunnels.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.agentk.stop().await?;
        self.kas.stop().await
    }
}
