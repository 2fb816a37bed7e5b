//! The candidates of the comparison: different connections to the same upstream.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use loadtest::{
    installation::stack::{KasProcess, StackConfig, free_port, process::ChildProcess, wait_until_ready},
    load::{LoadTarget, target::TargetOptions},
};

use crate::{
    delay,
    nginx::{Nginx, Rathole},
    replica_pair::ReplicaPair,
};

/// A candidate. Dropping it stops its programs.
pub(super) struct Candidate {
    pub(super) name: String,
    /// True if this is another build of kas and agentk.
    pub(super) other_build: bool,
    kind: CandidateKind,
}

enum CandidateKind {
    Plain(Nginx),
    Rathole(Rathole),
    KasAndAgentk { kas: KasProcess, agentk: ChildProcess },
    Owner(Arc<ReplicaPair>),
    Peer(Arc<ReplicaPair>),
}

impl Candidate {
    /// Returns a candidate that sends requests directly to the upstream.
    pub(super) fn direct(upstream: &Nginx) -> Self {
        Self::new("direct", CandidateKind::Plain(Nginx::at(upstream.address)))
    }

    /// Returns a candidate that sends requests directly, with a delay in each direction.
    pub(super) async fn direct_delayed(
        name: &str,
        upstream: &Nginx,
        delay: Duration,
    ) -> anyhow::Result<Self> {
        let address = delay::start(upstream.address, delay).await?;
        Ok(Self::new(name, CandidateKind::Plain(Nginx::at(address))))
    }

    /// Starts nginx as a reverse proxy, without a tunnel.
    pub(super) async fn nginx(directory: &Path, upstream: &Nginx) -> anyhow::Result<Self> {
        let proxy = Nginx::proxy(&directory.join("proxy"), upstream.address).await?;
        Ok(Self::new("nginx proxy", CandidateKind::Plain(proxy)))
    }

    /// Starts rathole, if it is installed.
    pub(super) async fn rathole(directory: &Path, upstream: &Nginx) -> anyhow::Result<Option<Self>> {
        let rathole = Rathole::start(&directory.join("rathole"), free_port()?, upstream.address).await?;
        Ok(rathole.map(|rathole| Self::new("rathole", CandidateKind::Rathole(rathole))))
    }

    /// Starts kas and agentk.
    pub(super) async fn kas_and_agentk(
        name: &str,
        directory: &Path,
        setup: &StackConfig,
        upstream: &Nginx,
    ) -> anyhow::Result<Self> {
        Self::kas_and_agentk_delayed(name, directory, setup, upstream, None).await
    }

    /// Starts kas and agentk, with a delay in each direction of the tunnel if there is one.
    pub(super) async fn kas_and_agentk_delayed(
        name: &str,
        directory: &Path,
        setup: &StackConfig,
        upstream: &Nginx,
        tunnel_delay: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let start = async {
            let kas = KasProcess::start(&directory.join(name.replace(' ', "-")), setup).await?;
            let dial = match tunnel_delay {
                Some(delay) => Some(delay::start(kas.agents, delay).await?),
                None => None,
            };
            let setup = StackConfig { dial, ..setup.clone() };
            let agentk = kas.start_agentk(&setup, upstream.address, "/one/200").await?;
            anyhow::Ok(CandidateKind::KasAndAgentk { kas, agentk })
        };
        let kind = start.await.with_context(|| name.to_owned())?;
        Ok(Self { other_build: setup.programs.is_some(), ..Self::new(name, kind) })
    }

    /// Returns the candidate that sends requests to the replica with the tunnels.
    pub(super) fn owner(pair: &Arc<ReplicaPair>) -> Self {
        Self::new("one hop", CandidateKind::Owner(Arc::clone(pair)))
    }

    /// Returns the candidate that sends requests to the replica without tunnels.
    pub(super) fn through_peer(pair: &Arc<ReplicaPair>) -> Self {
        Self::new("through a peer", CandidateKind::Peer(Arc::clone(pair)))
    }

    fn new(name: &str, kind: CandidateKind) -> Self {
        Self { name: name.to_owned(), other_build: false, kind }
    }

    /// Returns a target for a path of the upstream.
    pub(super) fn target(&self, path: &str) -> anyhow::Result<LoadTarget> {
        let address = match &self.kind {
            CandidateKind::Plain(nginx) => nginx.address,
            CandidateKind::Rathole(rathole) => rathole.address,
            CandidateKind::KasAndAgentk { kas, .. } => return kas.target(path),
            CandidateKind::Owner(pair) => return pair.owner.target(path),
            CandidateKind::Peer(pair) => return pair.other.target(path),
        };
        let urls = vec![format!("http://{address}{path}")];
        TargetOptions { urls, ..TargetOptions::default() }.build()
    }

    /// Returns the process ids near the caller, and those near the upstream.
    pub(super) fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        match &self.kind {
            CandidateKind::Plain(nginx) => (nginx.pid().into_iter().collect(), Vec::new()),
            CandidateKind::Rathole(rathole) => (vec![rathole.server.pid()], vec![rathole.client.pid()]),
            CandidateKind::KasAndAgentk { kas, agentk } => (vec![kas.pid()], vec![agentk.pid()]),
            CandidateKind::Owner(pair) => (vec![pair.owner.pid()], vec![pair.agentk.pid()]),
            CandidateKind::Peer(pair) => (vec![pair.owner.pid(), pair.other.pid()], vec![pair.agentk.pid()]),
        }
    }

    /// Stops its programs, the one near the upstream first, and waits until they have exited.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        if let CandidateKind::KasAndAgentk { kas, agentk } = self.kind {
            agentk.stop().await?;
            kas.stop().await?;
        }
        Ok(())
    }

    /// Waits until a request succeeds.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        wait_until_ready(&self.target("/one/200")?).await.with_context(|| self.name.clone())
    }
}
