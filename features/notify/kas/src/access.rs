//! Which agent may receive the events of which project.

use std::{collections::BTreeSet, sync::Arc};

use proto::agent_configuration::notify::{NotifiedProject, Notify};

use super::NotifyFeed;
use gitops_wire::{ProjectAccessError, ProjectReader};
use kas_core::configuration::ConfigurationState;

/// The sections of a configuration about events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventSections {
    /// The projects of the section `notify`.
    pub(super) projects: Arc<[NotifiedProject]>,
    /// The section `flux` exists, and is not switched off.
    pub(super) flux: bool,
    /// The project with the configuration.
    pub(super) own: String,
}

impl EventSections {
    pub(super) fn new(state: &ConfigurationState) -> Self {
        let section = |name| state.configuration().and_then(|configuration| configuration.get(name));
        // The file was validated when it was read.
        let notify: Option<Notify> = section("notify").and_then(|it| serde_json::from_value(it.clone()).ok());
        Self {
            projects: notify.unwrap_or_default().projects.into(),
            flux: section("flux").is_some_and(|section| !section.is_null() && section["enabled"] != false),
            own: state.project().unwrap_or("configuration").to_owned(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.projects.is_empty() && !self.flux
    }
}

impl NotifyFeed {
    /// Returns the agent as a reader of projects. `own` is the project with its configuration.
    pub(super) fn reader<'a>(&'a self, own: &'a str) -> ProjectReader<'a> {
        ProjectReader { agent: self.agent(), token: &self.token, own }
    }

    /// Returns those of the projects whose events the agent may receive, and whether that is known for all of them. The others are
    /// logged. A project of `known` stays while GitLab does not say.
    ///
    /// The operator of kas has chosen the configuration of an agent of the identity file, so that the projects in it are allowed. All
    /// other projects are the claim of agentk, or of whoever may write to a project of GitLab: the agent must be allowed to read them.
    pub(super) async fn allowed(
        &self,
        projects: BTreeSet<String>,
        sections: &EventSections,
        known: &BTreeSet<String>,
    ) -> (BTreeSet<String>, bool) {
        let (mut allowed, mut complete) = (BTreeSet::new(), true);
        let by_operator = self.service.0.projects.is_configured_by_operator(self.agent());
        for project in projects {
            let named = sections.projects.iter().any(|entry| entry.id == project);
            if named && by_operator {
                allowed.insert(project);
                continue;
            }
            match self.service.0.projects.check_access(self.reader(&sections.own), &project).await {
                Ok(()) => drop(allowed.insert(project)),
                Err(ProjectAccessError::Unknown(_)) => {
                    complete = false;
                    if known.contains(&project) {
                        allowed.insert(project);
                    }
                }
                Err(ProjectAccessError::Refused(error)) => {
                    tracing::warn!(agent.name = %self.agent().name, project, error, "events of a project are not sent");
                }
            }
        }
        (allowed, complete)
    }
}
