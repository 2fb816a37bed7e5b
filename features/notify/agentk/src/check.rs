//! The step of `agentk check` for the rights of project events. Those of their effects depend on the configuration, which kas has.

use agentk_core::{
    check_rights::{FeatureRights, NeededRight, RightsCheck},
    feature::{CheckContext, FeatureCheck, FeatureOptions},
};
use proto::ServiceName;

const RIGHTS: FeatureRights = FeatureRights {
    subject: ServiceName::NOTIFY,
    own: &[
        NeededRight { group: "", resource: "configmaps", verbs: &["get", "create", "patch"] },
        NeededRight { group: "coordination.k8s.io", resource: "leases", verbs: &["get", "create", "update"] },
    ],
    everywhere: Vec::new(),
    cluster: Vec::new(),
    effect: "events of projects have no effect; set notify.enabled of the chart, or start agentk with --no-notify",
};

/// Returns the step.
pub(super) fn check(
    _: &FeatureOptions<'_>,
    context: &CheckContext,
) -> anyhow::Result<Option<Box<dyn FeatureCheck>>> {
    Ok(Some(Box::new(RightsCheck::new(context, RIGHTS))))
}
