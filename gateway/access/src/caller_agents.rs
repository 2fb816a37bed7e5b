//! The agents that a caller may use, for requests about all of them.

use std::sync::Arc;

use proto::{AgentId, AgentName};

use crate::{
    Caller, Grant, ProjectAgentName, ProjectAgents,
    identity::{AgentAttributes, Identity},
};

/// The agents that the holder of a credential may use.
#[derive(Debug)]
pub struct CallerAgents {
    /// The rights of the holder for one of the agents, with the requests in flight of the holder.
    pub grant: Arc<Grant>,
    /// The agents. Those of the file are in order of their names, and those of GitLab in order of their ids.
    pub agents: Vec<CallerAgent>,
    /// The reason for which some may be missing.
    pub missing: Option<MissingAgents>,
}

/// The reason for which agents may be missing in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingAgents {
    /// Redis, or another replica, did not respond. A later list may be complete.
    Unreadable(String),
    /// The list has reached a limit. A later list has the same limit.
    Truncated(String),
}

/// An agent that a caller may use.
#[derive(Clone, Debug)]
pub struct CallerAgent {
    /// The id.
    pub id: AgentId,
    /// The name. That of an agent of GitLab is known while it is connected.
    pub name: Option<AgentName>,
    /// The path of the project of an agent of GitLab, if it is known.
    pub project_path: Option<Arc<str>>,
    /// The agent is one of the identity file.
    pub is_of_file: bool,
    /// The rights of the caller for the agent.
    pub caller: Arc<Caller>,
}

impl MissingAgents {
    /// Returns the reason of a list that has these errors.
    pub fn new(unreadable: Option<String>, truncated: Option<String>) -> Option<Self> {
        match (unreadable, truncated) {
            (Some(unreadable), Some(truncated)) => {
                Some(Self::Unreadable(format!("{unreadable}; {truncated}")))
            }
            (Some(unreadable), None) => Some(Self::Unreadable(unreadable)),
            (None, truncated) => truncated.map(Self::Truncated),
        }
    }

    /// Returns the error of Redis or of another replica. A list at its limit has none.
    pub fn unreadable(&self) -> Option<&str> {
        match self {
            Self::Unreadable(error) => Some(error),
            Self::Truncated(_) => None,
        }
    }

    /// Returns the text for people.
    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            Self::Unreadable(text) | Self::Truncated(text) => text,
        }
    }
}

impl CallerAgent {
    /// Returns an agent of GitLab, with its name if it is known.
    pub fn of_gitlab(id: AgentId, known: Option<ProjectAgentName>, caller: Arc<Caller>) -> Self {
        let (name, project_path) = known.map_or((None, None), |known| (Some(known.name), known.project_path));
        Self { id, name, project_path, is_of_file: false, caller }
    }

    /// Returns the agent in a path: its name in the file, or the id of an agent of GitLab, whose name is unique in its project only.
    pub fn path_name(&self) -> String {
        match &self.name {
            Some(name) if self.is_of_file => name.to_string(),
            _ => self.id.to_string(),
        }
    }

    /// Returns the name of an agent of GitLab for people, as entries of the identity file have it after `gitlab:`.
    pub fn title(&self) -> Option<String> {
        let name = self.name.as_ref().filter(|_| !self.is_of_file)?;
        Some(self.project_path.as_ref().map_or_else(|| name.to_string(), |path| format!("{path}:{name}")))
    }

    /// Returns the attributes by which queries select the agent: with its name, also if it is of the file.
    pub fn names(&self) -> AgentAttributes<'_> {
        AgentAttributes { id: self.id, name: self.name.as_ref(), project_path: self.project_path.as_deref() }
    }

    /// Returns the attributes by which settings select the agent.
    pub fn attributes(&self) -> AgentAttributes<'_> {
        let of_gitlab = !self.is_of_file;
        AgentAttributes {
            id: self.id,
            name: self.name.as_ref().filter(|_| of_gitlab),
            project_path: self.project_path.as_deref(),
        }
    }
}

/// Returns the agents that the entry of a caller in the identity file names, and the reason for which some may be missing.
pub async fn agents_of_entry(
    identity: &Identity,
    project_agents: Option<&dyn ProjectAgents>,
    caller: &Arc<Caller>,
) -> (Vec<CallerAgent>, Option<String>) {
    let of_file = identity.agents_of(caller).into_iter().map(|(name, id)| CallerAgent {
        id,
        name: Some(name.clone()),
        project_path: None,
        is_of_file: true,
        caller: Arc::clone(caller),
    });
    let mut agents: Vec<_> = of_file.collect();
    let Some(project_agents) = project_agents.filter(|_| caller.may_use_agents_of_gitlab()) else {
        return (agents, None);
    };
    let list = project_agents.list().await;
    let allowed = list.agents.into_iter().filter(|(id, known)| {
        let (name, project_path) = (Some(&known.name), known.project_path.as_deref());
        identity.name(*id).is_none()
            && caller.may_use_agent_of_gitlab(AgentAttributes { id: *id, name, project_path })
    });
    agents.extend(allowed.map(|(id, known)| CallerAgent::of_gitlab(id, Some(known), Arc::clone(caller))));
    (agents, list.missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_at_its_limit_is_not_unreadable() {
        let text = |text: &str| Some(text.to_owned());
        let truncated = MissingAgents::new(None, text("more than 1000")).unwrap();
        assert_eq!((truncated.unreadable(), &*truncated.clone().into_text()), (None, "more than 1000"));
        let unreadable = MissingAgents::new(text("no Redis"), None).unwrap();
        assert_eq!(unreadable.unreadable(), Some("no Redis"));
        let both = MissingAgents::new(text("no Redis"), text("more than 1000")).unwrap();
        assert_eq!(both.unreadable(), Some("no Redis; more than 1000"));
        assert_eq!(MissingAgents::new(None, None), None);
    }
}
