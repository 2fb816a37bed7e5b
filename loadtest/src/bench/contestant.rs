//! Ways to the same upstream, each of which is one row.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;

use crate::{
    load::{Target, target::TargetOptions},
    stack::{Kas, Setup, answers, child::Child, delay, free_port},
};

use super::{nginx::Nginx, peer::Pair, rathole::Rathole};

/// One way. Dropping it stops its programs.
pub(super) struct Contestant {
    pub(super) name: String,
    /// Another build of kas and agentk.
    pub(super) other_build: bool,
    way: Way,
}

enum Way {
    Plain(Nginx),
    Rathole(Rathole),
    Ours { kas: Kas, agentk: Child },
    Owner(Arc<Pair>),
    Peer(Arc<Pair>),
}

impl Contestant {
    /// The upstream itself.
    pub(super) fn direct(upstream: &Nginx) -> Self {
        Self::new("direct", Way::Plain(Nginx::at(upstream.address)))
    }

    /// The same over a longer way: `delay` is for each direction.
    pub(super) async fn far(name: &str, upstream: &Nginx, delay: Duration) -> anyhow::Result<Self> {
        let address = delay::start(upstream.address, delay).await?;
        Ok(Self::new(name, Way::Plain(Nginx::at(address))))
    }

    /// A reverse proxy, and no tunnel.
    pub(super) async fn nginx(directory: &Path, upstream: &Nginx) -> anyhow::Result<Self> {
        let proxy = Nginx::proxy(&directory.join("proxy"), upstream.address).await?;
        Ok(Self::new("nginx proxy", Way::Plain(proxy)))
    }

    /// A tunnel of bytes, where it is installed.
    pub(super) async fn rathole(directory: &Path, upstream: &Nginx) -> anyhow::Result<Option<Self>> {
        let rathole = Rathole::start(&directory.join("rathole"), free_port()?, upstream.address).await?;
        Ok(rathole.map(|rathole| Self::new("rathole", Way::Rathole(rathole))))
    }

    /// kas and agentk.
    pub(super) async fn ours(
        name: &str,
        directory: &Path,
        setup: &Setup,
        upstream: &Nginx,
    ) -> anyhow::Result<Self> {
        let start = async {
            let kas = Kas::start(&directory.join(name.replace(' ', "-")), setup).await?;
            let agentk = kas.agentk(setup, upstream.address, "/one/200").await?;
            anyhow::Ok(Way::Ours { kas, agentk })
        };
        let way = start.await.with_context(|| name.to_owned())?;
        Ok(Self { other_build: setup.programs.is_some(), ..Self::new(name, way) })
    }

    /// Two replicas, of which the one that holds the agent is asked.
    pub(super) fn owner(pair: &Arc<Pair>) -> Self {
        Self::new("one hop", Way::Owner(Arc::clone(pair)))
    }

    /// The same, and the other one is asked.
    pub(super) fn through_peer(pair: &Arc<Pair>) -> Self {
        Self::new("through a peer", Way::Peer(Arc::clone(pair)))
    }

    fn new(name: &str, way: Way) -> Self {
        Self { name: name.to_owned(), other_build: false, way }
    }

    /// What to send for a path of the upstream.
    pub(super) fn target(&self, path: &str) -> anyhow::Result<Target> {
        let address = match &self.way {
            Way::Plain(nginx) => nginx.address,
            Way::Rathole(rathole) => rathole.address,
            Way::Ours { kas, .. } => return kas.target(path),
            Way::Owner(pair) => return pair.owner.target(path),
            Way::Peer(pair) => return pair.other.target(path),
        };
        let urls = vec![format!("http://{address}{path}")];
        TargetOptions { urls, ..TargetOptions::default() }.build()
    }

    /// Its processes: those near the caller, and those near the upstream.
    pub(super) fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        match &self.way {
            Way::Plain(nginx) => (nginx.pid().into_iter().collect(), Vec::new()),
            Way::Rathole(rathole) => (vec![rathole.server.pid()], vec![rathole.client.pid()]),
            Way::Ours { kas, agentk } => (vec![kas.pid()], vec![agentk.pid()]),
            Way::Owner(pair) => (vec![pair.owner.pid()], vec![pair.agentk.pid()]),
            Way::Peer(pair) => (vec![pair.owner.pid(), pair.other.pid()], vec![pair.agentk.pid()]),
        }
    }

    /// Asks its programs to stop, and waits until they have: that near the upstream first.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        if let Way::Ours { kas, agentk } = self.way {
            agentk.stop().await?;
            kas.stop().await?;
        }
        Ok(())
    }

    /// Waits until it answers.
    pub(super) async fn ready(&self) -> anyhow::Result<()> {
        answers(&self.target("/one/200")?).await.with_context(|| self.name.clone())
    }
}
