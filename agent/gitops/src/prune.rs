//! Selects the objects that left Git and are deleted. Every guard keeps an object, and none deletes one.

use std::collections::HashSet;

use proto::{
    agent_configuration::gitops::ManifestProject,
    gitops::{HeldDeletions, HeldObject, ObjectId},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{FIELD_MANAGER, order};

/// The most objects that are named while they wait for an approval.
const MAX_SHOWN: usize = 20;
/// Annotations with which the owner of an object keeps it.
const KEEP: [(&str, &str); 5] = [
    ("config.kubernetes.io/lifecycle", "detach"),
    ("client.lifecycle.config.k8s.io/deletion", "detach"),
    ("cli-utils.sigs.k8s.io/on-remove", "keep"),
    ("argocd.argoproj.io/sync-options", "Prune=false"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
];

/// An object of the cluster that has the label of the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The object.
    pub id: ObjectId,
    /// The version of the API with which it was read.
    pub version: String,
    /// The UID.
    pub uid: String,
    /// The reason why nobody deletes it, if it has one.
    pub kept_by: Option<String>,
    /// It is being deleted.
    pub deleting: bool,
}

/// The decision about the members that left Git.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// The objects to delete, in this order.
    pub delete: Vec<Member>,
    /// The objects that stay, with the reasons.
    pub keep: Vec<(ObjectId, String)>,
    /// The objects that stay until their deletion is over.
    pub deleting: Vec<ObjectId>,
    /// The deletions that wait for an approval, and the reason.
    pub held: Option<(HeldDeletions, String)>,
}

impl Member {
    /// Reads the metadata of an object.
    pub fn new(id: ObjectId, version: String, metadata: &Value) -> Self {
        Self {
            id,
            version,
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            kept_by: kept_by(metadata),
            deleting: metadata.get("deletionTimestamp").is_some(),
        }
    }
}

/// Decides about the members of a project after a complete apply.
///
/// `desired` are the objects in Git, and `applied` the UIDs of those that were just applied: the same object can have two names,
/// in two API groups. `approved` is the code of the deletions that somebody has approved.
pub fn plan(
    members: Vec<Member>,
    desired: &HashSet<ObjectId>,
    applied: &HashSet<String>,
    project: &ManifestProject,
    approved: Option<&str>,
) -> PrunePlan {
    let total = members.len();
    let mut plan = PrunePlan::default();
    for member in members {
        if desired.contains(&member.id) || applied.contains(&member.uid) {
            continue;
        }
        if member.deleting {
            plan.deleting.push(member.id);
            continue;
        }
        match &member.kept_by {
            Some(reason) => plan.keep.push((member.id, reason.clone())),
            None => plan.delete.push(member),
        }
    }
    plan.delete.sort_by(|a, b| {
        order::deletion_rank(&a.id).cmp(&order::deletion_rank(&b.id)).then_with(|| b.id.cmp(&a.id))
    });
    if !project.prune {
        let kept = plan
            .delete
            .drain(..)
            .map(|member| (member.id, "the project does not prune (prune: false)".to_owned()));
        plan.keep.extend(kept);
    }
    if let Some(reason) = hold(plan.delete.len(), total, desired.is_empty(), project) {
        let held = held_deletions(&plan.delete);
        if approved != Some(&held.code) {
            plan.keep.extend(plan.delete.drain(..).map(|member| (member.id, reason.clone())));
            plan.held = Some((held, reason));
        }
    }
    plan
}

/// Describes deletions that wait. Their code differs if another object would be deleted, so that nobody approves what he has not seen.
fn held_deletions(members: &[Member]) -> HeldDeletions {
    let mut hasher = Sha256::new();
    for Member { id, uid, .. } in members {
        hasher.update(format!("{id} {uid}\n"));
    }
    HeldDeletions {
        code: hasher.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
        count: u32::try_from(members.len()).unwrap_or(u32::MAX),
        objects: members
            .iter()
            .take(MAX_SHOWN)
            .map(|member| HeldObject { object: member.id.clone(), takes: String::new() })
            .collect(),
        ..HeldDeletions::default()
    }
}

/// Returns the reason why so many objects are not deleted without an approval.
fn hold(deleted: usize, total: usize, empty: bool, project: &ManifestProject) -> Option<String> {
    if deleted == 0 {
        return None;
    }
    if empty {
        return Some(format!(
            "the project has no object any more, and {deleted} would be deleted: approve it with kas gitops approve, or restore the files"
        ));
    }
    let percent = usize::from(project.max_prune_percent);
    let allowed = deleted <= project.max_prune as usize || deleted * 100 <= percent * total;
    (!allowed).then(|| {
        format!(
            "{deleted} of {total} objects would be deleted, which is more than {percent} % (max_prune_percent): approve it with kas \
             gitops approve, or restore the files"
        )
    })
}

/// Returns the reason in its metadata why an object is not deleted.
fn kept_by(metadata: &Value) -> Option<String> {
    for (key, value) in KEEP {
        let set = metadata["annotations"][key].as_str().unwrap_or_default();
        if set.split(',').any(|entry| entry.trim() == value) {
            return Some(format!("it has the annotation {key}: {value}"));
        }
    }
    if metadata["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty()) {
        return Some("it belongs to another object (ownerReferences)".to_owned());
    }
    let entries = metadata["managedFields"].as_array();
    // A copy of an object has its label, and was not applied by agentk.
    let ours = |entry: &Value| entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply";
    (!entries.is_some_and(|entries| entries.iter().any(ours))).then(|| {
        "agentk did not apply it (managedFields): somebody has copied the label of the project".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(kind: &str, name: &str) -> ObjectId {
        let namespace = if kind == "Namespace" { "" } else { "shop" };
        let text = str::to_owned;
        ObjectId { group: String::new(), kind: text(kind), namespace: text(namespace), name: text(name) }
    }

    fn metadata(name: &str) -> Value {
        json!({"uid": format!("uid-{name}"), "managedFields": [{"manager": "agentk", "operation": "Apply"}]})
    }

    fn members(count: usize) -> Vec<Member> {
        let member = |n: usize| {
            let name = format!("c{n}");
            Member::new(id("ConfigMap", &name), "v1".to_owned(), &metadata(&name))
        };
        (0..count).map(member).collect()
    }

    /// Plans with the first `desired` of `total` objects in Git.
    fn plan_of(desired: usize, total: usize, settings: &str, approved: Option<&str>) -> PrunePlan {
        let project: ManifestProject = serde_saphyr::from_str(settings).unwrap();
        let desired = (0..desired).map(|n| id("ConfigMap", &format!("c{n}"))).collect();
        plan(members(total), &desired, &HashSet::new(), &project, approved)
    }

    #[test]
    fn objects_that_left_git_are_deleted() {
        let plan = plan_of(8, 10, "{}", None);
        let names: Vec<_> = plan.delete.iter().map(|member| &*member.id.name).collect();
        assert_eq!((names, plan.held), (vec!["c9", "c8"], None));
    }

    /// Test 53 of the attack list.
    #[test]
    fn many_objects_are_deleted_with_an_approval_only() {
        for (desired, total, settings, held) in [
            (7, 10, "{}", false),
            (6, 10, "{}", true),
            (1, 4, "{}", false),
            (0, 4, "{}", true),
            (0, 1, "{}", true),
            (9, 10, "{max_prune_percent: 0, max_prune: 0}", true),
            (0, 10, "{max_prune_percent: 100}", true),
            (1, 10, "{max_prune_percent: 100}", false),
            (5, 10, "{max_prune: 5}", false),
        ] {
            let plan = plan_of(desired, total, settings, None);
            assert_eq!(plan.held.is_some(), held, "{desired} of {total} with {settings}");
            let (deleted, kept) = (plan.delete.len(), plan.keep.len());
            assert_eq!((deleted, kept), if held { (0, total - desired) } else { (total - desired, 0) });
            if let Some((held, _)) = plan.held {
                let approved = plan_of(desired, total, settings, Some(&held.code));
                assert_eq!((approved.delete.len(), approved.held), (total - desired, None), "approved");
            }
        }
    }

    #[test]
    fn approval_is_for_the_objects_that_were_seen() {
        let seen = plan_of(2, 10, "{}", None).held.unwrap().0;
        assert_eq!((seen.count, seen.objects.len(), seen.code.len()), (8, 8, 16));
        let more = plan_of(1, 10, "{}", Some(&seen.code));
        assert!(more.delete.is_empty() && more.held.unwrap().0.code != seen.code, "one more object");
    }

    #[test]
    fn guards_keep_an_object() {
        let guarded = |change: &dyn Fn(&mut Value)| {
            let mut metadata = metadata("a");
            change(&mut metadata);
            let member = Member::new(id("ConfigMap", "a"), "v1".to_owned(), &metadata);
            let applied = HashSet::from(["uid-applied".to_owned()]);
            let desired = HashSet::from([id("ConfigMap", "other")]);
            let plan = plan(vec![member], &desired, &applied, &ManifestProject::default(), None);
            match (plan.delete.len(), plan.keep.into_iter().next()) {
                (1, _) => "deleted".to_owned(),
                (_, Some((_, reason))) => reason,
                _ => "ignored".to_owned(),
            }
        };
        assert_eq!(guarded(&|_| {}), "deleted");
        for (key, value) in KEEP {
            let reason = guarded(&|metadata| metadata["annotations"][key] = value.into());
            assert!(reason.contains(key), "{reason}");
        }
        let list =
            |metadata: &mut Value| metadata["annotations"][KEEP[3].0] = "Replace=true, Prune=false".into();
        assert!(guarded(&list).contains("Prune=false"));
        assert!(
            guarded(&|metadata| metadata["ownerReferences"] = json!([{"kind": "A"}]))
                .contains("ownerReferences")
        );
        assert!(guarded(&|metadata| metadata["managedFields"] = json!([])).contains("managedFields"));
        let update = json!([{"manager": "agentk", "operation": "Update"}]);
        assert!(guarded(&|metadata| metadata["managedFields"] = update.clone()).contains("managedFields"));
        assert_eq!(guarded(&|metadata| metadata["deletionTimestamp"] = "now".into()), "ignored");
        assert_eq!(
            guarded(&|metadata| metadata["uid"] = "uid-applied".into()),
            "ignored",
            "it has two names"
        );
    }

    #[test]
    fn project_may_forbid_deletions() {
        let plan = plan_of(5, 6, "{prune: false}", None);
        assert_eq!((plan.delete.len(), plan.keep.len()), (0, 1));
    }

    #[test]
    fn deletion_has_the_reverse_order() {
        let member = |kind: &str, name: &str| Member::new(id(kind, name), "v1".to_owned(), &metadata(name));
        let all = vec![member("Namespace", "n"), member("ConfigMap", "c"), member("Service", "s")];
        let plan =
            plan(all, &HashSet::from([id("Pod", "x")]), &HashSet::new(), &ManifestProject::default(), None);
        let names: Vec<_> = plan.delete.iter().map(|member| &*member.id.name).collect();
        assert_eq!(names, ["s", "c", "n"]);
    }
}
