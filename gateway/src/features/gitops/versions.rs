//! The version and the API of the cluster of an agent, for which charts are rendered.

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use proto::{
    ServiceName,
    gitops::{CLUSTER_PATH, ClusterVersions, MAX_CLUSTER_VERSIONS},
    header,
};
use render::TargetCluster;
use tokio::time::timeout;
use tunnel::{Body, Tunnel};

use super::feed::{REQUEST_TIMEOUT, check_status};

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
        let versions = versions.unwrap_or_else(|_| Err("no response in time".to_owned()));
        let ClusterVersions { kubernetes, api, unavailable, hooks } = versions.map_err(|error| {
            format!("agentk does not name the version and the API of its cluster, for which charts are rendered: {error}")
        })?;
        let own = self.kubernetes.map(str::to_owned);
        let version = Some(kubernetes).filter(|version| !version.is_empty()).or(own);
        Ok(TargetCluster::new(version, api, unavailable).with_hooks(hooks))
    }

    async fn request(&self) -> Result<ClusterVersions, String> {
        let request = Request::get(CLUSTER_PATH).header(header::SERVICE, ServiceName::MANIFESTS);
        let request = request.body(Body::empty()).expect("a valid request");
        let response = self.tunnel.call(request).await.map_err(|error| error.to_string())?;
        // An older agentk does not know the path.
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(ClusterVersions::default());
        }
        let body = Limited::new(check_status(response)?.into_body(), MAX_CLUSTER_VERSIONS).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| format!("the response is not valid: {error}"))
    }
}
