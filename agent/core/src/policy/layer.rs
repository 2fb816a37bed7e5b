//! Policy and scope as a tower layer, and the requests that they have permitted.

use std::{
    convert::Infallible,
    future::{pending, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, HeaderName, Request, Response, header::CONNECTION};
use proto::{ServiceName, impersonation};
use tokio::sync::watch;
use tower::{Layer, Service};
use tunnel::Body;

use super::{PolicyEnforcer, ScopeEnforcer};
use crate::ServiceError;

/// Passes requests to one service if the restriction in force allows them.
#[derive(Clone, Debug)]
pub(crate) struct PolicyLayer(Arc<ServicePolicy>);

/// A service behind a [`PolicyLayer`].
#[derive(Clone, Debug)]
pub(crate) struct PolicyService<S> {
    policy: Arc<ServicePolicy>,
    inner: S,
}

/// A request that a restriction has permitted; a later version may revoke the permission. It is in the extensions of the
/// response.
#[derive(Clone, Debug)]
pub(crate) struct PermittedRequest {
    policy: Arc<ServicePolicy>,
    /// The version of the restriction that permitted the request.
    version: u64,
    /// The parts of the request that a restriction evaluates.
    request: Arc<Request<()>>,
    /// The permission of the next layer.
    inner: Option<Box<Self>>,
}

/// The restriction of one service.
#[derive(Debug)]
struct ServicePolicy {
    restriction: Restriction,
    service: ServiceName,
}

/// Announces the changes of a restriction.
struct RestrictionChanges {
    versions: watch::Receiver<()>,
    /// The labels of namespaces, on which a policy may depend.
    labels: Option<watch::Receiver<()>>,
}

/// Refuses requests. Its rules may change at any time.
#[derive(Clone, Debug)]
pub(crate) enum Restriction {
    /// The policy file of the cluster's owner.
    Policy(Arc<PolicyEnforcer>),
    /// The scope of `--namespaces` and of the agent's configuration.
    Scope(Arc<ScopeEnforcer>),
}

impl PolicyLayer {
    pub(crate) fn new(restriction: Restriction, service: ServiceName) -> Self {
        Self(Arc::new(ServicePolicy { restriction, service }))
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
            Ok(mut permitted) => {
                let responding = self.inner.call(request);
                Box::pin(async {
                    // A new version also ends a request whose body is still being sent, or whose response has not begun: the
                    // upstream then sees an aborted request.
                    let mut response = tokio::select! {
                        biased;
                        response = responding => response?,
                        error = permitted.clone().revoked() => return Ok(error.into_response()),
                    };
                    permitted.inner = response.extensions_mut().remove().map(Box::new);
                    response.extensions_mut().insert(permitted);
                    Ok(response)
                })
            }
            Err(error) => Box::pin(ready(Ok(error.into_response()))),
        }
    }
}

impl PermittedRequest {
    /// Checks a request against the restriction in force.
    fn check<B>(policy: &Arc<ServicePolicy>, request: &Request<B>) -> Result<Self, ServiceError> {
        let service = policy.service.as_str();
        let version = match &policy.restriction {
            Restriction::Policy(policy) => policy.check(service, request)?,
            Restriction::Scope(scope) => scope.check(request)?,
        };
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        // A scope does not depend on the user.
        if let Restriction::Policy(_) = policy.restriction {
            *copy.headers_mut() = identity_headers(request.headers());
        }
        Ok(Self { policy: Arc::clone(policy), version, request: Arc::new(copy), inner: None })
    }

    /// Waits until a version of a restriction is in force that refuses the request. Returns the refusal.
    pub(crate) async fn revoked(mut self) -> ServiceError {
        match self.inner.take() {
            None => self.revoked_here().await,
            Some(inner) => tokio::select! {
                error = self.revoked_here() => error,
                error = Box::pin(inner.revoked()) => error,
            },
        }
    }

    async fn revoked_here(self) -> ServiceError {
        let ServicePolicy { restriction, service } = &*self.policy;
        // Subscribed first: a version that came into force since the check is then compared below, and no later one is missed.
        let mut changes = restriction.changes();
        let mut changed = restriction.version() != self.version;
        loop {
            if changed && let Err(error) = restriction.check_again(service.as_str(), &self.request) {
                return error;
            }
            changes.changed().await;
            changed = true;
        }
    }
}

impl Restriction {
    fn changes(&self) -> RestrictionChanges {
        match self {
            Self::Policy(policy) => RestrictionChanges {
                versions: policy.changes(),
                labels: Some(policy.labels().announcements()),
            },
            Self::Scope(scope) => RestrictionChanges { versions: scope.changes(), labels: None },
        }
    }

    fn version(&self) -> u64 {
        match self {
            Self::Policy(policy) => policy.version(),
            Self::Scope(scope) => scope.version(),
        }
    }

    /// Checks a request that an earlier version permitted.
    fn check_again(&self, service: &str, request: &Request<()>) -> Result<(), ServiceError> {
        match self {
            Self::Policy(policy) => policy.check_again(service, request),
            Self::Scope(scope) => scope.check(request).map(drop),
        }
    }
}

impl RestrictionChanges {
    async fn changed(&mut self) {
        let labels = async {
            match &mut self.labels {
                Some(labels) => labels.changed().await,
                None => pending().await,
            }
        };
        let announced = tokio::select! {
            announced = self.versions.changed() => announced,
            announced = labels => announced,
        };
        // The enforcer is gone, and with it all changes.
        if announced.is_err() {
            pending().await
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
    fn allowing() -> (Arc<PolicyEnforcer>, Arc<ServicePolicy>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, ALLOW).unwrap();
        let enforcer = PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap();
        let (enforcer, service) = (Arc::new(enforcer), ServiceName::KUBERNETES.parse().unwrap());
        let restriction = Restriction::Policy(Arc::clone(&enforcer));
        (enforcer, Arc::new(ServicePolicy { restriction, service }))
    }

    fn watch() -> Request<()> {
        Request::get("/api/v1/pods?watch=1").body(()).unwrap()
    }

    /// Most responses are complete before the revocation is polled.
    #[tokio::test]
    async fn version_before_the_first_poll_revokes() {
        let (enforcer, policy) = allowing();
        let permitted = PermittedRequest::check(&policy, &watch()).unwrap();
        enforcer.replace_with("rules: []");
        permitted.revoked().await;
        assert!(PermittedRequest::check(&policy, &watch()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn version_that_still_allows_does_not_revoke() {
        let (enforcer, policy) = allowing();
        let permitted = PermittedRequest::check(&policy, &watch()).unwrap();
        enforcer.replace_with(ALLOW);
        let mut revoked = std::pin::pin!(permitted.revoked());
        assert!(timeout(Duration::from_secs(60), &mut revoked).await.is_err());
        enforcer.replace_with(ALLOW);
        assert!(timeout(Duration::from_secs(60), &mut revoked).await.is_err());
        enforcer.replace_with("rules: []");
        revoked.await;
    }
}
