//! The resource graph of a cluster, as agentk sends it: the responses of the service `graph`.
//!
//! Readers ignore fields and values that they do not know. Optional fields are left out where they are empty.

mod application_facts;
mod applications;
mod components;
mod kind;

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use self::{
    application_facts::ApplicationFacts,
    applications::{
        Application, ApplicationCondition, ApplicationContact, ApplicationDescriptor, ApplicationIcon,
        ApplicationInfo, ApplicationKind, ApplicationLink, ApplicationList, ApplicationMember,
        ApplicationOrigin, is_web_address,
    },
    components::{Component, ComponentList, FEATURES, FeatureNeed, FeatureRule, FeatureState, InstallHint},
    kind::KindName,
};
use crate::InstanceId;

/// The path of [`GraphStatus`].
pub const STATUS_PATH: &str = "/v1/status";
/// The path of [`ObjectList`].
pub const OBJECTS_PATH: &str = "/v1/objects";
/// The path of [`Tree`].
pub const TREE_PATH: &str = "/v1/tree";
/// The path of [`GroupList`].
pub const GROUPS_PATH: &str = "/v1/groups";
/// The path of [`HealthReport`].
pub const HEALTH_PATH: &str = "/v1/health";
/// The path of [`ComponentList`].
pub const COMPONENTS_PATH: &str = "/v1/components";
/// The path of [`ApplicationList`].
pub const APPLICATIONS_PATH: &str = "/v1/applications";
/// The path of [`Capacity`].
pub const CAPACITY_PATH: &str = "/v1/capacity";
/// The path of [`FoundEnvironmentList`].
pub const ENVIRONMENTS_PATH: &str = "/v1/environments";
/// The path of [`ViewList`].
pub const VIEWS_PATH: &str = "/v1/views";
/// The path of the lines of [`GraphEvent`].
pub const WATCH_PATH: &str = "/v1/watch";

/// The health of an object. Ordered from the best to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// The object does its work, or its kind has no health.
    #[default]
    Healthy,
    /// The object was stopped on purpose.
    Suspended,
    /// The object does not do its work yet.
    Progressing,
    /// The object does not do its work, and will not without a change.
    Degraded,
    /// The health cannot be known: nothing was found, or may be seen.
    Unknown,
}

impl HealthState {
    /// All states, from the best to the worst.
    pub const ALL: [Self; 5] =
        [Self::Healthy, Self::Suspended, Self::Progressing, Self::Degraded, Self::Unknown];

    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Suspended => "suspended",
            Self::Progressing => "progressing",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An object of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Node {
    /// The UID.
    pub uid: String,
    /// The API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The version of the API group, such as `v1`.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The time of its creation, in RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
    /// The time since which it is being deleted, in RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deleted: String,
    /// The objects that own it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Owner>,
    /// At most 32 labels, in order of their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its state as kubectl prints it, such as `CrashLoopBackOff`, `Bound` or `2/3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The ready and the desired replicas or containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// The restarts of its containers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    /// The images of its containers, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// Other facts of its kind, such as `node`, `type` or `hosts`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
    /// Its health.
    pub health: HealthState,
    /// The reason of its health in one sentence of at most 512 bytes; empty if it is healthy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time since which it has this health, in RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
    /// The groups whose member it is by its labels or annotations, not by its owners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Its relations to other objects, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<Edge>,
    /// The number of its last change.
    pub sequence: u64,
}

/// Replicas or containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ready {
    /// The number that is ready.
    pub ready: u32,
    /// The number that should be.
    pub desired: u32,
}

/// The owner of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Owner {
    /// The UID.
    pub uid: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

/// A relation of an object to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Edge {
    /// The relation.
    pub relation: Relation,
    /// The API group of the other object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind of the other object.
    pub kind: String,
    /// Its namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name; empty if the caller may not see it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its UID, if it is loaded and the caller may see it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A relation of an object to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// It owns the other one.
    Owns,
    /// It selects the other one by labels, and sends requests to it.
    Selects,
    /// It sends requests to the other one by name.
    Routes,
    /// It reads or mounts the other one.
    Uses,
    /// It runs on this node.
    RunsOn,
    /// It is bound to the other one.
    Binds,
    /// It sets the replicas of the other one.
    Scales,
    /// It restricts what may happen to the other one.
    Protects,
}

/// The state of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GraphStatus {
    /// The process of agentk that responds.
    #[cfg_attr(test, schemars(with = "String"))]
    pub instance: InstanceId,
    /// The position of the newest change.
    #[cfg_attr(test, schemars(with = "String"))]
    pub token: Token,
    /// True if all resources are loaded.
    pub loaded: bool,
    /// The number of objects that the caller may see.
    pub objects: u64,
    /// The resources, in the order in which they are loaded.
    pub resources: Vec<ResourceStatus>,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// The state of a resource of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ResourceStatus {
    /// The API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind of its objects.
    pub kind: String,
    /// The state.
    pub state: ResourceState,
    /// The number of loaded objects that the caller may see.
    pub objects: u64,
    /// The reason of the state in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The state of the objects of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ResourceState {
    /// They are being loaded.
    #[default]
    Loading,
    /// All are known.
    Synced,
    /// agentk, or the caller, may not list them.
    Denied,
    /// Those of some namespaces are known.
    DeniedInSome,
    /// There are too many: their number is known.
    CountedOnly,
    /// The API server does not list them now; those that were known are.
    Failing,
}

/// Objects that a query selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ObjectList {
    /// The objects of this page, in order of namespace, kind and name.
    pub objects: Vec<Node>,
    /// The parameter `continue` of the next page.
    #[serde(default, rename = "continue", skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// Objects and the objects that they own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tree {
    /// The objects without a visible owner, with all that they own.
    pub roots: Vec<Branch>,
    /// The number of objects that were left out, because the tree is too large.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub omitted: u64,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// An object and the objects that it owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Branch {
    /// The object.
    #[serde(flatten)]
    pub node: Node,
    /// The objects that it owns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Self>,
}

/// The nodes of the cluster, and their CPU and memory. Nothing is counted of which the caller may see a part only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Capacity {
    /// The nodes; null if the caller may not list them.
    pub nodes: Option<NodeCounts>,
    /// The versions of their kubelets, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubelet_versions: Vec<KubeletVersion>,
    /// The capacity that the nodes offer to Pods; null if the caller may not list nodes.
    pub allocatable: Option<Amounts>,
    /// The requests of the Pods that have a node and have not ended; null if the caller may not list the Pods of all namespaces.
    pub requested: Option<Amounts>,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// The environments of GitLab that objects of the cluster name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FoundEnvironmentList {
    /// The environments, at most 200, in order of namespace and slug.
    pub environments: Vec<FoundEnvironment>,
    /// The number of environments that were left out.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub omitted: u64,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// An environment in a namespace, as labels or annotations `app.gitlab.com/…` name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FoundEnvironment {
    /// The namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The slug of the environment.
    pub slug: String,
    /// The id of the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<u64>,
    /// The slug of the path of the project (`CI_PROJECT_PATH_SLUG`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The labels that select its objects; empty if annotations name it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The number of its objects.
    pub objects: u64,
}

/// Numbers of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeCounts {
    /// All nodes.
    pub all: u64,
    /// The nodes that are ready.
    pub ready: u64,
    /// The nodes that take no new Pods, because they are cordoned.
    pub unschedulable: u64,
}

/// CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Amounts {
    /// Thousandths of a CPU.
    pub cpu_millicores: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Amounts {
    /// Returns the sum, or the largest number instead of a larger one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_millicores: self.cpu_millicores.saturating_add(other.cpu_millicores),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

/// A version of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KubeletVersion {
    /// The version, such as `v1.34.1`.
    pub version: String,
    /// The nodes with this version.
    pub nodes: u64,
}

/// The groups of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupList {
    /// The groups, in order of their ids.
    pub groups: Vec<Group>,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// Objects that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Group {
    /// The id, such as `helm:shop/web`. Its first part says by what the objects were found.
    pub id: String,
    /// The property by which the objects were found, in words.
    pub found_by: String,
    /// The namespaces of its objects, at most 32.
    pub namespaces: Vec<String>,
    /// Its health.
    pub health: GroupHealth,
}

/// The health of several objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GroupHealth {
    /// The health of the worst object that no other object of the group owns.
    pub health: HealthState,
    /// The number of objects by their health.
    pub counts: BTreeMap<HealthState, u64>,
    /// The worst objects, at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<Attention>,
}

/// An object that does not do its work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Attention {
    /// The UID.
    pub uid: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Its health.
    pub health: HealthState,
    /// The reason in one sentence.
    pub message: String,
    /// The time since which it has this health, in RFC 3339.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub since: String,
}

/// The health of the objects that a query selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HealthReport {
    /// The health.
    #[serde(flatten)]
    pub health: GroupHealth,
    /// The newest Warning events about the objects, at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// A Warning event of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Warning {
    /// The kind of the object.
    pub kind: String,
    /// The namespace of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The reason, such as `FailedScheduling`.
    pub reason: String,
    /// The text, at most 512 bytes.
    pub message: String,
    /// The number of occurrences.
    pub count: u32,
    /// The time of the last occurrence, in RFC 3339.
    pub time: String,
}

/// The views that the configuration of the agent defines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ViewList {
    /// The views, in the order of the configuration.
    pub views: Vec<View>,
}

/// A count or a table of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct View {
    /// The name in the configuration of the agent.
    pub name: String,
    /// The number of objects.
    pub count: u64,
    /// The names of the columns. The last column of a count is `count`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// The rows, each with a text for each column, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Vec<String>>,
    /// The number of rows that were left out, because there are too many.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub omitted: u64,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// A line of a watch.
///
/// A watch begins with `begin` and the objects of the snapshot, or those that have changed since the token of the caller.
/// `commit` ends the snapshot, and later each batch of changes: a caller that has read it may continue from its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum GraphEvent {
    /// The first line.
    Begin {
        /// The mode in which the watch begins.
        mode: WatchMode,
    },
    /// An object that is new, or has changed.
    Node {
        /// The object.
        node: Box<Node>,
    },
    /// An object that is not in the view of the caller any more.
    Gone {
        /// The UID.
        uid: String,
        /// The reason.
        reason: GoneReason,
    },
    /// The groups, with `groups=all`, each time that one of them has changed.
    Groups {
        /// The groups that are new or have changed.
        changed: Vec<Group>,
        /// The ids of those that do not exist any more.
        gone: Vec<String>,
    },
    /// The views, with `views=all`, each time that one of them has changed.
    Views {
        /// All views.
        views: Vec<View>,
    },
    /// The state of the resources, each time that one of them has changed.
    State {
        /// True if all resources are loaded.
        loaded: bool,
        /// The resources.
        resources: Vec<ResourceStatus>,
        /// The reasons why something may be missing, one sentence each.
        partial: Vec<String>,
    },
    /// All changes up to this position have been sent.
    Commit {
        /// The position.
        #[cfg_attr(test, schemars(with = "String"))]
        token: Token,
    },
    /// Nothing has happened for 15 s.
    Alive {},
}

/// The mode in which a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WatchMode {
    /// All objects follow, because the caller has no token.
    Snapshot,
    /// The changes since the token follow.
    Delta,
    /// All objects follow, because the token is too old or of another process. The caller forgets all others.
    Reset,
}

/// The reason why an object is not in a view any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum GoneReason {
    /// It was deleted.
    Deleted,
    /// The query does not select it any more.
    Filter,
    /// The caller may not see it any more.
    Permission,
}

/// A position in the changes of one agentk: `<instance>.<generation>.<sequence>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The process of agentk.
    pub instance: InstanceId,
    /// The number of caches before this one in the process.
    pub generation: u64,
    /// The number of the last change.
    pub sequence: u64,
}

/// A text that is no [`Token`].
#[derive(Debug, thiserror::Error)]
#[error("the token is not one of a watch: <instance>.<generation>.<sequence>")]
pub struct InvalidToken;

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.instance, self.generation, self.sequence)
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let mut parts = text.splitn(3, '.');
        let mut part = || parts.next().ok_or(InvalidToken);
        let instance = part()?.parse().map_err(|_| InvalidToken)?;
        let generation = part()?.parse().map_err(|_| InvalidToken)?;
        let sequence = part()?.parse().map_err(|_| InvalidToken)?;
        Ok(Self { instance, generation, sequence })
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod openapi;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_read_as_it_is_written() {
        let token = Token { instance: InstanceId::from_bytes([7; 16]), generation: 2, sequence: 41 };
        assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
        for wrong in [
            "",
            "1.2",
            "x.1.2",
            "07070707070707070707070707070707.1.-2",
            "07070707070707070707070707070707.1.2.3",
        ] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn event_is_a_flat_object() {
        let event = GraphEvent::Gone { uid: "u".to_owned(), reason: GoneReason::Permission };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"event":"gone","uid":"u","reason":"permission"}"#);
        assert_eq!(serde_json::from_str::<GraphEvent>(&text).unwrap(), event);
    }

    #[test]
    fn health_is_ordered_from_the_best_to_the_worst() {
        assert!(HealthState::ALL.is_sorted());
        for state in HealthState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
