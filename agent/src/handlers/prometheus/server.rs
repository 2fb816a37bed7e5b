//! One Prometheus server, and who we are there.

use std::{fmt, sync::Arc};

use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use proto::Reason;
use tokio::time::Instant;
use tunnel::Body;

use crate::{
    Failure,
    cluster::CredentialFile,
    handlers::unanswered,
    headers,
    upstream::{Endpoint, Settings, Upstream},
};

/// Answers from one address. Cheap to clone.
#[derive(Clone)]
pub(super) struct Server {
    upstream: Upstream,
    credential: Option<Arc<CredentialFile>>,
}

impl Server {
    pub(super) fn new(endpoint: Endpoint, settings: Settings, credential: Option<CredentialFile>) -> Self {
        Self { upstream: Upstream::new(endpoint, settings), credential: credential.map(Arc::new) }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.upstream.endpoint()
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        if headers::to_upstream(request.headers_mut()) {
            return Err(Failure::new(Reason::BadRequest, "Prometheus has nothing to upgrade to"));
        }
        if let Some(file) = &self.credential {
            request.headers_mut().insert(AUTHORIZATION, file.authorization(Instant::now()).await);
        }
        let mut response = self.upstream.send(request).await.map_err(|error| unanswered(&error))?;
        if response.status() == StatusCode::UNAUTHORIZED {
            return Err(self.unauthorized());
        }
        headers::from_upstream(response.headers_mut());

        Ok(response.map(Body::from))
    }

    /// A 401 is about our credential, never the caller's: passed on, it would make the caller throw its own away.
    fn unauthorized(&self) -> Failure {
        let endpoint = self.endpoint();
        let what = match &self.credential {
            Some(file) => {
                file.rejected();
                format!("Prometheus at {endpoint} refused agentk's credential (401), {file}")
            }
            None => format!(
                "Prometheus at {endpoint} asks for a credential (401): give agentk --prometheus-token-file or \
                 --prometheus-basic-auth-file"
            ),
        };
        Failure::new(Reason::ClusterCredential, what)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.endpoint())
    }
}
