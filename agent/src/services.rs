//! The request types that this agent serves: a name and a tower service each.

use std::{collections::BTreeMap, convert::Infallible, fmt, pin::Pin, sync::Arc};

use http::{Request, Response};
use proto::ServiceName;
use tower::{Layer as _, Service, service_fn, util::BoxCloneSyncService};
use tunnel::Body;

use crate::policy::{Guard, PolicyLayer};

/// A service of any type.
///
/// A failure of agentk is a response, too: [`crate::Failure::into_response`]. An accepted upgrade is a 101 that holds a
/// [`tunnel::upgrade::Outside`]. The future is dropped when the caller leaves.
pub type BoxService = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The future of a service that has no simpler type.
pub type ServiceFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Services by name.
#[derive(Clone, Default)]
pub struct Services(BTreeMap<ServiceName, BoxService>);

impl Services {
    /// Makes an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a service, or replaces the one of the same name.
    ///
    /// # Panics
    ///
    /// If `name` is not a service name, or is `control`, which each tunnel serves itself.
    #[must_use]
    pub fn with<S>(mut self, name: &str, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        assert_ne!(name, ServiceName::CONTROL, "control is agentk's own");
        let name = name.parse().expect("a constant that is a service name");
        self.0.insert(name, BoxService::new(service));
        self
    }

    /// Adds a service that calls an async function. Panics like [`Self::with`].
    #[must_use]
    pub fn with_fn<F, A>(self, name: &str, function: F) -> Self
    where
        F: Fn(Request<Body>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let function = Arc::new(function);
        self.with(
            name,
            service_fn(move |request| {
                let response = function(request);
                async { Ok(response.await) }
            }),
        )
    }

    /// Checks every request against the policy before it reaches its service.
    #[must_use]
    pub fn guarded(self, guard: &Arc<Guard>) -> Self {
        let guarded = self.0.into_iter().map(|(name, service)| {
            let layer = PolicyLayer::new(Arc::clone(guard), name.clone());
            (name, BoxService::new(layer.layer(service)))
        });
        Self(guarded.collect())
    }

    /// The names that the hello header announces.
    pub fn names(&self) -> Vec<ServiceName> {
        self.0.keys().cloned().collect()
    }
}

impl IntoIterator for Services {
    type Item = (ServiceName, BoxService);
    type IntoIter = std::collections::btree_map::IntoIter<ServiceName, BoxService>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
