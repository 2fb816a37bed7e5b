//! The inventory of a project as each pod of agentk and `kubectl` can read it: the status, and the commands about the project.

use std::{collections::BTreeMap, time::Duration};

use gitops_engine::{
    applyset::{ApplySet, PROJECT},
    inventory::{COMPONENT, Inventory},
};
use kube_cluster::{ApiError, ApplyOptions, Cluster as _, Kind};
use proto::{
    AgentId,
    gitops::{ObjectId, ProjectState, ProjectStatus},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Gitops, project::Project};

/// The attempts to change an inventory that others change, too.
const ATTEMPTS: u32 = 8;
/// The pause between two of them.
const CONFLICT_PAUSE: Duration = Duration::from_millis(50);
/// The field manager of statuses.
const STATUS_MANAGER: &str = "agentk-status";
/// The field manager of commands.
const COMMAND_MANAGER: &str = "agentk-commands";
/// The annotation of a suspended project.
pub(super) const SUSPENDED: &str = "agentk/suspended";
/// The annotation with the code of the deletions that are approved.
pub(super) const APPROVED: &str = "agentk/approved";
/// The annotation with the time at which somebody asked for a sync, in milliseconds since 1970.
pub(super) const REQUESTED: &str = "agentk/requested";
/// The annotation of a project whose inventory was lost: the wish for a plan, or the code of one.
pub(super) const RECOVER: &str = "agentk/recover";
/// The annotation of an orphaned project whose objects shall go.
pub(super) const PRUNE: &str = "agentk/prune";
/// The message of a project of whose inventory only the record of the members is left. Without its settings, agentk does not know as whom it
/// may delete.
const LOST: &str = "a part of the inventory is gone, and the settings of the project with it; its objects stay: list the project in \
                    gitops.manifest_projects again, and then kas gitops recover";
/// The message of a project whose status is not that of an agentk.
const UNREADABLE: &str = "the status of the project cannot be read, and its settings are in it; its objects stay: list the project in \
                          gitops.manifest_projects again";

/// The commands about a project, which are annotations of its inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    pub(super) suspended: bool,
    pub(super) approved: Option<String>,
    pub(super) recover: Option<String>,
    /// The objects of the project shall go, if it is not in the configuration.
    pub(super) prunes: bool,
    /// The time of the last command. It differs from that in the status until a sync has answered it, also by another process.
    pub(super) requested: String,
}

impl Commands {
    /// Reads the annotations of an inventory.
    fn read(inventory: &Value) -> Self {
        let annotation = |key: &str| inventory["metadata"]["annotations"][key].as_str();
        Self {
            suspended: annotation(SUSPENDED) == Some("true"),
            approved: annotation(APPROVED).filter(|code| !code.is_empty()).map(str::to_owned),
            recover: annotation(RECOVER).filter(|wish| !wish.is_empty()).map(str::to_owned),
            prunes: annotation(PRUNE) == Some("true"),
            requested: annotation(REQUESTED).unwrap_or_default().to_owned(),
        }
    }
}

/// Changes the status, and writes it if that changed anything.
pub(super) async fn publish(
    gitops: &Gitops,
    agent: AgentId,
    project: &Project,
    change: impl FnOnce(&mut ProjectStatus),
) {
    if let Some(status) = project.update(change) {
        write_status(gitops, agent, &status).await;
    }
}

/// Writes a status into the inventory of its project, where each pod of agentk and `kubectl` can read it.
/// kas learns of it if the state has changed.
pub(super) async fn write_status(gitops: &Gitops, agent: AgentId, status: &ProjectStatus) {
    if let Some(project) = gitops.find_project(&status.project) {
        project.settle(status).into_iter().for_each(|event| gitops.log.emit(event));
    }
    // Each attempt writes the newest status: a slow one must not replace a later one.
    let newest =
        || gitops.find_project(&status.project).map_or_else(|| status.clone(), |project| project.status());
    let fields = |_: &Value| {
        let text = serde_json::to_string(&newest()).expect("a status has keys that are text");
        json!({
            "metadata": {
                "labels": {"app.kubernetes.io/managed-by": "agentk"},
                "annotations": {PROJECT: status.project},
            },
            "data": {"status": text},
        })
    };
    let writing = change_inventory(gitops, agent, &status.project, STATUS_MANAGER, fields);
    if let Err(error) = gitops.leader.while_leading(writing).await {
        tracing::warn!(project = status.project, %error, "the status of a project cannot be written");
    }
}

/// Changes the annotations that are the commands about a project.
pub(super) async fn change_commands(
    gitops: &Gitops,
    agent: AgentId,
    project: &str,
    change: impl Fn(&mut BTreeMap<&'static str, String>) + Send + Sync,
) -> Result<(), ApiError> {
    let fields = |current: &Value| {
        let annotation =
            |key: &str| current["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        let mut commands = BTreeMap::from(
            [SUSPENDED, APPROVED, RECOVER, REQUESTED, PRUNE].map(|key| (key, annotation(key))),
        );
        change(&mut commands);
        json!({"metadata": {"annotations": commands}})
    };
    change_inventory(gitops, agent, project, COMMAND_MANAGER, fields).await
}

/// Changes fields of an inventory, if it is still as it was read. Two changes at the same time both take place, and one that a former
/// leader has sent does not arrive after those of the next one.
async fn change_inventory(
    gitops: &Gitops,
    agent: AgentId,
    project: &str,
    manager: &'static str,
    fields: impl Fn(&Value) -> Value + Send + Sync,
) -> Result<(), ApiError> {
    let try_change = async || {
        let current = read_inventory(gitops, agent, project).await?;
        let mut object = fields(&current);
        object["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
        apply_inventory(gitops, agent, project, object, manager).await
    };
    for _ in 1..ATTEMPTS {
        match try_change().await {
            // Another writer has changed it since then.
            Err(error) if error.status == 409 => {
                sleep(CONFLICT_PAUSE.mul_f64(rand::random_range(0.5..1.5))).await
            }
            result => return result,
        }
    }
    try_change().await
}

/// Returns the inventory of a project, which is null if it does not exist.
pub(super) async fn read_inventory(
    gitops: &Gitops,
    agent: AgentId,
    project: &str,
) -> Result<Value, ApiError> {
    let (kind, id) = inventory(gitops, agent, project);
    gitops.leader.own_cluster().get(&kind, &id).await.map(Option::unwrap_or_default)
}

/// Returns the statuses of all projects and the commands about them, as their inventories have them.
pub(super) async fn statuses(
    gitops: &Gitops,
    agent: AgentId,
) -> Result<Vec<(ProjectStatus, Commands)>, ApiError> {
    let (kind, _) = inventory(gitops, agent, "");
    let (cluster, namespace) = (gitops.leader.own_cluster(), gitops.leader.namespace());
    let of_members = |operator: &str| {
        format!("app.kubernetes.io/managed-by=agentk,app.kubernetes.io/component{operator}{COMPONENT}")
    };
    let (parents, records) = (of_members("!="), of_members("="));
    let (parents, records) = tokio::try_join!(
        cluster.list(&kind, namespace, &parents, false),
        cluster.list(&kind, namespace, &records, true),
    )?;
    let prefix = format!("gitops-{agent}-");
    let is_ours =
        |found: &&Value| found["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&prefix));
    let ours = parents.iter().filter(is_ours);
    let mut statuses: Vec<_> =
        ours.filter_map(|found| Some((stored_status(found)?, Commands::read(found)))).collect();
    for record in records.iter().filter(is_ours) {
        let Some(project) = record["metadata"]["annotations"][PROJECT].as_str() else { continue };
        let is_listed = statuses.iter().any(|(status, _)| status.project == project);
        if !is_listed && has_members(gitops, agent, project).await? {
            let status = ProjectStatus {
                project: project.to_owned(),
                state: ProjectState::InventoryLost,
                message: LOST.to_owned(),
                ..ProjectStatus::default()
            };
            statuses.push((status, Commands::default()));
        }
    }
    Ok(statuses)
}

/// Returns whether the record of a project has members, or cannot be read. A process that has pruned a project may have ended before it
/// deleted the empty record.
async fn has_members(gitops: &Gitops, agent: AgentId, project: &str) -> Result<bool, ApiError> {
    let (kind, id) = ApplySet::new(agent, project, gitops.leader.namespace()).record_id();
    let Some(record) = gitops.leader.own_cluster().get(&kind, &id).await? else { return Ok(false) };
    Ok(Inventory::from_object(&record).map_or(true, |inventory| !inventory.members.is_empty()))
}

/// Returns the status that an inventory has. agentk may have ended before it wrote one, or another version has written it: the project
/// exists all the same.
fn stored_status(inventory: &Value) -> Option<ProjectStatus> {
    let text = inventory["data"]["status"].as_str();
    let stored = text.and_then(|text| serde_json::from_str(text).ok());
    stored.or_else(|| {
        let project = inventory["metadata"]["annotations"][PROJECT].as_str()?.to_owned();
        let (state, message) = match text {
            Some(_) => (ProjectState::InventoryLost, UNREADABLE),
            None => (ProjectState::default(), ""),
        };
        Some(ProjectStatus { project, state, message: message.to_owned(), ..ProjectStatus::default() })
    })
}

/// Returns the commands about a project.
pub(super) async fn commands(gitops: &Gitops, agent: AgentId, project: &str) -> Result<Commands, ApiError> {
    read_inventory(gitops, agent, project).await.map(|found| Commands::read(&found))
}

async fn apply_inventory(
    gitops: &Gitops,
    agent: AgentId,
    project: &str,
    mut object: Value,
    manager: &'static str,
) -> Result<(), ApiError> {
    let (kind, id) = inventory(gitops, agent, project);
    object["apiVersion"] = "v1".into();
    object["kind"] = "ConfigMap".into();
    object["metadata"]["name"] = id.name.clone().into();
    object["metadata"]["namespace"] = id.namespace.clone().into();
    let options = ApplyOptions { manager, dry_run: false, force: true };
    gitops.leader.own_cluster().apply(&kind, &id, &object, options).await.map(drop)
}

/// Returns the kind and the id of the inventory of a project.
pub(super) fn inventory(gitops: &Gitops, agent: AgentId, project: &str) -> (Kind, ObjectId) {
    ApplySet::new(agent, project, gitops.leader.namespace()).parent_id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_without_a_stored_status_is_a_project() {
        let inventory =
            |data: Value| json!({"metadata": {"annotations": {PROJECT: "group/shop"}}, "data": data});
        let state = |data: Value| {
            let status = stored_status(&inventory(data)).unwrap();
            assert_eq!(status.project, "group/shop");
            status.state
        };
        assert_eq!([Value::Null, json!({})].map(state), [ProjectState::Pending; 2]);
        let unreadable = [json!({"status": ""}), json!({"status": "{\"state\": \"new\"}"})];
        assert_eq!(unreadable.map(state), [ProjectState::InventoryLost; 2], "nobody knows as whom to delete");
        let stored = ProjectStatus { project: "group/shop".to_owned(), ..ProjectStatus::default() };
        let text = serde_json::to_string(&ProjectStatus { state: ProjectState::Held, ..stored }).unwrap();
        assert_eq!(stored_status(&inventory(json!({"status": text}))).unwrap().state, ProjectState::Held);
        assert!(
            stored_status(&json!({"metadata": {"name": "gitops-7-other"}})).is_none(),
            "it is no inventory"
        );
    }
}
