//! The feature: events into tunnels, the route and the RPC that report some, and the pushes of other replicas.

use futures_util::{FutureExt as _, future::BoxFuture};

use kas_core::{
    agents::AgentServer,
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    feature::KasFeature,
    proxy::ProxyServer,
};

use crate::{NotifyService, api, git_push};

impl KasFeature for NotifyService {
    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(self.clone())]
    }

    fn api_routes(&self, _: &ApiContext, _: &ProxyServer) -> ApiRoutes {
        ApiRoutes { http: api::routes(self.clone()), rpcs: git_push::routes(self.clone()) }
    }

    fn background_tasks(&self, agents: &AgentServer) -> Vec<BoxFuture<'static, ()>> {
        let (notify, pushes) = (self.clone(), agents.store.pushes());
        vec![async move { notify.follow_pushes(pushes).await }.boxed()]
    }
}
