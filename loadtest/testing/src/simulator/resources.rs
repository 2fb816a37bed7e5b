//! The kinds of objects of the simulated API server.

/// A kind of objects and the path of its collection.
#[derive(Debug)]
pub(crate) struct Resource {
    /// The API group, which is empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    /// The name of the collection in paths and in the store, which is unique among all groups.
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub short_names: &'static [&'static str],
    pub namespaced: bool,
    /// True if `kubectl get all` shows the resource.
    pub in_all: bool,
    pub subresources: &'static [Subresource],
}

/// A subresource of an object.
#[derive(Debug)]
pub(crate) struct Subresource {
    pub name: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

impl Resource {
    /// Returns the API version, such as `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns the name for error messages, such as `pods` or `deployments.apps`.
    pub(crate) fn qualified_name(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.into_iter().find(|kind| (kind.group, kind.version, kind.plural) == (group, version, plural))
    }
}

pub(crate) static NAMESPACES: Resource =
    Resource { short_names: &["ns"], namespaced: false, ..core("namespaces", "namespace", "Namespace") };

pub(crate) static NODES: Resource =
    Resource { short_names: &["no"], namespaced: false, ..core("nodes", "node", "Node") };

pub(crate) static PODS: Resource = Resource {
    short_names: &["po"],
    in_all: true,
    subresources: &[
        Subresource {
            name: "exec",
            group: "",
            version: "v1",
            kind: "PodExecOptions",
            verbs: &["create", "get"],
        },
        Subresource {
            name: "portforward",
            group: "",
            version: "v1",
            kind: "PodPortForwardOptions",
            verbs: &["create", "get"],
        },
        Subresource { name: "log", group: "", version: "v1", kind: "Pod", verbs: &["get"] },
    ],
    ..core("pods", "pod", "Pod")
};

pub(crate) static SERVICES: Resource =
    Resource { short_names: &["svc"], in_all: true, ..core("services", "service", "Service") };

pub(crate) static CONFIG_MAPS: Resource =
    Resource { short_names: &["cm"], ..core("configmaps", "configmap", "ConfigMap") };

pub(crate) static SECRETS: Resource = core("secrets", "secret", "Secret");

pub(crate) static EVENTS: Resource = Resource { short_names: &["ev"], ..core("events", "event", "Event") };

pub(crate) static DEPLOYMENTS: Resource = Resource {
    short_names: &["deploy"],
    in_all: true,
    subresources: &[Subresource {
        name: "scale",
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        verbs: &["get", "patch", "update"],
    }],
    group: "apps",
    ..core("deployments", "deployment", "Deployment")
};

pub(crate) static REPLICA_SETS: Resource = Resource {
    short_names: &["rs"],
    in_all: true,
    group: "apps",
    ..core("replicasets", "replicaset", "ReplicaSet")
};

/// The leases of agentk, which it needs for manifests from Git.
static LEASES: Resource = Resource { group: "coordination.k8s.io", ..core("leases", "lease", "Lease") };

/// The certificates of cert-manager.
pub(crate) static CERTIFICATES: Resource = Resource {
    short_names: &["cert"],
    group: "cert-manager.io",
    ..core("certificates", "certificate", "Certificate")
};

/// The Applications of SIG Apps, whose selectors are groups of the graph.
static APPLICATIONS: Resource =
    Resource { group: "app.k8s.io", ..core("applications", "application", "Application") };

pub(crate) static RESOURCES: [&Resource; 12] = [
    &CONFIG_MAPS,
    &EVENTS,
    &NAMESPACES,
    &NODES,
    &PODS,
    &SECRETS,
    &SERVICES,
    &DEPLOYMENTS,
    &REPLICA_SETS,
    &LEASES,
    &CERTIFICATES,
    &APPLICATIONS,
];

const fn core(plural: &'static str, singular: &'static str, kind: &'static str) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        singular,
        kind,
        short_names: &[],
        namespaced: true,
        in_all: false,
        subresources: &[],
    }
}
