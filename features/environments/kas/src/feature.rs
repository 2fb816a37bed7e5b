//! The feature: the service `provision`, the objects of environments, and the lists of environments and deployments.

use std::sync::Arc;

use environments_wire::EnvironmentSources;
use kas_core::{
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    feature::{KasFeature, RequestHookContext},
    proxy::ProxyServer,
    request_hooks::RequestHooks,
    request_types::{Named, RequestType},
};
use proto::ServiceName;

use crate::{
    AgentEnvironments, Deployments, ManagedResourcesConfig,
    api::{self, EnvironmentsApi},
    health::HealthInquiry,
    provisioner::Provisioner,
};

/// The environments of projects.
#[derive(Debug)]
pub struct EnvironmentsFeature {
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

    fn api_routes(&self, context: &ApiContext, callers: &ProxyServer) -> ApiRoutes {
        let environments = EnvironmentsApi {
            environments: self.sources.clone(),
            health: HealthInquiry::new(callers),
            deployments: self.deployments.clone(),
        };
        ApiRoutes { http: api::routes(context.clone(), environments), ..ApiRoutes::default() }
    }
}
