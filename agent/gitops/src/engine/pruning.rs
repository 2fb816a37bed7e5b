//! The deletion of objects that left Git.

use std::{collections::HashSet, time::Duration};

use proto::gitops::{EventKind, ObjectError, ObjectId};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    Engine, Failure, SyncContext,
    members::{Members, id_of},
    report::Report,
};
use crate::{
    Cluster, Kind,
    applyset::PART_OF,
    prune::{self, Member, PrunePlan},
    retry::{CallError, with_retry},
    validate::DEFINITIONS,
};

/// The attempts to delete an object that changes meanwhile.
const ATTEMPTS: u32 = 3;
/// The first and the longest time between two looks at a deleted object.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Kinds whose objects are records about other objects.
const RECORDS: [&str; 5] = ["Event", "Endpoints", "EndpointSlice", "PodMetrics", "Lease"];

/// The end of an attempt to delete an object.
enum Deletion {
    /// It is gone, or will be.
    Begun,
    /// A guard keeps it.
    Kept(String),
}

impl<C: Cluster> Engine<C> {
    /// Deletes the members that are not in Git any more. Returns those that are still there.
    pub(super) async fn prune(
        &self,
        members: Members,
        desired: &HashSet<ObjectId>,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<Vec<ObjectId>, Failure> {
        let Members { by_id, applied, kinds, unknown } = members;
        let all = by_id.into_values().map(|(member, _)| member).collect();
        let PrunePlan { delete, keep, deleting, held } =
            prune::plan(all, desired, &applied, &sync.input.settings, sync.input.approved.as_deref());
        let mut left = deleting;
        for (id, reason) in keep {
            report.object(EventKind::Kept, &id, reason);
            left.push(id);
        }
        report.held = held;
        for (kind, reason) in unknown {
            // The kind stays in the inventory, so that its objects are found once it can be listed.
            report.note(format!("objects of the kind {kind} that left Git are not deleted, because it cannot be listed: {reason}"));
            left.push(ObjectId { group: kind.group, kind: kind.kind, ..ObjectId::default() });
        }
        let mut deleted = Vec::new();
        for member in delete {
            let Some(kind) = kinds.get(&crate::GroupKind::of(&member.id)) else { continue };
            if let Some(reason) = self.guard(kind, &member, desired, &left, sync).await? {
                report.object(EventKind::Kept, &member.id, reason);
                left.push(member.id);
                continue;
            }
            match self.delete(kind, &member, sync).await? {
                Ok(Deletion::Begun) => deleted.push((kind, member)),
                Ok(Deletion::Kept(reason)) => {
                    report.object(EventKind::Kept, &member.id, reason);
                    left.push(member.id);
                }
                Err(reason) => {
                    let message = format!("it left Git and cannot be deleted: {reason}");
                    report.error(ObjectError {
                        object: Some(member.id.clone()),
                        file: String::new(),
                        message,
                    });
                    left.push(member.id);
                }
            }
        }
        self.wait_until_gone(deleted, sync, report, &mut left).await?;
        if report.objects.failed > 0 { Err(Failure::Objects) } else { Ok(left) }
    }

    /// Returns the reason why an object is kept although nothing in its metadata keeps it. `left` are objects that left Git and stay.
    pub(super) async fn guard(
        &self,
        kind: &Kind,
        member: &Member,
        desired: &HashSet<ObjectId>,
        left: &[ObjectId],
        sync: &SyncContext<'_>,
    ) -> Result<Option<String>, Failure> {
        if (&*kind.kind.group, &*kind.kind.kind) == DEFINITIONS {
            let reason = "its deletion would delete all objects of its kind, also those of others: delete it with kubectl";
            return Ok(Some(reason.to_owned()));
        }
        if (&*kind.kind.group, &*kind.kind.kind) != ("", "Namespace") {
            return Ok(None);
        }
        let name = &member.id.name;
        if *name == self.namespace || desired.iter().chain(left).any(|id| id.namespace == *name) {
            let reason = "objects of this project, or agentk itself, are in the namespace";
            return Ok(Some(reason.to_owned()));
        }
        Ok(self.check_namespace(name, sync).await?.err())
    }

    /// Deletes an object, if it is still the one that was listed, which may be long ago. The inner error is about the object.
    async fn delete(
        &self,
        kind: &Kind,
        member: &Member,
        sync: &SyncContext<'_>,
    ) -> Result<Result<Deletion, String>, Failure> {
        let propagation = sync.input.settings.prune_propagation_policy;
        let Member { id, uid, version, .. } = member;
        for _ in 0..ATTEMPTS {
            let live = match with_retry(sync.fence, || self.cluster.get(kind, id)).await {
                Ok(Some(live)) => live,
                Ok(None) => return Ok(Ok(Deletion::Begun)),
                Err(CallError::Api(error)) => return Ok(Err(error.describe(id))),
                Err(CallError::Stopped(stopped)) => return Err(stopped.into()),
            };
            let metadata = &live["metadata"];
            if metadata["uid"] != **uid {
                return Ok(Ok(Deletion::Kept("somebody has deleted it and created it again".to_owned())));
            }
            if metadata["labels"][PART_OF] != *sync.set {
                return Ok(Ok(Deletion::Kept("it belongs to somebody else now".to_owned())));
            }
            if let Some(reason) = Member::new(id.clone(), version.clone(), metadata).kept_by {
                return Ok(Ok(Deletion::Kept(reason)));
            }
            let seen = metadata["resourceVersion"].as_str();
            match with_retry(sync.fence, || self.cluster.delete(kind, id, uid, seen, propagation)).await {
                Ok(()) => return Ok(Ok(Deletion::Begun)),
                Err(CallError::Api(error)) if error.status == 404 => return Ok(Ok(Deletion::Begun)),
                // It has changed since it was read.
                Err(CallError::Api(error)) if error.status == 409 => {}
                Err(CallError::Api(error)) => return Ok(Err(error.describe(id))),
                Err(CallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        Ok(Err("it changes all the time, and is deleted only as it was seen".to_owned()))
    }

    async fn wait_until_gone(
        &self,
        deleted: Vec<(&Kind, Member)>,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
        left: &mut Vec<ObjectId>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + sync.input.settings.prune_timeout;
        for (kind, member) in deleted {
            let (mut look, longest) = LOOK;
            let mut told = false;
            loop {
                let live = with_retry(sync.fence, || self.cluster.get(kind, &member.id)).await;
                let live = live
                    .map_err(|error| Failure::of_project(&format!("{} cannot be read", member.id), error))?;
                let Some(live) = live.filter(|live| live["metadata"]["uid"] == *member.uid) else {
                    report.object(EventKind::Pruned, &member.id, "deleted, because it left Git");
                    break;
                };
                let finalizers = live["metadata"]["finalizers"].as_array().map(|list| {
                    let names: Vec<_> = list.iter().filter_map(|name| name.as_str()).collect();
                    names.join(", ")
                });
                let why = finalizers.unwrap_or_else(|| "no finalizer".to_owned());
                if Instant::now() + look > deadline {
                    let message =
                        format!("it is deleted, but not gone within prune_timeout; finalizers: {why}");
                    report.error(ObjectError {
                        object: Some(member.id.clone()),
                        file: String::new(),
                        message,
                    });
                    left.push(member.id);
                    break;
                }
                if !told {
                    report.object(
                        EventKind::Waiting,
                        &member.id,
                        format!("it is being deleted; finalizers: {why}"),
                    );
                    told = true;
                }
                sleep(look).await;
                look = (look * 2).min(longest);
            }
        }
        Ok(())
    }

    /// Checks that a namespace has no objects of others. The inner error is the reason to keep it.
    async fn check_namespace(
        &self,
        name: &str,
        sync: &SyncContext<'_>,
    ) -> Result<Result<(), String>, Failure> {
        // A kind that was installed since the last look may have objects there.
        self.cluster.forget_kinds();
        let kinds = with_retry(sync.fence, || self.cluster.listable_kinds()).await;
        let (kinds, unavailable) =
            kinds.map_err(|error| Failure::of_project("the kinds of the cluster cannot be read", error))?;
        if let Some(group) = unavailable.first() {
            return Ok(Err(format!(
                "agentk cannot see whether the namespace is in use: the API group {group} does not respond"
            )));
        }
        let (mut uids, mut foreign) = (HashSet::new(), Vec::new());
        for kind in kinds.iter().filter(|kind| kind.namespaced && !RECORDS.contains(&&*kind.kind.kind)) {
            let listed = match with_retry(sync.fence, || self.cluster.list(kind, name, "", true)).await {
                Ok(listed) => listed,
                // The kind has no lists.
                Err(CallError::Api(error)) if error.status == 405 => continue,
                Err(CallError::Api(error)) => {
                    return Ok(Err(format!(
                        "agentk cannot see whether the namespace is in use ({}): {error}",
                        kind.plural
                    )));
                }
                Err(CallError::Stopped(stopped)) => return Err(stopped.into()),
            };
            for object in listed {
                let (id, metadata) = (id_of(&kind.kind, &object), &object["metadata"]);
                let of_others = !is_of_kubernetes(&id)
                    && metadata["labels"][PART_OF] != *sync.set
                    && metadata.get("deletionTimestamp").is_none();
                if of_others {
                    foreign.push((id, owners(metadata)));
                }
                uids.extend(metadata["uid"].as_str().map(str::to_owned));
            }
        }
        // An object with an owner in the namespace goes with it. Other owners are cluster-scoped, and have other reasons.
        let foreign = foreign.iter().find(|(_, owners)| !owners.iter().any(|owner| uids.contains(owner)));
        Ok(match foreign {
            Some((id, _)) => Err(format!("the namespace has objects of others, such as {id}")),
            None => Ok(()),
        })
    }
}

/// Returns the UIDs of the owners of an object.
fn owners(metadata: &Value) -> Vec<String> {
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    owners.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect()
}

/// Returns whether Kubernetes itself puts such an object into each namespace.
fn is_of_kubernetes(id: &ObjectId) -> bool {
    match (&*id.group, &*id.kind, &*id.name) {
        ("", "ConfigMap", "kube-root-ca.crt") | ("", "ServiceAccount", "default") => true,
        // Kubernetes before 1.24.
        ("", "Secret", name) => name.starts_with("default-token-"),
        _ => false,
    }
}
