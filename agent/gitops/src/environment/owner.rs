//! Whose an object is. The labels and the annotation are those of GitLab.

use proto::{AgentId, provision::EnvironmentKey};
use serde_json::{Map, Value, json};

use crate::ApiError;

/// The prefix of all keys of labels and annotations.
const DOMAIN: &str = "agent.gitlab.com";
/// The beginning of the key of an environment's label. The value is empty, so that an object may have several.
const ENVIRONMENT: &str = "agent.gitlab.com/env-";
/// The beginning of the field managers.
const MANAGER: &str = "agentk-env-";
/// The longest name in the key of a label, after the slash.
const MAX_LABEL: usize = 63;
/// The key of the annotation's JSON that keeps objects forever.
const NEVER_DELETED: &str = "never";

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
    pub fn new(agent: AgentId, key: EnvironmentKey) -> Result<Self, String> {
        let owner = Self { agent, key, facts: json!({}) };
        let longest = owner.label().len() - DOMAIN.len() - 1;
        match longest > MAX_LABEL {
            true => Err(format!("the slug {:?} is too long for the key of a label", owner.key.slug())),
            false => Ok(owner),
        }
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
    /// Returns the reason why it may not.
    pub(super) fn check(&self, object: &Value) -> Result<(), String> {
        let others = self.others(object);
        if others.is_empty() {
            if has_label(object, &self.label()) {
                return Ok(());
            }
            return Err(format!(
                "it exists, and does not belong to an environment: rename it in the template, delete it, or hand it over with the label \
                 {}=",
                self.label()
            ));
        }
        let [agent, project, _] = self.shared_labels();
        let same = |other: &String| other.ends_with(&format!("-{}-{}", self.key.project(), self.agent));
        match has_label(object, &agent) && has_label(object, &project) && others.iter().all(same) {
            true => Ok(()),
            false => Err(format!(
                "it belongs to another project or agent ({}): write {{{{ .project.id }}}} and {{{{ .agent.id }}}} into its name",
                others.join(", ")
            )),
        }
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

    /// Returns the patch (RFC 6902) that takes an object away from this environment, if it is still in this version.
    pub(super) fn release(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        let escaped = self.label().replace('/', "~1");
        let mut patch = vec![json!({
            "op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"],
        })];
        for map in ["labels", "annotations"] {
            if metadata[map].get(self.label()).is_some() {
                patch.push(json!({"op": "remove", "path": format!("/metadata/{map}/{escaped}")}));
            }
        }
        // Another environment may have the slug, of another agent.
        let [_, _, slug] = self.shared_labels();
        let same = |other: &String| other.starts_with(&format!("{}-", self.key.slug()));
        if metadata["labels"].get(&slug).is_some() && !self.others(object).iter().any(same) {
            let escaped = slug.replace('/', "~1");
            patch.push(json!({"op": "remove", "path": format!("/metadata/labels/{escaped}")}));
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

fn has_label(object: &Value, key: &str) -> bool {
    object["metadata"]["labels"].get(key).is_some()
}
