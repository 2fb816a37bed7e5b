//! Whose an object is. The labels and the annotation are those of GitLab.

use kube_cluster::{ApiError, FIELD_MANAGER};
use proto::{AgentId, provision::EnvironmentKey};
use serde_json::{Map, Value, json};

/// The prefix of all keys of labels and annotations.
const DOMAIN: &str = "agent.gitlab.com";
/// The beginning of the key of an environment's label. The value is empty, so that an object may have several.
const ENVIRONMENT: &str = "agent.gitlab.com/env-";
/// The beginning of the key of the annotation of a namespace that a stop of an environment deletes.
const ENDING: &str = "agent.gitlab.com/ending-";
/// The field manager of Kubernetes, which changes each namespace.
const OF_KUBERNETES: &str = "kube-controller-manager";
/// The beginning of the field managers.
const MANAGER: &str = "agentk-env-";
/// The longest name in the key of a label, after the slash.
const MAX_LABEL: usize = 63;
/// The key of the annotation's JSON that keeps objects forever.
const NEVER_DELETED: &str = "never";

/// A slug that, with the ids of the project and the agent, is too long for the key of a label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slug {0:?} is too long for the key of a label")]
pub struct SlugTooLong(String);

/// The reason why an object of the cluster may not become one of an environment. The author of the template mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OwnerConflict {
    #[error(
        "it exists, and does not belong to an environment: rename it in the template, delete it, or hand it over with the label {label}="
    )]
    Unowned { label: String },
    #[error(
        "it belongs to another project or agent ({owners}): write {{{{ .project.id }}}} and {{{{ .agent.id }}}} into its name"
    )]
    OtherProject { owners: String },
    /// `agent` and `project` are labels.
    #[error(
        "its namespace is not in the template, and is not one of this agent and project: put a Namespace into the template, or \
             give the namespace the labels {agent}= and {project}="
    )]
    OtherNamespace { agent: String, project: String },
}

/// An environment, as the owner of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentOwner {
    agent: AgentId,
    key: EnvironmentKey,
    /// The JSON of the annotation.
    facts: Value,
}

impl EnvironmentOwner {
    /// Returns the owner of the objects of an environment.
    ///
    /// # Errors
    ///
    /// The ids and the slug are too long for the key of a label.
    pub fn new(agent: AgentId, key: EnvironmentKey) -> Result<Self, SlugTooLong> {
        let owner = Self { agent, key, facts: json!({}) };
        let longest = owner.label().len() - DOMAIN.len() - 1;
        if longest > MAX_LABEL { Err(SlugTooLong(owner.key.slug().to_owned())) } else { Ok(owner) }
    }

    /// Sets what the annotation says about the environment. `never` keeps the objects when the environment stops.
    #[must_use]
    pub fn with_facts(mut self, facts: Map<String, Value>, never_deleted: bool) -> Self {
        self.facts = facts.into();
        self.facts["delete_resources"] = if never_deleted { NEVER_DELETED } else { "on_stop" }.into();
        self
    }

    /// Returns `review-1-30-7`.
    fn name(&self) -> String {
        format!("{}-{}-{}", self.key.slug(), self.key.project(), self.agent)
    }

    /// Returns the key of the label and of the annotation that only objects of this environment have.
    pub(super) fn label(&self) -> String {
        format!("{ENVIRONMENT}{}", self.name())
    }

    /// Returns the keys of the labels that may be of other environments, too.
    fn shared_labels(&self) -> [String; 3] {
        [
            format!("{DOMAIN}/id-{}", self.agent),
            format!("{DOMAIN}/project_id-{}", self.key.project()),
            format!("{DOMAIN}/environment_slug-{}", self.key.slug()),
        ]
    }

    /// Returns the field manager.
    pub(super) fn manager(&self) -> String {
        format!("{MANAGER}{}", self.name())
    }

    /// Adds the labels and the annotation to an object, whose labels and annotations are mappings if it has them.
    pub(super) fn mark(&self, object: &mut Value) {
        let metadata = &mut object["metadata"];
        for label in self.shared_labels().into_iter().chain([self.label()]) {
            metadata["labels"][label] = "".into();
        }
        metadata["annotations"][self.label()] = self.facts.to_string().into();
    }

    /// Checks that an object of the cluster may become one of this environment: it is already, or it is one of another environment of
    /// the same project and the same agent.
    ///
    /// # Errors
    ///
    /// It may not.
    pub(super) fn check(&self, object: &Value) -> Result<(), OwnerConflict> {
        let others = self.others(object);
        if others.is_empty() {
            if has_label(object, &self.label()) {
                return Ok(());
            }
            return Err(OwnerConflict::Unowned { label: self.label() });
        }
        if self.is_of_project(object) {
            Ok(())
        } else {
            Err(OwnerConflict::OtherProject { owners: others.join(", ") })
        }
    }

    /// Checks that objects of the environment may be made in a namespace that the template does not make. The project and the agent must
    /// be named there: a template with a namespace from the name of the environment lets its developers choose one.
    ///
    /// # Errors
    ///
    /// They may not.
    pub(super) fn check_namespace(&self, namespace: &Value) -> Result<(), OwnerConflict> {
        if self.is_of_project(namespace) {
            Ok(())
        } else {
            let [agent, project, _] = self.shared_labels();
            Err(OwnerConflict::OtherNamespace { agent, project })
        }
    }

    /// Returns whether an object has the labels of the project and the agent, and is of no environment of others.
    fn is_of_project(&self, object: &Value) -> bool {
        let [agent, project, _] = self.shared_labels();
        let same = |other: &String| other.ends_with(&format!("-{}-{}", self.key.project(), self.agent));
        has_label(object, &agent) && has_label(object, &project) && self.others(object).iter().all(same)
    }

    /// Returns a manager of the fields of an object that is neither an environment nor Kubernetes.
    pub(super) fn foreign_manager(object: &Value) -> Option<&str> {
        let managers = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let mut names = managers.filter_map(|entry| {
            // A status is of a controller, and patches of this module have the name of agentk.
            let is_patch = entry["manager"] == FIELD_MANAGER && entry["operation"] == "Update";
            let counts = entry.get("subresource").is_none() && !is_patch;
            entry["manager"].as_str().filter(|_| counts)
        });
        names.find(|name| !name.starts_with(MANAGER) && *name != OF_KUBERNETES)
    }

    /// Returns the key of the annotation of a namespace that a stop of the environment deletes.
    fn ending(&self) -> String {
        format!("{ENDING}{}", self.name())
    }

    /// Returns whether a stop of the environment deletes the namespace, or has tried it.
    pub(super) fn is_ending(&self, namespace: &Value) -> bool {
        namespace["metadata"]["annotations"].get(self.ending()).is_some()
    }

    /// Returns the patch (RFC 6902) that says that a stop of the environment deletes a namespace, if it is still in this version.
    pub(super) fn end(&self, namespace: &Value) -> Value {
        let metadata = &namespace["metadata"];
        let ending = if metadata["annotations"].is_object() {
            json!({"op": "add", "path": format!("/metadata/annotations/{}", escaped(&self.ending())), "value": ""})
        } else {
            json!({"op": "add", "path": "/metadata/annotations", "value": {self.ending(): ""}})
        };
        json!([test_version(&metadata["resourceVersion"]), ending])
    }

    /// Returns the patch (RFC 6902) that takes that back, so that the stop cannot delete the namespace any more.
    pub(super) fn resume(&self, version: &str) -> Value {
        let path = format!("/metadata/annotations/{}", escaped(&self.ending()));
        json!([test_version(&version.into()), {"op": "remove", "path": path}])
    }

    /// Returns the names of the other environments whose object it is, such as `review-2-30-7`.
    pub(super) fn others(&self, object: &Value) -> Vec<String> {
        let own = self.label();
        let labels = object["metadata"]["labels"].as_object();
        let keys = labels.into_iter().flat_map(Map::keys);
        keys.filter(|key| **key != own)
            .filter_map(|key| Some(key.strip_prefix(ENVIRONMENT)?.to_owned()))
            .collect()
    }

    /// Returns whether the object shall stay when the environment stops.
    pub(super) fn is_never_deleted(&self, object: &Value) -> bool {
        let facts = object["metadata"]["annotations"][self.label()].as_str();
        let facts: Option<Value> = facts.and_then(|facts| serde_json::from_str(facts).ok());
        facts.is_some_and(|facts| facts["delete_resources"] == NEVER_DELETED)
    }

    /// Returns the patch (RFC 6902) that takes an object away from this environment, if it is still in this version. Labels that another
    /// environment has, too, stay.
    pub(super) fn release(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        let mut patch = vec![test_version(&metadata["resourceVersion"])];
        for map in ["labels", "annotations"] {
            if metadata[map].get(self.label()).is_some() {
                patch.push(
                    json!({"op": "remove", "path": format!("/metadata/{map}/{}", escaped(&self.label()))}),
                );
            }
        }
        let others = self.others(object);
        let (agent, project) = (self.agent.to_string(), self.key.project().to_string());
        // The slug, the project and the agent of another environment.
        let parts = |other: &String| {
            let mut parts = other.rsplitn(3, '-').map(str::to_owned);
            (parts.next(), parts.next(), parts.next())
        };
        let others: Vec<_> = others.iter().map(parts).collect();
        let [of_agent, of_project, of_slug] = self.shared_labels();
        for (label, is_shared) in [
            (of_agent, others.iter().any(|(other, _, _)| other.as_ref() == Some(&agent))),
            (of_project, others.iter().any(|(_, other, _)| other.as_ref() == Some(&project))),
            (of_slug, others.iter().any(|(_, _, other)| other.as_deref() == Some(self.key.slug()))),
        ] {
            if metadata["labels"].get(&label).is_some() && !is_shared {
                patch.push(json!({"op": "remove", "path": format!("/metadata/labels/{}", escaped(&label))}));
            }
        }
        patch.into()
    }

    /// Returns another environment among the managers with which an apply is in conflict.
    pub(super) fn other_manager(&self, conflict: &ApiError) -> Option<String> {
        let own = self.manager();
        conflict.causes.iter().find_map(|cause| {
            let (_, rest) = cause.message.split_once('"')?;
            let (manager, _) = rest.split_once('"')?;
            (manager != own).then_some(manager)?.strip_prefix(MANAGER).map(str::to_owned)
        })
    }
}

/// Returns whether a label or an annotation says whose an object is.
pub(super) fn is_of_environments(key: &str) -> bool {
    key.strip_prefix(DOMAIN).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the operation of a patch that fails if the object has another version.
fn test_version(version: &Value) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})
}

/// Returns a key as a part of a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('/', "~1")
}

fn has_label(object: &Value, key: &str) -> bool {
    object["metadata"]["labels"].get(key).is_some()
}
