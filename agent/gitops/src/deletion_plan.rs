//! Plans the deletion of objects that left Git. Every guard keeps an object, and none deletes one.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::SystemTime,
};

use proto::{
    agent_configuration::gitops::ManifestProject,
    gitops::{HeldDeletions, HeldObject, ObjectId},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    inventory::{Deletions, HeldPlan, Inventory},
    order, ownership,
    validate::DEFINITIONS,
};

/// The most objects that are named while they wait for an approval.
const MAX_SHOWN: usize = 20;
/// The most of them if their deletion takes with it what Git cannot bring back: nobody should approve such a one unseen.
const MAX_SHOWN_TAKING: usize = 200;
/// The time in which deletions count together, in milliseconds.
const HOUR: u64 = 60 * 60 * 1000;
/// Annotations with which the owner of an object keeps it.
const KEEP: [(&str, &str); 6] = [
    ("config.kubernetes.io/lifecycle", "detach"),
    ("client.lifecycle.config.k8s.io/deletion", "detach"),
    ("cli-utils.sigs.k8s.io/on-remove", "keep"),
    ("helm.sh/resource-policy", "keep"),
    ("argocd.argoproj.io/sync-options", "Prune=false"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
];
/// The annotation with which Argo CD asks before it deletes an object.
const CONFIRM: (&str, &str) = ("argocd.argoproj.io/sync-options", "Prune=confirm");
/// The annotation with which the owner of an object lets it be deleted although Git cannot bring it back.
const ALLOW: (&str, &str) = ("agentk/prune", "allow");
/// The kind of namespaces.
pub(crate) const NAMESPACE: (&str, &str) = ("", "Namespace");
/// The kind of sets of pods with volumes.
pub(crate) const STATEFUL_SET: (&str, &str) = ("apps", "StatefulSet");
/// The kind of claims of volumes.
pub(crate) const VOLUME_CLAIM: (&str, &str) = ("", "PersistentVolumeClaim");
/// The kind of volumes.
pub(crate) const VOLUME: (&str, &str) = ("", "PersistentVolume");

/// An object of the cluster that belongs to the project.
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
    /// Another program may have marked it as its own. Lists do not say who has set the mark.
    pub has_mark: bool,
    /// An annotation asks for an approval of its deletion, or for none.
    pub consent: Consent,
    /// Its finalizers, if it is being deleted.
    pub deleting: Option<String>,
    /// The time since when it is being deleted, in milliseconds since 1970.
    pub deleted_at: Option<u64>,
}

/// The wish of an object's owner for its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// It depends on the kind and on the number of objects.
    Default,
    /// It needs an approval.
    Approval,
    /// It needs no approval of its own.
    Allowed,
}

/// The members that left Git.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftMembers {
    /// Those that can be deleted, in the order of their deletion.
    pub deletable: Vec<Member>,
    /// Those that stay, with the reasons.
    pub kept: Vec<(Member, String)>,
    /// Those that are being deleted.
    pub deleting: Vec<Member>,
}

/// An object that can be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The object.
    pub member: Member,
    /// What its deletion takes with it, if Git cannot bring that back. Empty otherwise.
    pub takes: String,
    /// The names of volume claims that may go with it. An approval is for these and no others.
    pub claims: Vec<String>,
}

impl Candidate {
    /// Returns what the code of a plan is made of.
    fn identity(&self) -> String {
        let Member { id, uid, .. } = &self.member;
        format!("{id} {uid} {}", self.claims_text())
    }

    /// Returns the names of the volume claims as the inventory has them.
    fn claims_text(&self) -> String {
        let mut claims = self.claims.clone();
        claims.sort_unstable();
        claims.join(",")
    }
}

/// The circumstances of a plan.
#[derive(Clone, Debug)]
pub struct PlanContext<'a> {
    /// The settings of the project.
    pub settings: &'a ManifestProject,
    /// The commit that deletes.
    pub commit: &'a str,
    /// The code that somebody has approved.
    pub approved: Option<&'a str>,
    /// Git has no object any more.
    pub is_empty: bool,
    /// The members that could be deleted when a commit was complete for the last time, by their UIDs.
    pub baseline: &'a BTreeSet<String>,
    /// The UIDs of members that are out of Git and still there, or that cannot be looked at now.
    pub out_of_git: &'a BTreeSet<String>,
    /// The UIDs of those of them that their owner or the settings keep. An approval from before is not for later.
    pub kept: &'a BTreeSet<String>,
    /// The time in milliseconds since 1970.
    pub now: u64,
}

/// The decision about the objects that can be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionPlan {
    /// The objects to delete, in this order.
    pub delete: Vec<Member>,
    /// Those of them that use up the budget.
    pub unapproved: BTreeSet<String>,
    /// The objects that wait for an approval.
    pub waiting: Vec<ObjectId>,
    /// Their description.
    pub held: Option<HeldDeletions>,
}

/// Returns a time of the API in milliseconds since 1970.
fn millis(time: &str) -> Option<u64> {
    let since = humantime::parse_rfc3339(time).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

impl Member {
    /// Reads the metadata of an object.
    pub fn new(id: ObjectId, version: String, metadata: &Value) -> Self {
        let finalizers = || {
            let names = metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
            names.collect::<Vec<_>>().join(", ")
        };
        let consent = match () {
            () if has_annotation(metadata, CONFIRM) => Consent::Approval,
            () if has_annotation(metadata, ALLOW) => Consent::Allowed,
            () => Consent::Default,
        };
        Self {
            id,
            version,
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            kept_by: kept_by(metadata),
            has_mark: ownership::has_mark(metadata),
            consent,
            deleting: metadata.get("deletionTimestamp").map(|_| finalizers()),
            deleted_at: metadata["deletionTimestamp"].as_str().and_then(millis),
        }
    }

    /// Returns the reason why the object stays, if there is one.
    fn stays(&self, project: &ManifestProject) -> Option<String> {
        if let Some(reason) = &self.kept_by {
            return Some(reason.clone());
        }
        let ObjectId { group, kind, namespace, .. } = &self.id;
        let place = if namespace.is_empty() {
            project.allows_cluster_scoped()
        } else {
            project.allows_namespace(namespace)
        };
        if !place || !project.allows_kind(group, kind) {
            return Some("the project may not have such objects any more (namespaces, cluster_scoped, resource_inclusions, resource_exclusions)".to_owned());
        }
        (!project.prune).then(|| "the project does not prune (prune: false)".to_owned())
    }

    /// Returns whether the object counts in the budget.
    pub fn is_deletable(&self, project: &ManifestProject) -> bool {
        self.deleting.is_none() && self.stays(project).is_none()
    }
}

impl LeftMembers {
    /// Sorts the members that left Git. The same object can have two names, in two API groups: its UID is that of a member in Git.
    pub fn new(
        members: impl Iterator<Item = Member>,
        desired: &HashSet<ObjectId>,
        project: &ManifestProject,
    ) -> Self {
        let (in_git, left): (Vec<_>, Vec<_>) = members.partition(|member| desired.contains(&member.id));
        let in_git: HashSet<String> = in_git.into_iter().map(|member| member.uid).collect();
        let mut sorted = Self::default();
        for member in left.into_iter().filter(|member| !in_git.contains(&member.uid)) {
            match member.stays(project) {
                _ if member.deleting.is_some() => sorted.deleting.push(member),
                Some(reason) => sorted.kept.push((member, reason)),
                None => sorted.deletable.push(member),
            }
        }
        sorted.deletable.sort_by(|a, b| {
            order::deletion_rank(&a.id).cmp(&order::deletion_rank(&b.id)).then_with(|| b.id.cmp(&a.id))
        });
        sorted
    }
}

/// Returns whether an object of this kind never comes back from Git as it was.
pub fn is_irreplaceable(id: &ObjectId) -> bool {
    [NAMESPACE, VOLUME_CLAIM, VOLUME].contains(&(&*id.group, &*id.kind))
}

/// Returns whether the deletion of an object has to be looked at more closely, because it may take others with it.
pub fn may_take_others(id: &ObjectId) -> bool {
    is_irreplaceable(id) || [DEFINITIONS, STATEFUL_SET].contains(&(&*id.group, &*id.kind))
}

impl Inventory {
    /// Plans the deletion of these objects, and notes what is held and what is approved.
    pub fn plan(&mut self, candidates: Vec<Candidate>, context: &PlanContext<'_>) -> DeletionPlan {
        // An object that is back in Git, or gone, leaves the plan, and loses its approval.
        let is_out = |uid: &String| context.out_of_git.contains(uid);
        self.approved.retain(|uid, _| is_out(uid) && !context.kept.contains(uid));
        let is_approved = |candidate: &Candidate| {
            self.approved.get(&candidate.member.uid) == Some(&candidate.claims_text())
        };
        let (approved, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_approved);
        let (approved, others) = if self.held.as_ref().is_some_and(|held| held.is_approved(&others, context))
        {
            let approvals = others.iter().map(|other| (other.member.uid.clone(), other.claims_text()));
            self.approved.extend(approvals);
            ([approved, others].concat(), Vec::new())
        } else {
            (approved, others)
        };
        // An object that would take other claims now is held again, and loses its approval.
        for other in &others {
            self.approved.remove(&other.member.uid);
        }
        if let Some(held) = &mut self.held {
            held.objects.retain(|uid, _| is_out(uid) && !self.approved.contains_key(uid));
            held.others.retain(is_out);
        }
        self.held.take_if(|held| held.objects.is_empty() && held.others.is_empty());
        self.forget_old_deletions(context.now);

        let uids: BTreeSet<String> = others.iter().map(|other| other.member.uid.clone()).collect();
        let reason = if others.is_empty() {
            None
        } else {
            self.reason_to_hold(&others, &uids, context).or_else(|| {
                let held = self.held.as_ref().filter(|held| uids.iter().any(|uid| held.names(uid)))?;
                let commit = held.commit.get(..12).unwrap_or("before");
                Some(format!(
                    "{} held since the commit {commit}: approve it with kas gitops approve, or restore the files",
                    objects(others.len(), "is", "are")
                ))
            })
        };
        let members = |candidates: Vec<Candidate>| candidates.into_iter().map(|candidate| candidate.member);
        let Some(reason) = reason else {
            let mut delete: Vec<Member> = members(approved).chain(members(others)).collect();
            delete.sort_by(|a, b| {
                order::deletion_rank(&a.id).cmp(&order::deletion_rank(&b.id)).then_with(|| b.id.cmp(&a.id))
            });
            return DeletionPlan { delete, unapproved: uids, ..DeletionPlan::default() };
        };
        let held = self.hold(&others, reason, context);
        let waiting = others.into_iter().map(|other| other.member.id).collect();
        DeletionPlan {
            delete: members(approved).collect(),
            waiting,
            held: Some(held),
            ..DeletionPlan::default()
        }
    }

    /// Notes that these deletions begin, before the first one does.
    pub fn spend(&mut self, uids: BTreeSet<String>, now: u64) {
        let new: BTreeSet<_> = uids.difference(&self.spent()).cloned().collect();
        if !new.is_empty() {
            self.deletions.push(Deletions { at: now, uids: new });
        }
    }

    /// Returns the UIDs of the objects whose deletion was begun within the hour without an approval.
    fn spent(&self) -> BTreeSet<String> {
        self.deletions.iter().flat_map(|deletions| deletions.uids.iter().cloned()).collect()
    }

    /// Forgets deletions that are older than an hour. The clock of another pod may be ahead: its deletions count from now on.
    fn forget_old_deletions(&mut self, now: u64) {
        self.deletions.retain(|deletions| now < deletions.at.saturating_add(HOUR));
        self.deletions.iter_mut().for_each(|deletions| deletions.at = deletions.at.min(now));
    }

    /// Returns the reason why these objects are not deleted without an approval.
    fn reason_to_hold(
        &self,
        others: &[Candidate],
        uids: &BTreeSet<String>,
        context: &PlanContext<'_>,
    ) -> Option<String> {
        const NEXT: &str = "approve it with kas gitops approve, or restore the files";
        let PlanContext { settings, baseline, .. } = context;
        let left = uids.len();
        if context.is_empty {
            return Some(format!(
                "the project has no object in Git any more, and {left} would be deleted: {NEXT}"
            ));
        }
        let mut lost = others.iter().filter(|other| needs_approval(other, settings));
        if let Some(first) = lost.next() {
            let takes = if first.takes.is_empty() { "an annotation asks for it" } else { &first.takes };
            let id = &first.member.id;
            return Some(match lost.count() {
                0 => format!("{id} needs an approval ({takes}): {NEXT}"),
                more => format!("{id} ({takes}) and {more} more need an approval: {NEXT}"),
            });
        }
        let spent = self.spent();
        let deleted = spent.union(uids).count();
        let total = baseline.union(&spent).count();
        let percent = usize::from(settings.max_prune_percent);
        if percent < 100 && !baseline.is_empty() && baseline.iter().all(|uid| uids.contains(uid)) {
            return Some(format!("all {left} objects of the project would be deleted: {NEXT}"));
        }
        if deleted <= settings.max_prune as usize || deleted * 100 <= percent * total {
            return None;
        }
        let within = if spent.is_empty() { "" } else { " within an hour" };
        // Objects of a commit that was never complete are not among those that count.
        let of = if uids.iter().all(|uid| baseline.contains(uid)) {
            format!("{deleted} of {total} objects would be deleted{within}")
        } else {
            format!("{deleted} objects would be deleted{within}, and the last complete commit had {total}")
        };
        Some(format!(
            "{of}, which is more than {percent} % (max_prune_percent) and than {} (max_prune): {NEXT}",
            settings.max_prune
        ))
    }

    /// Records the plan that waits, and describes it.
    fn hold(&mut self, others: &[Candidate], reason: String, context: &PlanContext<'_>) -> HeldDeletions {
        let HeldPlan { commit, since, objects: before, others: mut hindered, .. } =
            self.held.take().unwrap_or_else(|| HeldPlan {
                commit: context.commit.to_owned(),
                since: context.now,
                ..HeldPlan::default()
            });
        let objects: BTreeMap<_, _> =
            others.iter().map(|other| (other.member.uid.clone(), other.claims_text())).collect();
        hindered.extend(before.into_keys());
        hindered.retain(|uid| !objects.contains_key(uid));
        let code = code(since, others.iter().map(Candidate::identity));
        // Objects that take something with them come first, wherever they are in the order of the deletion.
        let (taking, plain): (Vec<_>, Vec<_>) = others.iter().partition(|other| !other.takes.is_empty());
        let plain = plain.into_iter().take(MAX_SHOWN.saturating_sub(taking.len()));
        let shown = taking.into_iter().take(MAX_SHOWN_TAKING).chain(plain);
        let described = HeldDeletions {
            code: code.clone(),
            count: u32::try_from(others.len()).unwrap_or(u32::MAX),
            objects: shown
                .map(|other| HeldObject { object: other.member.id.clone(), takes: other.takes.clone() })
                .collect(),
            reason: reason.clone(),
            commit: commit.clone(),
            since,
        };
        self.held = Some(HeldPlan { code, reason, commit, since, objects, others: hindered });
        described
    }
}

impl HeldPlan {
    /// Returns whether an object was in the plan when it was held.
    fn names(&self, uid: &String) -> bool {
        self.objects.contains_key(uid) || self.others.contains(uid)
    }

    /// Returns whether the deletion of these objects was approved: of all objects that were shown, or of those of them that are left.
    /// Another object that left Git meanwhile was not seen.
    fn is_approved(&self, others: &[Candidate], context: &PlanContext<'_>) -> bool {
        let Some(approved) = context.approved.filter(|_| !others.is_empty()) else { return false };
        let is_seen = |other: &Candidate| self.objects.get(&other.member.uid) == Some(&other.claims_text());
        approved == code(self.since, others.iter().map(Candidate::identity))
            || (approved == self.code && others.iter().all(is_seen))
    }
}

/// Returns the code of a set of objects. It differs if another object is in it, so that nobody approves what he has not seen, and if the
/// same objects are held again later: an approval is for once.
pub fn code(since: u64, objects: impl Iterator<Item = String>) -> String {
    let mut lines: Vec<String> = objects.collect();
    lines.sort_unstable();
    let digest = Sha256::digest(format!("{since}\n{}", lines.join("\n")));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// `1 object is`, `2 objects are`.
fn objects(count: usize, one: &str, more: &str) -> String {
    if count == 1 { format!("1 object {one}") } else { format!("{count} objects {more}") }
}

fn needs_approval(candidate: &Candidate, project: &ManifestProject) -> bool {
    match candidate.member.consent {
        Consent::Approval => true,
        Consent::Allowed => false,
        Consent::Default => !candidate.takes.is_empty() && !project.prune_irreplaceable,
    }
}

fn has_annotation(metadata: &Value, (key, value): (&str, &str)) -> bool {
    let set = metadata["annotations"][key].as_str().unwrap_or_default();
    set.split(',').any(|entry| entry.trim() == value)
}

/// Returns the reason in its metadata why an object is not deleted.
fn kept_by(metadata: &Value) -> Option<String> {
    let kept = KEEP.into_iter().find(|annotation| has_annotation(metadata, *annotation));
    if let Some((key, value)) = kept {
        return Some(format!("it has the annotation {key}: {value}"));
    }
    let has_owner = metadata["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
    has_owner.then(|| "it belongs to another object (ownerReferences)".to_owned())
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            (member.deleting.as_deref(), member.deleted_at),
            (Some("a/b, c/d"), Some(1_767_323_045_000))
        );
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
        /// Those when a commit was complete for the last time.
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
        assert!(
            held.reason.starts_with("6 of 10 objects would be deleted within an hour"),
            "{}",
            held.reason
        );
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
        assert!(
            !plan.delete.iter().any(|member| member.id.name == "c49") || plan.unapproved.contains("uid-c49")
        );
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
        for text in
            ["{namespaces: [other]}", "{resource_exclusions: [{api_groups: [''], kinds: [ConfigMap]}]}"]
        {
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
}
