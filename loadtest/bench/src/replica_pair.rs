//! Two replicas that share Redis, for the cost of the second hop.

use std::path::Path;

use loadtest::installation::stack::{KasProcess, StackConfig, process::ChildProcess, redis::RedisProcess};

use crate::nginx::Nginx;

/// Two replicas that share Redis, and one agent.
pub(super) struct ReplicaPair {
    /// The replica with all tunnels of the agent.
    pub(super) owner: KasProcess,
    /// The replica without tunnels.
    pub(super) other: KasProcess,
    pub(super) agentk: ChildProcess,
    _redis: RedisProcess,
}

impl ReplicaPair {
    /// Starts Redis, both replicas and the agent.
    pub(super) async fn start(work: &Path, setup: &StackConfig, upstream: &Nginx) -> anyhow::Result<Self> {
        let directory = work.join("pair");
        let redis = RedisProcess::start(&directory.join("redis")).await?;
        let setup = StackConfig { redis: Some(redis.address), ..setup.clone() };
        let owner = KasProcess::start(&directory, &setup).await?;
        let other = KasProcess::start_as("kas-other", &directory, &setup).await?;
        let agentk = owner.start_agentk(&setup, upstream.address, "/one/200").await?;
        Ok(Self { owner, other, agentk, _redis: redis })
    }

    /// Stops the programs and waits until they have exited.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.agentk.stop().await?;
        self.other.stop().await?;
        self.owner.stop().await
    }
}
