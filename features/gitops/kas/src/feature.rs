//! The feature: the service `gitops`, manifests into tunnels, pushes, and the statuses of commits.

use std::sync::Arc;

use futures_util::{FutureExt as _, future::BoxFuture};
use kas_core::{
    agents::AgentServer,
    attachments::TunnelFeature,
    feature::KasFeature,
    peers::PeerHooks,
    request_types::{Named, RequestType},
};
use proto::ServiceName;

use crate::{GitopsService, origins::ManifestOriginAnswers};

impl KasFeature for GitopsService {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Named(ServiceName::GITOPS))]
    }

    fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        vec![Arc::new(ManifestOriginAnswers(self.clone()))]
    }

    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(self.clone())]
    }

    fn background_tasks(&self, agents: &AgentServer) -> Vec<BoxFuture<'static, ()>> {
        let (followed, statuses, pushes) = (self.clone(), self.clone(), agents.store.pushes());
        vec![
            async move { followed.follow_pushes(pushes).await }.boxed(),
            async move { statuses.report_statuses().await }.boxed(),
        ]
    }
}
