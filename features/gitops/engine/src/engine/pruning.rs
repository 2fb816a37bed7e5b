//! The deletion of objects that left Git.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use kube_cluster::{Cluster, GroupKind, Kind};
use proto::{
    agent_configuration::gitops::PropagationPolicy,
    gitops::{ObjectError, ObjectId, SyncEventKind},
};
use tokio::time::sleep;

use super::{
    Engine, SyncContext, SyncError, SyncState, awaited::Awaited, inspection::Inspection, members::Members,
    report::Report, stage::run_all,
};
use crate::{
    deletion_plan::{Consent, DeletionPlan, LeftMembers, Member, PlanContext, may_take_others},
    order, ownership,
    retry::{ApiCallError, with_retry},
};

/// The attempts to delete an object that changes meanwhile.
const ATTEMPTS: u32 = 3;
/// The pauses before a few deleted objects are read, of which most are gone after the first one. Others wait for the next pass.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(150), Duration::from_millis(400)];
/// The most objects that are read one by one. The next pass lists them.
const MAX_POLLED: usize = 20;
/// The message about an object that was deleted.
const PRUNED: &str = "deleted, because it left Git";
/// Kinds whose objects own no others. The garbage collector of Kubernetes deletes some 15 objects a second with the policy `foreground`,
/// which is of no use for them.
const WITHOUT_DEPENDENTS: [(&str, &str); 12] = [
    ("", "ConfigMap"),
    ("", "Secret"),
    ("", "ServiceAccount"),
    ("", "LimitRange"),
    ("", "ResourceQuota"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
    ("scheduling.k8s.io", "PriorityClass"),
];
/// The deletions of a sync, before anything is written.
#[derive(Debug, Default)]
pub(super) struct PlannedDeletions {
    pub(super) plan: DeletionPlan,
    /// The objects that stay, with the reasons.
    pub(super) kept: Vec<(ObjectId, String)>,
    /// The objects that are being deleted.
    deleting: Vec<Member>,
    /// Sentences about what is not known.
    pub(super) notes: Vec<String>,
}

/// The end of an attempt to delete an object.
enum DeleteOutcome {
    /// It is gone.
    Gone,
    /// It will be gone.
    Begun,
    /// A guard keeps it, for this reason.
    Kept(String),
    /// The cluster does not delete it, for this reason.
    Failed(String),
}

impl PlannedDeletions {
    pub(super) fn is_held(&self) -> bool {
        self.plan.held.is_some()
    }

    /// Returns the objects that are being deleted, of a plan that is not carried out now.
    pub(super) fn into_deleting(self, members: &Members) -> impl Iterator<Item = Awaited> {
        deleting_objects(self.deleting, members)
    }

    /// Leaves out objects that were not made members.
    pub(super) fn leave_out(&mut self, ids: &HashSet<ObjectId>) {
        self.plan.delete.retain(|member| !ids.contains(&member.id));
    }

    /// Reports what stays and what waits.
    pub(super) fn report(&self, report: &mut Report<'_>) {
        self.notes.iter().for_each(|note| report.note(note.clone()));
        for (id, reason) in &self.kept {
            report.object(SyncEventKind::Kept, id, reason.clone());
        }
        if let Some(held) = &self.plan.held {
            for id in &self.plan.waiting {
                report.object(SyncEventKind::Kept, id, held.reason.clone());
            }
        }
        report.held.clone_from(&self.plan.held);
        report.planned_deletions = self.plan.delete.len() + self.plan.waiting.len();
    }
}

impl<C: Cluster> Engine<C> {
    /// Plans the deletion of the members that left Git, without a write.
    pub(super) async fn plan_deletions(
        &self,
        state: &mut SyncState,
        sync: &SyncContext<'_>,
    ) -> Result<PlannedDeletions, SyncError> {
        let settings = &sync.input.settings;
        let SyncState { stored, members, desired, claimed, .. } = &*state;
        let all = || members.by_id.values().map(|(member, _)| member);
        let LeftMembers { deletable, kept, deleting } = LeftMembers::new(all().cloned(), desired, settings);

        let mut out_of_git: BTreeSet<String> = deletable
            .iter()
            .chain(kept.iter().map(|(member, _)| member))
            .map(|member| member.uid.clone())
            .collect();
        // An object that cannot be read now is not back in Git.
        let is_unseen = |id: &ObjectId| members.is_unknown(&GroupKind::of(id)) && !desired.contains(id);
        let unseen = stored.inventory.members.iter().filter(|(_, id)| is_unseen(id));
        let unseen: Vec<_> = unseen.map(|(uid, id)| (uid.clone(), id.clone())).collect();
        out_of_git.extend(unseen.iter().map(|(uid, _)| uid.clone()));
        let kept_by_choice: BTreeSet<String> = kept.iter().map(|(member, _)| member.uid.clone()).collect();

        let mut planned = PlannedDeletions { deleting, ..PlannedDeletions::default() };
        planned.kept = kept.into_iter().map(|(member, reason)| (member.id, reason)).collect();
        planned.kept.extend(unseen.into_iter().map(|(_, id)| (id, "its kind cannot be listed".to_owned())));
        planned.kept.extend(members.foreign.iter().filter(|(id, _)| !desired.contains(id)).cloned());
        for (kind, reason) in &members.unknown {
            // The kind stays in the inventory, so that its objects are found once it can be listed.
            planned.notes.push(format!(
                "objects of the kind {kind} that left Git are not deleted, because it cannot be listed: {reason}"
            ));
        }
        let candidates = self.inspect_all(deletable, &mut planned.kept, state, sync).await?;

        let live: HashMap<&str, &Member> = all().map(|member| (&*member.uid, member)).collect();
        let counts = |uid: &&String| live.get(&***uid).is_some_and(|member| member.is_deletable(settings));
        let mut baseline: BTreeSet<String> = if stored.is_recorded {
            stored.inventory.complete_members().filter(counts).cloned().collect()
        } else {
            all().map(|member| &member.uid).filter(counts).cloned().collect()
        };
        baseline.extend(claimed.iter().map(ToString::to_string));
        let context = PlanContext {
            settings,
            commit: &sync.input.commit,
            approved: sync.input.approved.as_deref(),
            is_empty: desired.is_empty(),
            baseline: &baseline,
            out_of_git: &out_of_git,
            kept: &kept_by_choice,
            now: sync.input.now,
        };
        planned.plan = state.stored.inventory.plan(candidates, &context);
        Ok(planned)
    }

    /// Deletes what the plan says. Returns the objects that are not gone yet.
    pub(super) async fn delete_left(
        &mut self,
        planned: PlannedDeletions,
        state: &mut SyncState,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<Vec<Awaited>, SyncError> {
        let PlannedDeletions { plan, mut kept, deleting, .. } = planned;
        kept.extend(plan.waiting.into_iter().map(|id| (id, String::new())));
        // The same object can have two names, in two API groups.
        let delete: Vec<Member> =
            plan.delete.into_iter().filter(|member| !state.members.applied.contains(&member.uid)).collect();
        let unapproved = |member: &&Member| plan.unapproved.contains(&member.uid);
        let unapproved: BTreeSet<String> =
            delete.iter().filter(unapproved).map(|member| member.uid.clone()).collect();
        if !unapproved.is_empty() {
            // Deletions count from before the first one: a process that ends in the middle has used up the budget.
            state.stored.inventory.spend(unapproved, sync.input.now);
            self.store(&mut state.stored, sync.fence).await?;
        }
        let (mut begun, mut gone) = (Vec::new(), HashSet::new());
        for rank in delete.chunk_by(|a, b| order::deletion_rank(&a.id) == order::deletion_rank(&b.id)) {
            let deletions = rank
                .iter()
                .filter_map(|member| Some((member, state.members.kinds.get(&GroupKind::of(&member.id))?)));
            let deleting = deletions.map(async |(member, kind)| {
                (member, kind, self.guard_and_delete(kind, member, &kept, state, sync).await)
            });
            let deleted = run_all(deleting).await;
            for (member, kind, result) in deleted {
                match result? {
                    DeleteOutcome::Gone => {
                        report.object(SyncEventKind::Pruned, &member.id, PRUNED);
                        gone.insert(member.uid.clone());
                    }
                    DeleteOutcome::Begun => {
                        report.object(SyncEventKind::Pruned, &member.id, PRUNED);
                        begun.push((member.clone(), kind.clone()));
                    }
                    DeleteOutcome::Kept(reason) => {
                        report.object(SyncEventKind::Kept, &member.id, reason.clone());
                        kept.push((member.id.clone(), reason));
                    }
                    DeleteOutcome::Failed(reason) => {
                        let message = format!("it left Git and cannot be deleted: {reason}");
                        report.error(ObjectError {
                            object: Some(member.id.clone()),
                            file: String::new(),
                            message,
                        });
                        kept.push((member.id.clone(), reason));
                    }
                }
            }
        }
        let mut awaited = self.poll_deleted(begun, &mut gone, sync).await?;
        state.gone.extend(gone);
        awaited.extend(deleting_objects(deleting, &state.members));
        Ok(awaited)
    }

    /// Waits for a moment until deleted objects are gone. Returns those that are not.
    async fn poll_deleted(
        &self,
        mut begun: Vec<(Member, Kind)>,
        gone: &mut HashSet<String>,
        sync: &SyncContext<'_>,
    ) -> Result<Vec<Awaited>, SyncError> {
        let until_gone = |member: &Member, kind: &Kind, finalizers: &str| {
            Awaited::until_gone(member.id.clone(), kind.clone(), member.uid.clone(), finalizers)
        };
        let mut awaited: Vec<_> = begun.iter().map(|(member, kind)| until_gone(member, kind, "")).collect();
        for pause in PAUSES {
            if begun.is_empty() || begun.len() > MAX_POLLED {
                break;
            }
            sleep(pause).await;
            let reads = run_all(begun.into_iter().map(async |(member, kind)| {
                let live = with_retry(sync.fence, || self.cluster.get(&kind, &member.id)).await;
                (member, kind, live)
            }))
            .await;
            (awaited, begun) = (Vec::new(), Vec::new());
            for (member, kind, live) in reads {
                let live = live.map_err(|error| {
                    SyncError::of_project(&format!("{} cannot be read", member.id), error)
                })?;
                let live = live.filter(|live| live["metadata"]["uid"] == *member.uid);
                let Some(live) = live else {
                    gone.insert(member.uid);
                    continue;
                };
                let deleting = Member::new(member.id.clone(), String::new(), &live["metadata"]).deleting;
                awaited.push(until_gone(&member, &kind, &deleting.unwrap_or_default()));
                begun.push((member, kind));
            }
        }
        Ok(awaited)
    }

    /// Inspects an object that may take others with it once more, and deletes it.
    async fn guard_and_delete(
        &self,
        kind: &Kind,
        member: &Member,
        kept: &[(ObjectId, String)],
        state: &SyncState,
        sync: &SyncContext<'_>,
    ) -> Result<DeleteOutcome, SyncError> {
        if may_take_others(&member.id) {
            let reason = match self.inspect(kind, member, kept, state, sync).await? {
                Inspection::Keep(reason) => Some(reason),
                Inspection::Takes(_, names) => {
                    let allowed =
                        member.consent == Consent::Allowed || sync.input.settings.prune_irreplaceable;
                    let approved = state.stored.inventory.approved.get(&member.uid);
                    let is_approved =
                        |name: &String| approved.is_some_and(|it| it.split(',').any(|it| it == name));
                    let unasked = names.iter().find(|name| !allowed && !is_approved(name));
                    unasked.map(|name| {
                        format!("the volume claim {name}, which nobody has approved, would go with it")
                    })
                }
            };
            if let Some(reason) = reason {
                return Ok(DeleteOutcome::Kept(reason));
            }
        }
        self.delete(kind, member, sync).await
    }

    /// Deletes an object, if it is still the one that was listed, which may be long ago.
    async fn delete(
        &self,
        kind: &Kind,
        member: &Member,
        sync: &SyncContext<'_>,
    ) -> Result<DeleteOutcome, SyncError> {
        let propagation = match sync.input.settings.prune_propagation_policy {
            PropagationPolicy::Foreground
                if WITHOUT_DEPENDENTS.contains(&(&*kind.kind.group, &*kind.kind.kind)) =>
            {
                PropagationPolicy::Background
            }
            policy => policy,
        };
        let Member { id, uid, version, .. } = member;
        for _ in 0..ATTEMPTS {
            let live = match with_retry(sync.fence, || self.cluster.get(kind, id)).await {
                Ok(Some(live)) => live,
                Ok(None) => return Ok(DeleteOutcome::Gone),
                Err(ApiCallError::Api(error)) => return Ok(DeleteOutcome::Failed(error.describe(id))),
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            };
            let metadata = &live["metadata"];
            if metadata["uid"] != **uid {
                return Ok(DeleteOutcome::Kept("somebody has deleted it and created it again".to_owned()));
            }
            // It was a member when it was listed, so that its UID is known.
            if let Some(owner) = ownership::other(ownership::owner(metadata, &sync.set, true)) {
                return Ok(DeleteOutcome::Kept(format!("it belongs to {owner} now")));
            }
            let now = Member::new(id.clone(), version.clone(), metadata);
            if now.consent != member.consent && now.consent != Consent::Allowed {
                let reason = "an annotation asks for an approval since the deletion was planned";
                return Ok(DeleteOutcome::Kept(reason.to_owned()));
            }
            if let Some(reason) = now.kept_by.or_else(|| ownership::foreign_owner(metadata)) {
                return Ok(DeleteOutcome::Kept(reason));
            }
            let seen = metadata["resourceVersion"].as_str();
            match with_retry(sync.fence, || self.cluster.delete(kind, id, uid, seen, propagation)).await {
                Ok(true) => return Ok(DeleteOutcome::Gone),
                Ok(false) => return Ok(DeleteOutcome::Begun),
                Err(ApiCallError::Api(error)) if error.status == 404 => return Ok(DeleteOutcome::Gone),
                // It has changed since it was read.
                Err(ApiCallError::Api(error)) if error.status == 409 => {}
                Err(ApiCallError::Api(error)) => return Ok(DeleteOutcome::Failed(error.describe(id))),
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        Ok(DeleteOutcome::Failed("it changes all the time, and is deleted only as it was seen".to_owned()))
    }
}

/// Returns objects that are being deleted as those that the sync waits for.
fn deleting_objects(deleting: Vec<Member>, members: &Members) -> impl Iterator<Item = Awaited> {
    deleting.into_iter().filter_map(|Member { id, uid, deleting, deleted_at, .. }| {
        let kind = members.kinds.get(&GroupKind::of(&id))?.clone();
        let awaited = Awaited::until_gone(id, kind, uid, &deleting.unwrap_or_default());
        Some(Awaited { since: deleted_at, ..awaited })
    })
}
