use serde_json::json;

use super::*;

const MINUTE: u64 = 60 * 1000;

fn id(kind: &str, name: &str) -> ObjectId {
    let namespace = if kind == "Namespace" { "" } else { "shop" };
    let text = str::to_owned;
    ObjectId { group: String::new(), kind: text(kind), namespace: text(namespace), name: text(name) }
}

fn member(kind: &str, name: &str) -> Member {
    Member::new(id(kind, name), "v1".to_owned(), &json!({"uid": format!("uid-{name}")}))
}

#[test]
fn deletion_has_the_time_of_its_object() {
    let metadata =
        json!({"uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": ["a/b", "c/d"]});
    let member = Member::new(id("ConfigMap", "a"), "v1".to_owned(), &metadata);
    assert_eq!((member.deleting.as_deref(), member.deleted_at), (Some("a/b, c/d"), Some(1_767_323_045_000)));
}

fn settings(text: &str) -> ManifestProject {
    serde_saphyr::from_str(text).unwrap()
}

/// A project whose objects are ConfigMaps with numbers.
struct World {
    inventory: Inventory,
    settings: ManifestProject,
    /// The objects in the cluster.
    live: BTreeSet<usize>,
    /// The members when a commit was complete for the last time.
    complete: BTreeSet<usize>,
    takes: BTreeMap<usize, &'static str>,
    claims: Vec<String>,
    now: u64,
}

impl World {
    fn new(count: usize, text: &str) -> Self {
        Self {
            inventory: Inventory::default(),
            settings: settings(text),
            live: (0..count).collect(),
            complete: (0..count).collect(),
            takes: BTreeMap::new(),
            claims: Vec::new(),
            now: 1000 * MINUTE,
        }
    }

    /// Plans with these objects in Git, and deletes what the plan deletes.
    fn sync(&mut self, git: impl IntoIterator<Item = usize>, approved: Option<&str>) -> DeletionPlan {
        let git: BTreeSet<usize> = git.into_iter().collect();
        let uid = |n: &usize| format!("uid-c{n}");
        let left: Vec<usize> = self.live.difference(&git).copied().collect();
        let baseline = self.complete.intersection(&self.live).map(uid).collect();
        let context = PlanContext {
            kept: &BTreeSet::new(),
            settings: &self.settings,
            commit: "abc",
            approved,
            is_empty: git.is_empty(),
            baseline: &baseline,
            out_of_git: &left.iter().map(uid).collect(),
            now: self.now,
        };
        let candidates = left.iter().map(|n| Candidate {
            member: member("ConfigMap", &format!("c{n}")),
            takes: self.takes.get(n).copied().unwrap_or_default().to_owned(),
            claims: self.claims.clone(),
        });
        let plan = self.inventory.plan(candidates.collect(), &context);
        self.inventory.spend(plan.unapproved.clone(), self.now);
        let deleted: Vec<&str> = plan.delete.iter().map(|member| &*member.id.name).collect();
        self.live.retain(|n| !deleted.contains(&&*format!("c{n}")));
        self.live.extend(&git);
        if plan.held.is_none() {
            self.complete = self.live.clone();
        }
        plan
    }
}

#[test]
fn many_objects_are_deleted_with_an_approval_only() {
    for (desired, total, text, held) in [
        (7, 10, "{}", false),
        (6, 10, "{}", true),
        (1, 4, "{}", false),
        (0, 4, "{}", true),
        (0, 1, "{}", true),
        (9, 10, "{max_prune_percent: 0, max_prune: 0}", true),
        (0, 10, "{max_prune_percent: 100}", true),
        (1, 10, "{max_prune_percent: 100}", false),
        (5, 10, "{max_prune: 5}", false),
        (5, 10, "{max_prune: 4}", true),
    ] {
        let mut world = World::new(total, text);
        let plan = world.sync(0..desired, None);
        assert_eq!(plan.held.is_some(), held, "{desired} of {total} with {text}");
        assert_eq!(
            plan.delete.len(),
            if held { 0 } else { total - desired },
            "{desired} of {total} with {text}"
        );
        if let Some(held) = plan.held {
            let approved = world.sync(0..desired, Some(&held.code));
            assert_eq!((approved.delete.len(), approved.held), (total - desired, None), "approved");
            assert!(world.inventory.deletions.is_empty(), "an approval uses up no budget");
        }
    }
}

#[test]
fn objects_of_the_same_commit_do_not_dilute_a_deletion() {
    let mut world = World::new(10, "{}");
    assert!(world.sync(10..50, None).held.is_some(), "10 objects are replaced by 40 others");
    for minutes in [0, 1, 120] {
        world.now += minutes * MINUTE;
        let plan = world.sync(10..50, None);
        assert_eq!((plan.delete.len(), plan.held.unwrap().count), (0, 10), "{minutes} minutes later");
    }
    let plan = world.sync(10..49, None);
    assert_eq!(plan.held.unwrap().count, 11, "another deletion joins the plan");
    let plan = world.sync((5..50).collect::<Vec<_>>(), None);
    let held = plan.held.unwrap();
    assert_eq!((held.count, &*held.commit), (5, "abc"), "a part of the objects is back in Git");
    assert!(world.sync(0..50, None).held.is_none() && world.inventory.held.is_none(), "all are back");
}

#[test]
fn small_deletions_within_an_hour_are_one() {
    let mut world = World::new(10, "{}");
    assert_eq!(world.sync(0..7, None).delete.len(), 3);
    let held = world.sync(0..4, None).held.unwrap();
    assert!(held.reason.starts_with("6 of 10 objects would be deleted within an hour"), "{}", held.reason);
    world.sync(0..7, None);
    world.now += 61 * MINUTE;
    assert_eq!(world.sync(0..4, None).delete.len(), 3, "the hour is over");
}

/// Another pod may have written the time.
#[test]
fn deletion_of_the_future_counts_for_an_hour() {
    let mut world = World::new(10, "{}");
    world.sync(0..7, None);
    world.inventory.deletions[0].at = u64::MAX;
    assert!(world.sync(0..4, None).held.is_some());
    world.sync(0..7, None);
    world.now += 61 * MINUTE;
    assert!(world.sync(0..4, None).held.is_none());
}

#[test]
fn approval_is_for_once_and_for_the_objects_that_were_seen() {
    let mut world = World::new(10, "{}");
    let seen = world.sync(0..2, None).held.unwrap();
    assert_eq!((seen.count, seen.objects.len(), seen.code.len()), (8, 8, 16));
    let more = world.sync(0..1, Some(&seen.code));
    assert!(more.delete.is_empty() && more.held.unwrap().code != seen.code, "one more object");
    let again = world.sync(0..2, None).held.unwrap();
    assert_eq!(again.code, seen.code);
    world.sync(0..10, None);
    world.now += MINUTE;
    let plan = world.sync(0..2, Some(&seen.code));
    assert!(plan.delete.is_empty() && plan.held.unwrap().code != seen.code, "they were back in Git");
}

/// A StatefulSet is scaled up after its deletion was shown.
#[test]
fn approval_is_for_the_volume_claims_that_were_seen() {
    let mut world = World::new(10, "{}");
    world.takes.insert(9, "its volume claims");
    let seen = world.sync(0..9, None).held.unwrap().code;
    world.claims = vec!["data-db-0".to_owned()];
    let plan = world.sync(0..9, Some(&seen));
    let code = plan.held.unwrap().code;
    assert!(plan.delete.is_empty() && code != seen);
    assert_eq!(world.sync(0..9, Some(&code)).delete.len(), 1);
}

#[test]
fn approved_deletion_that_was_interrupted_goes_on() {
    let mut world = World::new(60, "{}");
    let code = world.sync(50..60, None).held.unwrap().code;
    assert_eq!(world.sync(50..60, Some(&code)).delete.len(), 50);
    // The process ends after 28 of them.
    world.live = (28..60).collect();
    let plan = world.sync(50..60, None);
    assert_eq!((plan.delete.len(), plan.held), (22, None));
    // One of them comes back into Git.
    world.live = (28..60).collect();
    world.sync((49..60).collect::<Vec<_>>(), None);
    world.live = (40..60).collect();
    let plan = world.sync(50..60, None);
    assert!(!plan.delete.iter().any(|member| member.id.name == "c49") || plan.unapproved.contains("uid-c49"));
}

#[test]
fn what_git_cannot_bring_back_needs_an_approval() {
    let mut world = World::new(100, "{}");
    world.takes.insert(99, "its volume");
    let held = world.sync(0..99, None).held.unwrap();
    assert!(held.reason.contains("c99 needs an approval (its volume)"), "{}", held.reason);
    assert_eq!(held.objects[0].takes, "its volume");
    world.settings = settings("{prune_irreplaceable: true}");
    world.sync(0..100, None);
    assert_eq!(world.sync(0..99, None).delete.len(), 1);

    let consent = |value: &str| {
        let metadata =
            json!({"annotations": {"argocd.argoproj.io/sync-options": value, "agentk/prune": value}});
        Member::new(id("ConfigMap", "a"), String::new(), &metadata).consent
    };
    assert_eq!(consent("Prune=confirm"), Consent::Approval);
    assert_eq!(consent("allow"), Consent::Allowed);
    assert_eq!(consent("Replace=true"), Consent::Default);
}

#[test]
fn guards_keep_an_object() {
    let sorted = |metadata: &Value, text: &str| {
        let member = Member::new(id("ConfigMap", "a"), "v1".to_owned(), metadata);
        let LeftMembers { deletable, kept, deleting } =
            LeftMembers::new([member].into_iter(), &HashSet::new(), &settings(text));
        match (deletable.len(), kept.into_iter().next(), deleting.len()) {
            (1, None, 0) => "deleted".to_owned(),
            (0, Some((_, reason)), 0) => reason,
            (0, None, 1) => "deleting".to_owned(),
            _ => "in Git".to_owned(),
        }
    };
    assert_eq!(sorted(&json!({}), "{}"), "deleted");
    for (key, value) in KEEP {
        let reason = sorted(&json!({"annotations": {key: value}}), "{}");
        assert!(reason.contains(key), "{reason}");
    }
    let list = json!({"annotations": {"argocd.argoproj.io/sync-options": "Replace=true, Prune=false"}});
    assert!(sorted(&list, "{}").contains("Prune=false"));
    assert!(sorted(&json!({"ownerReferences": [{"kind": "A"}]}), "{}").contains("ownerReferences"));
    assert_eq!(sorted(&json!({"deletionTimestamp": "now"}), "{}"), "deleting");
    for text in ["{namespaces: [other]}", "{resource_exclusions: [{api_groups: [''], kinds: [ConfigMap]}]}"] {
        assert!(sorted(&json!({}), text).contains("may not have such objects"), "{text}");
    }
    assert!(sorted(&json!({}), "{prune: false}").contains("does not prune"));
}

#[test]
fn object_with_two_names_is_in_git_with_both() {
    let both = [member("ConfigMap", "a"), Member { id: id("Other", "a"), ..member("ConfigMap", "a") }];
    let desired = HashSet::from([id("ConfigMap", "a")]);
    let left = LeftMembers::new(both.into_iter(), &desired, &ManifestProject::default());
    assert_eq!(left, LeftMembers::default());
}

#[test]
fn deletion_has_the_reverse_order() {
    let all = [member("Namespace", "n"), member("ConfigMap", "c"), member("Service", "s")];
    let left = LeftMembers::new(all.into_iter(), &HashSet::new(), &ManifestProject::default());
    let names: Vec<_> = left.deletable.iter().map(|member| &*member.id.name).collect();
    assert_eq!(names, ["s", "c", "n"]);
}
