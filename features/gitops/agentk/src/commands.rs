//! The conditions of the commands of callers about a project.

use agentk_core::services::{ServiceError, response::bad_request};
use proto::{
    agent_configuration::gitops::{DryRunStrategy, ManifestProject},
    gitops::{ProjectState, ProjectStatus},
};

use super::recovery::PLAN;

/// Returns the code of the deletions that a caller approves, if they are those that wait.
pub(super) fn approval(status: &ProjectStatus, query: Option<&str>) -> Result<String, ServiceError> {
    let ProjectStatus { project, state, held, .. } = status;
    let is_tried = |settings: &ManifestProject| settings.dry_run_strategy != DryRunStrategy::None;
    if status.settings.as_deref().is_some_and(is_tried) {
        return Err(bad_request(&format!(
            "{project} is a dry run (dry_run_strategy), which deletes nothing"
        )));
    }
    let Some(held) = held else {
        let state = state.as_str();
        return Err(bad_request(&format!(
            "nothing of {project} waits for an approval: its state is {state}"
        )));
    };
    match query.and_then(|query| query.strip_prefix("code=")) {
        Some(code) if code == held.code => Ok(held.code.clone()),
        Some(_) => Err(bad_request(&format!(
            "this is not the code of the deletions of {project} that wait now, which may be other objects: look at them with kas gitops show"
        ))),
        None => Err(bad_request("an approval needs ?code=<code>, which kas gitops show prints")),
    }
}

/// Returns the value of the command to make an inventory anew: the code of a plan that the caller has seen, or the wish for a plan.
pub(super) fn recovery(status: &ProjectStatus, query: Option<&str>) -> Result<String, ServiceError> {
    let ProjectStatus { project, state, recovery, .. } = status;
    if *state != ProjectState::InventoryLost {
        return Err(bad_request(&format!(
            "the inventory of {project} is not lost: its state is {}",
            state.as_str()
        )));
    }
    match query.and_then(|query| query.strip_prefix("code=")) {
        None => Ok(PLAN.to_owned()),
        Some(code) if recovery.as_ref().is_some_and(|plan| plan.code == code) => Ok(code.to_owned()),
        Some(_) => Err(bad_request(&format!(
            "the inventory of {project} would be another one now: look at it with kas gitops recover, and approve it again"
        ))),
    }
}

/// Only the objects of a project that nobody wants any more are deleted without a commit.
pub(super) fn check_orphaned(status: &ProjectStatus) -> Result<(), ServiceError> {
    let ProjectStatus { project, state, message, .. } = status;
    match state {
        ProjectState::Orphaned => Ok(()),
        ProjectState::InventoryLost => Err(bad_request(&format!(
            "the inventory of {project} was lost, so that nothing can be pruned: {message}"
        ))),
        state => Err(bad_request(&format!(
            "only a project that left the configuration can be pruned, and the state of {project} is {}: remove it from \
             gitops.manifest_projects first",
            state.as_str()
        ))),
    }
}
