//! The inventory of a project is an ApplySet (KEP-3659): a parent object, and a label of its members.
//!
//! The parent is a ConfigMap in the namespace of agentk. `kubectl apply --prune --applyset` and other tools read the same form.
//! Members are found by their label, so that no object can be created and forgotten: it has the label from its first moment. The
//! kinds and namespaces with members are written to the parent *before* the first object of them is created.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use kube_cluster::{GroupKind, Kind};
use proto::{AgentId, gitops::ObjectId};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The label of members. Its value is the id of the ApplySet.
pub const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// The label of parents with the id.
pub const ID: &str = "applyset.kubernetes.io/id";
/// The annotation with the program that manages the ApplySet.
const TOOLING: &str = "applyset.kubernetes.io/tooling";
/// The value of [`TOOLING`].
const TOOL: &str = "agentk/v1";
/// The annotation with the kinds of members.
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// The annotation with the namespaces of members.
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
/// The annotation with the id of the project.
pub const PROJECT: &str = "agentk/project";

/// The members of a project: where they are, and what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplySet {
    /// The name of the parent.
    pub name: String,
    /// The namespace of the parent.
    pub namespace: String,
    /// The id of the project.
    pub project: String,
    /// The kinds of members.
    pub kinds: BTreeSet<GroupKind>,
    /// The namespaces with members.
    pub namespaces: BTreeSet<String>,
    /// The version of the parent that was read. It is written only if it still has this version.
    pub version: Option<String>,
}

/// A parent that agentk must not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignParent {
    /// Another program manages it.
    #[error("the ConfigMap {0} belongs to {1}: delete it, or rename it")]
    Tool(String, String),
    /// It is of another project.
    #[error("the ConfigMap {0} belongs to the project {1}")]
    Project(String, String),
}

impl ApplySet {
    /// Returns the ApplySet of a project without members. `namespace` is that of agentk, which agents may share.
    pub fn new(agent: AgentId, project: &str, namespace: &str) -> Self {
        Self {
            name: parent_name(agent, project),
            namespace: namespace.to_owned(),
            project: project.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the id, which is the value of the label of members.
    pub fn id(&self) -> String {
        let digest = Sha256::digest(format!("{}.{}.ConfigMap.", self.name, self.namespace));
        format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(digest))
    }

    /// Names the project of a parent in words, if agentk has made it. `agent` needs no name.
    pub(crate) fn describe(parent: &Value, agent: AgentId) -> Option<String> {
        let metadata = &parent["metadata"];
        let project = metadata["annotations"][PROJECT].as_str()?;
        let (of, _) = metadata["name"].as_str()?.strip_prefix("gitops-")?.split_once('-')?;
        Some(if of == agent.to_string() {
            format!("the project {project}")
        } else {
            format!("the project {project} of the agent {of}")
        })
    }

    /// Adds the kinds and namespaces of a parent that exists.
    ///
    /// # Errors
    ///
    /// The parent belongs to another program or project.
    pub fn read(&mut self, parent: &Value) -> Result<(), ForeignParent> {
        let annotation = |key: &str| parent["metadata"]["annotations"][key].as_str();
        match annotation(TOOLING) {
            Some(TOOL) | None => {}
            Some(other) => return Err(ForeignParent::Tool(self.name.clone(), other.to_owned())),
        }
        if let Some(project) = annotation(PROJECT).filter(|project| *project != self.project) {
            return Err(ForeignParent::Project(self.name.clone(), project.to_owned()));
        }
        let list =
            |key: &str| annotation(key).unwrap_or_default().split(',').filter(|entry| !entry.is_empty());
        self.kinds.extend(list(KINDS).map(|text| {
            let (kind, group) = text.split_once('.').unwrap_or((text, ""));
            GroupKind { group: group.to_owned(), kind: kind.to_owned() }
        }));
        self.namespaces.extend(list(NAMESPACES).map(str::to_owned));
        self.version = parent["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        Ok(())
    }

    /// Adds the kind and the namespace of an object. Returns whether one of them is new.
    pub fn add(&mut self, id: &ObjectId) -> bool {
        let kind = self.kinds.insert(GroupKind::of(id));
        let namespace = !id.namespace.is_empty() && self.namespaces.insert(id.namespace.clone());
        kind || namespace
    }

    /// Adds the kinds and the namespaces of objects.
    pub fn add_all<'a>(&mut self, ids: impl IntoIterator<Item = &'a ObjectId>) {
        for id in ids {
            self.add(id);
        }
    }

    /// Returns the kind and the id of the record of the members.
    pub fn record_id(&self) -> (Kind, ObjectId) {
        let (kind, id) = self.parent_id();
        let name = format!("{}-members", id.name);
        (kind, ObjectId { name, ..id })
    }

    /// Returns the kind and the id of the parent.
    pub fn parent_id(&self) -> (Kind, ObjectId) {
        let text = str::to_owned;
        let kind = Kind {
            kind: GroupKind { group: String::new(), kind: text("ConfigMap") },
            version: text("v1"),
            plural: text("configmaps"),
            namespaced: true,
            has_status: false,
        };
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        (kind, ObjectId { group: String::new(), kind: text("ConfigMap"), namespace, name })
    }

    /// Returns the parent for a server-side apply.
    pub fn parent(&self) -> Value {
        let kinds: Vec<_> = self.kinds.iter().map(ToString::to_string).collect();
        // That of the parent is among them if it has members, so that nothing is listed where the project has no rights.
        let namespaces: Vec<_> = self.namespaces.iter().map(String::as_str).collect();
        let mut parent = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {ID: self.id(), "app.kubernetes.io/managed-by": "agentk"},
                "annotations": {
                    TOOLING: TOOL,
                    KINDS: kinds.join(","),
                    NAMESPACES: namespaces.join(","),
                    PROJECT: self.project,
                },
            },
        });
        if let Some(version) = &self.version {
            parent["metadata"]["resourceVersion"] = version.as_str().into();
        }
        parent
    }
}

/// Returns the name of the parent: readable, and different for each agent and project.
pub fn parent_name(agent: AgentId, project: &str) -> String {
    let readable: String = project
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(24)
        .collect();
    let digest = Sha256::digest(project);
    let short: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("gitops-{agent}-{}-{short}", readable.trim_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(group: &str, kind: &str, namespace: &str) -> ObjectId {
        let text = str::to_owned;
        ObjectId { group: text(group), kind: text(kind), namespace: text(namespace), name: "a".to_owned() }
    }

    /// The digest is the output of `printf gitops-group-app-7f0d6ae0.agentk.ConfigMap. | openssl dgst -sha256 -binary | base64`.
    #[test]
    fn id_is_that_of_kubectl() {
        let set = ApplySet { name: "my-set".to_owned(), namespace: "ns".to_owned(), ..ApplySet::default() };
        let expected = Sha256::digest("my-set.ns.ConfigMap.");
        assert_eq!(set.id(), format!("applyset-{}-v1", URL_SAFE_NO_PAD.encode(expected)));
        assert!(set.id().len() <= 63, "a label has at most 63 characters");
    }

    #[test]
    fn kinds_and_namespaces_survive_the_parent() {
        let mut set = ApplySet::new(AgentId(7), "group/app", "agentk");
        assert!(set.add(&id("apps", "Deployment", "shop")));
        assert!(set.add(&id("", "ConfigMap", "agentk")));
        assert!(!set.add(&id("apps", "Deployment", "shop")));
        assert!(set.add(&id("", "Namespace", "")));
        let parent = set.parent();
        let annotations = &parent["metadata"]["annotations"];
        assert_eq!(annotations[KINDS], "ConfigMap,Namespace,Deployment.apps");
        assert_eq!(annotations[NAMESPACES], "agentk,shop");
        let mut read = ApplySet::new(AgentId(7), "group/app", "agentk");
        read.read(&parent).unwrap();
        assert_eq!(read.kinds, set.kinds);
        assert_eq!(read.namespaces, set.namespaces);
    }

    #[test]
    fn parent_of_another_tool_or_project_is_refused() {
        let mut set = ApplySet::new(AgentId(7), "group/app", "agentk");
        let mut parent = set.parent();
        parent["metadata"]["annotations"][TOOLING] = "kubectl/v1.30".into();
        assert!(set.read(&parent).unwrap_err().to_string().contains("belongs to kubectl/v1.30"));
        let parent = ApplySet::new(AgentId(7), "group/other", "agentk").parent();
        assert!(set.read(&parent).unwrap_err().to_string().contains("belongs to the project group/other"));
    }

    #[test]
    fn names_of_parents_are_valid_and_differ() {
        for project in ["group/app", "Group/App", "a/b-c", "a-b/c", "--", &"x".repeat(300), "größe/ä"] {
            let name = parent_name(AgentId(u64::MAX), project);
            assert!(
                name.len() <= 63 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
                "{name}"
            );
        }
        assert_ne!(parent_name(AgentId(1), "a/b-c"), parent_name(AgentId(1), "a-b/c"));
    }
}
