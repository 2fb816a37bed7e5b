//! The agents that the holder of a session may use: those of the identity file that its entry names, and those of GitLab.

use std::{collections::BTreeMap, net::IpAddr};

use access::{AgentAttributes, Caller, Grant, ProjectAgentName, RequestError, UserAgent, UserAgents};
use proto::{AgentId, ServiceName, Verb};
use secrecy::SecretString;

use crate::login::Logins;

/// The services that the list reports.
const SERVICES: [&str; 4] =
    [ServiceName::GITOPS, ServiceName::GRAPH, ServiceName::KUBERNETES, ServiceName::PROMETHEUS];

/// The agents of a caller.
#[derive(Debug)]
pub(super) struct CallerAgents {
    /// The agents of the file in order of their names, then those of GitLab in order of their ids.
    pub(super) agents: Vec<CallerAgent>,
    /// The reason for which some may be missing.
    pub(super) missing: Option<String>,
}

/// An agent that a caller may use.
#[derive(Debug)]
pub(super) struct CallerAgent {
    pub(super) id: AgentId,
    /// The agent in a path: its name in the file, or the id of an agent of GitLab, whose name is unique in its project only.
    pub(super) name: String,
    /// The name of an agent of GitLab, and the path of its project.
    pub(super) of_gitlab: Option<ProjectAgentName>,
    /// The services that the caller may use, each with its verbs.
    pub(super) rights: BTreeMap<&'static str, Vec<Verb>>,
}

impl CallerAgents {
    /// Returns the agent that a path names.
    pub(super) fn find(&self, name: &str) -> Option<&CallerAgent> {
        let id = name.parse().ok();
        self.agents.iter().find(|agent| agent.name == name || Some(agent.id) == id)
    }

    /// Returns whether the caller may use an agent.
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
    ) -> Result<CallerAgents, RequestError> {
        if let Some(UserAgents { agents, missing }) = self.users.agents(token, client).await? {
            let agents = agents
                .into_iter()
                .map(|UserAgent { id, name, caller }| CallerAgent::of_gitlab(id, name, &caller));
            return Ok(CallerAgents { agents: agents.collect(), missing });
        }
        let caller = &*grant.caller;
        let identity = self.identities.load_full();
        let of_file = identity.agents_of(caller).into_iter();
        let mut agents: Vec<_> = of_file
            .map(|(name, id)| CallerAgent {
                id,
                name: name.to_string(),
                of_gitlab: None,
                rights: rights(caller),
            })
            .collect();
        let mut missing = None;
        if caller.may_use_agents_of_gitlab()
            && let Some(project_agents) = &self.project_agents
        {
            let list = project_agents.list().await;
            missing = list.missing;
            let allowed = list.agents.into_iter().filter(|(id, known)| {
                let (name, project_path) = (Some(&known.name), known.project_path.as_deref());
                identity.name(*id).is_none()
                    && caller.may_use_agent_of_gitlab(AgentAttributes { id: *id, name, project_path })
            });
            agents.extend(allowed.map(|(id, known)| CallerAgent::of_gitlab(id, known, caller)));
        }
        Ok(CallerAgents { agents, missing })
    }
}

impl CallerAgent {
    fn of_gitlab(id: AgentId, name: ProjectAgentName, caller: &Caller) -> Self {
        Self { id, name: id.to_string(), of_gitlab: Some(name), rights: rights(caller) }
    }

    /// Returns the name of an agent of GitLab for people, as entries of the identity file have it after `gitlab:`.
    pub(super) fn title(&self) -> Option<String> {
        let ProjectAgentName { name, project_path } = self.of_gitlab.as_ref()?;
        Some(project_path.as_ref().map_or_else(|| name.to_string(), |path| format!("{path}:{name}")))
    }

    /// Returns the attributes by which rules select the agent.
    pub(super) fn attributes(&self) -> AgentAttributes<'_> {
        let known = self.of_gitlab.as_ref();
        AgentAttributes {
            id: self.id,
            name: known.map(|known| &known.name),
            project_path: known.and_then(|known| known.project_path.as_deref()),
        }
    }
}

fn rights(caller: &Caller) -> BTreeMap<&'static str, Vec<Verb>> {
    let rights = SERVICES.into_iter().filter_map(|name| {
        let service: ServiceName = name.parse().ok()?;
        let verbs: Vec<_> =
            service.verbs().iter().copied().filter(|verb| caller.may(&service, *verb)).collect();
        (!verbs.is_empty()).then_some((name, verbs))
    });
    rights.collect()
}
