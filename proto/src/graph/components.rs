//! Programs that run in a cluster, and the features that need one.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{HealthState, is_false};

/// Programs that run in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComponentList {
    /// The components, in order of their ids.
    pub components: Vec<Component>,
    /// The features of kas and agentk that need a component in the cluster, in order of their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<FeatureNeed>,
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

/// A feature of kas or agentk that needs a component in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FeatureNeed {
    /// The id of the feature, such as `prometheus`.
    pub feature: String,
    /// The name for people.
    pub name: String,
    /// The ids of the components of which the feature needs one.
    pub needs: Vec<String>,
    /// The state of these components in the cluster.
    pub state: FeatureState,
    /// True if clusters do without the feature, or have another one in its place: a missing component is no defect.
    #[serde(default, skip_serializing_if = "is_false")]
    pub optional: bool,
    /// The way to install the first of them.
    pub install: InstallHint,
}

/// The state of a component that a feature needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FeatureState {
    /// A component runs and is healthy.
    Present,
    /// The cluster has no component.
    Missing,
    /// The cluster has a component, and none of its workloads is healthy.
    Unhealthy,
    /// No healthy component was found, and agentk or the caller may not list all workloads.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The way to install a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InstallHint {
    /// A command for a shell; empty if the cluster lacks the component that the command changes.
    pub command: String,
    /// The address of the documentation of the component.
    pub docs: String,
}

/// A feature of kas or agentk, and the components of which it needs one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureRule {
    /// The id of the feature.
    pub feature: String,
    /// The name for people.
    pub name: String,
    /// The file of the documentation that states the need.
    pub document: String,
    /// The ids of the components.
    pub needs: Vec<String>,
    /// True if clusters do without the feature, or have another one in its place.
    #[serde(default)]
    pub optional: bool,
    /// The id of the component that the command changes, if it installs no other one.
    #[serde(default)]
    pub requires: Option<String>,
    /// The way to install the first of them.
    pub install: InstallHint,
}

/// The features that need a component, in order of their ids. kas and the page show these commands, and never those that an agent sends.
pub static FEATURES: LazyLock<Vec<FeatureRule>> =
    LazyLock::new(|| serde_json::from_str(include_str!("features.json")).expect("a test reads the rules"));

impl FeatureRule {
    /// Returns the feature with the state of its components. `has` returns whether the cluster has the component with an id: without the
    /// component that the command changes, there is no command.
    pub fn with_state(&self, state: FeatureState, has: impl FnOnce(&str) -> bool) -> FeatureNeed {
        let Self { feature, name, needs, optional, requires, install, .. } = self;
        let mut install = install.clone();
        if requires.as_deref().is_some_and(|id| !has(id)) {
            install.command.clear();
        }
        FeatureNeed {
            feature: feature.clone(),
            name: name.clone(),
            needs: needs.clone(),
            state,
            optional: *optional,
            install,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_feature_has_a_document_and_one_command() {
        assert!(FEATURES.is_sorted_by(|a, b| a.feature < b.feature), "in order of their ids");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for FeatureRule { feature, name, document, needs, install, .. } in &*FEATURES {
            assert!(!name.is_empty() && !needs.is_empty(), "{feature}");
            assert!(root.join(document).exists(), "{feature}: {document}");
            let tool = install.command.split(' ').next();
            assert!(
                matches!(tool, Some("cilium" | "flux" | "helm" | "kubectl")),
                "{feature}: {}",
                install.command
            );
            assert!(!install.command.contains(['\n', ';', '|', '&', '$', '`']), "{feature}: one command");
            assert!(install.docs.starts_with("https://"), "{feature}: {}", install.docs);
        }
    }

    #[test]
    fn no_command_installs_a_network_or_a_branch() {
        for FeatureRule { feature, install: InstallHint { command, .. }, .. } in &*FEATURES {
            let is_branch = ["/master/", "/main/"].iter().any(|branch| command.contains(branch));
            assert!(!is_branch, "{feature}: {command}");
            let networks = ["cilium", "calico", "flannel", "kube-system"];
            let is_network = networks.iter().any(|name| command.contains(name));
            assert!(!(is_network && command.contains("install")), "{feature}: {command}");
        }
    }

    #[test]
    fn state_of_a_later_agentk_is_unknown() {
        let state: FeatureState = serde_json::from_str("\"outdated\"").unwrap();
        assert_eq!(state, FeatureState::Unknown);
    }

    #[test]
    fn command_that_changes_a_component_needs_it() {
        let hubble = FEATURES.iter().find(|rule| rule.feature == "alerts-network-policies").unwrap();
        let command = |has: bool| {
            let need = hubble.with_state(FeatureState::Missing, |id| has && id == "cilium");
            need.install.command
        };
        assert_eq!((&*command(true), &*command(false)), ("cilium hubble enable", ""));
    }
}
