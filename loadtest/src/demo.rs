//! `loadtest demo`: kas, agentk and a cluster on this machine, and a first request through the tunnel.
//!
//! Runs the real programs with default settings. The cluster is the one of the current kubeconfig if it responds, or else
//! the [`simulator`].

mod cluster;
mod files;
mod next_steps;
mod programs;
mod smoke_test;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use clap::ValueHint;
use tokio_util::sync::CancellationToken;

use self::{cluster::DemoCluster, files::DemoFiles, programs::DemoPrograms, smoke_test::SmokeTest};

/// The flags of the demo.
#[derive(Clone, Debug, clap::Args)]
pub struct Demo {
    /// Check the responses and exit with the result instead of waiting for Ctrl-C
    #[arg(long)]
    smoke: bool,
    /// Use the simulated cluster even if the current kubeconfig names a real one
    #[arg(long)]
    simulate: bool,
    /// Prometheus server of the real cluster; the simulated cluster has its own
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    prometheus_url: Option<String>,
    /// Directory for the generated configuration, certificate and kubeconfig
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, default_value = "target/demo")]
    directory: PathBuf,
}

/// The timeout for the start of all programs.
const START_TIMEOUT: Duration = Duration::from_secs(30);

impl Demo {
    /// Runs until `stop` is cancelled, or until the responses are checked.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let cluster =
            DemoCluster::find(self.simulate).await.context("the simulated cluster did not start")?;
        let prometheus = self.prometheus_url.clone().or_else(|| cluster.prometheus_url());
        let files = DemoFiles::write(&self.directory).await?;
        let result = tokio::select! {
            result = self.run_programs(&files, &cluster, prometheus.as_deref(), &stop) => result,
            () = stop.cancelled() => Ok(()),
        };
        cluster.stop().await;
        result
    }

    async fn run_programs(
        &self,
        files: &DemoFiles,
        cluster: &DemoCluster,
        prometheus: Option<&str>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let programs = DemoPrograms::start(files, cluster, prometheus, START_TIMEOUT).await?;
        let smoke_test = SmokeTest::new(files, programs.public(), prometheus.is_some())?;
        let next_steps = next_steps::NextSteps {
            files,
            cluster,
            public: programs.public(),
            prometheus: prometheus.is_some(),
        };
        let result = async {
            smoke_test.wait_for_agent(START_TIMEOUT).await?;
            if self.smoke {
                let failed = smoke_test.run().await;
                ensure!(failed == 0, "{failed} checks failed");
                return Ok(());
            }
            next_steps.print(&smoke_test.first_answer().await?)?;
            stop.cancelled().await;
            Ok(())
        }
        .await;
        let stopped = programs.stop().await;
        result.and(stopped)
    }
}
