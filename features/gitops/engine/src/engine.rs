//! One sync, from the files of a commit to its outcome.

mod awaited;
mod diff;
mod examine;
mod gitlab;
mod hooks;
mod ignored;
mod inspection;
mod inventory;
mod jobs;
mod members;
mod pruning;
mod report;
mod reverts;
mod stage;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube_cluster::{
    ApiError, ApplyOptions, Cluster, FIELD_MANAGER, Fence, GroupKind, Kind, KindLookup, Stopped,
};
use object_health::{Assessment, HealthRules};
use parking_lot::Mutex;
use proto::{
    AgentId,
    agent_configuration::gitops::{DryRunStrategy, ManifestProject},
    gitops::{
        AwaitedObject, HeldDeletions, ObjectCounts, ObjectError, ObjectId, ProjectState, SyncEvent,
        SyncEventKind,
    },
    graph::HealthState,
};
use serde_json::Value;
use tokio::task::spawn_blocking;

pub use self::inventory::Recovery;
pub(crate) use self::members::fingerprint;
use self::{
    awaited::Awaited, examine::Known, gitlab::OldInventory, inventory::StoredInventory, members::Members,
    report::Report, reverts::Reverts, stage::AppliedObject,
};
use crate::{
    Manifest, SourceFile,
    applyset::{ApplySet, PART_OF},
    hook,
    inventory::ParentState,
    order, parse,
    retry::{ApiCallError, with_retry},
    validate::{self, Scopes},
};

/// The requests for one stage that are in flight at the same time.
const CONCURRENCY: usize = 8;

/// The attempts to write the inventory while others write to it.
const ATTEMPTS: u32 = 5;

/// Syncs one project. It remembers what it has applied, so that objects that nobody has changed cost no request.
#[derive(Debug)]
pub struct Engine<C> {
    /// The cluster as the project may use it.
    cluster: C,
    /// The cluster as agentk uses it itself, for the parent of the ApplySet.
    own: C,
    /// The namespace of agentk.
    namespace: String,
    known: HashMap<ObjectId, Known>,
    /// The objects of the last sync, with their kinds.
    objects: Vec<(ObjectId, Kind)>,
    /// The objects that the last sync waits for.
    awaited: Vec<Awaited>,
    /// The newest generation of the inventory that this engine has seen.
    generation: Option<u64>,
    /// There is no inventory of GitLab's agent any more.
    taken_over: bool,
    /// The objects that this engine has changed back.
    reverts: HashMap<ObjectId, Reverts>,
    /// The rules of the user for the health of kinds.
    health_rules: HealthRules,
    /// The projects of ApplySets that own objects in Git, by the ids of the ApplySets.
    owners: Mutex<HashMap<String, String>>,
}

/// The wanted objects of a project, and how they are applied.
#[derive(Clone, Debug)]
pub struct SyncInput {
    /// The agent.
    pub agent: AgentId,
    /// The id of the project.
    pub project: String,
    /// The settings of the project.
    pub settings: ManifestProject,
    /// The id of the commit.
    pub commit: String,
    /// The files of the commit.
    pub files: Arc<[SourceFile]>,
    /// The approval code of the deletions that somebody has approved.
    pub approved: Option<String>,
    /// Objects that somebody else has changed are applied again. Otherwise they are reported.
    pub heal: bool,
    /// The id of the project in GitLab. Objects in the inventory that GitLab's agent has kept for it are taken over.
    pub gitlab_project: Option<u64>,
    /// The objects that earlier passes of the same commit have waited for.
    pub waiting: Vec<AwaitedObject>,
    /// The objects that earlier passes of the same commit have applied and deleted.
    pub earlier: ObjectCounts,
    /// The time in milliseconds since 1970.
    pub now: u64,
}

/// The result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The state of the project.
    pub state: ProjectState,
    /// One sentence.
    pub message: String,
    /// The objects by their results.
    pub objects: ObjectCounts,
    /// The first errors.
    pub errors: Vec<ObjectError>,
    /// The deletions that wait for an approval.
    pub held: Option<HeldDeletions>,
    /// The first objects that left Git and were not deleted, with the reasons.
    pub kept: Vec<ObjectError>,
    /// The objects that somebody else had changed or deleted since this engine applied them, and that were written again.
    pub reverted: u32,
    /// The objects that the sync waits for. It goes on when [`Engine::is_ready`] says so.
    pub waiting: Vec<AwaitedObject>,
    /// The reason why the sync stopped early, if it did.
    pub stopped: Option<Stopped>,
}

/// The reason why a sync, or another change of an inventory, does not reach its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// Git has errors, or the API server refuses objects. The stage has written nothing.
    #[error("{}", first_of(.0))]
    Refused(Vec<ObjectError>),
    /// Objects failed while they were written. The errors were reported.
    #[error("objects failed")]
    Objects,
    /// A request about the project as a whole failed.
    #[error("{0}")]
    Project(String),
    /// The inventory is not there, or is not the one of the last sync. Nothing was written.
    #[error("{0}")]
    InventoryLost(&'static str),
    /// It must not continue.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The parts of a sync that all of its steps use.
struct SyncContext<'a> {
    input: &'a SyncInput,
    fence: &'a dyn Fence,
    /// The id of the ApplySet.
    set: String,
    /// The workloads that autoscalers in Git scale.
    autoscaled: HashSet<ObjectId>,
}

/// What a sync has found and done so far.
struct SyncState {
    stored: StoredInventory,
    members: Members,
    /// The objects in Git.
    desired: HashSet<ObjectId>,
    /// The objects in Git that GitLab's agent has applied, and that this sync takes over.
    claimed: Vec<ObjectId>,
    /// The objects that belonged to the project at the beginning.
    before: HashSet<ObjectId>,
    applied: Vec<AppliedObject>,
    /// The UIDs of the objects that were deleted.
    gone: HashSet<String>,
}

impl SyncState {
    fn add_applied(&mut self, objects: Vec<AppliedObject>) {
        self.members.applied.extend(objects.iter().map(|object| object.uid.clone()));
        self.applied.extend(objects);
    }
}

impl<C: Cluster> Engine<C> {
    /// Returns the engine of a project. `cluster` has the identity, the policy and the scope of the project, and `own` those of
    /// agentk. `namespace` is that of agentk.
    pub fn new(cluster: C, own: C, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self {
            cluster,
            own,
            namespace,
            known: HashMap::new(),
            objects: Vec::new(),
            awaited: Vec::new(),
            generation: None,
            taken_over: false,
            reverts: HashMap::new(),
            health_rules: HealthRules::default(),
            owners: Mutex::default(),
        }
    }

    /// Sets the rules for the health of kinds.
    #[must_use]
    pub fn with_health_rules(self, health_rules: HealthRules) -> Self {
        Self { health_rules, ..self }
    }

    /// Replaces the cluster by the same one, whose requests have another name in its audit log.
    pub fn set_cluster(&mut self, cluster: C) {
        self.cluster = cluster;
    }

    /// Makes the cluster what the files say, in one pass. It does not wait for objects that start or are being deleted: the pass ends
    /// with the state `Syncing`, and the next one continues.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves what was written. The next sync continues from there.
    pub async fn sync(
        &mut self,
        input: &SyncInput,
        fence: &dyn Fence,
        events: &(dyn Fn(SyncEvent) + Send + Sync),
    ) -> Outcome {
        let mut report = Report::new(events);
        let result = self.run(input, fence, &mut report).await;
        let outcome = report.finish(result, input);
        events(SyncEvent {
            state: outcome.stopped.is_none().then_some(outcome.state),
            error: outcome.errors.first().cloned(),
            ..SyncEvent::new(SyncEventKind::Finished, None, &*outcome.message)
        });
        outcome
    }

    /// Returns the health of the objects of the last sync whose kinds have health.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub async fn health(&self) -> Result<Vec<(ObjectId, Assessment)>, ApiError> {
        let objects = || {
            let has_health =
                |kind: &Kind| self.health_rules.has_health(&kind.kind.group, &kind.kind.kind, &kind.plural);
            self.objects.iter().filter(move |(_, kind)| has_health(kind))
        };
        let mut places: Vec<(&Kind, &str)> = objects().map(|(id, kind)| (kind, &*id.namespace)).collect();
        places.sort_unstable_by(|a, b| (&a.0.kind, a.1).cmp(&(&b.0.kind, b.1)));
        places.dedup();
        let wanted: HashSet<&ObjectId> = objects().map(|(id, _)| id).collect();
        let mut found = HashSet::new();
        let mut health = Vec::with_capacity(wanted.len());
        for (kind, namespace) in places {
            for object in self.cluster.list(kind, namespace, PART_OF, false).await? {
                let id = kind.kind.object_id(&object);
                if wanted.contains(&id) {
                    health.push((id.clone(), self.assess(kind, &object)));
                    found.insert(id);
                }
            }
        }
        let missing = Assessment { health: HealthState::Progressing, reason: "it does not exist".to_owned() };
        health.extend(
            objects().filter(|(id, _)| !found.contains(id)).map(|(id, _)| (id.clone(), missing.clone())),
        );
        Ok(health)
    }

    /// Returns whether an object is as this engine has left it. `fingerprint` is `None` if it does not exist any more.
    pub fn is_as_applied(&self, id: &ObjectId, fingerprint: Option<u64>) -> bool {
        match self.known.get(id) {
            Some(known) => fingerprint == Some(known.live),
            // It left Git, and may change and go.
            None => true,
        }
    }

    /// Returns the objects of the last sync with their kinds.
    pub fn objects(&self) -> &[(ObjectId, Kind)] {
        &self.objects
    }

    async fn run(
        &mut self,
        input: &SyncInput,
        fence: &dyn Fence,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        let settings = &input.settings;
        let mut manifests = self.read_manifests(input, fence).await?;
        let stages = order::stages(&manifests)?;
        report.planned(&manifests);
        if settings.dry_run_strategy == DryRunStrategy::Client {
            return Ok(());
        }

        let set = ApplySet::new(input.agent, &input.project, &self.namespace).id();
        let sync = SyncContext { input, fence, set, autoscaled: ignored::autoscaled(&manifests) };
        let stored = self.load(&sync, &manifests).await?;
        sync.mark(&mut manifests);
        let (mut state, old) = self.examine_project(stored, &manifests, &sync).await?;
        let mut plan = self.plan_deletions(&mut state, &sync).await?;
        plan.report(report);
        if sync.writes() {
            self.record_plan(&mut state.stored, &manifests, &sync).await?;
        }

        let (mut awaited, mut failed_hooks) = (Vec::new(), Vec::new());
        for stage in &stages {
            // While an earlier stage waits or has failed, what was applied before is set back all the same.
            let is_blocked = !awaited.is_empty() || !failed_hooks.is_empty();
            let again = (sync.writes() && is_blocked).then(|| self.applied_part(stage, &manifests));
            let is_next = again.is_none();
            let stage = again.as_ref().unwrap_or(stage);
            let applied = self.apply_stage(stage, &manifests, &state.members, &sync, report).await;
            if sync.writes() {
                self.record_jobs(stage, &manifests, &mut state.stored, &sync).await?;
            }
            let (applied, terminating) = applied?;
            state.add_applied(applied);
            awaited.extend(terminating);
            if sync.writes() && is_next {
                let unmet = self.unmet(stage, &manifests, &state.applied, &sync).await?;
                awaited.extend(unmet.awaited);
                failed_hooks = unmet.failed_hooks;
                self.record_failed_hooks(&failed_hooks, &mut state.stored, fence).await?;
                if awaited.is_empty() && failed_hooks.is_empty() {
                    self.delete_hooks(stage, &manifests, &mut state, &sync, report).await?;
                }
            }
        }
        self.objects = state.applied.iter().map(|object| (object.id.clone(), object.kind.clone())).collect();
        self.known.retain(|id, _| state.desired.contains(id));
        if sync.writes() {
            let mut is_complete = false;
            // An object that others change again and again is not as in Git now, and may replace an object that left Git.
            if awaited.is_empty() && failed_hooks.is_empty() && report.postponed == 0 {
                let failed = self.take_over(old, &mut state, &sync, report).await?;
                plan.leave_out(&failed);
                let is_held = plan.is_held();
                awaited = self.delete_left(plan, &mut state, &sync, report).await?;
                is_complete = awaited.is_empty() && !is_held && report.objects.failed == 0;
            } else {
                awaited.extend(plan.into_deleting(&state.members));
            }
            self.record_members(&mut state, is_complete, fence).await?;
            if is_complete && state.members.unknown.is_empty() {
                self.shrink_parent(state.stored, fence).await?;
            }
        }
        report.contested = self.contested(&manifests, input.now);
        report.wait_for(&awaited, &sync);
        failed_hooks.into_iter().for_each(|error| report.error(error));
        self.awaited = awaited;
        if report.objects.failed > 0 { Err(SyncError::Objects) } else { Ok(()) }
    }

    /// Finds out what belongs to the project, without a write.
    async fn examine_project(
        &self,
        stored: StoredInventory,
        manifests: &[Manifest],
        sync: &SyncContext<'_>,
    ) -> Result<(SyncState, Option<OldInventory>), SyncError> {
        let desired: HashSet<ObjectId> = manifests.iter().map(|manifest| manifest.id.clone()).collect();
        let mut members = self.members(&stored, sync).await?;
        let old = self.old_inventory(&members, &desired, sync).await?;
        if let Some(old) = &old {
            old.add_to(&mut members);
        }
        let claimed = old.as_ref().map(|old| old.in_git.clone()).unwrap_or_default();
        let before = members.by_id.keys().chain(&claimed).cloned().collect();
        let (applied, gone) = (Vec::new(), HashSet::new());
        Ok((SyncState { stored, members, desired, claimed, before, applied, gone }, old))
    }

    /// Returns whether nothing hinders the sync any more that has ended with objects to wait for.
    pub async fn is_ready(&self) -> bool {
        for awaited in &self.awaited {
            match self.cluster.get(&awaited.kind, &awaited.id).await {
                Ok(object) if self.is_met(awaited, object.as_ref()) => {}
                // The next look will see.
                _ => return false,
            }
        }
        true
    }

    /// Writes what has to be known before the first object is written: the kinds and namespaces of members, and the plan that is held.
    async fn record_plan(
        &mut self,
        stored: &mut StoredInventory,
        manifests: &[Manifest],
        sync: &SyncContext<'_>,
    ) -> Result<(), SyncError> {
        let grown = manifests.iter().fold(false, |grown, manifest| stored.set.add(&manifest.id) | grown);
        if grown || !stored.exists {
            stored.inventory.parent = self.write_parent(&mut stored.set, sync.fence).await?;
            stored.exists = true;
        }
        if stored.has_new_plan() { self.store(stored, sync.fence).await } else { Ok(()) }
    }

    /// Writes the members: those that were applied, and those that left Git and are still there.
    async fn record_members(
        &mut self,
        state: &mut SyncState,
        is_complete: bool,
        fence: &dyn Fence,
    ) -> Result<(), SyncError> {
        let SyncState { stored, members, desired, before, applied, gone, .. } = state;
        let in_git: HashSet<String> = desired.iter().map(ToString::to_string).collect();
        stored.inventory.jobs.retain(|job, _| in_git.contains(job));
        let replaced: HashSet<&ObjectId> = applied.iter().map(|object| &object.id).collect();
        let mut now: BTreeMap<String, ObjectId> = stored
            .inventory
            .members
            .iter()
            .filter(|(_, id)| members.is_unknown(&GroupKind::of(id)))
            .chain(members.by_id.values().map(|(member, _)| (&member.uid, &member.id)))
            .filter(|(uid, id)| !gone.contains(*uid) && !replaced.contains(id))
            .map(|(uid, id)| (uid.clone(), id.clone()))
            .collect();
        now.extend(applied.iter().map(|object| (object.uid.clone(), object.id.clone())));
        let inventory = &mut stored.inventory;
        let is_new = |(uid, id): &(&String, &ObjectId)| {
            if stored.is_recorded {
                !inventory.members.contains_key(*uid) || inventory.added.contains(*uid)
            } else {
                !before.contains(*id)
            }
        };
        let added = if is_complete {
            BTreeSet::new()
        } else {
            now.iter().filter(is_new).map(|(uid, _)| uid.clone()).collect()
        };
        (inventory.members, inventory.added) = (now, added);
        self.store(stored, fence).await
    }

    /// Parses and validates the files.
    async fn read_manifests(&self, input: &SyncInput, fence: &dyn Fence) -> Result<Vec<Manifest>, SyncError> {
        let files = Arc::clone(&input.files);
        // Large files take long, and the thread has other tasks.
        let parsed = spawn_blocking(move || parse::parse(&files)).await;
        let mut manifests =
            parsed.map_err(|_| SyncError::Project("the parser of manifests has panicked".to_owned()))??;
        let scopes = self.scopes(&manifests, fence).await?;
        validate::validate(&mut manifests, &scopes, &input.settings)?;
        Ok(manifests)
    }

    /// Returns the scopes of all kinds in Git that the cluster has or gets.
    async fn scopes(&self, manifests: &[Manifest], fence: &dyn Fence) -> Result<Scopes, SyncError> {
        let mut scopes = Scopes::default();
        let defined: Vec<_> = validate::defined_kinds(manifests).collect();
        let kinds: HashSet<(GroupKind, &str)> =
            manifests.iter().map(|manifest| (manifest.group_kind(), &*manifest.version)).collect();
        let mut forgotten = false;
        for (kind, version) in kinds {
            let mut found = self.resolve(&kind, Some(version), fence).await?;
            let is_missing = found == KindLookup::Missing;
            if is_missing && !forgotten && !defined.iter().any(|(defined, _)| *defined == kind) {
                // It may have been installed since the cluster was asked.
                self.cluster.forget_kinds();
                forgotten = true;
                found = self.resolve(&kind, Some(version), fence).await?;
            }
            match found {
                KindLookup::Found(found) => scopes.insert(kind, found.namespaced),
                KindLookup::Unavailable => scopes.set_unavailable(&kind.group),
                KindLookup::Missing => {}
            }
        }
        for (kind, namespaced) in defined {
            scopes.define(kind, namespaced);
        }
        Ok(scopes)
    }

    async fn resolve(
        &self,
        kind: &GroupKind,
        version: Option<&str>,
        fence: &dyn Fence,
    ) -> Result<KindLookup, SyncError> {
        let found = with_retry(fence, || self.cluster.resolve(kind, version)).await;
        found.map_err(|error| SyncError::of_project("the kinds of the cluster cannot be read", error))
    }

    /// Adds what the parent says to a set, if the parent exists.
    async fn read_parent(
        &self,
        set: &mut ApplySet,
        fence: &dyn Fence,
    ) -> Result<Option<ParentState>, SyncError> {
        let (kind, id) = set.parent_id();
        let found = with_retry(fence, || self.own.get(&kind, &id)).await;
        let found = found.map_err(|error| SyncError::of_project("the inventory cannot be read", error))?;
        let Some(found) = found else { return Ok(None) };
        set.read(&found).map_err(|error| SyncError::Project(error.to_string()))?;
        Ok(Some(ParentState::new(&found, set)))
    }

    /// Writes the parent before the first object that needs it. Entries that another writer has added meanwhile stay. Returns its UID.
    async fn write_parent(&self, set: &mut ApplySet, fence: &dyn Fence) -> Result<String, SyncError> {
        for _ in 1..ATTEMPTS {
            match self.try_write_parent(set, fence).await {
                Err(ApiCallError::Api(error)) if error.is_stale() => {
                    drop(self.read_parent(set, fence).await?)
                }
                written => return written.map_err(cannot_write),
            }
        }
        self.try_write_parent(set, fence).await.map_err(cannot_write)
    }

    /// Writes the parent, unless somebody has changed it since it was read: the write of a former leader that arrives late must not
    /// remove what the next leader has added. Returns its UID.
    async fn try_write_parent(&self, set: &mut ApplySet, fence: &dyn Fence) -> Result<String, ApiCallError> {
        let (kind, id) = set.parent_id();
        let object = set.parent();
        let options = ApplyOptions { manager: FIELD_MANAGER, dry_run: false, force: true };
        let written = with_retry(fence, || self.own.apply(&kind, &id, &object, options)).await?.object;
        let text = |key: &str| written["metadata"][key].as_str().map(str::to_owned);
        set.version = text("resourceVersion");
        Ok(text("uid").unwrap_or_default())
    }

    /// Removes kinds and namespaces without members from the parent.
    async fn shrink_parent(&self, stored: StoredInventory, fence: &dyn Fence) -> Result<(), SyncError> {
        let StoredInventory { mut set, inventory, .. } = stored;
        let before = (std::mem::take(&mut set.kinds), std::mem::take(&mut set.namespaces));
        set.add_all(inventory.members.values());
        if (&set.kinds, &set.namespaces) == (&before.0, &before.1) {
            return Ok(());
        }
        // The status may have been written since the beginning.
        let mut now = ApplySet { kinds: BTreeSet::new(), namespaces: BTreeSet::new(), ..set.clone() };
        self.read_parent(&mut now, fence).await?;
        set.version = now.version;
        match self.try_write_parent(&mut set, fence).await {
            // The next sync does it.
            Err(ApiCallError::Api(error)) if error.is_stale() => Ok(()),
            written => written.map(drop).map_err(cannot_write),
        }
    }
}

fn cannot_write(error: ApiCallError) -> SyncError {
    SyncError::of_project("the inventory cannot be written", error)
}

impl SyncContext<'_> {
    /// Gives manifests the label of the project, and hooks the version of the manifests.
    fn mark(&self, manifests: &mut [Manifest]) {
        for manifest in &mut *manifests {
            manifest.set_label(PART_OF, &self.set);
        }
        hook::set_run(manifests, |manifest| jobs::digest(manifest, self));
    }

    fn options(&self, dry_run: bool) -> ApplyOptions<'static> {
        use proto::agent_configuration::gitops::Conflicts;

        let force = self.input.settings.conflicts == Conflicts::Force;
        ApplyOptions { manager: FIELD_MANAGER, dry_run, force }
    }

    /// Returns whether objects are written.
    fn writes(&self) -> bool {
        self.input.settings.dry_run_strategy == DryRunStrategy::None && self.input.heal
    }

    /// Returns the time since when the sync waits for an object. That of a deletion is in the object.
    fn waits_since(&self, awaited: &Awaited) -> u64 {
        let before = self.input.waiting.iter().find(|before| before.object == awaited.id);
        let times = [before.map(|before| before.since), awaited.since, Some(self.input.now)];
        times.into_iter().flatten().min().unwrap_or(self.input.now)
    }
}

impl SyncError {
    fn of_project(what: &str, error: ApiCallError) -> Self {
        match error {
            ApiCallError::Api(error) => Self::Project(format!("{what}: {error}")),
            ApiCallError::Stopped(stopped) => Self::Stopped(stopped),
        }
    }
}

impl From<Vec<ObjectError>> for SyncError {
    fn from(errors: Vec<ObjectError>) -> Self {
        Self::Refused(errors)
    }
}

/// Returns the first of the errors of objects with its place.
fn first_of(errors: &[ObjectError]) -> String {
    match errors.first() {
        Some(error) => format!("{}: {}", error.file, error.message),
        None => "the files are refused".to_owned(),
    }
}

/// Returns the part of an object that people and manifests set.
fn without_server_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink"]
        {
            metadata.remove(key);
        }
    }
    object
}
