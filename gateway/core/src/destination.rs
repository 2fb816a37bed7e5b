//! The agent and the service to which a request goes.

use std::{fmt, sync::Arc};

use access::AgentAttributes;
use proto::{AgentId, AgentName, ServiceName};
use router::RequestClass;

/// The destination of a request.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The agent.
    pub agent: AgentId,
    /// The agent's name, or `None` if it is unknown.
    pub name: Option<AgentName>,
    /// The path of the project of an agent of GitLab, if it is known.
    pub project_path: Option<Arc<str>>,
    /// The service of the agent.
    pub service: ServiceName,
    /// The kind of the response: a short one, or a stream that stays open.
    pub class: RequestClass,
}

/// The name of an agent, or its id if the name is unknown, for messages and logs.
#[derive(Clone, Copy, Debug)]
pub struct AgentLabel<'a>(AgentId, Option<&'a AgentName>);

impl Destination {
    /// Returns the attributes by which settings select the agent.
    pub fn attributes(&self) -> AgentAttributes<'_> {
        AgentAttributes {
            id: self.agent,
            name: self.name.as_ref(),
            project_path: self.project_path.as_deref(),
        }
    }

    /// Returns the name of the agent, or its id if the name is unknown, for messages and logs.
    pub fn label(&self) -> AgentLabel<'_> {
        AgentLabel(self.agent, self.name.as_ref())
    }
}

impl fmt::Display for AgentLabel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(id, name) = self;
        match name {
            Some(name) => name.fmt(f),
            None => id.fmt(f),
        }
    }
}
