//! The leave to go on that a policy gave, which a later version of it may take back.

use std::{future::pending, sync::Arc};

use http::{HeaderMap, HeaderName, Request, header::CONNECTION};
use proto::{ServiceName, impersonation};

use super::Guard;

/// Rides in the extensions of the response to a request that was let through.
#[derive(Clone, Debug)]
pub(crate) struct Permit(Arc<Granted>);

#[derive(Debug)]
struct Granted {
    guard: Arc<Guard>,
    /// The version of the policy that gave it.
    version: u64,
    service: ServiceName,
    /// What a policy looks at, of a request that is on its way.
    asked: Request<()>,
}

impl Permit {
    /// For a request that this version let through.
    pub(super) fn new<B>(
        guard: &Arc<Guard>,
        version: u64,
        service: &ServiceName,
        request: &Request<B>,
    ) -> Self {
        let mut asked = Request::new(());
        *asked.method_mut() = request.method().clone();
        *asked.uri_mut() = request.uri().clone();
        *asked.headers_mut() = identity(request.headers());
        Self(Arc::new(Granted { guard: Arc::clone(guard), version, service: service.clone(), asked }))
    }

    /// Waits until a version of the policy is in force that refuses the request.
    ///
    /// Most answers are complete before anybody waits, so that only waiting costs something.
    pub(crate) async fn withdrawn(self) {
        let Granted { guard, version, service, asked } = &*self.0;
        // Sees what comes from here on. What came in force since the request was judged is looked at first.
        let mut changes = guard.changes();
        let mut changed = guard.version() != *version;
        loop {
            if changed && !guard.still_allows(service.as_str(), asked) {
                return;
            }
            changed = changes.changed().await.is_ok();
            if !changed {
                pending().await
            }
        }
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
