//! The agents of GitLab that an entry of the identity file names.

use std::str::FromStr;

use proto::{
    AgentId, AgentName,
    notify::{is_at_or_below, is_project_path},
};

use super::AgentAttributes;

/// One or more agents of GitLab, as `agents` of a caller names them after `gitlab:`. Names of GitLab's agents are unique in their project
/// only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GitLabAgents {
    /// `**`: all of them.
    All,
    /// `42`
    Id(AgentId),
    /// `group/project:name`
    Named(Box<str>, AgentName),
    /// `group/**`: those of all projects in the group and in its subgroups, or `group/project/**`: those of a project.
    Below(Box<str>),
}

/// The error of a text that names no agents of GitLab.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} names no agents of GitLab: write gitlab:42 with an id, gitlab:group/project:name, gitlab:group/** or gitlab:**"
)]
pub(super) struct InvalidGitLabAgents(String);

impl GitLabAgents {
    /// The beginning of a text that names agents of GitLab.
    pub(super) const PREFIX: &str = "gitlab:";

    /// Returns whether the agent, which is one of GitLab, is one of these. An agent whose name or project is unknown is none of those that
    /// are found by it.
    pub(super) fn contain(&self, agent: AgentAttributes<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Id(id) => *id == agent.id,
            Self::Named(path, name) => {
                // GitLab has no two projects whose paths differ in case only.
                agent.name == Some(name)
                    && agent.project_path.is_some_and(|known| known.eq_ignore_ascii_case(path))
            }
            Self::Below(path) => agent.project_path.is_some_and(|known| is_at_or_below(known, path)),
        }
    }

    /// Returns the same, or `None` if an unknown attribute decides.
    fn contain_if_known(&self, agent: AgentAttributes<'_>) -> Option<bool> {
        let is_known = match self {
            Self::All | Self::Id(_) => true,
            Self::Named(..) => agent.name.is_some() && agent.project_path.is_some(),
            Self::Below(_) => agent.project_path.is_some(),
        };
        is_known.then(|| self.contain(agent))
    }
}

/// Returns whether an agent, which is one of GitLab, is one of these, or `None` if an unknown attribute decides.
pub(super) fn any_contains<'a>(
    agents: impl IntoIterator<Item = &'a GitLabAgents>,
    agent: AgentAttributes<'_>,
) -> Option<bool> {
    let mut result = Some(false);
    for some in agents {
        match some.contain_if_known(agent) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => result = None,
        }
    }
    result
}

impl FromStr for GitLabAgents {
    type Err = InvalidGitLabAgents;

    /// Parses the text after `gitlab:`.
    fn from_str(text: &str) -> Result<Self, InvalidGitLabAgents> {
        let invalid = || InvalidGitLabAgents(format!("{}{text}", Self::PREFIX));
        if text == "**" {
            return Ok(Self::All);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        if let Some(path) = text.strip_suffix("/**") {
            return if is_project_path(path) { Ok(Self::Below(path.into())) } else { Err(invalid()) };
        }
        match text.rsplit_once(':') {
            Some((path, name)) if is_project_path(path) => {
                name.parse().map(|name| Self::Named(path.into(), name)).map_err(|_| invalid())
            }
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_found_by_id_by_name_or_by_group() {
        let agent = |id, name: Option<&str>, project_path: Option<&'static str>| {
            let name: Option<AgentName> = name.map(|name| name.parse().unwrap());
            (AgentId(id), name, project_path)
        };
        let known = agent(50, Some("prod"), Some("shop/web"));
        let nested = agent(51, Some("prod"), Some("shop/eu/web"));
        let other = agent(52, Some("prod"), Some("shopping/web"));
        let nameless = agent(53, None, Some("shop/web"));
        let unknown = agent(54, None, None);
        for (text, expected) in [
            ("**", [true; 5]),
            ("50", [true, false, false, false, false]),
            ("54", [false, false, false, false, true]),
            ("shop/web:prod", [true, false, false, false, false]),
            ("Shop/WEB:prod", [true, false, false, false, false]),
            ("shop/web:test", [false; 5]),
            ("shop/**", [true, true, false, true, false]),
            ("SHOP/**", [true, true, false, true, false]),
            ("shop/web/**", [true, false, false, true, false]),
            ("shop/eu/**", [false, true, false, false, false]),
            ("sho/**", [false; 5]),
        ] {
            let agents: GitLabAgents = text.parse().unwrap();
            let found = [&known, &nested, &other, &nameless, &unknown].map(|(id, name, project_path)| {
                agents.contain(AgentAttributes { id: *id, name: name.as_ref(), project_path: *project_path })
            });
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn agent_without_known_names_is_decided_by_its_id_alone() {
        let agent = AgentAttributes { id: AgentId(50), name: None, project_path: None };
        for (texts, expected) in [
            (&["51", "50"][..], Some(true)),
            (&["shop/**", "50"], Some(true)),
            (&["shop/web:prod", "**"], Some(true)),
            (&["51", "52"], Some(false)),
            (&[], Some(false)),
            (&["51", "shop/**"], None),
            (&["shop/web:prod"], None),
        ] {
            let agents: Vec<GitLabAgents> = texts.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(any_contains(&agents, agent), expected, "{texts:?}");
        }
    }

    #[test]
    fn text_without_agents_of_gitlab_is_refused() {
        for text in ["", "*", "prod", "shop/web", "shop/*", "/**", "shop/**/web", "07", "shop/web:", "a b/**"]
        {
            let error = text.parse::<GitLabAgents>().unwrap_err().to_string();
            assert!(error.contains("names no agents of GitLab: write gitlab:42"), "{text}: {error}");
        }
    }
}
