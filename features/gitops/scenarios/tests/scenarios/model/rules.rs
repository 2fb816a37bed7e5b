//! What is true after each step, computed from the objects of the cluster and from what has happened. It shares nothing with the plan of
//! the engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fake_cluster::Objects;
use kube_cluster::GroupKind;
use proto::{
    agent_configuration::gitops::{InventoryPolicy, ManifestProject},
    gitops::{ObjectId, ProjectState},
};
use serde_json::Value;

use super::{
    adapter::PassResult,
    universe::{SHOP, TOYS_GROUP, Thing},
};
use gitops_engine::applyset::PART_OF;

/// The time for which deletions count together, in milliseconds.
pub(super) const HOUR: u64 = 3_600_000;
/// The most objects whose reasons to stay an outcome has.
const MAX_KEPT: usize = 10;

/// What the engine promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// An object of others is not deleted.
    OthersStay,
    /// An object of others is changed only if the policy lets the project take it over.
    OthersUnchanged,
    /// An object that is in Git is not deleted.
    InGit,
    /// Only objects in Git are created and changed.
    OnlyGit,
    /// An object that an annotation, an owner or a setting protects is not deleted.
    Protected,
    /// A sync that only reports writes nothing.
    Report,
    /// No more unapproved deletions within an hour than the budget allows.
    Budget,
    /// All objects never go without an approval.
    NotAll,
    /// What Git cannot bring back needs an approval.
    Irreplaceable,
    /// A plan that was held stays held.
    StaysHeld,
    /// An approved deletion that was interrupted goes on.
    GoesOn,
    /// A plan that is held names what it would delete, and its code is for exactly these objects.
    HeldPlan,
    /// What need not be held is deleted.
    NeedlessHold,
    /// Nothing is deleted before everything in Git is applied.
    ApplyFirst,
    /// A wave waits for the health of the one before.
    Wave,
    /// `Synced` is true.
    Synced,
    /// What left Git is deleted, or listed with a reason.
    NotOrphaned,
    /// `Syncing` says what it waits for.
    Waiting,
    /// A lost inventory is noticed, and nothing is written.
    Lost,
    /// An inventory that nobody has touched is not lost.
    NotLost,
    /// A lost inventory can be made anew.
    Recovery,
    /// Without faults, the project becomes synced.
    Converges,
}

/// An object of the cluster, as far as the rules need it.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about an object")]
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) version: String,
    pub(super) deleting: bool,
    /// The ApplySet in its label.
    pub(super) set: Option<String>,
    /// agentk has applied it.
    pub(super) applied: bool,
    /// An annotation or an owner keeps it.
    pub(super) kept: bool,
    /// `Prune=confirm`.
    pub(super) confirm: bool,
    /// `agentk/prune: allow`.
    pub(super) allow: bool,
    /// It is marked as that of another program, or has an owner.
    pub(super) owner: bool,
    /// A StatefulSet with volumes.
    volumes: bool,
    healthy: bool,
}

/// The objects of the cluster but for the inventories.
pub(super) type Snapshot = BTreeMap<ObjectId, Seen>;

/// What a pass of a project is about.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a pass")]
#[derive(Clone)]
pub(super) struct Context {
    pub(super) project: usize,
    /// The objects in Git with their manifests.
    pub(super) git: Arc<BTreeMap<ObjectId, Value>>,
    pub(super) late: Option<ObjectId>,
    pub(super) settings: Arc<ManifestProject>,
    pub(super) heal: bool,
    pub(super) now: u64,
    /// The UIDs of the objects whose deletion is approved.
    pub(super) approved: BTreeSet<String>,
    /// It is a write that arrives when its process is dead.
    pub(super) is_late: bool,
    /// Somebody else acts meanwhile.
    pub(super) race: bool,
    /// Requests fail meanwhile.
    pub(super) faulty: bool,
    pub(super) unavailable: Option<&'static str>,
}

/// What is known about a project.
#[derive(Default)]
pub(super) struct Knowledge {
    /// The id of its ApplySet.
    pub(super) set: String,
    /// The UIDs of the objects that it has created or taken over, with their ids.
    pub(super) owned: BTreeMap<String, Owned>,
    /// The objects when a commit was complete for the last time. A process that died may have completed another one.
    pub(super) complete: Vec<BTreeSet<String>>,
    /// The deletions with their times, and whether they were approved.
    pub(super) deleted: Vec<(u64, String, bool)>,
    /// The same before a recovery, which may know them or not.
    pub(super) deleted_before: Vec<(u64, String, bool)>,
    /// The plans that were shown, by their codes.
    pub(super) codes: Vec<(String, BTreeSet<String>)>,
    /// The objects whose deletion somebody has approved.
    pub(super) approved: BTreeSet<String>,
    /// Those that came back into Git while something disturbed agentk: the approval may be recorded still.
    pub(super) perhaps_approved: BTreeSet<String>,
    /// The objects that are held, as they were shown last.
    pub(super) held: BTreeSet<String>,
    /// The objects that were in a plan since they left Git, or may have been.
    pub(super) once_held: BTreeSet<String>,
    /// The code of the plan that was shown last, until the project is synced.
    pub(super) code: Option<String>,
    pub(super) lost: Lost,
    /// An approved deletion has begun, and nothing but the engine has acted since then.
    pub(super) begun: bool,
    /// A pass has not shown its end since the project was synced.
    pub(super) uncertain: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) id: ObjectId,
    /// A pass has ended since the project has it, so that it is in the inventory.
    pub(super) recorded: bool,
    /// The project must not forget it.
    pub(super) must_know: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lost {
    #[default]
    No,
    Yes,
    Maybe,
}

/// A rule that was broken, with the reason.
pub(super) type Violation = (Rule, String);

impl Seen {
    fn new(id: &ObjectId, object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        let options = annotation("argocd.argoproj.io/sync-options");
        let owner = metadata["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
        let entries = metadata["managedFields"].as_array().into_iter().flatten();
        let status = &object["status"];
        Self {
            uid: text("uid"),
            version: text("resourceVersion"),
            deleting: metadata["deletionTimestamp"].is_string(),
            set: metadata["labels"][PART_OF].as_str().map(str::to_owned),
            applied: entries
                .into_iter()
                .any(|entry| entry["manager"] == "agentk" && entry["operation"] == "Apply"),
            kept: annotation("helm.sh/resource-policy") == Some("keep")
                || options == Some("Prune=false")
                || owner,
            confirm: options == Some("Prune=confirm"),
            allow: annotation("agentk/prune") == Some("allow"),
            owner,
            volumes: id.kind == "StatefulSet" && object["spec"]["volumeClaimTemplates"].is_array(),
            healthy: match &*id.kind {
                "Deployment" | "StatefulSet" => {
                    status["observedGeneration"] == metadata["generation"] && status.is_object()
                }
                "PersistentVolumeClaim" => status["phase"] == "Bound",
                _ => true,
            },
        }
    }

    /// Returns whether Git cannot bring the object back, and neither an annotation nor a setting says that it may go.
    fn is_irreplaceable(&self, id: &ObjectId, all: &Snapshot, settings: &ManifestProject) -> bool {
        (self.takes(id, all) || self.confirm) && !self.allow && !settings.prune_irreplaceable
    }

    /// Returns whether its deletion takes something with it that Git cannot bring back.
    fn takes(&self, id: &ObjectId, all: &Snapshot) -> bool {
        match &*id.kind {
            "Namespace" | "PersistentVolumeClaim" => true,
            "CustomResourceDefinition" => all.keys().any(is_toy),
            "StatefulSet" => self.volumes,
            _ => false,
        }
    }
}

/// Returns the objects of the cluster without inventories.
pub(super) fn snapshot(objects: &Objects) -> Snapshot {
    let objects = objects.iter().filter(|(id, _)| id.namespace != "agentk");
    objects.map(|(id, object)| (id.clone(), Seen::new(id, object))).collect()
}

/// Returns whether each value of Git is in the object.
pub(super) fn has_values(object: &Value, git: &Value) -> bool {
    match (object, git) {
        (Value::Object(object), Value::Object(git)) => {
            git.iter().all(|(key, git)| object.get(key).is_some_and(|object| has_values(object, git)))
        }
        (object, git) => object == git,
    }
}

fn is_toy(id: &ObjectId) -> bool {
    id.group == TOYS_GROUP
}

pub(super) fn namespace_id(name: &str) -> ObjectId {
    ObjectId { kind: "Namespace".to_owned(), name: name.to_owned(), ..ObjectId::default() }
}

/// Returns whether the project may have such an object.
pub(super) fn is_allowed(id: &ObjectId, settings: &ManifestProject) -> bool {
    match (&settings.namespaces, &*id.namespace) {
        (None, _) => true,
        (Some(_), "") => false,
        (Some(namespaces), namespace) => namespaces.iter().any(|allowed| allowed == namespace),
    }
}

impl Knowledge {
    /// Forgets what does not exist any more. An object that is not in the inventory and whose label somebody has removed is nobody's.
    pub(super) fn forget(&mut self, all: &Snapshot) {
        let all: BTreeMap<&String, &Seen> = all.values().map(|seen| (&seen.uid, seen)).collect();
        self.owned.retain(|uid, _| all.contains_key(uid));
        self.once_held.retain(|uid| all.contains_key(uid));
        for (uid, owned) in &mut self.owned {
            owned.must_know &= owned.recorded || all[uid].set.as_ref() == Some(&self.set);
        }
    }

    /// Returns the objects that left Git and could be deleted. Whether a namespace or a definition has other content is not looked at.
    fn deletable<'a>(
        &'a self,
        context: &'a Context,
        all: &'a Snapshot,
    ) -> impl Iterator<Item = (&'a ObjectId, &'a Seen)> {
        all.iter().filter(|(id, seen)| {
            self.owned.contains_key(&seen.uid)
                && !context.git.contains_key(*id)
                && !seen.deleting
                && !seen.kept
                && context.settings.prune
                && is_allowed(id, &context.settings)
        })
    }

    /// Returns the approved objects of a plan that was shown before, if the plan would be the same now.
    pub(super) fn approved_now(&self, code: &str, context: &Context, all: &Snapshot) -> BTreeSet<String> {
        let Some((_, plan)) = self.codes.iter().find(|(other, _)| other == code) else {
            return BTreeSet::new();
        };
        let deletable: Vec<_> = self.deletable(context, all).collect();
        let left: BTreeSet<&String> = deletable.iter().map(|(_, seen)| &seen.uid).collect();
        let exists: BTreeSet<&String> = all.values().map(|seen| &seen.uid).collect();
        let same = plan.iter().all(|uid| left.contains(uid) || !exists.contains(uid))
            && deletable.iter().all(|(id, seen)| plan.contains(&seen.uid) || may_stay(id, all, context));
        if same { plan.clone() } else { BTreeSet::new() }
    }

    /// Checks what the engine has written between two moments, and notes it.
    pub(super) fn check_writes(
        &mut self,
        context: &Context,
        before: &Snapshot,
        after: &Snapshot,
        others: &mut Self,
        broken: &mut Vec<Violation>,
    ) {
        if !context.heal && before != after {
            broken.push((Rule::Report, "a sync that only reports has written".to_owned()));
        }
        let is_noticed = !context.is_late && context.unavailable.is_none();
        if self.lost == Lost::Yes && is_noticed && before != after {
            broken.push((Rule::Lost, format!("objects were written: {}", difference(before, after))));
        }
        let mut unapproved = 0;
        for (id, seen) in before {
            match after.get(id).filter(|now| now.uid == seen.uid) {
                Some(now) if now.deleting == seen.deleting => {
                    if now.version != seen.version {
                        self.check_change(context, id, seen, now, others, broken);
                    }
                }
                _ if seen.deleting => {}
                _ => unapproved += usize::from(self.check_deletion(context, id, seen, before, broken)),
            }
        }
        for (id, now) in after {
            if before.get(id).is_none_or(|seen| seen.uid != now.uid) {
                if !context.git.contains_key(id) {
                    broken.push((Rule::OnlyGit, format!("{id} was created, and is not in Git")));
                }
                // One that arrives when its kind and its namespace have left the inventory is not looked for.
                let must_know = !context.is_late;
                self.owned.insert(now.uid.clone(), Owned { id: id.clone(), recorded: false, must_know });
                others.owned.remove(&now.uid);
            }
        }
        if unapproved > 0 {
            self.check_budget(context, before, broken);
        }
        let writes_late = context.late.as_ref().is_some_and(|late| {
            let versions = [before, after].map(|all| all.get(late).map(|seen| &seen.version));
            versions[1].is_some() && versions[0] != versions[1]
        });
        if writes_late && !context.race && !context.settings.reconcile_timeout.is_zero() {
            let unhealthy = after.iter().find(|(id, seen)| context.git.contains_key(*id) && !seen.healthy);
            if let Some((id, _)) = unhealthy {
                broken.push((Rule::Wave, format!("the second wave was applied, and {id} is not healthy")));
            }
        }
    }

    /// Checks a deletion. Returns whether nobody has approved it.
    fn check_deletion(
        &mut self,
        context: &Context,
        id: &ObjectId,
        seen: &Seen,
        before: &Snapshot,
        broken: &mut Vec<Violation>,
    ) -> bool {
        let mut violated = |rule, what: &str| broken.push((rule, format!("{id} was deleted, {what}")));
        if !self.owned.contains_key(&seen.uid) {
            violated(Rule::OthersStay, "which is not one of the project");
            return false;
        }
        if context.git.contains_key(id) {
            violated(Rule::InGit, "which is in Git");
        }
        if seen.kept || !is_allowed(id, &context.settings) || !context.settings.prune {
            violated(Rule::Protected, "which an annotation, an owner or a setting protects");
        }
        // The approval of a namespace or a definition counts what is in it.
        let container = if is_toy(id) { Thing::Toys.id("") } else { namespace_id(&id.namespace) };
        let container = before.get(&container).map(|container| &container.uid);
        let is_approved =
            [Some(&seen.uid), container].into_iter().flatten().any(|uid| context.approved.contains(uid));
        if !is_approved {
            if context.git.is_empty() {
                violated(Rule::NotAll, "and nothing is in Git");
            }
            if seen.is_irreplaceable(id, before, &context.settings) {
                violated(Rule::Irreplaceable, "which Git cannot bring back");
            }
            if self.held.contains(&seen.uid) && !context.is_late {
                violated(Rule::StaysHeld, "which was held");
            }
        }
        self.begun |= is_approved;
        self.deleted.push((context.now, seen.uid.clone(), is_approved));
        !is_approved
    }

    fn check_change(
        &mut self,
        context: &Context,
        id: &ObjectId,
        seen: &Seen,
        now: &Seen,
        others: &mut Self,
        broken: &mut Vec<Violation>,
    ) {
        let in_git = context.git.contains_key(id);
        if self.owned.contains_key(&seen.uid) {
            if !in_git {
                broken.push((Rule::OnlyGit, format!("{id} was changed, and is not in Git")));
            }
            return;
        }
        let is_of_others = others.owned.contains_key(&seen.uid)
            || seen.owner
            || seen.set.as_ref().is_some_and(|set| *set != self.set);
        let may = match context.settings.inventory_policy {
            InventoryPolicy::MustMatch => false,
            InventoryPolicy::AdoptIfNoInventory => !is_of_others,
            InventoryPolicy::AdoptAll => true,
        };
        // A create cannot say that it is for a new object only.
        if !in_git || !(may || context.is_late) {
            broken
                .push((Rule::OthersUnchanged, format!("{id} was changed, which is not one of the project")));
        }
        if now.set.as_ref() == Some(&self.set) {
            others.owned.remove(&seen.uid);
            self.owned.insert(seen.uid.clone(), Owned { id: id.clone(), recorded: false, must_know: true });
        }
    }

    /// Checks the deletions of the last hour.
    fn check_budget(&self, context: &Context, before: &Snapshot, broken: &mut Vec<Violation>) {
        // A write that arrives late was sent before others.
        let before_now = self.deleted.iter().filter(|(at, ..)| *at <= context.now);
        let unapproved = before_now.filter(|(at, _, approved)| *at + HOUR > context.now && !approved).count();
        let kept: BTreeSet<&String> =
            before.values().filter(|seen| seen.kept).map(|seen| &seen.uid).collect();
        let recent =
            || self.deleted.iter().filter(|(at, ..)| *at + HOUR >= context.now).map(|(_, uid, _)| uid);
        let all = self.complete.iter().map(|complete| {
            let complete = complete.iter().filter(|uid| !kept.contains(uid));
            complete.chain(recent()).collect::<BTreeSet<_>>().len()
        });
        let all = all.max().unwrap_or_default();
        let settings = &context.settings;
        let allowed = (settings.max_prune as usize).max(all * usize::from(settings.max_prune_percent) / 100);
        if unapproved > allowed {
            broken.push((
                Rule::Budget,
                format!("{unapproved} of {all} objects were deleted within an hour, and {allowed} may be"),
            ));
        }
    }

    /// Checks the result of a pass against the objects after it, and notes it. `differs` is an object in Git that is not as in Git.
    pub(super) fn check_result(
        &mut self,
        context: &Context,
        result: &PassResult,
        after: &Snapshot,
        differs: Option<&ObjectId>,
        broken: &mut Vec<Violation>,
    ) {
        let wrote = context.heal;
        // Others change an object again and again, and it may be as they want it.
        let is_contested = result.errors.iter().any(|error| error.contains(": contested: "));
        match (self.lost, result.state) {
            (_, ProjectState::Failed) => {}
            _ if result.stopped => {}
            (Lost::Yes, ProjectState::InventoryLost) => {}
            // The objects that are left may be of a group that does not respond.
            (Lost::Yes, _) if context.unavailable.is_some() => self.lost = Lost::No,
            (Lost::Yes, state) => {
                broken.push((
                    Rule::Lost,
                    format!("the inventory is lost, and the state is {}", state.as_str()),
                ));
                self.lost = Lost::No;
            }
            (Lost::Maybe, ProjectState::InventoryLost) => self.lost = Lost::Yes,
            (Lost::Maybe, _) => self.lost = Lost::No,
            (Lost::No, ProjectState::InventoryLost) => {
                broken.push((Rule::NotLost, result.message.clone()));
                self.lost = Lost::Yes;
            }
            (Lost::No, _) => {}
        }
        if result.stopped || self.lost != Lost::No {
            self.uncertain = true;
            return;
        }
        if wrote && result.state != ProjectState::Failed {
            let is_applied = result.state != ProjectState::Syncing && !is_contested && !context.race;
            for owned in self.owned.values_mut() {
                owned.recorded = true;
                owned.must_know |= is_applied && context.git.contains_key(&owned.id);
            }
        }
        let complete = || self.owned.iter().filter(|(uid, _)| after.values().any(|seen| seen.uid == **uid));
        let complete: BTreeSet<String> = complete().map(|(uid, _)| uid.clone()).collect();
        match result.state {
            ProjectState::Synced => {
                if let Some(id) = differs.filter(|_| !context.race) {
                    broken.push((Rule::Synced, format!("{id} is not as in Git")));
                }
                if result.held.is_some() || !result.waiting.is_empty() {
                    broken.push((Rule::Synced, "something is held or waited for".to_owned()));
                }
                if !context.race {
                    self.check_left(context, result, after, broken);
                }
                if wrote {
                    self.complete = vec![complete];
                    self.held.clear();
                    self.code = None;
                    (self.uncertain, self.begun) = (false, false);
                }
            }
            ProjectState::Held => {
                if let Some(id) = differs.filter(|_| !context.race && wrote && !is_contested) {
                    broken.push((Rule::ApplyFirst, format!("deletions are held, and {id} is not as in Git")));
                }
                if !context.race {
                    self.check_left(context, result, after, broken);
                    self.check_held(context, result, after, broken);
                }
            }
            ProjectState::Syncing => {
                if result.waiting.is_empty() {
                    broken.push((Rule::Waiting, "the project is syncing, and waits for nothing".to_owned()));
                }
                self.note_end(context, after, differs);
            }
            _ => self.note_end(context, after, differs),
        }
    }

    /// Notes a pass whose end is not known: the commit may be complete.
    pub(super) fn note_end(&mut self, context: &Context, after: &Snapshot, differs: Option<&ObjectId>) {
        self.uncertain = true;
        let deletable = self.deletable(context, after).map(|(_, seen)| seen.uid.clone());
        self.once_held.extend(deletable.collect::<Vec<_>>());
        let left = self.deletable(context, after).find(|(id, _)| !may_stay(id, after, context));
        if context.heal && differs.is_none() && left.is_none() {
            let exists = |uid: &String| after.values().any(|seen| seen.uid == *uid);
            let complete = self.owned.keys().filter(|uid| exists(uid)).cloned().collect();
            if !self.complete.contains(&complete) {
                self.complete.push(complete);
            }
        }
    }

    /// Checks that everything that left Git is listed, and that what is listed has a reason.
    fn check_left(
        &self,
        context: &Context,
        result: &PassResult,
        after: &Snapshot,
        broken: &mut Vec<Violation>,
    ) {
        let held: Vec<&ObjectId> =
            result.held.iter().flat_map(|held| &held.objects).map(|(id, _)| id).collect();
        let waits: Vec<&ObjectId> = result.waiting.iter().map(|awaited| &awaited.object).collect();
        // A kind that cannot be listed is named instead of its objects.
        let is_unknown = |id: &ObjectId| {
            let kind = format!("objects of the kind {} that left Git", GroupKind::of(id));
            result.errors.iter().any(|error| error.starts_with(&kind))
        };
        for (id, seen) in after {
            let Some(owned) = self.owned.get(&seen.uid) else { continue };
            if context.git.contains_key(id) || is_unknown(id) || !owned.must_know {
                continue;
            }
            if result.kept.contains(id) {
                let protected = seen.kept || !is_allowed(id, &context.settings) || !context.settings.prune;
                if !protected && !context.faulty && !may_stay(id, after, context) && !held.contains(&id) {
                    broken.push((Rule::NotOrphaned, format!("{id} left Git and stays without a reason")));
                }
            } else if result.kept.len() < MAX_KEPT && !held.contains(&id) && !waits.contains(&id) {
                broken.push((
                    Rule::NotOrphaned,
                    format!("{id} left Git, and is neither deleted nor listed ({})", result.state.as_str()),
                ));
            }
        }
    }

    fn check_held(
        &mut self,
        context: &Context,
        result: &PassResult,
        after: &Snapshot,
        broken: &mut Vec<Violation>,
    ) {
        let Some(held) = &result.held else {
            broken.push((Rule::HeldPlan, "the project is held without a plan".to_owned()));
            return;
        };
        if held.count != held.objects.len() || held.count == 0 {
            broken.push((
                Rule::HeldPlan,
                format!("{} objects are held, and not {}", held.objects.len(), held.count),
            ));
        }
        let deletable: BTreeMap<&ObjectId, &Seen> = self.deletable(context, after).collect();
        let mut plan = BTreeSet::new();
        let mut may_need = false;
        let is_new = !self.uncertain && !self.codes.iter().any(|(code, _)| *code == held.code);
        for (id, takes) in &held.objects {
            let Some(seen) = deletable.get(id) else {
                broken.push((Rule::HeldPlan, format!("{id} is held, and cannot be deleted")));
                continue;
            };
            plan.insert(seen.uid.clone());
            let is_new = is_new && !self.once_held.contains(&seen.uid);
            let needs = seen.is_irreplaceable(id, after, &context.settings);
            may_need |= seen.takes(id, after) || seen.confirm;
            // A plan that waits was looked at when it was made.
            if needs && is_new && !seen.confirm && takes.is_empty() {
                broken
                    .push((Rule::HeldPlan, format!("{id} is held, and nothing says what it takes with it")));
            }
        }
        let kept = |uid: &String| after.values().find(|seen| seen.uid == *uid).is_none_or(|seen| seen.kept);
        match self.codes.iter().find(|(code, _)| *code == held.code) {
            Some((_, other)) if *other != plan => {
                broken.push((Rule::HeldPlan, "two plans have one code".to_owned()));
            }
            Some(_) => {}
            None => self.codes.push((held.code.clone(), plan.clone())),
        }
        if self.begun && plan.is_subset(&self.approved) {
            broken.push((Rule::GoesOn, "an approved deletion that was interrupted is held again".to_owned()));
        }
        let recent = self.deleted.iter().chain(&self.deleted_before);
        let recent = recent.filter(|(at, _, approved)| *at + HOUR >= context.now && !approved).count();
        let fits = recent + plan.len() <= context.settings.max_prune as usize;
        let is_all =
            self.complete.iter().any(|complete| complete.iter().all(|uid| plan.contains(uid) || kept(uid)));
        // What a later commit deletes joins the plan.
        let is_new = self.once_held.is_empty() && !self.uncertain;
        if fits && !is_all && !may_need && !context.git.is_empty() && is_new {
            broken.push((Rule::NeedlessHold, format!("{} deletions are held, and may be done", plan.len())));
        }
        self.once_held.extend(plan.iter().cloned());
        self.held = plan;
        self.code = Some(held.code.clone());
    }
}

/// Returns whether a namespace or a definition may stay, because something is in it.
fn may_stay(id: &ObjectId, all: &Snapshot, context: &Context) -> bool {
    match &*id.kind {
        "Namespace" => context.unavailable.is_some() || all.keys().any(|inner| inner.namespace == SHOP),
        "CustomResourceDefinition" => context.unavailable.is_some() || all.keys().any(is_toy),
        _ => false,
    }
}

/// Names the objects that differ.
pub(super) fn difference(before: &Snapshot, after: &Snapshot) -> String {
    let changed = after.iter().filter(|(id, now)| before.get(*id) != Some(now)).map(|(id, _)| id);
    let gone = before.keys().filter(|id| !after.contains_key(*id));
    let all: Vec<String> = changed.chain(gone).map(ToString::to_string).collect();
    all.join(", ")
}

/// Returns the object of the second wave.
pub(super) fn late(git: &[(Thing, u8)], default: &str) -> Option<ObjectId> {
    git.iter().any(|(thing, _)| *thing == Thing::Late).then(|| Thing::Late.id(default))
}
