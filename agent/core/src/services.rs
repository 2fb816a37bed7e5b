//! The request types that agentk serves: each is a name and a tower service.
//!
//! A new request type is a [`RequestHandler`] of a feature.

pub mod caller_permits;
pub mod configuration;
pub mod control;
pub(crate) mod events;
pub mod headers;
pub mod kube_client;
pub mod kubernetes;
pub mod prometheus;
pub mod response;

use std::{collections::BTreeMap, convert::Infallible, fmt, sync::Arc};

use http::{Request, Response};
use proto::ServiceName;
use tower::{Layer as _, Service, service_fn, util::BoxCloneSyncService};
use tunnel::Body;

pub use self::{
    configuration::ConfigurationService, kubernetes::KubernetesService, prometheus::PrometheusService,
};
use self::{events::EventsHandler, prometheus::discovery::Discovery};
pub use crate::service_error::ServiceError;
use crate::{
    events::EventLog,
    policy::{PolicyEnforcer, PolicyLayer, Restriction, ScopeEnforcer},
};

/// A service of any type.
///
/// An error of agentk is a response, too: [`ServiceError::into_response`]. An accepted upgrade is a 101 with a
/// [`tunnel::upgrade::UpgradedConnection`] in its extensions. The future is dropped when the caller cancels the request.
pub type BoxService = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// A request type: handles requests, and fails with an error for the caller. Clones share their state.
pub trait RequestHandler: Clone + Send + Sync + 'static {
    /// Returns the response. Dropping the future cancels the request.
    fn handle(
        &self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Body>, ServiceError>> + Send;
}

/// The services of an agent, by name.
#[derive(Clone, Default)]
pub struct Services(BTreeMap<ServiceName, BoxService>);

impl Services {
    /// Returns an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the request types that are no feature, without policy and scope.
    pub fn core(
        kubernetes: KubernetesService,
        prometheus: BTreeMap<ServiceName, PrometheusService>,
        discovery: Option<&Discovery>,
    ) -> Self {
        let mut services = Self::new().with_handler(ServiceName::KUBERNETES, kubernetes);
        for (name, service) in prometheus {
            services = services.with_handler(name.as_str(), service);
        }
        match discovery {
            Some(discovery) => services.with_handler(ServiceName::PROMETHEUS, discovery.service()),
            None => services,
        }
    }

    /// Adds a service, or replaces the one with the same name.
    ///
    /// # Panics
    ///
    /// If `name` is not a service name, or is `control`, which each tunnel serves itself.
    #[must_use]
    pub fn with<S>(self, name: &str, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.with_boxed(name, BoxService::new(service))
    }

    /// Adds a service whose type is erased already. Panics like [`Self::with`].
    #[must_use]
    pub(crate) fn with_boxed(mut self, name: &str, service: BoxService) -> Self {
        assert_ne!(name, ServiceName::CONTROL, "control is agentk's own");
        self.0.insert(name.parse().expect("a constant that is a service name"), service);
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

    /// Adds a request type. Panics like [`Self::with`].
    #[must_use]
    pub fn with_handler(self, name: &str, handler: impl RequestHandler) -> Self {
        self.with_boxed(name, box_handler(handler))
    }

    /// Adds the service with which kas follows the events of this process.
    #[must_use]
    pub fn with_events(self, log: &EventLog) -> Self {
        self.with_handler(ServiceName::AGENT_EVENTS, EventsHandler(log.clone()))
    }

    /// Checks every request against the policy before it reaches its service.
    #[must_use]
    pub fn with_policy(self, enforcer: &Arc<PolicyEnforcer>) -> Self {
        let services = self.0.into_iter().map(|(name, service)| {
            let layer = PolicyLayer::new(Restriction::Policy(Arc::clone(enforcer)), name.clone());
            (name, BoxService::new(layer.layer(service)))
        });
        Self(services.collect())
    }

    /// Checks every request for the Kubernetes API against the scope, before the policy.
    #[must_use]
    pub fn with_scope(mut self, scope: &Arc<ScopeEnforcer>) -> Self {
        let name: ServiceName = ServiceName::KUBERNETES.parse().expect("a service name");
        if let Some(service) = self.0.remove(&name) {
            let layer = PolicyLayer::new(Restriction::Scope(Arc::clone(scope)), name.clone());
            self.0.insert(name, BoxService::new(layer.layer(service)));
        }
        self
    }

    /// Returns the names that the hello header announces.
    pub fn names(&self) -> Vec<ServiceName> {
        self.0.keys().cloned().collect()
    }
}

/// Returns the service that calls a handler.
pub(crate) fn box_handler(handler: impl RequestHandler) -> BoxService {
    BoxService::new(service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok(handler.handle(request).await.unwrap_or_else(ServiceError::into_response)) }
    }))
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
