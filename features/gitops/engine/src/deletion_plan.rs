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
mod tests;
