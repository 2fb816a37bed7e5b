//! The cluster of the demo.

use std::{net::SocketAddr, time::Duration};

use agent::{
    cluster::{Cluster, KubeconfigOptions},
    upstream::{Upstream, UpstreamConfig},
};
use http::{Request, header::AUTHORIZATION};
use simulator::Simulator;
use tokio::time::timeout;
use tunnel::Body;

/// A real or a simulated cluster.
#[derive(Debug)]
pub(super) enum DemoCluster {
    /// The cluster of the current kubeconfig, which agentk finds by the same rules.
    Real {
        what: String,
    },
    Simulated(Simulator),
}

/// The timeout after which a real cluster counts as absent.
const TIMEOUT: Duration = Duration::from_secs(5);

impl DemoCluster {
    pub(super) async fn find(simulate: bool) -> std::io::Result<Self> {
        if !simulate && let Some(what) = real().await {
            return Ok(Self::Real { what });
        }

        Simulator::start(SocketAddr::from(([127, 0, 0, 1], 0))).map(Self::Simulated)
    }

    pub(super) fn prometheus_url(&self) -> Option<String> {
        match self {
            Self::Real { .. } => None,
            Self::Simulated(simulator) => Some(simulator.prometheus_url()),
        }
    }

    /// Returns the kubeconfig for agentk, if it does not find the cluster itself.
    pub(super) fn kubeconfig(&self) -> Option<String> {
        match self {
            Self::Real { .. } => None,
            Self::Simulated(simulator) => Some(simulator.kubeconfig()),
        }
    }

    pub(super) async fn stop(self) {
        if let Self::Simulated(simulator) = self {
            simulator.shutdown().await;
        }
    }
}

/// Returns the description of the cluster of the current kubeconfig, if it responds.
async fn real() -> Option<String> {
    let cluster = Cluster::load(&KubeconfigOptions::default()).ok()?;
    let settings = UpstreamConfig { tls: cluster.tls(), ..UpstreamConfig::default() };
    let api = Upstream::new(cluster.url(), settings);
    let answered = timeout(TIMEOUT, async {
        let mut request = Request::get("/version").body(Body::empty()).ok()?;
        if let Some(value) = cluster.authorization().await.ok()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        api.send(request).await.ok().filter(|answer| answer.status().is_success())
    });
    answered.await.ok()??;
    Some(cluster.to_string())
}
