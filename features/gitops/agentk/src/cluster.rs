//! The cluster as GitOps uses it.

use agentk_core::services::{
    KubernetesService,
    kube_client::{Restrictions, kube_service},
};
use http::Request;
use kube::client::Body as KubeBody;
use kube_cluster::KubeCluster;
use proto::ServiceName;
use tower::ServiceExt as _;

use super::GitopsMetrics;

/// Returns the cluster as the scope and the policy allow it. Without them, it is the cluster as agentk uses it itself. Requests are
/// counted.
pub(crate) fn cluster_client(
    kubernetes: KubernetesService,
    restrictions: &Restrictions,
    metrics: GitopsMetrics,
) -> KubeCluster {
    let service = kube_service(ServiceName::GITOPS, kubernetes, restrictions);
    let counted = service.map_request(move |request: Request<KubeBody>| {
        metrics.count_request(&request);
        request
    });
    KubeCluster::new(move || kube::Client::new(counted, "default"))
}
