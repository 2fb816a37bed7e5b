//! The few objects that random commits consist of.

use proto::gitops::ObjectId;
use serde_json::{Value, json};

/// An object of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    /// ConfigMaps in the namespace `team`, which no project has made.
    A,
    B,
    /// ConfigMaps without a namespace.
    C,
    D,
    /// A volume claim without a namespace.
    Data,
    /// A namespace, and what is in it: a ConfigMap and a StatefulSet with volumes.
    Shop,
    Inner,
    Db,
    /// A definition, and an object of its kind without a namespace.
    Toys,
    Toy,
    /// A Deployment of the first wave and a ConfigMap of the second one, without a namespace.
    Web,
    Late,
    /// Objects of the second project: a ConfigMap in `team`, one in the namespace of the first project, and one of its kind.
    X,
    InnerX,
    ToyX,
}

/// Objects of somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// A ConfigMap in the namespace of the first project.
    ConfigMap,
    /// A Secret there, with a name as Kubernetes gave it to its own once.
    Token,
    /// An object there whose kind has the name of one of Kubernetes.
    Lease,
    /// An object of the kind that the first project defines.
    Toy,
}

pub(super) use Thing::*;

pub(super) const FIRST: [Thing; 12] = [A, B, C, D, Data, Shop, Inner, Db, Toys, Toy, Web, Late];
pub(super) const SECOND: [Thing; 5] = [X, InnerX, ToyX, A, D];
pub(super) const TEAM: &str = "team";
pub(super) const SHOP: &str = "shop";
/// The group of the kind that a commit defines, and of a kind that is always there.
pub(super) const TOYS_GROUP: &str = "example.com";
pub(super) const LOCKS_GROUP: &str = "locks.example.com";

fn object_id(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectId {
    let text = str::to_owned;
    ObjectId { group: text(group), kind: text(kind), namespace: text(namespace), name: text(name) }
}

impl Thing {
    /// Returns the id with this default namespace.
    pub(super) fn id(self, default: &str) -> ObjectId {
        let definitions = ("apiextensions.k8s.io", "CustomResourceDefinition");
        match self {
            A => object_id("", "ConfigMap", TEAM, "a"),
            B => object_id("", "ConfigMap", TEAM, "b"),
            C => object_id("", "ConfigMap", default, "c"),
            D => object_id("", "ConfigMap", default, "d"),
            Data => object_id("", "PersistentVolumeClaim", default, "data"),
            Shop => object_id("", "Namespace", "", SHOP),
            Inner => object_id("", "ConfigMap", SHOP, "inner"),
            Db => object_id("apps", "StatefulSet", SHOP, "db"),
            Toys => object_id(definitions.0, definitions.1, "", "toys.example.com"),
            Toy => object_id(TOYS_GROUP, "Toy", default, "toy"),
            Web => object_id("apps", "Deployment", default, "web"),
            Late => object_id("", "ConfigMap", default, "late"),
            X => object_id("", "ConfigMap", TEAM, "x"),
            InnerX => object_id("", "ConfigMap", SHOP, "x"),
            ToyX => object_id(TOYS_GROUP, "Toy", TEAM, "x"),
        }
    }

    /// Returns the manifest as a commit has it. A variant differs in a value, and some objects in an annotation.
    pub(super) fn manifest(self, variant: u8) -> Value {
        let id = self.id("");
        let version = if id.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", id.group) };
        let mut object = json!({"apiVersion": version, "kind": id.kind, "metadata": {"name": id.name}});
        if !id.namespace.is_empty() {
            object["metadata"]["namespace"] = id.namespace.into();
        }
        let mut annotate = |key: &str, value: &str| object["metadata"]["annotations"][key] = value.into();
        match (self, variant) {
            (B, 2) => annotate("argocd.argoproj.io/sync-options", "Prune=confirm"),
            (D, 2) => annotate("helm.sh/resource-policy", "keep"),
            (Data, 2) => annotate("agentk/prune", "allow"),
            (Late, _) => annotate("argocd.argoproj.io/sync-wave", "1"),
            _ => {}
        }
        match self {
            A | B | C | D | Inner | Late | X | InnerX => {
                object["data"] = json!({"value": variant.to_string()})
            }
            Data => object["spec"] = json!({"accessModes": ["ReadWriteOnce"]}),
            Shop => object["metadata"]["labels"] = json!({"variant": variant.to_string()}),
            Db => {
                let claims = json!([{"metadata": {"name": "data"}}]);
                object["spec"] = json!({"replicas": variant, "volumeClaimTemplates": claims});
            }
            Toys => {
                let names = json!({"kind": "Toy", "plural": "toys"});
                object["spec"] = json!({"group": TOYS_GROUP, "names": names, "scope": "Namespaced"});
                object["metadata"]["labels"] = json!({"variant": variant.to_string()});
            }
            Toy | ToyX => object["spec"] = json!({"size": variant}),
            Web => object["spec"] = json!({"replicas": variant}),
        }
        object
    }
}

impl Foreign {
    pub(super) fn id(self) -> ObjectId {
        match self {
            Self::ConfigMap => object_id("", "ConfigMap", SHOP, "foreign"),
            Self::Token => object_id("", "Secret", SHOP, "default-token-of-somebody"),
            Self::Lease => object_id(LOCKS_GROUP, "Lease", SHOP, "foreign"),
            Self::Toy => object_id(TOYS_GROUP, "Toy", TEAM, "foreign"),
        }
    }
}
