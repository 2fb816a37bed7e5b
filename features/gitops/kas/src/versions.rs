//! The version and the API of the cluster of an agent, for which charts are rendered.

use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kas_core::agent_requests::{AgentRequestError, request, send};
use proto::{
    ServiceName,
    gitops::{CLUSTER_PATH, ClusterVersions, MAX_CLUSTER_VERSIONS},
};
use render::TargetCluster;
use tokio::time::timeout;
use tunnel::{Body, Tunnel};

use super::REQUEST_TIMEOUT;

/// Reads what the cluster behind a tunnel is.
#[derive(Clone, Copy)]
pub(super) struct ClusterReader<'a> {
    pub(super) tunnel: &'a Tunnel,
    /// The version that agentk named when it opened the tunnel.
    pub(super) kubernetes: Option<&'a str>,
}

impl ClusterReader<'_> {
    /// Returns the cluster as agentk knows it now.
    ///
    /// # Errors
    ///
    /// agentk does not know it, or does not respond. The error is a sentence.
    pub(super) async fn read(&self) -> Result<TargetCluster, String> {
        let versions = timeout(REQUEST_TIMEOUT, self.request()).await;
        let versions = versions.unwrap_or_else(|_| Err(AgentRequestError::TimedOut.into()));
        let ClusterVersions { kubernetes, api, unavailable, hooks } = versions.map_err(|error| {
            format!("agentk does not name the version and the API of its cluster, for which charts are rendered: {error}")
        })?;
        let own = self.kubernetes.map(str::to_owned);
        let version = Some(kubernetes).filter(|version| !version.is_empty()).or(own);
        Ok(TargetCluster::new(version, api, unavailable).with_hooks(hooks))
    }

    async fn request(&self) -> Result<ClusterVersions, String> {
        let request = request(Method::GET, ServiceName::MANIFESTS, CLUSTER_PATH, Body::empty());
        let response = match send(self.tunnel, request, REQUEST_TIMEOUT).await {
            // An older agentk does not know the path.
            Err(AgentRequestError::Refused(StatusCode::NOT_FOUND, _)) => {
                return Ok(ClusterVersions::default());
            }
            response => response?,
        };
        let body = Limited::new(response.into_body(), MAX_CLUSTER_VERSIONS).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| format!("the response is not valid: {error}"))
    }
}
