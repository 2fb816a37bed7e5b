//! The policy as a tower layer, and the requests that it has permitted.

use std::{
    convert::Infallible,
    future::{pending, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, Request, Response, header::CONNECTION};
use proto::{ServiceName, impersonation};
use tower::{Layer, Service};
use tunnel::Body;

use super::PolicyEnforcer;
use crate::ServiceError;

/// Passes requests to one service if the policy in force allows them.
#[derive(Clone, Debug)]
pub(crate) struct PolicyLayer(Arc<ServicePolicy>);

/// A service behind a [`PolicyLayer`].
#[derive(Clone, Debug)]
pub(crate) struct PolicyService<S> {
    policy: Arc<ServicePolicy>,
    inner: S,
}

/// A request that the policy has permitted; a later version may revoke the permission. It is in the extensions of the
/// response.
#[derive(Clone, Debug)]
pub(crate) struct PermittedRequest {
    policy: Arc<ServicePolicy>,
    /// The version of the policy that permitted the request.
    version: u64,
    /// The parts of the request that a policy evaluates.
    request: Arc<Request<()>>,
}

/// The policy for one service.
#[derive(Debug)]
struct ServicePolicy {
    enforcer: Arc<PolicyEnforcer>,
    service: ServiceName,
}

impl PolicyLayer {
    pub(crate) fn new(enforcer: Arc<PolicyEnforcer>, service: ServiceName) -> Self {
        Self(Arc::new(ServicePolicy { enforcer, service }))
    }
}

impl<S> Layer<S> for PolicyLayer {
    type Service = PolicyService<S>;

    fn layer(&self, inner: S) -> PolicyService<S> {
        PolicyService { policy: Arc::clone(&self.0), inner }
    }
}

impl<S> Service<Request<Body>> for PolicyService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match PermittedRequest::check(&self.policy, &request) {
            Ok(permitted) => {
                let responding = self.inner.call(request);
                Box::pin(async {
                    let mut response = responding.await?;
                    response.extensions_mut().insert(permitted);
                    Ok(response)
                })
            }
            Err(error) => Box::pin(ready(Ok(error.into_response()))),
        }
    }
}

impl PermittedRequest {
    /// Checks a request against the policy in force.
    fn check<B>(policy: &Arc<ServicePolicy>, request: &Request<B>) -> Result<Self, ServiceError> {
        let version = policy.enforcer.check(policy.service.as_str(), request)?;
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = identity_headers(request.headers());
        Ok(Self { policy: Arc::clone(policy), version, request: Arc::new(copy) })
    }

    /// Waits until a version of the policy is in force that refuses the request.
    ///
    /// Most responses are complete before this is polled; until then, a permitted request costs nothing.
    pub(crate) async fn revoked(self) {
        let ServicePolicy { enforcer, service } = &*self.policy;
        // Subscribed first: a version that came into force since the check is then compared below, and no later one is missed.
        let mut changes = enforcer.changes();
        let mut changed = enforcer.version() != self.version;
        loop {
            if changed && !enforcer.still_allows(service.as_str(), &*self.request) {
                return;
            }
            changed = changes.changed().await.is_ok();
            if !changed {
                pending().await
            }
        }
    }
}

/// Returns the headers that determine the effective user of a request.
fn identity_headers(headers: &HeaderMap) -> HeaderMap {
    let is_identity =
        |name: &HeaderName| *name == CONNECTION || name.as_str().starts_with(impersonation::PREFIX);
    let mut kept = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| is_identity(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::time::timeout;

    use super::*;
    use crate::metrics::AgentMetrics;

    const ALLOW: &str = "rules: [{name: all, action: allow, services: ['*']}]";

    /// Returns the policy for `kubernetes`, which allows everything.
    fn allowing() -> Arc<ServicePolicy> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, ALLOW).unwrap();
        let enforcer = PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap();
        let service = ServiceName::KUBERNETES.parse().unwrap();
        Arc::new(ServicePolicy { enforcer: Arc::new(enforcer), service })
    }

    fn watch() -> Request<()> {
        Request::get("/api/v1/pods?watch=1").body(()).unwrap()
    }

    /// Most responses are complete before the revocation is polled.
    #[tokio::test]
    async fn version_before_the_first_poll_revokes() {
        let policy = allowing();
        let permitted = PermittedRequest::check(&policy, &watch()).unwrap();
        policy.enforcer.replace_with("rules: []");
        permitted.revoked().await;
        assert!(PermittedRequest::check(&policy, &watch()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn version_that_still_allows_does_not_revoke() {
        let policy = allowing();
        let permitted = PermittedRequest::check(&policy, &watch()).unwrap();
        policy.enforcer.replace_with(ALLOW);
        let mut revoked = std::pin::pin!(permitted.revoked());
        assert!(timeout(Duration::from_secs(60), &mut revoked).await.is_err());
        policy.enforcer.replace_with(ALLOW);
        assert!(timeout(Duration::from_secs(60), &mut revoked).await.is_err());
        policy.enforcer.replace_with("rules: []");
        revoked.await;
    }
}
