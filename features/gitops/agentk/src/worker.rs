//! The worker of one project: applies each commit, looks for drift, and writes the status.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use gitops_engine::{Engine, Outcome, SyncInput, applyset::ApplySet};
use kube_cluster::{Cluster as _, Fence, KubeCluster, Stopped};
use parking_lot::Mutex;
use proto::{
    AgentId,
    agent_configuration::gitops::{DryRunStrategy, PropagationPolicy},
    audit::SyncOrigin,
    gitops::{AwaitedObject, ObjectError, ObjectId, ProjectState, ProjectStatus, SyncEvent, SyncEventKind},
    graph::HealthState,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Gitops,
    events::{self, Notice, Notices},
    now_millis,
    project::{Project, Wanted},
    recovery,
    schedule::{Action, Progress, Schedule},
    settled,
    stored::{
        APPROVED, Commands, PRUNE, change_commands, commands, inventory, publish, read_inventory,
        write_status,
    },
};

/// The most errors of objects without health that a status has.
const MAX_UNHEALTHY: usize = 10;

/// The most objects that an event about reverted changes names.
const MAX_DRIFTED: usize = 3;

/// Stops a sync when this pod does not lead any more, or when there is a newer commit.
struct WorkerFence<'a> {
    gitops: &'a Gitops,
    project: &'a Project,
    number: u64,
}

impl Fence for WorkerFence<'_> {
    fn check(&self) -> Result<Instant, Stopped> {
        let until = self.gitops.leader.check()?;
        if self.project.is_suspended() {
            return Err(Stopped::Suspended);
        }
        if self.project.is_newest(self.number) { Ok(until) } else { Err(Stopped::Superseded) }
    }
}

/// The engine that syncs a project as one user of the cluster, with its notices.
struct Syncer {
    /// The service account of the project, if it has one.
    user: Option<String>,
    engine: Engine<KubeCluster>,
    notices: Notices,
    /// The inventory says whether the project is suspended.
    suspended: Option<bool>,
}

/// Works on a project for as long as agentk runs.
pub(super) async fn run(gitops: Arc<Gitops>, project: Arc<Project>) {
    let mut leadership = gitops.leader.subscribe();
    let mut syncer: Option<Syncer> = None;
    let mut schedule = Schedule::new(Instant::now());
    let mut progress = Progress::default();
    loop {
        let wanted = project.wanted().filter(|_| gitops.leader.is_leading());
        let Some((wanted, agent)) = wanted.zip(gitops.leader.agent()) else {
            // Another process may write meanwhile, so that nothing is known about the objects.
            (syncer, progress) = (None, Progress::default());
            tokio::select! {
                () = project.wake.notified() => {}
                _ = leadership.changed() => {}
            }
            continue;
        };
        let is_new = progress.is_new(wanted.number);
        let changes = project.take_changes();
        let drifted = syncer.as_ref().is_some_and(|Syncer { engine, .. }| {
            let now = now_millis();
            changes
                .iter()
                .any(|(id, fingerprint)| !engine.is_as_applied(id, *fingerprint) && !engine.waits(id, now))
        });
        if drifted {
            schedule.note_drift(Instant::now());
        }
        let requested = project.take_request();
        if !is_new && !requested && Instant::now() < schedule.next {
            if let Some(Syncer { engine, .. }) =
                syncer.as_ref().filter(|_| schedule.looks_at_awaited(Instant::now()))
            {
                let ready = engine.is_ready().await;
                schedule.note_awaited(Instant::now(), ready);
                continue;
            }
            if let Some(Syncer { engine, .. }) =
                syncer.as_ref().filter(|_| schedule.looks_at_health(Instant::now()))
            {
                let starting = watch_health(&gitops, agent, &project, &wanted, engine).await;
                schedule.note_health(Instant::now(), starting);
                continue;
            }
            tokio::select! {
                () = project.wake.notified() => {}
                () = sleep_until(schedule.wake()) => {}
                _ = leadership.changed() => {}
            }
            continue;
        }

        if is_new {
            schedule = Schedule::new(Instant::now());
            let ProjectStatus { revision, working, waiting, .. } = project.status();
            let is_same = working.is_some_and(|working| working == wanted.head.commit);
            let waiting = if is_same { waiting } else { Vec::new() };
            progress.begin(wanted.number, !wanted.prunes && revision == wanted.revision, waiting);
        }
        let user = wanted.settings().service_account().map(|(namespace, name)| format!("{namespace}/{name}"));
        let syncer = match &mut syncer {
            Some(syncer) if syncer.user == user => syncer,
            syncer => syncer.insert(Syncer {
                user,
                engine: new_engine(&gitops, &wanted),
                notices: Notices::default(),
                suspended: None,
            }),
        };
        let commands = match commands(&gitops, agent, &project.id).await {
            Ok(commands) => commands,
            Err(error) => {
                tracing::warn!(project = project.id, %error, "the inventory of a project cannot be read");
                schedule.note_failure(Instant::now());
                continue;
            }
        };
        let fence = WorkerFence { gitops: &gitops, project: &project, number: wanted.number };
        let input = sync_input(agent, &project, &wanted, &commands, &progress);
        if let Some(wish) = &commands.recover {
            let (engine, command) = (&mut syncer.engine, (&**wish, &*commands.requested));
            if recovery::recover(&gitops, agent, &project, engine, &input, command).await {
                progress.note_command();
            } else {
                schedule.note_failure(Instant::now());
            }
            continue;
        }
        if syncer.suspended != Some(commands.suspended) {
            match syncer.engine.note_suspension(&input, commands.suspended, &*gitops.leader).await {
                Ok(()) => syncer.suspended = Some(commands.suspended),
                Err(error) => {
                    tracing::warn!(
                        project = project.id,
                        %error,
                        "the suspension of a project is not recorded"
                    );
                }
            }
        }
        if commands.suspended || wanted.settings().suspend {
            let why = if commands.suspended {
                "kas gitops suspend has suspended the project"
            } else {
                "the configuration has suspended the project"
            };
            publish(&gitops, agent, &project, |status| {
                (status.state, status.message) = (ProjectState::Suspended, why.to_owned());
            })
            .await;
            progress.note_command();
            schedule.note_suspension(Instant::now());
            continue;
        }

        let status = project.status();
        if status.answered != commands.requested {
            progress.note_command();
        }
        let action = progress.action(wanted.settings().self_heal, status.held.is_some());
        if action != Action::Wait {
            let heal = action == Action::Write;
            let began = Instant::now();
            let input = SyncInput { heal, ..input };
            let outcome = sync(&gitops, agent, &project, &wanted, syncer, &input, &commands, is_new).await;
            gitops.watch_kinds(syncer.engine.objects().iter().map(|(_, kind)| kind));
            progress.note_outcome(&outcome);
            if project.wanted().is_some() {
                gitops.metrics.record(&project.id, &outcome, began.elapsed());
            }
            let reverted = outcome.reverted > 0;
            if outcome.stopped.is_some()
                || [ProjectState::Failed, ProjectState::InventoryLost].contains(&outcome.state)
            {
                schedule.note_failure(Instant::now())
            } else {
                schedule.note_success(Instant::now(), reverted)
            }
            if let Some(wait) = syncer.engine.next_revert(now_millis()) {
                schedule.note_drift(Instant::now() + Duration::from_millis(wait));
            }
            schedule.note_waiting(Instant::now(), !outcome.waiting.is_empty());
            if wanted.prunes && [ProjectState::Synced, ProjectState::Empty].contains(&outcome.state) {
                if let Err(error) = end_prune(&gitops, agent, &fence, &outcome).await {
                    tracing::warn!(project = project.id, error, "the inventory of a pruned project stays");
                    progress.note_command();
                    schedule.note_failure(Instant::now());
                }
                continue;
            }
            if let Some(approved) = commands.approved.filter(|code| is_over(code, &outcome)) {
                // An approval is for once. Another one may have arrived meanwhile.
                let clear = |commands: &mut BTreeMap<&'static str, String>| {
                    commands
                        .get_mut(APPROVED)
                        .filter(|code| **code == approved)
                        .into_iter()
                        .for_each(String::clear);
                };
                let cleared =
                    gitops.leader.while_leading(change_commands(&gitops, agent, &project.id, clear)).await;
                if let Err(error) = cleared {
                    tracing::warn!(project = project.id, %error, "an approval cannot be removed");
                }
            }
        } else {
            schedule.note_success(Instant::now(), false);
        }
        let starting = watch_health(&gitops, agent, &project, &wanted, &syncer.engine).await;
        schedule.note_health(Instant::now(), starting);
    }
}

/// Returns whether the deletions with a code were approved and recorded, or do not wait any more.
fn is_over(approved: &str, outcome: &Outcome) -> bool {
    use ProjectState::{Failed, InventoryLost};

    let is_planned = outcome.stopped.is_none() && ![Failed, InventoryLost].contains(&outcome.state);
    is_planned && outcome.held.as_ref().is_none_or(|held| held.code != approved)
}

/// Returns the input of the next pass.
fn sync_input(
    agent: AgentId,
    project: &Project,
    wanted: &Wanted,
    commands: &Commands,
    progress: &Progress,
) -> SyncInput {
    SyncInput {
        agent,
        project: project.id.clone(),
        settings: wanted.settings().clone(),
        commit: wanted.head.commit.id.clone(),
        files: Arc::clone(&wanted.files),
        approved: commands.approved.clone(),
        heal: true,
        gitlab_project: wanted.head.gitlab_project,
        waiting: progress.waiting.clone(),
        earlier: progress.earlier,
        now: now_millis(),
    }
}

fn new_engine(gitops: &Gitops, wanted: &Wanted) -> Engine<KubeCluster> {
    Engine::new(
        project_cluster(gitops, wanted),
        gitops.leader.own_cluster().clone(),
        gitops.leader.namespace(),
    )
    .with_health_rules(gitops.health_rules.clone())
}

/// Returns the cluster with the identity of a project.
pub(super) fn project_cluster(gitops: &Gitops, wanted: &Wanted) -> KubeCluster {
    match wanted.settings().service_account() {
        Some((namespace, name)) => gitops.cluster.acting_as(namespace, name),
        None => gitops.cluster.clone(),
    }
}

#[expect(clippy::too_many_arguments, reason = "they are the parts of a worker")]
async fn sync(
    gitops: &Gitops,
    agent: AgentId,
    project: &Project,
    wanted: &Wanted,
    Syncer { engine, notices, .. }: &mut Syncer,
    input: &SyncInput,
    commands: &Commands,
    is_new: bool,
) -> Outcome {
    let heal = input.heal;
    let commit = &wanted.head.commit.id;
    if is_new {
        publish(gitops, agent, project, |status| {
            status.state = ProjectState::Syncing;
            if wanted.prunes {
                status.message = "all objects of the project shall be deleted".to_owned();
                return;
            }
            status.message = format!("commit {} is being applied", commit.get(..12).unwrap_or(commit));
            if heal {
                // Until it is complete, no process may take it for applied.
                status.revision.clear();
                status.working = Some(wanted.head.commit.clone());
            }
            status.settings = Some(Box::new(wanted.settings().clone()));
        })
        .await;
    }
    if commands.approved.is_some() && project.status().held.is_some() {
        publish(gitops, agent, project, |status| {
            let Some(held) = status.held.take_if(|held| commands.approved.as_ref() == Some(&held.code))
            else {
                return;
            };
            status.state = ProjectState::Syncing;
            status.message = format!("approved: {} objects that left Git are being deleted", held.count);
        })
        .await;
    }
    let fence = WorkerFence { gitops, project, number: wanted.number };
    let (noted, drifted) = (&*notices, Mutex::new(Vec::new()));
    let (first_error, mut shown) = watch::channel(None);
    let events = |event: SyncEvent| {
        log(&project.id, &event);
        if let (SyncEventKind::Waiting, Some(error)) = (event.event, &event.error) {
            first_error.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert_with(|| error.clone());
                is_first
            });
        }
        noted.note(&event);
        if let (SyncEventKind::Drifted, Some(object)) = (event.event, &event.object) {
            let mut drifted = drifted.lock();
            if drifted.len() < MAX_DRIFTED {
                drifted.push(object.to_string());
            }
        }
        // Fails if nobody listens.
        let _ = project.events.send((wanted.number, event));
    };
    let (started, state) = (Instant::now(), project.status().state);
    let origin = SyncOrigin { project: project.id.clone(), commit: commit.clone() };
    let user_agent = origin.user_agent(env!("CARGO_PKG_VERSION"));
    engine.set_cluster(project_cluster(gitops, wanted).with_user_agent(&user_agent));
    let show_error = async {
        if let Ok(error) = shown.wait_for(Option::is_some).await.map(|error| error.clone()) {
            publish(gitops, agent, project, |status| status.errors = error.into_iter().collect()).await;
        }
        std::future::pending::<Infallible>().await
    };
    // The status after the sync replaces the one that `show_error` has begun to write.
    let mut outcome = tokio::select! {
        outcome = engine.sync(input, &fence, &events) => outcome,
        never = show_error => match never {},
    };
    if let Some(held) = outcome.held.as_mut().filter(|_| wanted.prunes) {
        held.reason = format!(
            "the project left the configuration, and {} of its objects would be deleted: approve it with kas gitops approve",
            held.count
        );
        outcome.message.clone_from(&held.reason);
    }
    if let Some(status) = project.record(wanted, &outcome, started.elapsed(), &commands.requested, heal) {
        write_status(gitops, agent, &status).await;
        if status.state != state {
            events::write_for_project(gitops, agent, &status).await;
        }
    }
    if outcome.reverted > 0 {
        let objects = drifted.into_inner();
        gitops.log.emit(settled::reverted(&project.status(), &objects, outcome.reverted));
    }
    events::write_for_objects(gitops, wanted, notices.take()).await;
    let objects = outcome.objects;
    if is_new || objects.applied + objects.pruned > 0 {
        let seconds = started.elapsed().as_secs_f64();
        let (state, message) = (outcome.state.as_str(), &outcome.message);
        tracing::info!(project = project.id, commit, state, message, seconds, "project synced");
    }
    outcome
}

/// Ends that a project is pruned: its inventory goes, or it stays orphaned because guards have kept objects.
async fn end_prune(
    gitops: &Gitops,
    agent: AgentId,
    fence: &WorkerFence<'_>,
    outcome: &Outcome,
) -> Result<(), String> {
    let project = fence.project;
    if outcome.objects.kept > 0 || !outcome.errors.is_empty() {
        let clear = |commands: &mut BTreeMap<_, _>| {
            commands.extend([(PRUNE, String::new()), (APPROVED, String::new())]);
        };
        let cleared = gitops.leader.while_leading(change_commands(gitops, agent, &project.id, clear)).await;
        cleared.map_err(|error| error.to_string())?;
        let message = format!(
            "the project left the configuration; {} of its objects were deleted, and others stay",
            outcome.objects.pruned
        );
        if let Some(status) = project.end_prune(&message) {
            write_status(gitops, agent, &status).await;
        }
        gitops.metrics.forget(&project.id);
        return Ok(());
    }
    let found = read_inventory(gitops, agent, &project.id).await.map_err(|error| error.to_string())?;
    // A new listing of the project, or a command about it, changes the inventory.
    fence.check().map_err(|stopped| stopped.to_string())?;
    let text = |key: &str| found["metadata"][key].as_str();
    let own = gitops.leader.own_cluster();
    if let Some(uid) = text("uid") {
        let (kind, id) = inventory(gitops, agent, &project.id);
        let version = text("resourceVersion");
        let deleting = own.delete(&kind, &id, uid, version, PropagationPolicy::Background);
        gitops.leader.while_leading(deleting).await.map_err(|error| error.to_string())?;
    }
    // Alone, the record is one of a project without objects.
    let (kind, id) = ApplySet::new(agent, &project.id, gitops.leader.namespace()).record_id();
    let record = own.get(&kind, &id).await.map_err(|error| error.to_string())?;
    if let Some(uid) = record.as_ref().and_then(|record| record["metadata"]["uid"].as_str()) {
        let deleting = own.delete(&kind, &id, uid, None, PropagationPolicy::Background);
        gitops.leader.while_leading(deleting).await.map_err(|error| error.to_string())?;
    }
    tracing::info!(project = project.id, deleted = outcome.objects.pruned, "project pruned");
    project.end();
    gitops.metrics.forget(&project.id);
    Ok(())
}

/// Looks at the health of the objects. Returns whether some are still starting.
async fn watch_health(
    gitops: &Gitops,
    agent: AgentId,
    project: &Project,
    wanted: &Wanted,
    engine: &Engine<KubeCluster>,
) -> bool {
    let applied = [ProjectState::Synced, ProjectState::Degraded].contains(&project.synced_state());
    if !applied || wanted.settings().dry_run_strategy != DryRunStrategy::None {
        return false;
    }
    let health = match engine.health().await {
        Ok(health) => health,
        Err(error) => {
            tracing::debug!(project = project.id, %error, "the health of objects cannot be read");
            return false;
        }
    };
    let of = |wanted: HealthState| health.iter().filter(move |(_, found)| found.health == wanted);
    let count = |wanted: HealthState| u32::try_from(of(wanted).count()).unwrap_or(u32::MAX);
    let (degraded, progressing) = (count(HealthState::Degraded), count(HealthState::Progressing));
    let errors: Vec<ObjectError> = of(HealthState::Degraded)
        .take(MAX_UNHEALTHY)
        .map(|(id, found)| ObjectError {
            object: Some(id.clone()),
            file: String::new(),
            message: found.reason.clone(),
        })
        .collect();
    let before = project.status().state;
    let reasons = of(HealthState::Degraded).take(MAX_UNHEALTHY).map(|(id, found)| Notice {
        object: id.clone(),
        reason: "Degraded",
        is_warning: true,
        message: found.reason.clone(),
    });
    let notices: Vec<_> = reasons.collect();
    publish(gitops, agent, project, |status| {
        status.state = if degraded > 0 { ProjectState::Degraded } else { ProjectState::Synced };
        (status.objects.degraded, status.objects.progressing) = (degraded, progressing);
        let now = now_millis();
        let begun = |object: &ObjectId| status.starting.iter().find(|starting| starting.object == *object);
        let starting =
            of(HealthState::Progressing).take(MAX_UNHEALTHY).map(|(object, found)| AwaitedObject {
                object: object.clone(),
                reason: found.reason.clone(),
                since: begun(object).map_or(now, |starting| starting.since),
            });
        status.starting = starting.collect();
        // Those about the whole project stay.
        status.errors.retain(|error| error.object.is_none());
        status.errors.extend(errors);
    })
    .await;
    let now = project.status();
    if now.state != before {
        events::write_for_project(gitops, agent, &now).await;
        events::write_for_objects(gitops, wanted, notices).await;
    }
    progressing > 0
}

fn log(project: &str, event: &SyncEvent) {
    let (object, message) = (event.object.as_ref().map(ToString::to_string), &event.message);
    match event.event {
        SyncEventKind::Failed => tracing::warn!(project, object, message, "an object of a project failed"),
        SyncEventKind::Drifted => {
            tracing::info!(project, object, message, "an object of a project was changed")
        }
        SyncEventKind::Pruned | SyncEventKind::Kept => {
            tracing::info!(project, object, event = ?event.event, message, "object of a project");
        }
        // The first sync of a large project has thousands.
        SyncEventKind::Applied => tracing::debug!(project, object, message, "object of a project applied"),
        _ => {}
    }
}
