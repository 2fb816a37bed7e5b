//! Programs that run in a cluster.

use serde::{Deserialize, Serialize};

use super::HealthState;

/// Programs that run in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComponentList {
    /// The components, in order of their ids.
    pub components: Vec<Component>,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// A program that runs in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Component {
    /// The id, such as `cert-manager`.
    pub id: String,
    /// The name for people.
    pub name: String,
    /// The version, if an image or a label has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The namespaces of its workloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The health of its workloads.
    pub health: HealthState,
    /// The workloads and API groups by which it was found, such as `Deployment cert-manager/cert-manager`.
    pub evidence: Vec<String>,
}
