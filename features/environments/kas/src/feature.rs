//! The feature: the service `provision`, the objects of environments, and the lists of environments and deployments.

use std::sync::Arc;

use axum::Router;
use environments_wire::EnvironmentSources;
use kas_core::{
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    feature::{KasFeature, RequestHookContext},
    proxy::ProxyServer,
    request_hooks::RequestHooks,
    request_types::{Named, RequestType},
};
use proto::{ReplicaId, ServiceName};
use tokio_util::sync::CancellationToken;

use crate::{
    AgentEnvironments, Deployments, ManagedResourcesConfig,
    api::{self, EnvironmentLists},
    health::HealthInquiry,
    provisioner::Provisioner,
};

/// The environments of projects.
#[derive(Debug)]
pub struct EnvironmentsFeature {
    /// The replica.
    pub replica: ReplicaId,
    /// The section about the objects of environments.
    pub managed_resources: ManagedResourcesConfig,
    /// The environments that agents name.
    pub named: AgentEnvironments,
    /// The environments of all sources.
    pub sources: EnvironmentSources,
    /// The deployments of CI jobs.
    pub deployments: Deployments,
}

impl KasFeature for EnvironmentsFeature {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Named(ServiceName::PROVISION))]
    }

    fn request_hooks(&self, context: &mut RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        vec![Box::new(Provisioner::new(
            self.managed_resources.clone(),
            context.forwarder.clone(),
            Arc::clone(context.kill_switch),
            Arc::clone(context.audit),
            context.registry,
        ))]
    }

    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(self.named.clone())]
    }

    fn admin_routes(&self, _: &CancellationToken) -> Router {
        api::admin_routes(self.lists())
    }

    fn api_routes(&self, context: &ApiContext, callers: &ProxyServer) -> ApiRoutes {
        let http = api::routes(context.clone(), self.lists(), HealthInquiry::new(callers));
        ApiRoutes { http, ..ApiRoutes::default() }
    }
}

impl EnvironmentsFeature {
    fn lists(&self) -> EnvironmentLists {
        EnvironmentLists {
            replica: self.replica,
            environments: self.sources.clone(),
            deployments: self.deployments.clone(),
        }
    }
}
