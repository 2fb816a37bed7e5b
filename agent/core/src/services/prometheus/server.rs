//! One Prometheus server, with the credential of agentk there.

use std::{fmt, sync::Arc};

use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use proto::Reason;
use tokio::time::Instant;
use tunnel::Body;

use crate::{
    ServiceError,
    cluster::CredentialFile,
    services::headers,
    upstream::{ServerUrl, Upstream, UpstreamConfig},
};

/// Sends requests to one server. Cheap to clone.
#[derive(Clone)]
pub(super) struct PrometheusServer {
    upstream: Upstream,
    credential: Option<Arc<CredentialFile>>,
}

impl PrometheusServer {
    pub(super) fn new(url: ServerUrl, config: UpstreamConfig, credential: Option<CredentialFile>) -> Self {
        Self { upstream: Upstream::new(url, config), credential: credential.map(Arc::new) }
    }

    pub(super) fn url(&self) -> &ServerUrl {
        self.upstream.url()
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        if headers::to_upstream(request.headers_mut()) {
            return Err(ServiceError::new(Reason::BadRequest, "Prometheus supports no upgrades"));
        }
        if let Some(file) = &self.credential {
            request.headers_mut().insert(AUTHORIZATION, file.authorization(Instant::now()).await);
        }
        let mut response = self.upstream.send(request).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(self.unauthorized());
        }
        headers::from_upstream(response.headers_mut());

        Ok(response.map(Body::from))
    }

    /// Returns the error for a 401. It concerns the credential of agentk: a caller that received it would discard its own.
    fn unauthorized(&self) -> ServiceError {
        let url = self.url();
        let what = match &self.credential {
            Some(file) => {
                file.invalidate();
                format!("Prometheus at {url} refused agentk's credential (401), {file}")
            }
            None => format!(
                "Prometheus at {url} requires a credential (401): give agentk --prometheus-token-file or \
                 --prometheus-basic-auth-file"
            ),
        };
        ServiceError::new(Reason::ClusterCredential, what)
    }
}

impl fmt::Debug for PrometheusServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrometheusServer({})", self.url())
    }
}
