//! The agent of a kubeconfig: one of the identity file, or one of GitLab, of which the file has the rights of callers alone.

use std::fmt::{self, Display};

use access::{AgentAttributes, Caller, Identity};
use cli::{CliError, CommandResult, warn};
use proto::{AgentId, AgentName, ServiceName};

/// The agent of a kubeconfig.
pub(super) struct ChosenAgent {
    id: AgentId,
    /// The name of the context. That of an agent of GitLab has its id.
    pub(super) name: AgentName,
    is_of_file: bool,
}

impl ChosenAgent {
    /// Finds an agent of the file by its name or its id. With GitLab, another id is that of an agent of GitLab, also with the prefix of
    /// entries.
    pub(super) fn find(identity: &Identity, text: &str, has_gitlab: bool) -> Option<Self> {
        if let Some(id) = identity.find(text) {
            let name = identity.name(id).expect("it was found").clone();
            return Some(Self { id, name, is_of_file: true });
        }
        let id: AgentId = text.strip_prefix("gitlab:").unwrap_or(text).parse().ok()?;
        let is_of_gitlab = has_gitlab && identity.name(id).is_none();
        is_of_gitlab.then(|| Self { id, name: AgentName::of_id(id), is_of_file: false })
    }

    /// Checks that a caller may use a service of the agent. The name and the project of an agent of GitLab are not known here.
    pub(super) fn check_caller(&self, caller: &Caller, service: &ServiceName) -> CommandResult {
        let name = caller.name();
        let attributes = AgentAttributes { id: self.id, name: None, project_path: None };
        let is_named = match self.is_of_file {
            true => caller.may_use(self.id),
            false => caller.may_use_agent_of_gitlab(attributes),
        };
        if !is_named && (self.is_of_file || !caller.may_use_agents_of_gitlab()) {
            return Err(CliError::forbidden(format!("caller {name} may not use the agent {self}")));
        }
        if !caller.may_use_service(service) {
            return Err(CliError::forbidden(format!("caller {name} may not use the service {service}")));
        }
        if !is_named {
            warn(&format!(
                "the entry of caller {name} names agents of GitLab by projects or groups: kas finds out whether {self} is one of them \
                 when it is connected"
            ));
        }
        Ok(())
    }

    /// Checks that a caller of an issuer may use a service of the agent.
    pub(super) fn check_issuer(
        &self,
        identity: &Identity,
        issuer: &str,
        service: &ServiceName,
    ) -> CommandResult {
        let is_allowed = match self.is_of_file {
            true => identity.issuer_may_use(issuer, self.id, service),
            false => identity.issuer_may_use_agents_of_gitlab(issuer, service),
        };
        if is_allowed {
            return Ok(());
        }
        let what = format!("no caller with oidc.issuer {issuer} may use the service {service} of {self}");
        Err(CliError::forbidden(what))
    }

    /// Returns what paths of requests have for the agent: names of agents of GitLab are unique in their projects only.
    pub(super) fn in_path(&self) -> &dyn Display {
        if self.is_of_file { &self.name } else { &self.id }
    }
}

impl Display for ChosenAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_of_file {
            true => self.name.fmt(f),
            false => write!(f, "{} of GitLab", self.id),
        }
    }
}
