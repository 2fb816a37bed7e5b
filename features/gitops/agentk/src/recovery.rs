//! Makes an inventory anew that was lost: first the plan, then, with its code, the inventory.

use std::collections::BTreeMap;

use gitops_engine::{Engine, Recovery, SyncInput};
use kube_cluster::KubeCluster;
use proto::{AgentId, gitops::ProjectState};

use super::{
    Gitops,
    project::Project,
    stored::{RECOVER, SUSPENDED, change_commands, publish},
};

/// The value of the command that asks for a plan.
pub(super) const PLAN: &str = "plan";

/// Answers the command to make an inventory anew. Returns whether it was made.
pub(super) async fn recover(
    gitops: &Gitops,
    agent: AgentId,
    project: &Project,
    engine: &mut Engine<KubeCluster>,
    input: &SyncInput,
    (wish, requested): (&str, &str),
) -> bool {
    let code = (wish != PLAN).then_some(wish);
    // A project that is suspended is recovered, too.
    let recovered = engine.recover(input, code, &*gitops.leader).await;
    let mut suspends = false;
    let (message, plan) = match &recovered {
        Ok(Recovery::Planned(plan)) if code.is_some() => (
            "the objects of the project have changed, and the inventory would be another one now: kas gitops recover".to_owned(),
            Some(plan.clone()),
        ),
        Ok(Recovery::Planned(plan)) => (
            "the inventory was lost, and would be made anew as Recovers says: kas gitops recover --code".to_owned(),
            Some(plan.clone()),
        ),
        Ok(Recovery::Done { suspended }) => {
            // A project that was suspended before, or may have been, does not go on by itself.
            suspends = suspended.unwrap_or(true);
            ("the inventory was made anew".to_owned(), None)
        }
        Err(error) => (format!("the inventory cannot be made anew: {error}"), None),
    };
    let done = matches!(recovered, Ok(Recovery::Done { .. }));
    if done {
        tracing::info!(project = project.id, "inventory made anew");
    }
    let change = |commands: &mut BTreeMap<&'static str, String>| {
        if let Some(value) = commands.get_mut(RECOVER).filter(|value| **value == wish) {
            value.clear();
        }
        if suspends {
            commands.insert(SUSPENDED, "true".to_owned());
        }
    };
    let changed = gitops.leader.while_leading(change_commands(gitops, agent, &project.id, change)).await;
    if let Err(error) = changed {
        tracing::warn!(project = project.id, %error, "the command to make an inventory anew stays");
    }
    publish(gitops, agent, project, |status| {
        status.state = match done {
            false => ProjectState::InventoryLost,
            true if suspends => ProjectState::Suspended,
            true => ProjectState::Syncing,
        };
        (status.message, status.recovery) = (message, plan);
        requested.clone_into(&mut status.answered);
    })
    .await;
    done
}
