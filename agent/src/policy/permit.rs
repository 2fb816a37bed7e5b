//! The leave to go on that a policy gave, which a later version of it may take back.

use std::{future::pending, sync::Arc};

use http::{HeaderMap, HeaderName, Request, header::CONNECTION};
use proto::{ServiceName, impersonation};
use tokio::sync::watch;

use super::Guard;

/// Rides in the extensions of the response to a request that was let through.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    guard: Arc<Guard>,
    service: ServiceName,
    /// What a policy looks at, of a request that is on its way.
    asked: Arc<Request<()>>,
    changes: watch::Receiver<()>,
}

impl Permit {
    /// For a request that is going to be judged: a version that comes in between is not missed.
    pub(super) fn new<B>(guard: &Arc<Guard>, service: &ServiceName, request: &Request<B>) -> Self {
        let mut asked = Request::new(());
        *asked.method_mut() = request.method().clone();
        *asked.uri_mut() = request.uri().clone();
        *asked.headers_mut() = identity(request.headers());
        let changes = guard.changes();
        Self { guard: Arc::clone(guard), service: service.clone(), asked: Arc::new(asked), changes }
    }

    /// Waits until a version of the policy is in force that refuses the request.
    pub(crate) async fn withdrawn(mut self) {
        while self.changes.changed().await.is_ok() {
            if !self.guard.still_allows(self.service.as_str(), &self.asked) {
                return;
            }
        }
        pending().await
    }
}

/// The headers that say as whom a request acts.
fn identity(headers: &HeaderMap) -> HeaderMap {
    let is = |name: &HeaderName| *name == CONNECTION || name.as_str().starts_with(impersonation::PREFIX);
    let mut kept = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| is(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept
}
