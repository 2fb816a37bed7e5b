//! The feature: the service `graph`, and the last values of the views of each agent.

use proto::ReplicaId;
use store::redis::RedisStore;

use kas_core::{
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    feature::KasFeature,
    proxy::ProxyServer,
    request_types::RequestType,
};

use crate::{
    request_type::GraphRequests,
    views::{self, ViewsService},
};

/// The graph of each agent.
#[derive(Debug)]
pub struct GraphFeature(ViewsService);

impl GraphFeature {
    /// Builds the feature of a replica. `redis` is the store that replicas share, if there are several.
    pub fn new(replica: ReplicaId, redis: Option<RedisStore>) -> Self {
        Self(ViewsService::new(replica, redis))
    }
}

impl KasFeature for GraphFeature {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(GraphRequests)]
    }

    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(self.0.clone())]
    }

    fn api_routes(&self, context: &ApiContext, _: &ProxyServer) -> ApiRoutes {
        ApiRoutes {
            http: views::api::routes(context.clone(), self.0.clone()),
            rpcs: views::rpc::routes(self.0.clone()),
        }
    }
}
