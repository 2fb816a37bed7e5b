//! The resources of the API server that are loaded, and in which order.

use kube::core::ApiResource;

/// A resource of the API server, in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResourceKind {
    /// Group, version, kind and plural.
    pub(crate) api: ApiResource,
    /// Its objects are in namespaces.
    pub(crate) namespaced: bool,
    /// Resources of a lower tier are loaded first.
    pub(crate) tier: Tier,
}

/// The order in which resources are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// What runs, and how requests reach it.
    Workloads,
    /// Nodes, storage, autoscalers and policies.
    Cluster,
    /// Definitions, and objects of well-known programs.
    Custom,
    /// Warnings.
    Events,
}

/// The resources of Kubernetes, in the order in which they are loaded.
const BUILT_IN: &[(&str, &str, Tier)] = &[
    ("", "Namespace", Tier::Workloads),
    ("", "Pod", Tier::Workloads),
    ("apps", "Deployment", Tier::Workloads),
    ("apps", "ReplicaSet", Tier::Workloads),
    ("apps", "StatefulSet", Tier::Workloads),
    ("apps", "DaemonSet", Tier::Workloads),
    ("batch", "Job", Tier::Workloads),
    ("batch", "CronJob", Tier::Workloads),
    ("", "Service", Tier::Workloads),
    ("networking.k8s.io", "Ingress", Tier::Workloads),
    ("", "ReplicationController", Tier::Workloads),
    ("gateway.networking.k8s.io", "Gateway", Tier::Workloads),
    ("gateway.networking.k8s.io", "HTTPRoute", Tier::Workloads),
    ("gateway.networking.k8s.io", "GRPCRoute", Tier::Workloads),
    ("gateway.networking.k8s.io", "TLSRoute", Tier::Workloads),
    ("gateway.networking.k8s.io", "TCPRoute", Tier::Workloads),
    ("", "Node", Tier::Cluster),
    ("", "PersistentVolumeClaim", Tier::Cluster),
    ("", "PersistentVolume", Tier::Cluster),
    ("storage.k8s.io", "StorageClass", Tier::Cluster),
    ("discovery.k8s.io", "EndpointSlice", Tier::Cluster),
    ("autoscaling", "HorizontalPodAutoscaler", Tier::Cluster),
    ("policy", "PodDisruptionBudget", Tier::Cluster),
    ("networking.k8s.io", "NetworkPolicy", Tier::Cluster),
    ("", "ConfigMap", Tier::Cluster),
    ("", "ServiceAccount", Tier::Cluster),
    ("rbac.authorization.k8s.io", "RoleBinding", Tier::Cluster),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", Tier::Cluster),
    ("", "ResourceQuota", Tier::Cluster),
    ("apiregistration.k8s.io", "APIService", Tier::Custom),
    ("apiextensions.k8s.io", "CustomResourceDefinition", Tier::Custom),
    ("", "Event", Tier::Events),
];

/// The groups of programs whose objects are loaded, with the groups below them.
const KNOWN_GROUPS: &[&str] = &[
    "app.k8s.io",
    "argoproj.io",
    "cert-manager.io",
    "cilium.io",
    "external-secrets.io",
    "fluxcd.io",
    "gateway.networking.k8s.io",
    "gitlab.com",
    "grafana.integreatly.org",
    "istio.io",
    "jaegertracing.io",
    "k8s.nginx.org",
    "keda.sh",
    "knative.dev",
    "kyverno.io",
    "linkerd.io",
    "longhorn.io",
    "monitoring.coreos.com",
    "opentelemetry.io",
    "postgresql.cnpg.io",
    "projectcontour.io",
    "snapshot.storage.k8s.io",
    "tekton.dev",
    "traefik.io",
    "velero.io",
];

/// Kinds of known groups that change all the time and tell nothing.
const NOISE: &[(&str, &str)] = &[
    ("cilium.io", "CiliumEndpoint"),
    ("cilium.io", "CiliumIdentity"),
    ("kyverno.io", "EphemeralReport"),
    ("kyverno.io", "ClusterEphemeralReport"),
    ("acme.cert-manager.io", "Challenge"),
];

/// Returns the tier of a kind with its place within the tier, or `None` if its objects are not loaded.
pub(crate) fn tier(group: &str, kind: &str) -> Option<(Tier, usize)> {
    let built_in = BUILT_IN.iter().position(|known| (known.0, known.1) == (group, kind));
    if let Some(place) = built_in {
        return Some((BUILT_IN[place].2, place));
    }
    let is_known = KNOWN_GROUPS
        .iter()
        .any(|known| group.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    let known = is_known && !NOISE.contains(&(group, kind));
    known.then_some((Tier::Custom, BUILT_IN.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_tier() {
        for (group, kind, expected) in [
            ("", "Pod", Some(Tier::Workloads)),
            ("apps", "Deployment", Some(Tier::Workloads)),
            ("", "Node", Some(Tier::Cluster)),
            ("kustomize.toolkit.fluxcd.io", "Kustomization", Some(Tier::Custom)),
            ("cert-manager.io", "Certificate", Some(Tier::Custom)),
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
