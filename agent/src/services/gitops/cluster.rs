//! The cluster as GitOps uses it.

use gitops_engine::KubeCluster;
use proto::ServiceName;

use crate::services::{
    KubernetesService,
    kube_client::{Restrictions, kube_service},
};

/// Returns the cluster as the scope and the policy allow it. Without them, it is the cluster as agentk uses it itself.
pub(crate) fn cluster_client(kubernetes: KubernetesService, restrictions: &Restrictions) -> KubeCluster {
    let service = kube_service(ServiceName::GITOPS, kubernetes, restrictions);
    KubeCluster::new(move || kube::Client::new(service, "default"))
}
