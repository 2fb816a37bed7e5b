//! The feature: the service `audit`, whose lines get the callers of requests.

use std::sync::Arc;

use environments_wire::DeploymentRecords;
use proto::ReplicaId;

use kas_core::{
    feature::{KasFeature, RequestHookContext},
    peers::PeerHooks,
    request_hooks::RequestHooks,
    request_types::RequestType,
};

use crate::{
    accesses::AccessRing, metrics::ClusterAuditMetrics, request_type::Audit, requests::ClusterAudit,
};

/// The audit logs of clusters.
#[derive(Debug)]
pub struct ClusterAuditFeature {
    accesses: Arc<AccessRing>,
    deployments: Arc<dyn DeploymentRecords>,
}

impl ClusterAuditFeature {
    /// Builds the feature of a replica. Events of jobs get their deployments.
    pub fn new(replica: ReplicaId, deployments: Arc<dyn DeploymentRecords>) -> Self {
        Self { accesses: Arc::new(AccessRing::new(replica)), deployments }
    }
}

impl KasFeature for ClusterAuditFeature {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Audit)]
    }

    fn request_hooks(&self, context: &mut RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        vec![Box::new(ClusterAudit {
            accesses: Arc::clone(&self.accesses),
            deployments: Arc::clone(&self.deployments),
            peers: context.forwarder.peers.clone(),
            store: Arc::clone(&context.forwarder.store),
            metrics: ClusterAuditMetrics::register(context.registry),
        })]
    }

    fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        vec![Arc::clone(&self.accesses) as Arc<dyn PeerHooks>]
    }
}
