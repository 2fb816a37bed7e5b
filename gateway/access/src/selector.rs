//! The agent that a setting names.

use std::{fmt, str::FromStr};

use proto::{AgentId, AgentName, notify::is_project_path};
use serde::{Deserialize, Serialize};

use crate::identity::{AgentAttributes, Identity};

/// Names an agent in a setting. Names of GitLab's agents are unique in their project only, so that a name alone is never one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AgentSelector {
    /// The agent with this id.
    Id(AgentId),
    /// The agent of the identity file with this name.
    Name(AgentName),
    /// The agent of GitLab with this name in the project with this path.
    GitLab(Box<str>, AgentName),
}

/// The error of a text that names no agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no agent: write its id, the name of an agent of the identity file, or project/path:name of an agent of GitLab"
)]
pub struct InvalidAgentSelector(String);

impl AgentSelector {
    /// Returns whether the setting names the agent, or `None` if an unknown attribute decides.
    ///
    /// The id decides which agents are those of the identity file: GitLab has none of them.
    pub fn selects(&self, agent: AgentAttributes<'_>, identity: &Identity) -> Option<bool> {
        match self {
            Self::Id(id) => Some(*id == agent.id),
            Self::Name(name) => Some(identity.name(agent.id) == Some(name)),
            Self::GitLab(..) if identity.name(agent.id).is_some() => Some(false),
            Self::GitLab(path, name) => match (agent.name, agent.project_path) {
                (Some(known), _) if known != name => Some(false),
                // GitLab has no two projects whose paths differ in case only.
                (_, Some(known)) if !path.eq_ignore_ascii_case(known) => Some(false),
                (Some(_), Some(_)) => Some(true),
                (None, _) | (_, None) => None,
            },
        }
    }

    /// Returns the name of an agent that the identity file does not have, for warnings.
    pub fn missing_in<'a>(&'a self, identity: &Identity) -> Option<&'a AgentName> {
        match self {
            Self::Name(name) => identity.find(name.as_str()).is_none().then_some(name),
            Self::Id(_) | Self::GitLab(..) => None,
        }
    }
}

impl FromStr for AgentSelector {
    type Err = InvalidAgentSelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // No text is both an id and a name.
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let invalid = || InvalidAgentSelector(text.chars().take(100).collect());
        match text.rsplit_once(':') {
            None => text.parse().map(Self::Name).map_err(|_| invalid()),
            Some((path, name)) if is_project_path(path) => {
                name.parse().map(|name| Self::GitLab(path.into(), name)).map_err(|_| invalid())
            }
            Some(_) => Err(invalid()),
        }
    }
}

impl TryFrom<String> for AgentSelector {
    type Error = InvalidAgentSelector;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AgentSelector> for String {
    fn from(selector: AgentSelector) -> Self {
        selector.to_string()
    }
}

impl fmt::Display for AgentSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::GitLab(path, name) => write!(f, "{path}:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// An agent: its id, its name and the path of its project.
    type Agent = (u64, Option<&'static str>, Option<&'static str>);

    /// The agent `prod` of the identity file.
    const OURS: Agent = (1, Some("prod"), None);
    /// Agents of GitLab with the same name.
    const SHOP: Agent = (50, Some("prod"), Some("shop/web"));
    const OTHER: Agent = (51, Some("prod"), Some("evil/web"));
    /// Agents of GitLab of which some attributes are unknown.
    const UNKNOWN: Agent = (52, None, None);
    const NO_PATH: Agent = (53, Some("prod"), None);

    #[test]
    fn setting_selects_by_id_by_name_in_the_file_or_by_project_and_name() {
        let identity = "agents: [{id: 1, name: prod, tokens: []}, {id: 2, name: test, tokens: []}]";
        let identity = Identity::parse(Path::new("identity.yaml"), identity).unwrap();
        for (selector, agent, expected) in [
            ("1", OURS, Some(true)),
            ("50", OURS, Some(false)),
            ("50", SHOP, Some(true)),
            ("52", UNKNOWN, Some(true)),
            ("prod", OURS, Some(true)),
            ("test", OURS, Some(false)),
            // A project of GitLab can have an agent with any name.
            ("prod", SHOP, Some(false)),
            ("prod", OTHER, Some(false)),
            ("prod", UNKNOWN, Some(false)),
            ("prod", NO_PATH, Some(false)),
            ("shop/web:prod", SHOP, Some(true)),
            ("Shop/Web:prod", SHOP, Some(true)),
            ("shop/web:prod", OTHER, Some(false)),
            ("shop/web:test", SHOP, Some(false)),
            ("shop:prod", SHOP, Some(false)),
            // The name of the file's agent is in no project.
            ("shop/web:prod", OURS, Some(false)),
            ("shop/web:prod", (1, Some("prod"), Some("shop/web")), Some(false)),
            ("shop/web:prod", UNKNOWN, None),
            ("shop/web:prod", NO_PATH, None),
            ("shop/web:test", NO_PATH, Some(false)),
            ("shop/web:prod", (52, None, Some("evil/web")), Some(false)),
        ] {
            let (id, name, project_path) = agent;
            let name: Option<AgentName> = name.map(|name| name.parse().unwrap());
            let agent = AgentAttributes { id: AgentId(id), name: name.as_ref(), project_path };
            let parsed: AgentSelector = selector.parse().unwrap();
            assert_eq!(parsed.selects(agent, &identity), expected, "{selector} {agent:?}");
            assert_eq!(parsed.to_string(), selector);
        }
    }

    #[test]
    fn text_that_names_no_agent_is_refused() {
        for text in
            ["", "07", "-1", "Prod", "a b", ":prod", "shop/web:", "shop/web:7", "shop web:prod", "a:b:c"]
        {
            let error = text.parse::<AgentSelector>().unwrap_err().to_string();
            assert!(error.contains("names no agent: write its id"), "{error}");
        }
    }
}
