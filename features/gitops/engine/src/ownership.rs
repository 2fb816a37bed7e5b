//! Who an object of the cluster belongs to.
//!
//! A label, a name or a kind proves nothing: anybody can copy them. The UID in the inventory does, and so does the field manager of
//! agentk together with the label of the project, which an object has from its first moment.

use kube_cluster::FIELD_MANAGER;
use serde_json::Value;

use crate::applyset::PART_OF;

/// Marks of programs that apply manifests: where they are, their keys, and what sets them.
const MARKS: [(&str, &str, &str); 5] = [
    ("annotations", "meta.helm.sh/release-name", "the Helm release"),
    ("labels", "kustomize.toolkit.fluxcd.io/name", "the Kustomization of Flux"),
    ("labels", "helm.toolkit.fluxcd.io/name", "the HelmRelease of Flux"),
    ("annotations", "argocd.argoproj.io/tracking-id", "the application of Argo CD"),
    ("labels", "argocd.argoproj.io/instance", "the application of Argo CD"),
];

/// The owner of an object, as a project sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOwner {
    /// The project itself.
    Project,
    /// The ApplySet with this id: another project, or a program such as kubectl.
    Set(String),
    /// Another program or object, in words.
    Other(String),
    /// Nobody. It may have a copy of the label.
    Nobody,
}

/// Describes the owner of an object if it is not the project.
pub fn other(owner: ObjectOwner) -> Option<String> {
    match owner {
        ObjectOwner::Project | ObjectOwner::Nobody => None,
        ObjectOwner::Set(set) => Some(format!("the ApplySet {set}")),
        ObjectOwner::Other(owner) => Some(owner),
    }
}

/// Returns the owner of an object with this metadata. `set` is the id of the ApplySet of the project, and `is_recorded` says that the UID
/// is in the inventory.
pub fn owner(metadata: &Value, set: &str, is_recorded: bool) -> ObjectOwner {
    match metadata["labels"][PART_OF].as_str() {
        Some(other) if other != set => ObjectOwner::Set(other.to_owned()),
        _ if is_recorded => ObjectOwner::Project,
        Some(_) if is_applied_by_agentk(metadata) => ObjectOwner::Project,
        _ => foreign_owner(metadata).map_or(ObjectOwner::Nobody, ObjectOwner::Other),
    }
}

/// Returns whether agentk has applied an object.
pub fn is_applied_by_agentk(metadata: &Value) -> bool {
    let entries = metadata["managedFields"].as_array().into_iter().flatten();
    entries.into_iter().any(|entry| entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply")
}

/// Returns the program or the object that an object belongs to, in words. A mark that agentk has set comes from Git, and says nothing.
pub fn foreign_owner(metadata: &Value) -> Option<String> {
    let marked = marks(metadata).find(|(place, key, ..)| !is_set_by_agentk(metadata, place, key));
    if let Some((.., what, value)) = marked {
        return Some(format!("{what} {value}"));
    }
    let owner = metadata["ownerReferences"].as_array()?.first()?;
    let text = |key: &str| owner[key].as_str().unwrap_or_default();
    Some(format!("{} {} (ownerReferences)", text("kind"), text("name")))
}

/// Returns whether an object has the mark of another program. Lists do not say who has set it.
pub fn has_mark(metadata: &Value) -> bool {
    marks(metadata).next().is_some()
}

fn marks(metadata: &Value) -> impl Iterator<Item = (&'static str, &'static str, &'static str, &str)> {
    MARKS.into_iter().filter_map(|(place, key, what)| {
        let value = metadata[place][key].as_str().filter(|value| !value.is_empty())?;
        Some((place, key, what, value))
    })
}

fn is_set_by_agentk(metadata: &Value, place: &str, key: &str) -> bool {
    let entries = metadata["managedFields"].as_array().into_iter().flatten();
    let mut ours = entries.into_iter().filter(|entry| entry["manager"] == FIELD_MANAGER);
    ours.any(|entry| entry["fieldsV1"]["f:metadata"][format!("f:{place}")].get(format!("f:{key}")).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied() -> Value {
        json!({
            "labels": {PART_OF: "set"},
            "managedFields": [{"manager": "agentk", "operation": "Apply"}],
        })
    }

    #[test]
    fn label_alone_proves_nothing() {
        assert_eq!(owner(&applied(), "set", false), ObjectOwner::Project);
        let mut copy = applied();
        copy["managedFields"][0]["operation"] = "Update".into();
        assert_eq!(owner(&copy, "set", false), ObjectOwner::Nobody);
        copy["managedFields"][0] = json!({"manager": "kubectl", "operation": "Apply"});
        assert_eq!(owner(&copy, "set", false), ObjectOwner::Nobody);
    }

    #[test]
    fn recorded_object_stays_with_its_project_without_its_label() {
        let bare = json!({"managedFields": []});
        assert_eq!(owner(&bare, "set", true), ObjectOwner::Project);
        assert_eq!(owner(&bare, "set", false), ObjectOwner::Nobody);
        let mut moved = applied();
        moved["labels"][PART_OF] = "another".into();
        assert_eq!(owner(&moved, "set", true), ObjectOwner::Set("another".to_owned()));
    }

    #[test]
    fn object_of_another_program_is_named() {
        let helm = |fields: Value| {
            json!({
                "annotations": {"meta.helm.sh/release-name": "shop"},
                "managedFields": [{"manager": "agentk", "operation": "Apply", "fieldsV1": fields}],
            })
        };
        let other = |words: &str| ObjectOwner::Other(words.to_owned());
        assert_eq!(owner(&helm(json!({})), "set", false), other("the Helm release shop"));
        let from_git = json!({"f:metadata": {"f:annotations": {"f:meta.helm.sh/release-name": {}}}});
        assert_eq!(owner(&helm(from_git), "set", false), ObjectOwner::Nobody);
        for (place, key, what) in MARKS {
            assert_eq!(owner(&json!({place: {key: "x"}}), "set", false), other(&format!("{what} x")));
        }
        let owned = json!({"ownerReferences": [{"kind": "Deployment", "name": "web"}]});
        assert_eq!(owner(&owned, "set", false), other("Deployment web (ownerReferences)"));
    }
}
