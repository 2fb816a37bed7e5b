//! The cluster behind the demo.

use std::{net::SocketAddr, time::Duration};

use agent::{
    cluster::{Cluster, ClusterOptions},
    upstream::{Settings, Upstream},
};
use http::{Request, header::AUTHORIZATION};
use tokio::time::timeout;
use tunnel::Body;

use crate::simulator::Simulator;

/// Real or simulated.
#[derive(Debug)]
pub(super) enum DemoCluster {
    /// The one that the current kubeconfig names; agentk finds it by the same rules.
    Real {
        what: String,
    },
    Simulated(Simulator),
}

/// How long a real cluster may take to answer before it counts as absent.
const PATIENCE: Duration = Duration::from_secs(5);

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

    /// The kubeconfig for agentk, where it would not find the cluster by itself.
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

/// The cluster of the current kubeconfig, if it answers.
async fn real() -> Option<String> {
    let cluster = Cluster::load(&ClusterOptions::default()).ok()?;
    let settings = Settings { tls: cluster.tls(), ..Settings::default() };
    let api = Upstream::new(cluster.endpoint(), settings);
    let answered = timeout(PATIENCE, async {
        let mut request = Request::get("/version").body(Body::empty()).ok()?;
        if let Some(value) = cluster.authorization().await.ok()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        api.send(request).await.ok().filter(|answer| answer.status().is_success())
    });
    answered.await.ok()??;
    Some(cluster.to_string())
}
