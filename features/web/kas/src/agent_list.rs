//! The agents that the holder of a session may use: those of the identity file that its entry names, and those of GitLab.

use std::{net::IpAddr, sync::Arc};

use access::{CallerAgent, Grant, MissingAgents, RequestError, UserAgent, UserAgents, agents_of_entry};
use proto::{AgentId, ServiceName};
use secrecy::SecretString;

use crate::login::Logins;

/// The services that the list reports.
pub(super) const SERVICES: [&str; 5] = [
    ServiceName::AUDIT,
    ServiceName::GITOPS,
    ServiceName::GRAPH,
    ServiceName::KUBERNETES,
    ServiceName::PROMETHEUS,
];

/// The agents of the holder of a session.
#[derive(Debug)]
pub(super) struct SessionAgents {
    /// The agents of the file in order of their names, then those of GitLab in order of their ids.
    pub(super) agents: Vec<CallerAgent>,
    /// The reason for which some may be missing.
    pub(super) missing: Option<String>,
}

impl SessionAgents {
    /// Returns the agent that a path names.
    pub(super) fn find(&self, name: &str) -> Option<&CallerAgent> {
        let id = name.parse().ok();
        self.agents.iter().find(|agent| Some(agent.id) == id || agent.path_name() == name)
    }

    /// Returns whether the holder may use an agent.
    pub(super) fn contains(&self, id: AgentId) -> bool {
        self.agents.iter().any(|agent| agent.id == id)
    }
}

impl Logins {
    /// Returns the agents of the holder of a token with these rights.
    ///
    /// # Errors
    ///
    /// The source of the token does not answer, or refuses the token now.
    pub(super) async fn agents_of(
        &self,
        token: &SecretString,
        grant: &Grant,
        client: IpAddr,
    ) -> Result<SessionAgents, RequestError> {
        if let Some(UserAgents { agents, missing }) = self.users.agents(token, client).await? {
            let agents = agents.into_iter().map(|UserAgent { id, name, caller }| {
                CallerAgent::of_gitlab(id, Some(name), Arc::new(caller))
            });
            let missing = missing.map(MissingAgents::into_text);
            return Ok(SessionAgents { agents: agents.collect(), missing });
        }
        let identity = self.identities.load_full();
        let (agents, missing) =
            agents_of_entry(&identity, self.project_agents.as_deref(), &grant.caller).await;
        Ok(SessionAgents { agents, missing })
    }
}
