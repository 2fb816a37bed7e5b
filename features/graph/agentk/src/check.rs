//! The step of `agentk check` for the rights of the graph.

use agentk_core::{
    check_rights::{FeatureRights, NeededRight, RightsCheck},
    feature::{CheckContext, FeatureCheck, FeatureOptions},
};
use proto::ServiceName;
use resource_graph::{BuiltInResource, built_in_resources};

/// The resource of a program that the chart grants, too.
const APPLICATIONS: NeededRight = NeededRight::to_watch("app.k8s.io", "applications");

fn rights() -> FeatureRights {
    let (mut everywhere, mut cluster) = (vec![APPLICATIONS], Vec::new());
    for BuiltInResource { group, plural, is_namespaced, .. } in built_in_resources() {
        let list = if *is_namespaced { &mut everywhere } else { &mut cluster };
        list.push(NeededRight::to_watch(group, plural));
    }
    FeatureRights {
        subject: ServiceName::GRAPH,
        own: &[],
        everywhere,
        cluster,
        effect: "the graph is without these; set graph.enabled of the chart, or start agentk with --no-graph",
    }
}

/// Returns the step.
pub(super) fn check(
    _: &FeatureOptions<'_>,
    context: &CheckContext,
) -> anyhow::Result<Option<Box<dyn FeatureCheck>>> {
    Ok(Some(Box::new(RightsCheck::new(context, rights()))))
}
