//! The whole product on one machine: kas, agentk, a cluster, and a first request through the tunnel.
//!
//! Runs the real programs with the embedded defaults. The cluster is the one of the current kubeconfig, or else the
//! [`crate::simulator`], which says so.

mod checks;
mod cluster;
mod files;
mod programs;
mod story;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use clap::ValueHint;
use tokio_util::sync::CancellationToken;

use self::{checks::Checks, cluster::DemoCluster, files::Files, programs::Programs};

/// How the demo is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Demo {
    /// Check the answers and exit with the result, instead of waiting for Ctrl-C
    #[arg(long)]
    smoke: bool,
    /// Use the simulated cluster even if the current kubeconfig names a real one
    #[arg(long)]
    simulate: bool,
    /// A Prometheus server for the real cluster; the simulated one brings its own
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    prometheus_url: Option<String>,
    /// Where the generated configuration, certificate and kubeconfig are written
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, default_value = "target/demo")]
    directory: PathBuf,
}

/// How long everything may take to be up.
const START_TIMEOUT: Duration = Duration::from_secs(30);

impl Demo {
    /// Runs until `stop`, or until the answers were checked.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let cluster =
            DemoCluster::find(self.simulate).await.context("the simulated cluster did not start")?;
        let prometheus = self.prometheus_url.clone().or_else(|| cluster.prometheus_url());
        let files = Files::write(&self.directory).await?;
        let result = tokio::select! {
            result = self.play(&files, &cluster, prometheus.as_deref(), &stop) => result,
            () = stop.cancelled() => Ok(()),
        };
        cluster.stop().await;
        result
    }

    async fn play(
        &self,
        files: &Files,
        cluster: &DemoCluster,
        prometheus: Option<&str>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let programs = Programs::start(files, cluster, prometheus, START_TIMEOUT).await?;
        let checks = Checks::new(files, programs.public(), prometheus.is_some())?;
        let story =
            story::Story { files, cluster, public: programs.public(), prometheus: prometheus.is_some() };
        let result = async {
            checks.wait_for_the_agent(START_TIMEOUT).await?;
            if self.smoke {
                let failed = checks.run().await;
                ensure!(failed == 0, "{failed} checks failed");
                return Ok(());
            }
            story.tell(&checks.first_answer().await?)?;
            stop.cancelled().await;
            Ok(())
        }
        .await;
        let stopped = programs.stop().await;
        result.and(stopped)
    }
}
