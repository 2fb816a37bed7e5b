//! Random sequences of operations on the engine with a simulated cluster. After each step, rules hold that are computed without the plan
//! of the engine (`rules`). A sequence that breaks one is shrunk, and printed as the code of a test.
//!
//! `MODEL_CASES` is the number of sequences of each of the four tests, `MODEL_SEED` chooses others.

mod adapter;
mod operations;
mod rules;
mod sequences;
mod universe;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use fake_cluster::{FakeCluster, error};
use kube_cluster::{Fence, Stopped};
use parking_lot::Mutex;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use proto::{
    agent_configuration::gitops::{ManifestProject, SelfHeal},
    gitops::{AwaitedObject, ObjectId, ProjectState},
};
use serde_json::{Map, Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

use self::{
    adapter::{PassInput, PassResult},
    operations::{
        Annotation, Approval, Loss, Operation, Others, Pass, ProjectNumber, Setting, Step, Things, sequences,
    },
    rules::{
        Context, Knowledge, Lost, Rule, Snapshot, Violation, has_values, is_allowed, namespace_id, snapshot,
    },
    universe::{LOCKS_GROUP, SHOP, TEAM, TOYS_GROUP, Thing},
};
use gitops_engine::{
    Engine, SourceFile,
    applyset::{ApplySet, PART_OF},
};

/// The objects of the cluster at a moment.
type BothSnapshots = Arc<Mutex<Option<(Snapshot, Snapshot)>>>;
/// A change of an object by somebody else.
type Edit<'a> = dyn Fn(&ObjectId, &mut Value) + 'a;

/// The seed of the sequences, unless `MODEL_SEED` says another one: the same commit has the same result.
const SEED: u64 = 1;
/// The sequences of each test, unless `MODEL_CASES` says another number.
const CASES: u32 = 400;
/// The passes after which a project is synced, once nothing disturbs it any more.
const MAX_PASSES: usize = 12;
/// The time of the first step, in milliseconds since 1970.
const START: u64 = 1_780_000_000_000;
const NAMES: [&str; 2] = ["group/app", "group/other"];
/// The keys of annotations that others set.
const ANNOTATIONS: [&str; 3] = ["helm.sh/resource-policy", "argocd.argoproj.io/sync-options", "agentk/prune"];

/// A cluster with two projects.
struct World {
    cluster: FakeCluster,
    projects: [Project; 2],
    knowledge: [Knowledge; 2],
    now: u64,
    unavailable: Option<&'static str>,
    /// The contexts of the writes that arrive later.
    late: Vec<Context>,
    violations: Vec<Violation>,
    /// The steps so far, for a sequence that is shown.
    log: Option<Vec<String>>,
}

struct Project {
    settings: ManifestProject,
    things: Vec<(Thing, u8)>,
    commit: usize,
    engine: Option<Engine<FakeCluster>>,
    /// The command of the approval, which a pass that is synced removes.
    approved: Option<String>,
    /// The next pass writes, although the project only reports drift.
    unfinished: bool,
    waiting: Vec<AwaitedObject>,
    /// Versions of the inventory after passes that have ended.
    history: Vec<[Value; 2]>,
    /// The last pass was not disturbed, and is synced. Nothing has happened since then.
    settled: bool,
}

/// A fence that is closed after some checks.
struct ClosesAfter(AtomicUsize);

impl Fence for ClosesAfter {
    fn check(&self) -> Result<Instant, Stopped> {
        let left = self.0.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1)));
        match left {
            Ok(0) => Err(Stopped::LostLease),
            _ => Ok(Instant::now() + super::HOUR),
        }
    }
}

impl Project {
    fn new() -> Self {
        let text = "{reconcile_timeout: 60s, prune_timeout: 60s}";
        Self {
            settings: serde_saphyr::from_str(text).unwrap(),
            things: Vec::new(),
            commit: 0,
            engine: None,
            approved: None,
            unfinished: false,
            waiting: Vec::new(),
            history: Vec::new(),
            settled: false,
        }
    }

    fn heals(&self) -> bool {
        self.settings.self_heal == SelfHeal::Heal || self.unfinished
    }

    /// Returns the objects in Git with their manifests.
    fn git(&self) -> BTreeMap<ObjectId, Value> {
        let default = &self.settings.default_namespace;
        let git = self.things.iter().map(|(thing, variant)| {
            let (id, mut manifest) = (thing.id(default), thing.manifest(*variant));
            if !id.namespace.is_empty() {
                manifest["metadata"]["namespace"] = id.namespace.clone().into();
            }
            (id, manifest)
        });
        git.collect()
    }

    fn files(&self) -> Arc<[SourceFile]> {
        let text: String = self
            .things
            .iter()
            .map(|(thing, variant)| format!("---\n{}\n", thing.manifest(*variant)))
            .collect();
        vec![SourceFile { path: "app.yaml".to_owned(), content: text.into() }].into()
    }
}

impl World {
    fn new(logs: bool) -> Self {
        let cluster = FakeCluster::new();
        cluster.add_kind(LOCKS_GROUP, "v1", "Lease", "leases", true);
        cluster.put(namespace_id(TEAM), "kubectl", json!({}));
        let knowledge = NAMES.map(|name| Knowledge {
            set: ApplySet::new(adapter::AGENT, name, "agentk").id(),
            complete: vec![BTreeSet::new()],
            ..Knowledge::default()
        });
        Self {
            cluster,
            projects: [Project::new(), Project::new()],
            knowledge,
            now: START,
            unavailable: None,
            late: Vec::new(),
            violations: Vec::new(),
            log: logs.then(Vec::new),
        }
    }

    fn log(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.log.is_some() {
            let line = line(self);
            if let Some(log) = self.log.as_mut().filter(|log| log.last() != Some(&line)) {
                log.push(line);
            }
        }
    }

    /// Runs a sequence until it breaks a rule.
    async fn run(&mut self, steps: &[Step], ends: impl Fn(&[Violation]) -> bool) {
        for (index, Step(operation, then)) in steps.iter().enumerate() {
            self.log(|_| format!("{:>2}. {operation:?}", index + 1));
            self.operate(operation).await;
            if let Some((number, pass)) = then {
                self.pass(*number, pass).await;
            }
            if ends(&self.violations) {
                return;
            }
        }
        for number in 0..self.projects.len() {
            if self.projects[number].commit > 0 && !self.projects[number].settled {
                self.converge(number).await;
            }
            if ends(&self.violations) {
                return;
            }
        }
    }

    async fn operate(&mut self, operation: &Operation) {
        if !matches!(
            operation,
            Operation::Nothing | Operation::Restart(_) | Operation::Sleep(_) | Operation::Deliver
        ) {
            self.knowledge.iter_mut().for_each(|knowledge| knowledge.begun = false);
        }
        if *operation != Operation::Nothing {
            self.projects.iter_mut().for_each(|project| project.settled = false);
        }
        match operation {
            Operation::Nothing => {}
            Operation::Commit(number, Things(things)) => {
                let project = &mut self.projects[*number];
                project.things.clone_from(things);
                project.commit += 1;
                project.unfinished = true;
                project.waiting.clear();
            }
            Operation::Restart(number) => self.projects[*number].engine = None,
            Operation::Deliver => self.deliver(),
            Operation::Others(others) => {
                let sets = [0, 1].map(|number| self.knowledge[number].set.clone());
                act(&self.cluster, others, &sets[0]);
                if let Others::Annotate(thing, _) = others {
                    self.forget_hold(*thing);
                }
            }
            Operation::Set(number, setting) => self.set(*number, setting),
            Operation::Lose(number, loss) => self.lose(*number, *loss),
            Operation::Approve(number, approval) => self.approve(*number, *approval),
            Operation::Recover(number, pass) => self.recover(*number, pass).await,
            Operation::Sleep(seconds) => self.now += seconds * 1000,
            Operation::Controllers(controllers) => {
                self.cluster.set_controllers(*controllers);
                if *controllers {
                    self.run_controllers();
                }
            }
            Operation::Unavailable(group) => {
                self.unavailable = *group;
                self.cluster.set_unavailable(*group);
            }
        }
        let all = self.snapshot();
        self.knowledge.iter_mut().for_each(|knowledge| knowledge.forget(&all));
    }

    fn run_controllers(&self) {
        let ids: Vec<ObjectId> = self.cluster.read(|objects| objects.keys().cloned().collect());
        ids.iter().for_each(|id| self.cluster.run_controllers(id));
    }

    /// What an annotation of an object says may let its deletion go on.
    fn forget_hold(&mut self, thing: Thing) {
        if let Some(id) = find(&self.cluster, thing)
            && let Some(object) = self.cluster.object(&id)
        {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            for knowledge in &mut self.knowledge {
                knowledge.held.remove(uid);
            }
        }
    }

    fn set(&mut self, number: ProjectNumber, setting: &Setting) {
        let project = &mut self.projects[number];
        let settings = &mut project.settings;
        let before = settings.clone();
        match setting {
            Setting::MaxPrune(max) => settings.max_prune = *max,
            Setting::MaxPrunePercent(percent) => settings.max_prune_percent = *percent,
            Setting::Prune(prune) => settings.prune = *prune,
            Setting::PruneIrreplaceable(prune) => settings.prune_irreplaceable = *prune,
            Setting::DefaultNamespace(namespace) => settings.default_namespace = (*namespace).to_owned(),
            Setting::Namespaces(namespaces) => {
                let owned = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
                settings.namespaces = namespaces.as_ref().map(owned);
            }
            Setting::Policy(policy) => settings.inventory_policy = *policy,
            Setting::SelfHeal(heals) => {
                settings.self_heal = if *heals { SelfHeal::Heal } else { SelfHeal::Report };
            }
        }
        if *settings != before {
            project.unfinished = true;
            project.waiting.clear();
            // They may let what is held be deleted, or keep what was approved.
            self.knowledge[number].held.clear();
            self.knowledge[number].begun = false;
        }
    }

    fn approve(&mut self, number: ProjectNumber, approval: Approval) {
        let knowledge = &mut self.knowledge[number];
        let held = knowledge
            .code
            .as_ref()
            .and_then(|held| knowledge.codes.iter().position(|(code, _)| code == held));
        let index = match approval {
            Approval::Current => held,
            Approval::Old(back) => knowledge.codes.len().checked_sub(back + 1),
        };
        let Some(index) = index else { return };
        let (code, plan) = &knowledge.codes[index];
        if held == Some(index) {
            knowledge.approved.extend(plan.iter().cloned());
        }
        self.projects[number].approved = Some(code.clone());
        self.projects[number].unfinished = true;
    }

    /// Lets a write of a dead process arrive.
    fn deliver(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let context = self.late.remove(0);
        let (before, inventory) = (self.snapshot(), self.inventory(context.project));
        self.cluster.deliver_late();
        let after = self.snapshot();
        let has_changed = self.inventory(context.project) != inventory;
        let lost = &mut self.knowledge[context.project].lost;
        if *lost == Lost::Yes && has_changed {
            // It may be the last write of a recovery.
            *lost = Lost::Maybe;
        }
        self.log(|_| format!("      arrives: {}", rules::difference(&before, &after)));
        self.check_writes(&context, &before, &after);
        let number = context.project;
        let differs = self.differs(&context);
        self.knowledge[number].note_end(&context, &after, differs.as_ref());
    }

    fn snapshot(&self) -> Snapshot {
        self.cluster.read(snapshot)
    }

    fn context(&self, number: ProjectNumber, pass: &Pass, before: &Snapshot) -> Context {
        let (project, knowledge) = (&self.projects[number], &self.knowledge[number]);
        let mut context = Context {
            project: number,
            git: Arc::new(project.git()),
            late: rules::late(&project.things, &project.settings.default_namespace),
            settings: Arc::new(project.settings.clone()),
            heal: project.heals(),
            now: self.now,
            approved: knowledge.approved.union(&knowledge.perhaps_approved).cloned().collect(),
            is_late: false,
            race: matches!(pass, Pass::Race(..)),
            faulty: matches!(pass, Pass::Fail(..)),
            unavailable: self.unavailable,
        };
        if let Some(code) = &project.approved {
            context.approved.extend(knowledge.approved_now(code, &context, before));
        }
        context
    }

    fn input(&self, number: ProjectNumber) -> PassInput {
        let project = &self.projects[number];
        PassInput {
            project: NAMES[number].to_owned(),
            settings: project.settings.clone(),
            files: project.files(),
            approved: project.approved.clone(),
            heal: project.heals(),
            commit: format!("{:040}", project.commit),
            now: self.now,
            waiting: project.waiting.clone(),
        }
    }

    fn check_writes(&mut self, context: &Context, before: &Snapshot, after: &Snapshot) {
        let [first, second] = &mut self.knowledge;
        let (own, others) = if context.project == 0 { (first, second) } else { (second, first) };
        own.check_writes(context, before, after, others, &mut self.violations);
    }

    /// Returns an object in Git that is not in the cluster as in Git.
    fn differs(&self, context: &Context) -> Option<ObjectId> {
        let set = &self.knowledge[context.project].set;
        self.cluster.read(|objects| {
            let is_as_in_git = |(id, git): &(&ObjectId, &Value)| {
                objects.get(*id).is_some_and(|object| {
                    let metadata = &object["metadata"];
                    has_values(object, git)
                        && !metadata["deletionTimestamp"].is_string()
                        && metadata["labels"][PART_OF] == **set
                })
            };
            context.git.iter().find(|entry| !is_as_in_git(entry)).map(|(id, _)| id.clone())
        })
    }

    /// Prepares the cluster for a pass. Returns the fence, and the moments before and after what somebody else does.
    fn prepare(&self, pass: &Pass, set: &str) -> (ClosesAfter, BothSnapshots) {
        let moments = Arc::new(Mutex::new(None));
        let mut checks = usize::MAX;
        match pass {
            Pass::Clean => {}
            Pass::Kill(at, death) => self.cluster.kill_at(*at, *death),
            Pass::Stop(after) => checks = *after,
            Pass::Fail(at, count, status, after) => {
                self.cluster.fail_requests(*at..at + count, error(*status, "Injected", "injected"), *after);
            }
            Pass::Race(at, others) => {
                let (cluster, others, set) = (self.cluster.clone(), others.clone(), set.to_owned());
                let moments = Arc::clone(&moments);
                self.cluster.interrupt_at(*at, move || {
                    let before = cluster.read(snapshot);
                    act(&cluster, &others, &set);
                    *moments.lock() = Some((before, cluster.read(snapshot)));
                });
            }
        }
        (ClosesAfter(AtomicUsize::new(checks)), moments)
    }

    /// Checks the writes of a pass that has ended, or whose process is dead.
    fn end(
        &mut self,
        context: &Context,
        before: &Snapshot,
        pass: &Pass,
        moments: Option<(Snapshot, Snapshot)>,
    ) -> Snapshot {
        let number = context.project;
        self.cluster.revive();
        if self.cluster.late_writes() > self.late.len() {
            self.late.push(Context { is_late: true, ..context.clone() });
        }
        let after = self.snapshot();
        let deleted = self.knowledge[number].deleted.len();
        match moments {
            None => self.check_writes(context, before, &after),
            Some((middle, others)) => {
                self.check_writes(context, before, &middle);
                if let Pass::Race(_, Others::Annotate(thing, _)) = pass {
                    self.forget_hold(*thing);
                }
                self.check_writes(context, &others, &after);
            }
        }
        self.knowledge.iter_mut().for_each(|knowledge| knowledge.forget(&after));
        if self.knowledge[number].deleted.len() > deleted
            && !context.race
            && let Some(id) = self.differs(context)
        {
            let what = format!("objects were deleted, and {id} is not as in Git");
            self.violations.push((Rule::ApplyFirst, what));
        }
        after
    }

    /// One pass of the engine.
    async fn pass(&mut self, number: ProjectNumber, pass: &Pass) -> Option<ProjectState> {
        if self.projects[number].commit == 0 {
            return None;
        }
        let before = self.snapshot();
        let context = self.context(number, pass, &before);
        let in_git =
            |uid: &String| before.iter().any(|(id, seen)| seen.uid == *uid && context.git.contains_key(id));
        if context.heal {
            // An object that comes back into Git loses its approval, and is not held any more.
            let knowledge = &mut self.knowledge[number];
            let back = knowledge.approved.extract_if(.., in_git).collect::<Vec<_>>();
            match pass {
                Pass::Clean => knowledge.perhaps_approved.retain(|uid| !in_git(uid)),
                // agentk may not have recorded that the approval has ended.
                _ => knowledge.perhaps_approved.extend(back),
            }
            knowledge.held.retain(|uid| !in_git(uid));
            knowledge.once_held.retain(|uid| !in_git(uid));
        }
        let set = self.knowledge[number].set.clone();
        let (fence, moments) = self.prepare(pass, &set);
        let input = self.input(number);
        let cluster = &self.cluster;
        let engine = self.projects[number]
            .engine
            .get_or_insert_with(|| Engine::new(cluster.clone(), cluster.clone(), "agentk"));
        let result = tokio::select! {
            biased;
            result = adapter::sync(engine, input, &fence) => Some(result),
            () = cluster.died() => None,
        };
        let moments = moments.lock().take();
        let after = self.end(&context, &before, pass, moments);
        self.log(|_| match &result {
            Some(result) => {
                format!("      {} {pass:?}: {}", NAMES[number], describe(result, &before, &after))
            }
            None => format!(
                "      {} {pass:?}: killed; written: {}",
                NAMES[number],
                rules::difference(&before, &after)
            ),
        });
        let differs = self.differs(&context);
        let Some(result) = result else {
            self.projects[number].engine = None;
            self.knowledge[number].note_end(&context, &after, differs.as_ref());
            self.suspect_inventory(number);
            return None;
        };
        let (knowledge, violations) = (&mut self.knowledge[number], &mut self.violations);
        knowledge.check_result(&context, &result, &after, differs.as_ref(), violations);
        knowledge.uncertain |= *pass != Pass::Clean;
        if before != after {
            self.projects.iter_mut().for_each(|project| project.settled = false);
        }
        let project = &mut self.projects[number];
        project.settled =
            *pass == Pass::Clean && result.state == ProjectState::Synced && self.late.is_empty();
        project.unfinished &=
            result.stopped || matches!(result.state, ProjectState::Failed | ProjectState::Syncing);
        project.waiting.clone_from(&result.waiting);
        if result.state == ProjectState::Synced {
            project.approved = None;
        }
        if result.stopped || *pass != Pass::Clean {
            self.suspect_inventory(number);
        } else {
            self.note_inventory(number);
        }
        Some(result.state)
    }

    fn inventory_ids(number: ProjectNumber) -> [ObjectId; 2] {
        adapter::inventory_names(NAMES[number]).map(|name| ObjectId {
            kind: "ConfigMap".to_owned(),
            namespace: "agentk".to_owned(),
            name,
            ..ObjectId::default()
        })
    }

    fn inventory(&self, number: ProjectNumber) -> [Option<Value>; 2] {
        Self::inventory_ids(number).map(|id| self.cluster.object(&id))
    }

    /// Notes a version of the inventory, which somebody may restore.
    fn note_inventory(&mut self, number: ProjectNumber) {
        let [parent, members] = self.inventory(number);
        let version = [parent.unwrap_or_default(), members.unwrap_or_default()];
        let history = &mut self.projects[number].history;
        if history.last() != Some(&version) {
            history.push(version);
        }
    }

    /// The last writes of the inventory are not known.
    fn suspect_inventory(&mut self, number: ProjectNumber) {
        self.projects[number].history.clear();
    }

    fn lose(&mut self, number: ProjectNumber, loss: Loss) {
        let ids = Self::inventory_ids(number);
        let before = self.inventory(number);
        let [parent, members] = &before;
        let history = &self.projects[number].history;
        let old = |back: usize| history.len().checked_sub(back + 1).map(|index| &history[index]);
        let stamp = |parent: &Value| {
            let text = parent["metadata"]["annotations"][adapter::GENERATION].as_str();
            text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default()
        };
        let mut lost = Lost::Yes;
        match loss {
            Loss::Parent | Loss::CopyParent if parent.is_none() => return,
            Loss::Members | Loss::CopyMembers if members.is_none() => return,
            Loss::Parent => self.cluster.remove(&ids[0]),
            Loss::Members => self.cluster.remove(&ids[1]),
            Loss::Both | Loss::CopyBoth => {
                if before.iter().all(Option::is_none) {
                    return;
                }
                for (id, object) in ids.iter().zip(&before) {
                    if let Some(object) = object {
                        self.cluster.remove(id);
                        if loss == Loss::CopyBoth {
                            // Without a record, nothing says which parent it was.
                            if members.is_none() {
                                lost = Lost::Maybe;
                            }
                            self.cluster.put(id.clone(), "kubectl", object.clone());
                        }
                    }
                }
            }
            Loss::CopyParent => {
                if members.is_none() {
                    lost = Lost::Maybe;
                }
                self.cluster.put(ids[0].clone(), "kubectl", parent.clone().unwrap_or_default());
            }
            Loss::CopyMembers => {
                // It has the same content, so that nothing is lost.
                self.cluster.put(ids[1].clone(), "kubectl", members.clone().unwrap_or_default());
                lost = Lost::Maybe;
            }
            Loss::OldParent(back) | Loss::OldMembers(back) => {
                let (Some(version), Some(parent)) = (old(back).cloned(), parent) else { return };
                if members.is_none() || version.iter().any(Value::is_null) {
                    return;
                }
                let index = usize::from(matches!(loss, Loss::OldMembers(_)));
                // The record is written before its generation: a parent that is older by one is that of a process that has died.
                if stamp(&version[0]) + (1 - index as u64) >= stamp(parent) {
                    lost = Lost::Maybe;
                }
                self.cluster.edit(&ids[index], "kubectl", |object| {
                    for key in ["data", "binaryData"] {
                        object[key] = version[index][key].clone();
                    }
                    object["metadata"]["annotations"] = version[index]["metadata"]["annotations"].clone();
                });
            }
        }
        let rest = self.inventory(number);
        let after = self.snapshot();
        let knowledge = &mut self.knowledge[number];
        let is_found = |seen: &rules::Seen| seen.applied && seen.set.as_ref() == Some(&knowledge.set);
        if rest.iter().all(Option::is_none) && !after.values().any(is_found) {
            // There was nothing to lose.
            *knowledge = Knowledge {
                set: std::mem::take(&mut knowledge.set),
                complete: vec![BTreeSet::new()],
                codes: std::mem::take(&mut knowledge.codes),
                // A process may remember that there was an inventory.
                lost: Lost::Maybe,
                ..Knowledge::default()
            };
            self.projects[number].approved = None;
        } else if knowledge.lost != Lost::Yes {
            // Without members, nothing is lost.
            knowledge.lost = if knowledge.owned.is_empty() { Lost::Maybe } else { lost };
        }
        self.suspect_inventory(number);
    }

    /// Makes a lost inventory anew. What cannot be found by its label is forgotten.
    async fn recover(&mut self, number: ProjectNumber, pass: &Pass) {
        if self.projects[number].commit == 0 {
            return;
        }
        let (before, inventory) = (self.snapshot(), self.inventory(number));
        let context = self.context(number, pass, &before);
        let set = self.knowledge[number].set.clone();
        let input = self.input(number);
        let cluster = self.cluster.clone();
        let mut engine = self.projects[number]
            .engine
            .take()
            .unwrap_or_else(|| Engine::new(cluster.clone(), cluster.clone(), "agentk"));
        let open = ClosesAfter(AtomicUsize::new(usize::MAX));
        let planned = adapter::recover(&mut engine, input.clone(), None, &open).await;
        if self.snapshot() != before || self.inventory(number) != inventory {
            self.violations.push((Rule::Recovery, "the plan of a recovery has written something".to_owned()));
        }
        self.log(|_| format!("      {} plans a recovery: {planned:?}", NAMES[number]));
        let planned = match planned {
            Ok(planned) => planned,
            Err(what) => {
                // It reads the files first.
                let is_lost = self.knowledge[number].lost == Lost::Yes;
                if is_lost && self.unavailable.is_none() && !self.is_refused(number) {
                    self.violations.push((Rule::Recovery, what.to_string()));
                }
                return;
            }
        };
        let (fence, moments) = self.prepare(pass, &set);
        let result = tokio::select! {
            biased;
            result = adapter::recover(&mut engine, input, Some(&planned.code), &fence) => Some(result),
            () = cluster.died() => None,
        };
        let moments = moments.lock().take();
        let after = self.end(&context, &before, pass, moments);
        self.log(|_| format!("      {} {pass:?} recovers: {result:?}", NAMES[number]));
        if !context.race && before != after {
            self.violations.push((Rule::Recovery, "a recovery has written an object".to_owned()));
        }
        let is_done = matches!(&result, Some(Ok(recovered)) if recovered.done);
        if !is_done && *pass == Pass::Clean && self.knowledge[number].lost == Lost::Yes {
            self.violations.push((Rule::Recovery, format!("the recovery ended with {result:?}")));
        }
        if result.is_some() {
            self.projects[number].engine = Some(engine);
        }
        if !is_done && *pass == Pass::Clean {
            return;
        }
        // It may be done although its process is dead, unless there is no record.
        let has_record = self.inventory(number)[1].as_ref().is_some_and(adapter::has_record);
        let knowledge = &mut self.knowledge[number];
        let set = &knowledge.set;
        let is_found = |uid: &String| {
            let seen = after.values().find(|seen| seen.uid == *uid);
            seen.is_some_and(|seen| seen.applied && seen.set.as_ref() == Some(set))
        };
        let is_listed = |id: &ObjectId| self.unavailable.is_none_or(|group| group != id.group);
        for (uid, owned) in &mut knowledge.owned {
            owned.must_know &= is_found(uid) && is_listed(&owned.id);
            owned.recorded = false;
        }
        let members: BTreeSet<String> = knowledge.owned.keys().cloned().collect();
        knowledge.once_held.extend(members.iter().cloned());
        if is_done {
            knowledge.complete.clear();
            knowledge.lost = Lost::No;
        } else if knowledge.lost == Lost::No || has_record {
            knowledge.lost = Lost::Maybe;
        }
        knowledge.complete.push(members);
        let deleted = std::mem::take(&mut knowledge.deleted);
        knowledge.deleted_before.extend(deleted);
        knowledge.approved.clear();
        knowledge.perhaps_approved.clear();
        knowledge.held.clear();
        knowledge.code = None;
        (knowledge.begun, knowledge.uncertain) = (false, true);
        let project = &mut self.projects[number];
        project.unfinished = true;
        self.suspect_inventory(number);
    }

    /// Ends all disturbances, and checks that the project becomes synced.
    async fn converge(&mut self, number: ProjectNumber) {
        self.log(|_| format!("    nothing disturbs {} any more", NAMES[number]));
        while !self.late.is_empty() {
            self.deliver();
        }
        self.operate(&Operation::Unavailable(None)).await;
        self.operate(&Operation::Controllers(true)).await;
        let ids: Vec<ObjectId> = self.cluster.read(|objects| objects.keys().cloned().collect());
        ids.iter().for_each(|id| remove_finalizers(&self.cluster, id));
        for setting in [Setting::SelfHeal(true), Setting::Namespaces(None), Setting::Prune(true)] {
            self.set(number, &setting);
        }
        let mut last = None;
        for _ in 0..MAX_PASSES {
            last = self.pass(number, &Pass::Clean).await;
            match last {
                Some(ProjectState::Synced) => return,
                Some(ProjectState::Held) => self.approve(number, Approval::Current),
                Some(ProjectState::Contested) => self.now += 5 * 60 * 1000,
                Some(ProjectState::InventoryLost) => self.recover(number, &Pass::Clean).await,
                _ => {}
            }
            if !self.violations.is_empty() {
                return;
            }
            self.now += 30_000;
        }
        let state = last.unwrap_or_default();
        if state != ProjectState::Failed || !self.is_refused(number) {
            let what = format!("{} is {} after {MAX_PASSES} passes", NAMES[number], state.as_str());
            self.violations.push((Rule::Converges, what));
        }
    }

    /// Returns whether something in Git cannot be applied: it exists and belongs to somebody else, or its namespace or its kind does not
    /// exist.
    fn is_refused(&self, number: ProjectNumber) -> bool {
        let context = self.context(number, &Pass::Clean, &self.snapshot());
        let knowledge = &self.knowledge[number];
        self.cluster.read(|objects| {
            context.git.keys().any(|id| {
                let foreign = objects.get(id).is_some_and(|object| {
                    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                    knowledge.owned.get(uid).is_none_or(|owned| !owned.must_know)
                });
                let homeless = id.namespace == SHOP
                    && !objects.contains_key(&namespace_id(SHOP))
                    && !context.git.contains_key(&namespace_id(SHOP));
                let definition = Thing::Toys.id("");
                let unknown = id.group == TOYS_GROUP
                    && !objects.contains_key(&definition)
                    && !context.git.contains_key(&definition);
                foreign || homeless || unknown || !is_allowed(id, &context.settings)
            })
        })
    }
}

/// Returns the id of an object that exists, in either default namespace.
fn find(cluster: &FakeCluster, thing: Thing) -> Option<ObjectId> {
    let ids = ["default", TEAM].map(|default| thing.id(default));
    cluster.read(|objects| ids.into_iter().find(|id| objects.contains_key(id)))
}

/// Does what somebody else does.
fn act(cluster: &FakeCluster, others: &Others, set: &str) {
    let (thing, work): (_, &Edit<'_>) = match others {
        Others::Create(foreign) => {
            let id = foreign.id();
            if may_create(cluster, &id) {
                cluster.put(id, "kubectl", json!({"data": {"of": "others"}}));
            }
            return;
        }
        Others::Remove(foreign) => return cluster.remove(&foreign.id()),
        Others::Delete(thing) => {
            find(cluster, *thing).iter().for_each(|id| cluster.remove(id));
            return;
        }
        Others::Recreate(thing, labelled) => {
            let Some(id) = find(cluster, *thing) else { return };
            remove_finalizers(cluster, &id);
            cluster.remove(&id);
            if cluster.object(&id).is_none() && may_create(cluster, &id) {
                let mut object = thing.manifest(1);
                if *labelled {
                    object["metadata"]["labels"][PART_OF] = set.into();
                }
                cluster.put(id, "kubectl", object);
            }
            return;
        }
        Others::Copy(thing) => {
            let Some(id) = find(cluster, *thing).filter(|id| !id.namespace.is_empty()) else { return };
            let Some(object) = cluster.object(&id) else { return };
            if may_create(cluster, &id) {
                cluster.put(copy_of(id), "kubectl", object);
            }
            return;
        }
        Others::RemoveCopy(thing) => {
            for default in ["default", TEAM] {
                cluster.remove(&copy_of(thing.id(default)));
            }
            return;
        }
        Others::RemoveFinalizers(thing) => {
            find(cluster, *thing).iter().for_each(|id| remove_finalizers(cluster, id));
            return;
        }
        Others::Edit(thing) => (thing, &|id, object| match &*id.kind {
            "ConfigMap" => object["data"]["value"] = "drift".into(),
            "Toy" => object["spec"]["size"] = 99.into(),
            "Deployment" | "StatefulSet" => object["spec"]["replicas"] = 99.into(),
            _ => object["metadata"]["labels"]["variant"] = "drift".into(),
        }),
        Others::RemoveLabel(thing) => (thing, &|_, object| {
            if let Some(labels) = fields_mut(object, "/metadata/labels") {
                labels.remove(PART_OF);
            }
        }),
        Others::AddFinalizer(thing) => {
            (thing, &|_, object| object["metadata"]["finalizers"] = json!(["example.com/wait"]))
        }
        Others::Annotate(thing, annotation) => (
            thing,
            match annotation {
                Annotation::Keep => {
                    &|_, object| object["metadata"]["annotations"][ANNOTATIONS[0]] = "keep".into()
                }
                Annotation::Confirm => {
                    &|_, object| object["metadata"]["annotations"][ANNOTATIONS[1]] = "Prune=confirm".into()
                }
                Annotation::Allow => {
                    &|_, object| object["metadata"]["annotations"][ANNOTATIONS[2]] = "allow".into()
                }
                Annotation::None => &|_, object| {
                    if let Some(annotations) = fields_mut(object, "/metadata/annotations") {
                        annotations.retain(|key, _| !ANNOTATIONS.contains(&&**key));
                    }
                },
            },
        ),
    };
    let Some(id) = find(cluster, *thing) else { return };
    let is_deleting = |object: Value| object["metadata"]["deletionTimestamp"].is_string();
    // An API server refuses new finalizers of an object that is being deleted.
    if matches!(others, Others::AddFinalizer(_)) && cluster.object(&id).is_some_and(is_deleting) {
        return;
    }
    cluster.edit(&id, "kubectl-edit", |object| work(&id, object));
}

/// Returns whether the namespace and the kind of a new object exist, and are not being deleted.
fn may_create(cluster: &FakeCluster, id: &ObjectId) -> bool {
    let is_there = |id: &ObjectId| {
        cluster.object(id).is_some_and(|object| !object["metadata"]["deletionTimestamp"].is_string())
    };
    (id.namespace != SHOP || is_there(&namespace_id(SHOP)))
        && (id.group != TOYS_GROUP || is_there(&Thing::Toys.id("")))
}

fn fields_mut<'a>(object: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(pointer)?.as_object_mut()
}

fn copy_of(id: ObjectId) -> ObjectId {
    ObjectId { name: format!("{}-copy", id.name), ..id }
}

fn remove_finalizers(cluster: &FakeCluster, id: &ObjectId) {
    if cluster.object(id).is_some_and(|object| object["metadata"].get("finalizers").is_some()) {
        cluster.remove_finalizers(id);
    }
}

/// Describes a pass in a line.
fn describe(result: &PassResult, before: &Snapshot, after: &Snapshot) -> String {
    let PassResult { state, message, errors, held, kept, waiting, stopped } = result;
    let mut line = format!("{}: {message}", state.as_str());
    if *stopped {
        line += " (stopped)";
    }
    let mut add = |what: &str, list: Vec<String>| {
        if !list.is_empty() {
            line += &format!("; {what}: {}", list.join(", "));
        }
    };
    add(
        "written",
        Some(rules::difference(before, after)).filter(|text| !text.is_empty()).into_iter().collect(),
    );
    add("errors", errors.clone());
    let held = held.iter().flat_map(|held| &held.objects);
    add("held", held.map(|(id, takes)| format!("{id} {takes}")).collect());
    add("kept", kept.iter().map(ToString::to_string).collect());
    add("waits", waiting.iter().map(|awaited| format!("{} ({})", awaited.object, awaited.reason)).collect());
    line
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Runs a sequence until it breaks a rule that the engine is not known to break.
fn run(runtime: &Runtime, steps: &[Step], logs: bool) -> (Vec<Violation>, Vec<String>) {
    let is_new = |(rule, _): &Violation| !adapter::BROKEN.contains(rule);
    runtime.block_on(async {
        let mut world = World::new(logs);
        world.run(steps, |violations| violations.iter().any(is_new)).await;
        world.violations.retain(is_new);
        (world.violations, world.log.unwrap_or_default())
    })
}

/// Runs random sequences.
fn explore(number: u64) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let cases = variable("MODEL_CASES").and_then(|cases| u32::try_from(cases).ok()).unwrap_or(CASES);
    let seed = variable("MODEL_SEED").unwrap_or(SEED) + number;
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let mut bytes = [1; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &bytes);
    let runtime = runtime();
    let tested = TestRunner::new_with_rng(config, rng).run(&sequences(), |steps| {
        match run(&runtime, &steps, false).0.first() {
            Some((rule, what)) => Err(TestCaseError::fail(format!("{rule:?}: {what}"))),
            None => Ok(()),
        }
    });
    if let Err(TestError::Fail(reason, steps)) = &tested {
        let (_, log) = run(&runtime, steps, true);
        let code: Vec<String> = steps.iter().map(|step| format!("        {step:?},")).collect();
        panic!(
            "{reason} (MODEL_SEED={})\n\nthe shortest sequence:\n{}\n\nwhat happened:\n{}\n",
            seed - number,
            code.join("\n"),
            log.join("\n"),
        );
    }
    tested.unwrap();
}

#[test]
fn rules_hold_after_each_step_1() {
    explore(1);
}

#[test]
fn rules_hold_after_each_step_2() {
    explore(2);
}

#[test]
fn rules_hold_after_each_step_3() {
    explore(3);
}

#[test]
fn rules_hold_after_each_step_4() {
    explore(4);
}
