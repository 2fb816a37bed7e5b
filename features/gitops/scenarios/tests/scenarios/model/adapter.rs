//! The only part of the model test that knows the interface of the engine.

use std::sync::Arc;

use fake_cluster::FakeCluster;
use kube_cluster::Fence;
use proto::{
    AgentId,
    agent_configuration::gitops::ManifestProject,
    gitops::{AwaitedObject, ObjectCounts, ObjectId, ProjectState},
};

use serde_json::Value;

use super::rules::Rule;
use gitops_engine::{Engine, Outcome, Recovery, SourceFile, SyncError, SyncInput, applyset};

/// The rules that the engine is known to break.
pub(super) const BROKEN: &[Rule] = &[];

/// The input of a pass.
#[derive(Clone)]
pub(super) struct PassInput {
    pub(super) project: String,
    pub(super) settings: ManifestProject,
    pub(super) files: Arc<[SourceFile]>,
    pub(super) approved: Option<String>,
    pub(super) heal: bool,
    pub(super) commit: String,
    /// The time in milliseconds since 1970.
    pub(super) now: u64,
    /// The objects that the last pass of the same commit has waited for.
    pub(super) waiting: Vec<AwaitedObject>,
}

/// The result of a pass.
#[derive(Debug)]
pub(super) struct PassResult {
    pub(super) state: ProjectState,
    pub(super) message: String,
    pub(super) errors: Vec<String>,
    pub(super) held: Option<Held>,
    /// The objects that left Git and stay.
    pub(super) kept: Vec<ObjectId>,
    pub(super) waiting: Vec<AwaitedObject>,
    /// The pass was stopped before its end.
    pub(super) stopped: bool,
}

/// Deletions that wait for an approval.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) code: String,
    pub(super) count: usize,
    /// The objects, each with what its deletion takes with it.
    pub(super) objects: Vec<(ObjectId, String)>,
}

/// The result of a recovery.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) code: String,
    pub(super) done: bool,
}

/// The names of the two ConfigMaps of an inventory.
pub(super) fn inventory_names(project: &str) -> [String; 2] {
    let name = applyset::parent_name(AGENT, project);
    [name.clone(), format!("{name}-members")]
}

pub(super) const AGENT: AgentId = AgentId(7);
/// The annotation of the parent that moves with each version of the inventory.
pub(super) const GENERATION: &str = "agentk/generation";

/// Returns whether the ConfigMap of the record has a record.
pub(super) fn has_record(object: &Value) -> bool {
    object["binaryData"].is_object()
}

pub(super) async fn sync(
    engine: &mut Engine<FakeCluster>,
    input: PassInput,
    fence: &dyn Fence,
) -> PassResult {
    let Outcome { state, message, errors, held, kept, waiting, stopped, .. } =
        engine.sync(&sync_input(input), fence, &|_| {}).await;
    let held = held.map(|held| Held {
        code: held.code,
        count: held.count as usize,
        objects: held.objects.into_iter().map(|held| (held.object, held.takes)).collect(),
    });
    let errors = errors.into_iter().map(|error| match error.object {
        Some(object) => format!("{object}: {}", error.message),
        None => error.message,
    });
    PassResult {
        // For the rules, a commit without objects is one like others.
        state: if state == ProjectState::Empty { ProjectState::Synced } else { state },
        message,
        errors: errors.collect(),
        held,
        kept: kept.into_iter().filter_map(|kept| kept.object).collect(),
        waiting,
        stopped: stopped.is_some(),
    }
}

/// Makes the inventory anew: a plan without a code, and the inventory with the code of the plan.
pub(super) async fn recover(
    engine: &mut Engine<FakeCluster>,
    input: PassInput,
    code: Option<&str>,
    fence: &dyn Fence,
) -> Result<Recovered, SyncError> {
    Ok(match engine.recover(&sync_input(input), code, fence).await? {
        Recovery::Planned(plan) => Recovered { code: plan.code, done: false },
        Recovery::Done { .. } => Recovered { code: String::new(), done: true },
    })
}

fn sync_input(input: PassInput) -> SyncInput {
    let PassInput { project, settings, files, approved, heal, commit, now, waiting } = input;
    SyncInput {
        agent: AGENT,
        project,
        settings,
        commit,
        files,
        approved,
        heal,
        gitlab_project: None,
        waiting,
        earlier: ObjectCounts::default(),
        now,
    }
}
