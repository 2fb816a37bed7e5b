//! The step of `agentk check` for the rights of the graph.

use agentk_core::{
    check_rights::{FeatureRights, NeededRights, RightsCheck},
    feature::{CheckContext, FeatureCheck, FeatureOptions},
};
use proto::ServiceName;

const LOOK: &[&str] = &["list", "watch"];

/// The resources of Kubernetes. Those of programs are not known before they are installed.
const EVERYWHERE: &[NeededRights] = &[
    of("", &["namespaces", "nodes", "persistentvolumes", "pods", "replicationcontrollers", "services"]),
    of("", &["persistentvolumeclaims", "configmaps", "serviceaccounts", "resourcequotas", "events"]),
    of("apps", &["deployments", "replicasets", "statefulsets", "daemonsets"]),
    of("batch", &["jobs", "cronjobs"]),
    of("networking.k8s.io", &["ingresses", "networkpolicies"]),
    of("gateway.networking.k8s.io", &["gateways", "httproutes", "grpcroutes"]),
    of("discovery.k8s.io", &["endpointslices"]),
    of("autoscaling", &["horizontalpodautoscalers"]),
    of("policy", &["poddisruptionbudgets"]),
    of("storage.k8s.io", &["storageclasses"]),
    of("rbac.authorization.k8s.io", &["rolebindings", "roles", "clusterrolebindings", "clusterroles"]),
    of("admissionregistration.k8s.io", &["validatingwebhookconfigurations", "mutatingwebhookconfigurations"]),
    of("apiregistration.k8s.io", &["apiservices"]),
    of("apiextensions.k8s.io", &["customresourcedefinitions"]),
    of("app.k8s.io", &["applications"]),
];

const RIGHTS: FeatureRights = FeatureRights {
    subject: ServiceName::GRAPH,
    own: &[],
    everywhere: EVERYWHERE,
    effect: "the graph is without these; set graph.enabled of the chart, or start agentk with --no-graph",
};

const fn of(group: &'static str, resources: &'static [&'static str]) -> NeededRights {
    NeededRights { group, resources, verbs: LOOK }
}

/// Returns the step.
pub(super) fn check(
    _: &FeatureOptions<'_>,
    context: &CheckContext,
) -> anyhow::Result<Option<Box<dyn FeatureCheck>>> {
    Ok(Some(Box::new(RightsCheck::new(context, RIGHTS))))
}
