//! The resources of the API server that are loaded, and in which order.

use std::sync::Arc;

use kube::core::ApiResource;
use proto::{
    agent_configuration::graph::{GraphSection, HealthRule, Secrets},
    graph::KindName,
};

/// A resource of the API server, in one version.
#[derive(Clone, Debug)]
pub(crate) struct ResourceKind {
    /// Group, version, kind and plural.
    pub(crate) api: ApiResource,
    /// Its objects are in namespaces.
    pub(crate) namespaced: bool,
    /// Resources of a lower tier are loaded first.
    pub(crate) tier: Tier,
    /// The API server keeps the status of its objects apart.
    pub(crate) has_status: bool,
    /// The rule for the health of its objects, in place of the rules of agentk.
    pub(crate) rule: Option<Arc<HealthRule>>,
}

/// The part of the objects of a resource that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The fields that nodes are made of.
    KnownFields,
    /// All fields, because a rule may need them. Nobody knows the fields by which programs say how their objects are.
    AllFields,
    /// The API server sends the metadata only.
    Metadata,
}

/// The order in which resources are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Workloads, and the objects through which requests reach them.
    Workloads,
    /// Nodes, storage, autoscalers and policies.
    Cluster,
    /// Definitions, and objects of well-known programs.
    Custom,
    /// Warnings.
    Events,
}

/// A resource that is loaded wherever the API server has it.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInResource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The kind of its objects.
    pub kind: &'static str,
    /// The name of the resource.
    pub plural: &'static str,
    /// Its objects are in namespaces.
    pub is_namespaced: bool,
    tier: Tier,
}

/// The resources of Kubernetes, in the order in which they are loaded.
const BUILT_IN: &[BuiltInResource] = &[
    in_cluster("", "Namespace", "namespaces", Tier::Workloads),
    in_namespaces("", "Pod", "pods", Tier::Workloads),
    in_namespaces("apps", "Deployment", "deployments", Tier::Workloads),
    in_namespaces("apps", "ReplicaSet", "replicasets", Tier::Workloads),
    in_namespaces("apps", "StatefulSet", "statefulsets", Tier::Workloads),
    in_namespaces("apps", "DaemonSet", "daemonsets", Tier::Workloads),
    in_namespaces("batch", "Job", "jobs", Tier::Workloads),
    in_namespaces("batch", "CronJob", "cronjobs", Tier::Workloads),
    in_namespaces("", "Service", "services", Tier::Workloads),
    in_namespaces("networking.k8s.io", "Ingress", "ingresses", Tier::Workloads),
    in_namespaces("", "ReplicationController", "replicationcontrollers", Tier::Workloads),
    in_namespaces("gateway.networking.k8s.io", "Gateway", "gateways", Tier::Workloads),
    in_namespaces("gateway.networking.k8s.io", "HTTPRoute", "httproutes", Tier::Workloads),
    in_namespaces("gateway.networking.k8s.io", "GRPCRoute", "grpcroutes", Tier::Workloads),
    in_namespaces("gateway.networking.k8s.io", "TLSRoute", "tlsroutes", Tier::Workloads),
    in_namespaces("gateway.networking.k8s.io", "TCPRoute", "tcproutes", Tier::Workloads),
    in_cluster("", "Node", "nodes", Tier::Cluster),
    in_namespaces("", "PersistentVolumeClaim", "persistentvolumeclaims", Tier::Cluster),
    in_cluster("", "PersistentVolume", "persistentvolumes", Tier::Cluster),
    in_cluster("storage.k8s.io", "StorageClass", "storageclasses", Tier::Cluster),
    in_namespaces("discovery.k8s.io", "EndpointSlice", "endpointslices", Tier::Cluster),
    in_namespaces("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Tier::Cluster),
    in_namespaces("policy", "PodDisruptionBudget", "poddisruptionbudgets", Tier::Cluster),
    in_namespaces("networking.k8s.io", "NetworkPolicy", "networkpolicies", Tier::Cluster),
    in_namespaces("", "ConfigMap", "configmaps", Tier::Cluster),
    in_namespaces("", "ServiceAccount", "serviceaccounts", Tier::Cluster),
    in_namespaces("rbac.authorization.k8s.io", "RoleBinding", "rolebindings", Tier::Cluster),
    in_cluster("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", Tier::Cluster),
    in_namespaces("rbac.authorization.k8s.io", "Role", "roles", Tier::Cluster),
    in_cluster("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", Tier::Cluster),
    in_cluster(
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        Tier::Cluster,
    ),
    in_cluster(
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        Tier::Cluster,
    ),
    in_namespaces("", "ResourceQuota", "resourcequotas", Tier::Cluster),
    in_cluster("apiregistration.k8s.io", "APIService", "apiservices", Tier::Custom),
    in_cluster("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", Tier::Custom),
    in_namespaces("", "Event", "events", Tier::Events),
];

/// The groups of programs whose objects are loaded beside those for which agentk has rules of health, with the groups below them.
const KNOWN_GROUPS: &[&str] = &[
    "cert-manager.io",
    "fluxcd.io",
    "gateway.networking.k8s.io",
    "gitlab.com",
    "istio.io",
    "jaegertracing.io",
    "k8s.nginx.org",
    "knative.dev",
    "kyverno.io",
    "linkerd.io",
    "projectcontour.io",
    "snapshot.storage.k8s.io",
    "traefik.io",
];

/// Kinds that change all the time and tell nothing, and the requests of agentk's own notifications.
const NOISE: &[(&str, &str)] = &[
    ("cilium.io", "CiliumEndpoint"),
    ("cilium.io", "CiliumIdentity"),
    ("kyverno.io", "EphemeralReport"),
    ("kyverno.io", "ClusterEphemeralReport"),
    ("acme.cert-manager.io", "Challenge"),
    ("kas.dev", "Repository"),
];

const fn in_namespaces(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    tier: Tier,
) -> BuiltInResource {
    BuiltInResource { group, kind, plural, is_namespaced: true, tier }
}

const fn in_cluster(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    tier: Tier,
) -> BuiltInResource {
    BuiltInResource { group, kind, plural, is_namespaced: false, tier }
}

/// Returns the resources of Kubernetes that are loaded. Those of programs are not known before they are installed.
pub fn built_in_resources() -> &'static [BuiltInResource] {
    BUILT_IN
}

impl ResourceKind {
    /// Returns a resource as the configuration wants it, with its place within its tier, or `None` if its objects are not loaded.
    pub(crate) fn new(api: ApiResource, namespaced: bool, section: &GraphSection) -> Option<(Self, usize)> {
        let is = |kind: &&KindName| kind.is(&api.group, &api.kind, &api.plural);
        let rule = section.health_rules.iter().find(|rule| is(&&rule.kind)).cloned().map(Arc::new);
        let last = (Tier::Custom, BUILT_IN.len());
        let (tier, place) = match (&*api.group, &*api.kind) {
            ("", "Secret") => (section.secrets == Secrets::Metadata).then_some(last)?,
            (group, kind) if is_never_loaded(group, kind) => return None,
            (group, kind) => {
                tier(group, kind).or_else(|| section.kinds().any(|kind| is(&kind)).then_some(last))?
            }
        };
        Some((Self { api, namespaced, tier, has_status: false, rule }, place))
    }

    /// Returns what is read of the objects.
    pub(crate) fn contents(&self) -> Contents {
        match (&*self.api.group, &*self.api.kind) {
            ("", "Secret") => Contents::Metadata,
            (group, _) if self.rule.is_some() || !object_health::is_built_in(group) => Contents::AllFields,
            _ => Contents::KnownFields,
        }
    }
}

/// Returns whether the objects of a kind are never loaded: they change all the time, or are questions and not objects. Events of the core
/// group are loaded as warnings.
fn is_never_loaded(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("coordination.k8s.io" | "authentication.k8s.io" | "authorization.k8s.io" | "certificates.k8s.io", _)
            | ("events.k8s.io", "Event")
    )
}

/// Returns whether the objects of a kind that is not loaded may have a health: a program keeps a status of them.
pub(crate) fn is_left_out(group: &str, kind: &str, has_status: bool) -> bool {
    has_status
        && !object_health::is_built_in(group)
        && !NOISE.contains(&(group, kind))
        && !is_never_loaded(group, kind)
}

/// Returns whether the objects of a kind define the kinds that the API server has.
pub(crate) fn defines_kinds(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("apiextensions.k8s.io", "CustomResourceDefinition") | ("apiregistration.k8s.io", "APIService")
    )
}

/// Returns the tier of a kind with its place within the tier, or `None` if its objects are not loaded.
pub(crate) fn tier(group: &str, kind: &str) -> Option<(Tier, usize)> {
    let built_in = BUILT_IN.iter().position(|known| (known.group, known.kind) == (group, kind));
    if let Some(place) = built_in {
        return Some((BUILT_IN[place].tier, place));
    }
    let is_in =
        |known: &str| group.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let is_known = KNOWN_GROUPS.iter().copied().chain(object_health::groups_with_rules()).any(is_in);
    let known = is_known && !NOISE.contains(&(group, kind));
    known.then_some((Tier::Custom, BUILT_IN.len()))
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    use super::*;

    fn resource(group: &str, kind: &str, section: &Value) -> Option<ResourceKind> {
        let section: GraphSection = serde_json::from_value(section.clone()).unwrap();
        let api = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        ResourceKind::new(api, true, &section).map(|(resource, _)| resource)
    }

    #[test]
    fn built_in_resources_have_their_plurals() {
        for BuiltInResource { group, kind, plural, .. } in built_in_resources() {
            let guess = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind)).plural;
            assert_eq!(*plural, guess, "{kind}");
        }
    }

    #[test]
    fn configuration_adds_kinds() {
        let none = json!({});
        let rule = json!({"health_rules": [
            {"kind": "Database.example.com", "health": "'healthy'"},
            {"kind": "deployments.apps", "health": "'healthy'"},
        ]});
        assert!(resource("example.com", "Database", &none).is_none());
        let database = resource("example.com", "Database", &rule).unwrap();
        assert_eq!((database.tier, database.contents()), (Tier::Custom, Contents::AllFields));
        let deployment = resource("apps", "Deployment", &rule).unwrap();
        assert_eq!((deployment.tier, deployment.contents()), (Tier::Workloads, Contents::AllFields));
        assert_eq!(resource("", "Pod", &rule).unwrap().contents(), Contents::KnownFields);
        let view = json!({"views": [{"name": "a", "count": "Database"}]});
        assert_eq!(resource("example.com", "Database", &view).unwrap().contents(), Contents::AllFields);

        assert!(resource("", "Secret", &rule).is_none());
        let secrets = json!({"secrets": "metadata"});
        assert_eq!(resource("", "Secret", &secrets).unwrap().contents(), Contents::Metadata);
        assert!(resource("", "ConfigMap", &secrets).unwrap().contents() == Contents::KnownFields);
    }

    #[test]
    fn no_configuration_loads_leases_and_reviews() {
        for (group, kind) in [
            ("coordination.k8s.io", "Lease"),
            ("certificates.k8s.io", "CertificateSigningRequest"),
            ("authorization.k8s.io", "SubjectAccessReview"),
            ("events.k8s.io", "Event"),
        ] {
            let view = json!({"views": [{"name": "a", "count": format!("{kind}.{group}")}]});
            assert!(resource(group, kind, &view).is_none(), "{kind}");
        }
    }

    #[test]
    fn kinds_with_rules_of_health_are_loaded() {
        for group in object_health::groups_with_rules() {
            assert_eq!(tier(group, "Any").map(|(tier, _)| tier), Some(Tier::Custom), "{group}");
            assert!(!KNOWN_GROUPS.contains(&group), "{group} is in two lists");
        }
    }

    #[test]
    fn kinds_have_their_tier() {
        for (group, kind, expected) in [
            ("", "Pod", Some(Tier::Workloads)),
            ("apps", "Deployment", Some(Tier::Workloads)),
            ("", "Node", Some(Tier::Cluster)),
            ("kustomize.toolkit.fluxcd.io", "Kustomization", Some(Tier::Custom)),
            ("cert-manager.io", "Certificate", Some(Tier::Custom)),
            ("rabbitmq.com", "RabbitmqCluster", Some(Tier::Custom)),
            ("promoter.argoproj.io", "PullRequest", Some(Tier::Custom)),
            ("", "Event", Some(Tier::Events)),
            ("cilium.io", "CiliumEndpoint", None),
            ("evilcert-manager.io", "Certificate", None),
            ("", "Secret", None),
            ("coordination.k8s.io", "Lease", None),
            ("certificates.k8s.io", "CertificateSigningRequest", None),
            ("example.com", "Pod", None),
        ] {
            assert_eq!(tier(group, kind).map(|(tier, _)| tier), expected, "{kind}.{group}");
        }
    }
}
