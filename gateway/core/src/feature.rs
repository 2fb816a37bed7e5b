//! A feature of kas, and what it adds to a replica: request types and hooks, routes, work in tunnels and in the background.
//!
//! The program has the list of features. This crate names none of them.

use std::{
    fmt::Debug,
    sync::{Arc, OnceLock},
};

use axum::Router;
use futures_util::future::BoxFuture;
use prometheus_client::registry::Registry;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::{
    agents::AgentServer,
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    audit::AuditLog,
    fleet_requests::FleetRequests,
    forward::Forwarder,
    peers::PeerHooks,
    proxy::ProxyServer,
    request_hooks::{RequestHooks, RequestObserver},
    request_types::{Named, RequestType, RequestTypes},
};
use access::kill_switch::KillSwitch;

/// A feature of a replica, which may be a service with a state of its own. Each method has a default, which adds nothing, and is called once
/// for a replica.
pub trait KasFeature: Debug + Send + Sync {
    /// Returns the types of requests that callers may send. Requests of a type that no feature has are forwarded too, if the identity file
    /// allows it.
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        Vec::new()
    }

    /// Returns the hooks that answer or change requests of callers.
    fn request_hooks(&self, _context: &mut RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        Vec::new()
    }

    /// Returns the requests about all agents of a caller. `store` has the records that replicas share.
    fn fleet_requests(&self, _store: &Arc<dyn Store>) -> Vec<Box<dyn FleetRequests>> {
        Vec::new()
    }

    /// Returns the observers of the results of requests.
    fn request_observers(&self) -> Vec<Arc<dyn RequestObserver>> {
        Vec::new()
    }

    /// Returns the hooks of requests of other replicas.
    fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        Vec::new()
    }

    /// Returns the work at each process of agentk, in one of its tunnels.
    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        Vec::new()
    }

    /// Returns the routes of the listener of probes and metrics. `draining` is cancelled when the replica stops.
    fn admin_routes(&self, _draining: &CancellationToken) -> Router {
        Router::new()
    }

    /// Returns the routes of the internal API. `callers` forwards requests to agents.
    fn api_routes(&self, _context: &ApiContext, _callers: &ProxyServer) -> ApiRoutes {
        ApiRoutes::default()
    }

    /// Returns the tasks of the replica. A future may complete only when the replica stops, which drops the others.
    fn background_tasks(&self, _agents: &AgentServer) -> Vec<BoxFuture<'static, ()>> {
        Vec::new()
    }
}

/// A feature of which kas knows a request type only: agentk does everything else.
#[derive(Debug)]
pub struct NamedFeature(pub &'static str);

impl KasFeature for NamedFeature {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Named(self.0))]
    }
}

/// The parts of a replica from which hooks of requests are built.
#[derive(Debug)]
pub struct RequestHookContext<'a> {
    /// Sends requests to agents.
    pub forwarder: &'a Forwarder,
    /// The rules by which the operator disables requests.
    pub kill_switch: &'a Arc<KillSwitch>,
    /// The audit log, once it is open.
    pub audit: &'a Arc<OnceLock<AuditLog>>,
    /// Cancelled when the replica stops serving callers.
    pub draining: &'a CancellationToken,
    /// The metrics of kas.
    pub registry: &'a mut Registry,
}

/// All features of a replica. Clones share them.
#[derive(Clone, Debug)]
pub struct Features(Arc<[Box<dyn KasFeature>]>);

impl Features {
    /// Returns these features. Their hooks are called in this order.
    pub fn new(features: Vec<Box<dyn KasFeature>>) -> Self {
        Self(features.into())
    }

    /// Returns the request types, with those of kas itself.
    pub fn request_types(&self) -> RequestTypes {
        RequestTypes::with(self.collect(|feature| feature.request_types()))
    }

    /// Returns the hooks of requests.
    pub fn request_hooks(&self, mut context: RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        self.collect(|feature| feature.request_hooks(&mut context))
    }

    /// Returns the requests about all agents of a caller.
    pub fn fleet_requests(&self, store: &Arc<dyn Store>) -> Vec<Box<dyn FleetRequests>> {
        self.collect(|feature| feature.fleet_requests(store))
    }

    /// Returns the observers of the results of requests.
    pub fn request_observers(&self) -> Vec<Arc<dyn RequestObserver>> {
        self.collect(|feature| feature.request_observers())
    }

    /// Returns the hooks of requests of other replicas.
    pub fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        self.collect(|feature| feature.peer_hooks())
    }

    /// Returns the work at each process of agentk, in one of its tunnels.
    pub fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        self.collect(|feature| feature.tunnel_features())
    }

    /// Returns the routes of the listener of probes and metrics. `draining` is cancelled when the replica stops.
    pub fn admin_routes(&self, draining: &CancellationToken) -> Router {
        self.0.iter().fold(Router::new(), |routes, feature| routes.merge(feature.admin_routes(draining)))
    }

    /// Returns the routes of the internal API.
    pub fn api_routes(&self, context: &ApiContext, callers: &ProxyServer) -> ApiRoutes {
        let routes = self.0.iter().map(|feature| feature.api_routes(context, callers));
        routes.fold(ApiRoutes::default(), ApiRoutes::merge)
    }

    /// Returns the tasks of the replica.
    pub fn background_tasks(&self, agents: &AgentServer) -> Vec<BoxFuture<'static, ()>> {
        self.collect(|feature| feature.background_tasks(agents))
    }

    fn collect<T>(&self, mut parts: impl FnMut(&dyn KasFeature) -> Vec<T>) -> Vec<T> {
        self.0.iter().flat_map(|feature| parts(&**feature)).collect()
    }
}
