//! The labels of namespaces, for the rules of a policy that select by them. A question of the API server has none.

use std::sync::Arc;

use agentk_core::{
    FileFollowers,
    cluster::{Cluster, KubeconfigOptions},
    namespace_labels::LabelFollower,
    policy::PolicyEnforcer,
    services::KubernetesService,
};

const NO_ACCESS: &str = "the webhook has no credential for the API server. Set rbac.namespaceLabels of the chart, or mount the token of its \
                         service account";

/// Returns the follower of the labels. It is `None` if the webhook has no access to the API server, and its policy needs no labels. This reads files,
/// which blocks.
///
/// # Errors
///
/// The policy needs labels, and there is no access to the API server.
pub(super) fn follower(
    policy: &Arc<PolicyEnforcer>,
    followers: &mut FileFollowers,
) -> anyhow::Result<Option<LabelFollower>> {
    match Cluster::load(&KubeconfigOptions { file: None, context: None }) {
        Ok(cluster) => {
            cluster.follow_files(followers);
            let kubernetes = KubernetesService::new(Arc::new(cluster));
            Ok(Some(LabelFollower::new(Arc::clone(policy), kubernetes)))
        }
        Err(error) if policy.needs_labels() => {
            Err(anyhow::Error::new(error)
                .context(format!("the policy has a namespaceSelector, but {NO_ACCESS}")))
        }
        Err(_) => {
            policy.labels().set_unknown(NO_ACCESS);
            Ok(None)
        }
    }
}
