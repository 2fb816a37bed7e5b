//! The agent of a kubeconfig: one of the identity file, or one of GitLab, of which the file has the rights of callers alone.

use std::fmt::{self, Display};

use access::{AgentAttributes, Caller, Identity};
use cli::{CliError, CommandResult, warn};
use proto::{AgentId, ServiceName};

/// The agent of a kubeconfig.
pub(super) struct ChosenAgent {
    id: AgentId,
    /// The name of the context.
    pub(super) name: String,
    is_of_file: bool,
}

impl ChosenAgent {
    /// Finds an agent of the file by its name or its id. With GitLab, another id is that of an agent of GitLab, also with the prefix of
    /// entries.
    ///
    /// # Errors
    ///
    /// The text has the prefix, and its id is that of an agent of the file.
    pub(super) fn find(identity: &Identity, text: &str, has_gitlab: bool) -> Result<Option<Self>, CliError> {
        if let Some(id) = identity.find(text) {
            let name = identity.name(id).expect("it was found").to_string();
            return Ok(Some(Self { id, name, is_of_file: true }));
        }
        let Ok(id) = text.strip_prefix("gitlab:").unwrap_or(text).parse::<AgentId>() else { return Ok(None) };
        if !has_gitlab {
            return Ok(None);
        }
        match identity.name(id) {
            Some(name) => Err(CliError::usage(format!(
                "{id} is an agent of the identity file, which wins over GitLab: write {name}"
            ))),
            None => Ok(Some(Self { id, name: context_of_gitlab(id), is_of_file: false })),
        }
    }

    /// Checks that a caller may use a service of the agent. The name and the project of an agent of GitLab are not known here.
    pub(super) fn check_caller(&self, caller: &Caller, service: &ServiceName) -> CommandResult {
        let name = caller.name();
        let is_named = if self.is_of_file {
            Some(caller.may_use(self.id))
        } else {
            caller.may_use_agent_of_gitlab_if_known(self.attributes())
        };
        if is_named == Some(false) {
            return Err(CliError::forbidden(format!("caller {name} may not use the agent {self}")));
        }
        if !caller.may_use_service(service) {
            return Err(CliError::forbidden(format!("caller {name} may not use the service {service}")));
        }
        if is_named.is_none() {
            self.warn_of_projects(&format!("the entry of caller {name} names"));
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
        let is_allowed = if self.is_of_file {
            Some(identity.issuer_may_use(issuer, self.id, service))
        } else {
            identity.issuer_may_use_agent_of_gitlab(issuer, self.attributes(), service)
        };
        if is_allowed == Some(false) {
            let what = format!("no caller with oidc.issuer {issuer} may use the service {service} of {self}");
            return Err(CliError::forbidden(what));
        }
        if is_allowed.is_none() {
            self.warn_of_projects(&format!("the entries with oidc.issuer {issuer} name"));
        }
        Ok(())
    }

    /// Returns the attributes of an agent of GitLab as far as they are known here.
    fn attributes(&self) -> AgentAttributes<'static> {
        AgentAttributes { id: self.id, name: None, project_path: None }
    }

    /// Warns that kas decides about an agent of GitLab when it knows its project.
    fn warn_of_projects(&self, entries: &str) {
        warn(&format!(
            "{entries} agents of GitLab by projects or groups: kas finds out whether {self} is one of them when it is connected"
        ));
    }

    /// Returns what paths of requests have for the agent: names of agents of GitLab are unique in their projects only.
    pub(super) fn in_path(&self) -> &dyn Display {
        if self.is_of_file { &self.name } else { &self.id }
    }
}

/// Returns the name of the context for an agent of GitLab.
pub(super) fn context_of_gitlab(id: AgentId) -> String {
    format!("gitlab-{id}")
}

impl Display for ChosenAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_of_file { self.name.fmt(f) } else { write!(f, "{} of GitLab", self.id) }
    }
}
